"""Reading: scans, snapshots, logs and changes as Arrow data."""
