"""Compare all engines in one table at equal recall."""
