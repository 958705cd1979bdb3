"""Search pictures by sentences, and sentences by pictures, on an inverted index."""

__version__ = "0.1.0"
