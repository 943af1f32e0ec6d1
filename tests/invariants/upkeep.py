"""Options that compact lake tables and expire their snapshots often."""

from __future__ import annotations

UPKEEP = {
    "paimon": {
        "paimon.snapshot.num-retained.min": "2",
        "paimon.snapshot.num-retained.max": "4",
        "paimon.num-sorted-run.compaction-trigger": "3",
    },
    "iceberg": {
        "iceberg.history.expire.max-snapshot-age-ms": "2000",
        "iceberg.history.expire.min-snapshots-to-keep": "2",
    },
}
