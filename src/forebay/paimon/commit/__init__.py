"""Commits: from written files to one snapshot, also if other writers commit at the same time."""
