"""Evaluation of indexes: metrics and verification."""
