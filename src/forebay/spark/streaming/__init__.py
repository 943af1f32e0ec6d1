"""Streaming reads: the stream reader that Spark calls, and the planner of micro-batches of each side."""
