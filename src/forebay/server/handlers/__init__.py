"""One module per API family; importing this package registers all handlers.

`request_filters` is a part that two of them share.
"""

from forebay.server.handlers import (
    cluster,
    databases,
    describe,
    fetch,
    lake,
    lookups,
    offsets,
    producer_offsets,
    remote_storage,
    scans,
    staging,
    table_snapshots,
    tables,
    writes,
)

__all__ = [
    "cluster",
    "databases",
    "describe",
    "fetch",
    "lake",
    "lookups",
    "offsets",
    "producer_offsets",
    "remote_storage",
    "scans",
    "staging",
    "table_snapshots",
    "tables",
    "writes",
]
