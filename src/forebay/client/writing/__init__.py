"""Writing: from Arrow data to acknowledged batches."""
