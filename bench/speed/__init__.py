"""Measure the speed of single parts."""
