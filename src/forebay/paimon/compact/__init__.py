"""Compaction: what is due, its tasks, and the rewriting of files."""
