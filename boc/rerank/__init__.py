"""Scores of candidates by their dense vectors or concept sets."""
