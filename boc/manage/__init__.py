"""Operations on whole indexes: make, add to, sync, delete, copy, attach to documents of other
programs, and find duplicates."""
