"""Codes of others, in the place of ours in the same table: bench/rivals/compare.py."""
