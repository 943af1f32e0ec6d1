"""Options of a write: Paimon's, for this write alone, and a few of Spark's and of ours."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from forebay.base.arguments import did_you_mean
from forebay.base.errors import InvalidRequest
from forebay.base.quantity import parse_bool
from forebay.paimon.option_names import KNOWN
from forebay.paimon.table import Table

SINK_PARALLELISM = "sink.parallelism"
PROGRESS = "sink.progress"
DYNAMIC_OVERWRITE = "dynamic-partition-overwrite"
SINK_STRATEGY = "partition.sink-strategy"
COMPACTION_PARALLELISM = "unaware-bucket.compaction.parallelism"

_OWN = (PROGRESS,)
_OF_SPARK = ("checkpointlocation", "path", "queryname", "outputmode", "provider", "table", "mergeschema")
"""Options that Spark passes on to tables, in lower case; they say nothing about the write."""
_FIXED = (
    "bucket", "bucket-key", "primary-key", "partition", "merge-engine", "sequence.field", "rowkind.field", "type",
)  # fmt: skip
"""What all writers and readers of a table must agree on is changed with ALTER TABLE."""


@dataclass(frozen=True)
class LakeWriteOptions:
    """The options of a write. `paimon` are Paimon's options for it."""

    paimon: Mapping[str, str]
    shows_progress: bool = False

    @property
    def dynamic_overwrite(self) -> bool | None:
        """Whether an overwrite replaces the partitions it writes to; None if this write was not told."""
        text = self.paimon.get(DYNAMIC_OVERWRITE)
        return None if text is None else _flag(DYNAMIC_OVERWRITE, text)


def write_options(name: str, table: Table, given: Mapping[str, str]) -> LakeWriteOptions:
    """The options of a write to `name`. Raises `InvalidRequest` for unknown ones, and for what only ALTER may change.

    What the table says, too, may be repeated: CREATE TABLE AS SELECT passes the new table's properties on.
    """
    own = {
        **table.schema.options,
        "primary-key": ",".join(table.schema.primary_keys),
        "partition": ",".join(table.schema.partition_keys),
    }
    by_case = {known.lower(): known for known in (*KNOWN, *_OWN)}
    found: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() in _OF_SPARK or own.get(key) == value:
            continue
        known_as = by_case.get(key.lower(), key if key.startswith("fields.") else None)
        if known_as is None:
            raise InvalidRequest(
                f"writing to {name}: there is no write option '{key}'{did_you_mean(key, by_case.values())}"
            )
        if known_as in _FIXED:
            raise InvalidRequest(
                f"writing to {name}: '{known_as}' is a property of the table, which one write cannot have of its own; "
                "change it with ALTER TABLE ... SET TBLPROPERTIES"
            )
        found[known_as] = value
    progress = found.pop(PROGRESS, "false")
    return LakeWriteOptions(found, _flag(PROGRESS, progress))


_derived: weakref.WeakKeyDictionary[Table, dict[tuple[tuple[str, str], ...], Table]] = weakref.WeakKeyDictionary()


def with_write_options(table: Table, options: LakeWriteOptions) -> Table:
    """`table` under the options of a write; the same object for the same table and options.

    A streaming query asks for every micro-batch, and shall see the table as it was when the query began.
    """
    if not options.paimon:
        return table
    made = _derived.setdefault(table, {})
    key = tuple(sorted(options.paimon.items()))
    if key not in made:
        made[key] = table.with_options(options.paimon)
    return made[key]


def dynamic_overwrite(options: LakeWriteOptions, table: Table) -> bool:
    """Whether `INSERT OVERWRITE` without a partition replaces only partitions that it writes to.

    Only if write or table say so: Spark's own switch is spark.sql.sources.partitionOverwriteMode, and it is off.
    """
    said = options.dynamic_overwrite
    if said is None:
        text = table.schema.options.get(DYNAMIC_OVERWRITE)
        said = text is not None and _flag(DYNAMIC_OVERWRITE, text)
    return said and bool(table.schema.partition_keys)


def sink_parallelism(table: Table) -> int | None:
    """Tasks that write, by option `sink.parallelism`; None if it is not set."""
    text = table.schema.options.get(SINK_PARALLELISM)
    return None if text is None else positive(SINK_PARALLELISM, text)


def positive(name: str, text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise InvalidRequest(f"option '{name}' is {text!r}: write a number of tasks, 1 or more")
    return int(text)


def _flag(name: str, text: str) -> bool:
    try:
        return parse_bool(text)
    except ValueError as e:
        raise InvalidRequest(f"option '{name}' is {text!r}: write true or false") from e
