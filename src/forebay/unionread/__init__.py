"""Lake snapshot and log tail as one: a table at one instant, as Arrow batches."""
