"""Explain hits by the terms that contribute to a score and by the nearest region of each word."""
