"""Batch reads: what Spark pushes down, the plan of each side, and what workers run."""
