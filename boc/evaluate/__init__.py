"""How good an index is and what it takes: metrics, tuning, verification, capacity."""
