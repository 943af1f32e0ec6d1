"""Batches of keys and values, and the newest row of each key."""
