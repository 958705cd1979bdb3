"""Codes by other authors. bench/rivals/compare.py compares them with the codes of boc."""
