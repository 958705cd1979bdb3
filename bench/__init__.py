"""Benchmarks: ``python -m bench.run`` runs all of them."""
