"""Work that a server does by the clock: partitions are created and dropped, logs expire."""
