"""Data sets with pinned checksums and one cache, and safe loaders for what the user brings."""
