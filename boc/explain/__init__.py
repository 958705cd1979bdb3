"""Explain hits by the terms behind a score and the region closest to each word."""
