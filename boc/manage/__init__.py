"""Operations on whole indexes: make, add, sync, delete, copy, attach to documents of others, find
duplicates."""
