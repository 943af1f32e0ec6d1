"""The servers of a cluster: channels to them, what they serve, and where requests go."""
