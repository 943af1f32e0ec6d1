"""Databases, tables and partitions: their rules, and the store that keeps them."""
