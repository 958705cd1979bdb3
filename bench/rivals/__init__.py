"""Codes by other authors, compared with the codes of boc in bench/rivals/compare.py."""
