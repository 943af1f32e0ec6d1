"""Flow control: memory, fair turns, limits of a request, and write queues."""
