"""The `table.*` options that Fluss knows: names, value types, defaults, and which of them Forebay serves.

Option names and defaults are those of Apache Fluss (`ConfigOptions`), so its documentation applies. An option that
Fluss has and Forebay does not serve yet is refused by `unserved_option`, by name; an unknown one is a separate
error, as in Fluss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.base.options import Option, boolean, by_name, integer, milliseconds, one_of

TABLE_PREFIX = "table."


class LogFormat(Enum):
    """The format of records in log batches (`table.log.format`)."""

    ARROW = "ARROW"
    INDEXED = "INDEXED"
    COMPACTED = "COMPACTED"


class KvFormat(Enum):
    """The format of rows in the key-value state (`table.kv.format`)."""

    COMPACTED = "COMPACTED"
    INDEXED = "INDEXED"


LAKE_ENTRY_POINTS = "forebay.lakes"
"""The entry point group with which packages register additional lake formats."""

_FLUSS_LAKE_FORMATS = ("paimon", "iceberg", "lance", "hudi")


@lru_cache(maxsize=64)
def is_added_lake_format(name: str) -> bool:
    """Whether a package that is installed here adds this lake format to those that Fluss has names for.

    Keys and buckets of its tables are the stream's own, as of tables without a lake: Fluss knows no other rule.
    """
    return name not in _FLUSS_LAKE_FORMATS and bool(entry_points(group=LAKE_ENTRY_POINTS, name=name))


def lake_format_name(text: str) -> str:
    """The name of a lake format as `table.datalake.format` stores it. Raises `InvalidRequest` for unknown ones."""
    name = text.strip().lower().replace("-", "_")
    if name not in _FLUSS_LAKE_FORMATS and not is_added_lake_format(name):
        raise InvalidRequest(
            f"{text!r} is not one of {', '.join(_FLUSS_LAKE_FORMATS)}, and no package that is installed adds it"
        )
    return name


TABLE_OPTIONS: dict[str, Option] = by_name(
    (
        Option("table.replication.factor", integer),
        Option("table.log.format", one_of(*(f.value.lower() for f in LogFormat)), "ARROW"),
        Option("table.log.arrow.compression.type", one_of("none", "lz4_frame", "zstd"), "ZSTD"),
        Option("table.log.arrow.compression.zstd.level", integer, "1"),  # the default of Fluss's clients is 3
        Option("table.kv.format", one_of(*(f.value.lower() for f in KvFormat)), "COMPACTED"),
        Option("table.kv.format-version", integer),
        Option("table.kv.standby-replica.enabled", boolean, None, alterable=True),
        Option("table.auto-partition.enabled", boolean, "false", alterable=True),
        Option("table.auto-partition.key", str),
        Option("table.auto-partition.time-unit", one_of("hour", "day", "month", "quarter", "year"), "DAY"),
        Option("table.auto-partition.time-format", str),
        Option("table.auto-partition.time-zone", str),
        Option("table.auto-partition.num-precreate", integer, "2", alterable=True),
        Option("table.auto-partition.num-retention", integer, "7", alterable=True),
        Option("table.log.ttl", milliseconds, "7 d", alterable=True),
        Option("table.log.local-ttl", milliseconds, None, alterable=True),
        Option("table.log.tiered.local-segments", integer, "2", alterable=True),
        Option("table.datalake.enabled", boolean, "false", alterable=True),
        Option("table.datalake.historical-partition.enabled", boolean, "false", alterable=True),
        Option("table.datalake.format", lake_format_name),
        Option("table.datalake.freshness", milliseconds, "3 min", alterable=True),
        Option("table.datalake.auto-compaction", boolean, "false", alterable=True),
        Option("table.datalake.auto-expire-snapshot", boolean, "false", alterable=True),
        Option("table.merge-engine", one_of("first_row", "versioned", "aggregation")),
        Option("table.merge-engine.versioned.ver-column", str),
        Option("table.delete.behavior", one_of("allow", "ignore", "disable"), "ALLOW"),
        Option("table.auto-increment.cache-size", integer, "100000"),
        Option("table.changelog.image", one_of("full", "wal"), "FULL"),
        Option("table.statistics.columns", str, None, alterable=True),
    )
)

_UNSERVED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("table.datalake.historical-partition.enabled", lambda value: value is True, "historical partitions"),
)


def option_value(properties: Mapping[str, str], key: str) -> Any:
    """The parsed value of an option, or its default. Raises `InvalidRequest` for an unreadable value."""
    text = properties.get(key)
    return TABLE_OPTIONS[key].default_value if text is None else parse_option(key, text)


def parse_option(key: str, text: str) -> Any:
    """The value of `text` for option `key`. Raises `InvalidRequest` (INVALID_CONFIG) naming both."""
    return TABLE_OPTIONS[key].read(text, code=ErrorCode.INVALID_CONFIG_EXCEPTION)


def unserved_option(key: str, text: str) -> str | None:
    """Return the missing feature behind this value of the option, in words; None if the value is served."""
    value = parse_option(key, text)
    for unserved_key, applies, what in _UNSERVED:
        if key == unserved_key and applies(value):
            return what
    return None


class ArrowCompression(NamedTuple):
    """The compression of the bodies of Arrow log batches: codec ('none', 'lz4' or 'zstd') and zstd's level."""

    codec: str = "zstd"
    level: int = 1
