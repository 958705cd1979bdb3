"""Bringing an index in line with the files that it was made from."""
