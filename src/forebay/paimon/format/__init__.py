"""The bytes of Paimon's own files: snapshots, schemas, manifests, rows, deletion vectors."""
