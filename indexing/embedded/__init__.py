"""Search posting lists in the memory-mapped files of a folder."""
