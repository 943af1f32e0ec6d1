"""Connections: bytes in, requests dispatched, answers out."""
