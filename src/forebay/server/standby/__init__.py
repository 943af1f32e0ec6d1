"""A process that follows the server of a store: until it takes over, it may serve reads of what it has repeated."""
