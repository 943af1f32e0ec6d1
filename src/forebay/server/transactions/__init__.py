"""Transactions: staged rows that become visible together, once."""
