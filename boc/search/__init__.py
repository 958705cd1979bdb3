"""Searching an index."""
