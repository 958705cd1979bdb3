"""Evaluation of indexes: metrics, tuning, verification."""
