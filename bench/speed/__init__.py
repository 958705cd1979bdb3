"""Benchmarks that measure the speed of boc without comparing it with other engines."""
