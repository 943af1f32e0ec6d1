"""Buckets on this server: their logs and states, opened, written, retained, dropped."""
