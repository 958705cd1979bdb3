"""Evaluate and verify indexes."""
