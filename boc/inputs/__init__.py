"""Files to arrays: where items come from, pictures, features, metadata, extraction."""
