"""Groups of vectors: k-means, centroids searched by cells, codebooks and what their terms stand for."""
