"""System tables: a table's snapshots, files, tags and options as tables."""
