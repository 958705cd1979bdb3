"""Engines that hold posting lists: one module a kind, each with ``connect(url) -> Backend``."""
