"""Explanations: the terms behind a score, and the region that each word is closest to."""
