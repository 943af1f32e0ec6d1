"""The lake as the server knows it: lake tables, snapshots, and the scheduling of tiering."""
