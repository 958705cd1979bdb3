"""Build, extend, sync, copy, attach and delete indexes, and find duplicates."""
