"""Streaming reads: the shell that faces Spark, and how each side plans micro-batches."""
