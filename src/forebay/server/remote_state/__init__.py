"""Key-value state in the store: snapshots of it, made from checkpoints, from which a new machine begins."""
