"""Closed log segments in the store: copied there, listed, read, and deleted (docs/format/remote_log.md)."""
