"""Scan modes, and the rows that a stream in each mode reads."""

from __future__ import annotations

from forebay.base.ambient import ManualClock
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.table import Table
from tests.paimon.lake import put
from tests.paimon.stream.model import COLUMNS

START = 1_700_000_000_000


def filled(catalog: FileSystemCatalog, clock: ManualClock, commits: int = 4, **options: str) -> Table:
    """An append table with rows 1, 2, ... in snapshots of the same number, ten seconds apart."""
    table = catalog.create_table("db.t", COLUMNS, options=options)
    for i in range(1, commits + 1):
        put(table, [{"id": i}])
        clock.advance(10)
    return table


AT_3 = START + 20_000

STREAMS: dict[str, tuple[dict[str, str], list[int]]] = {
    "default": ({}, [1, 2, 3, 4]),
    "latest-full": ({"scan.mode": "latest-full"}, [1, 2, 3, 4]),
    "full": ({"scan.mode": "full"}, [1, 2, 3, 4]),
    "latest": ({"scan.mode": "latest"}, []),
    "from a snapshot": ({"scan.mode": "from-snapshot", "scan.snapshot-id": "3"}, [3, 4]),
    "from a snapshot, unsaid": ({"scan.snapshot-id": "4"}, [4]),
    "from a snapshot before the first": ({"scan.snapshot-id": "0"}, [1, 2, 3, 4]),
    "from the next snapshot": ({"scan.snapshot-id": "5"}, []),
    "from the latest snapshot in full": ({"scan.mode": "from-snapshot-full", "scan.snapshot-id": "4"}, [1, 2, 3, 4]),
    "from a snapshot in full": ({"scan.mode": "from-snapshot-full", "scan.snapshot-id": "3"}, [1, 2, 3, 4]),
    "from a timestamp": ({"scan.mode": "from-timestamp", "scan.timestamp-millis": str(AT_3)}, [3, 4]),
    "from the first timestamp": ({"scan.timestamp-millis": str(START)}, [1, 2, 3, 4]),
    "from just after a timestamp": ({"scan.timestamp-millis": str(AT_3 + 1)}, [4]),
    "from a timestamp before all": ({"scan.timestamp-millis": "5"}, [1, 2, 3, 4]),
    "from a timestamp after all": ({"scan.timestamp-millis": str(AT_3 * 2)}, []),
    "from a file's creation": ({"scan.file-creation-time-millis": str(AT_3)}, [3, 4]),
    "from a creation": ({"scan.creation-time-millis": str(AT_3)}, [3, 4]),
    "compacted-full": ({"scan.mode": "compacted-full"}, [1, 2, 3, 4]),
}
