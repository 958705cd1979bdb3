"""Encoders of images and sentences; the only package that imports torch."""
