"""Encoders for pictures and sentences. This is the only installed package that imports torch."""
