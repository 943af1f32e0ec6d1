"""Writes, batch and streaming: the shell that faces Spark, what workers run, commits and compaction."""
