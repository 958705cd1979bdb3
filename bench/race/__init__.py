"""Every engine in one table at equal recall."""
