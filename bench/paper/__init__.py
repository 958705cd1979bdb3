"""Reproduce tables and figures of the papers, with further measurements."""
