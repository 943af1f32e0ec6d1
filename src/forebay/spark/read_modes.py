"""The ways in which the rows of a scan reach Spark, and the four switches that allow them.

| mode | who reads | switch |
|---|---|---|
| `ROWS` | Python workers, which give Spark rows | none: every scan can be read so |
| `COLUMNS` | Python workers, which give Spark Arrow columns | `read.columnar` (default: true) |
| `DIRECT` | executors, which read logs and buckets from the servers | `read.direct` (default: true) |
| `FILES` | Spark's own reader of Parquet files, which reads files of the lake | `read.native` (default: true) |
| `BUCKETS` | as above, but each task reads a whole bucket and reports it | `read.by-bucket` (default: false) |

The options of a read, over those of the session, say which modes are allowed (`allowed_modes`). The scan decides among
these: its builder between `BUCKETS`, `FILES` and tasks (forebay.spark.reading.scan_builder), and for its tasks
`forebay.spark.reading.task_readers.task_mode` between `DIRECT`, `COLUMNS` and `ROWS`. `FILES` may have tasks beside
them, for rows that are not in plain files.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Flag, auto

READ_NATIVE = "read.native"
READ_BY_BUCKET = "read.by-bucket"
READ_COLUMNAR = "read.columnar"
READ_DIRECT = "read.direct"


class ReadMode(Flag):
    """A way in which rows reach Spark, or the union of several that are allowed. Picklable."""

    ROWS = auto()
    COLUMNS = auto()
    DIRECT = auto()
    FILES = auto()
    BUCKETS = auto()


SWITCHES = {
    READ_NATIVE: ReadMode.FILES,
    READ_BY_BUCKET: ReadMode.BUCKETS,
    READ_COLUMNAR: ReadMode.COLUMNS,
    READ_DIRECT: ReadMode.DIRECT,
}
"""The modes by the options that switch them on and off."""

DEFAULT_MODES = ReadMode.ROWS | ReadMode.COLUMNS | ReadMode.DIRECT | ReadMode.FILES


def allowed_modes(switches: Mapping[str, bool | None]) -> ReadMode:
    """The modes that `switches` allow: values of options by name. A missing option has its default."""
    allowed = DEFAULT_MODES
    for name, value in switches.items():
        if value is not None:
            allowed = allowed | SWITCHES[name] if value else allowed & ~SWITCHES[name]
    return allowed


def switch_of(mode: ReadMode) -> str:
    """The option that enables `mode`. Raises `KeyError` for `ROWS`, which have none."""
    return {switched: name for name, switched in SWITCHES.items()}[mode]
