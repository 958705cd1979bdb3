"""Cluster vectors: k-means, nearest-centroid search, codebooks and term labels."""
