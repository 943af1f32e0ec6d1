"""Memory of a union read, in a separate process: prints the maximum growth in bytes, as one line of JSON.

`python -m benchmarks.union_memory BOOTSTRAP TABLE ROWS`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forebay
from benchmarks.running import highest_memory
from benchmarks.union_work import read_union
from forebay.client.table import Table


def peak_bytes(bootstrap: str, table: Table, rows: int) -> int:
    """The maximum growth of the memory of a fresh process while it reads the table batch by batch."""
    command = [sys.executable, "-m", "benchmarks.union_memory", bootstrap, str(table.path), str(rows)]
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"reading {rows} rows failed: {done.stderr[-2000:]}")
    return int(json.loads(done.stdout.splitlines()[-1])["bytes"])


def main() -> None:
    bootstrap, name, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with forebay.connect(bootstrap) as connection:
        table = connection.table(name)
        table.scan(limit=10, source="union").to_arrow()  # one-time loading is not memory of the read
        with highest_memory(os.getpid()) as growth:
            read_union(table, rows)
    print(json.dumps({"bytes": growth[0]}))


if __name__ == "__main__":
    main()
