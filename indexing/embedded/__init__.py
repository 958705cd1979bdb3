"""The embedded engine: posting lists in memory-mapped files of a folder."""
