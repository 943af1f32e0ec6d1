"""Writes: from rows to files by way of buckets, buffers and flushes."""
