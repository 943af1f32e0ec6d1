"""Data files: written, read, and pruned by statistics."""
