"""Reads: which files a snapshot has, which of them a filter prunes, their rows, and changes and streams."""
