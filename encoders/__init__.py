"""Encoders of pictures and sentences. No other package imports torch."""
