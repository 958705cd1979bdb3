"""Search an index."""
