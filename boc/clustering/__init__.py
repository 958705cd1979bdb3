"""Clustering of vectors: k-means, search for the nearest centroids, codebooks, and labels of
terms."""
