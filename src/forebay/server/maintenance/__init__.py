"""What a server does by the clock: partitions that come and go, logs that expire."""
