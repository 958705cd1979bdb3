"""Read sources of items, pictures, feature files and metadata, and extract features."""
