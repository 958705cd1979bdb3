"""Make, extend, sync, delete, copy and attach indexes, and find duplicates."""
