"""Convert published data to files that boc and the benchmarks read."""
