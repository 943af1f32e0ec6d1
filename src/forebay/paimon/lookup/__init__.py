"""Lookups: rows by their keys."""
