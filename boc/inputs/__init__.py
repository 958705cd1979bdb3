"""Inputs: sources of items, pictures, feature files, metadata, and extraction."""
