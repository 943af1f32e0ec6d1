"""Rows by their keys."""
