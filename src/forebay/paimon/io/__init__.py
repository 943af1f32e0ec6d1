"""The files of a warehouse, local and remote."""
