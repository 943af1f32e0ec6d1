"""The journal of a server with a store: what happens is noted, uploaded in order, and repeated by another server."""
