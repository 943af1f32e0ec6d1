"""What live tables and lake tables have in common for users: scans, filters, schemas, changes (docs/api.md).

Nothing here knows of a server or of a lake. `forebay.client` and `forebay.paimon` stand on it, so that one word means
one thing on both sides.
"""
