"""What is done with whole indexes: make, add to, copy, export, attach to documents of others, find duplicates."""
