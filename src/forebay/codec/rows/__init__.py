"""Rows as bytes: the formats of rows and keys, and kernels between them and Arrow."""
