"""Log batches: built, read, checked, and their statistics."""
