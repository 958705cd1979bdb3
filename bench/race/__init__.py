"""Benchmarks that compare engines at equal recall."""
