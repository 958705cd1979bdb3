"""Published data as files that boc and the benchmarks read."""
