"""The vocabulary that live and lake tables share: scans, filters, schemas, changes (docs/api.md).

Nothing here depends on a server or a lake. `forebay.client` and `forebay.paimon` build on it, so that terms mean the
same on both sides.
"""
