"""A separate client process that scans a table as a stream, for measuring its memory: prints one line of JSON.

`python -m benchmarks.scan_client BOOTSTRAP TABLE`
"""

from __future__ import annotations

import json
import os
import sys

import forebay
from benchmarks.running import highest_memory


def main() -> None:
    bootstrap, name = sys.argv[1:]
    with forebay.connect(bootstrap) as connection:
        table = connection.table(name)
        rows = 0
        with table.scan(limit=1).reader() as scan:  # one-time imports and opening are not memory of the scan
            rows = sum(batch.num_rows for batch in scan)
        with highest_memory(os.getpid()) as growth, table.scan().reader() as scan:
            rows = sum(batch.num_rows for batch in scan)
    print(json.dumps({"rows": rows, "bytes": growth[0]}))


if __name__ == "__main__":
    main()
