"""The speed of single parts."""
