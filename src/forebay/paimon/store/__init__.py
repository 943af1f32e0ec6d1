"""The files that describe a table: snapshots, schemas, manifests, tags, branches, consumers."""
