"""Codes by other authors, in the same table as the codes of boc: bench/rivals/compare.py."""
