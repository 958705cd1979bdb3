"""Engines that hold posting lists: one module per kind, each with ``connect(url) -> Backend``."""
