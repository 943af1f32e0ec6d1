"""The `table.*` options that Fluss knows: names, value types, defaults, and which of them Forebay serves.

Option names and defaults are those of Apache Fluss (`ConfigOptions`), so its documentation applies. An option that
Fluss has and Forebay does not serve yet is refused by `unserved_option`, by name; an unknown one is a separate error,
as in Fluss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.base.quantity import parse_bool, parse_duration_ms
from forebay.metadata.table import KvFormat, LogFormat, TableDescriptor, TableInfo

TABLE_PREFIX = "table."


@dataclass(frozen=True, slots=True)
class TableOption:
    """One option: how its text is read, its default as text (None: unset), whether ALTER TABLE may change it."""

    key: str
    parse: Callable[[str], Any]
    default: str | None = None
    alterable: bool = False


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        name = text.strip().lower().replace("-", "_")
        if name not in names:
            raise InvalidRequest(f"{text!r} is not one of {', '.join(names)}")
        return name

    return parse


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError as e:
        raise InvalidRequest(f"{text!r} is not an integer") from e


LAKE_ENTRY_POINTS = "forebay.lakes"
"""The group of entry points by which packages name the lake formats that they add."""

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


TABLE_OPTIONS: dict[str, TableOption] = {
    option.key: option
    for option in (
        TableOption("table.replication.factor", _integer),
        TableOption("table.log.format", _one_of(*(f.value.lower() for f in LogFormat)), "ARROW"),
        TableOption("table.log.arrow.compression.type", _one_of("none", "lz4_frame", "zstd"), "ZSTD"),
        TableOption("table.log.arrow.compression.zstd.level", _integer, "3"),
        TableOption("table.kv.format", _one_of(*(f.value.lower() for f in KvFormat)), "COMPACTED"),
        TableOption("table.kv.format-version", _integer),
        TableOption("table.kv.standby-replica.enabled", parse_bool, None, alterable=True),
        TableOption("table.auto-partition.enabled", parse_bool, "false", alterable=True),
        TableOption("table.auto-partition.key", str),
        TableOption("table.auto-partition.time-unit", _one_of("hour", "day", "month", "quarter", "year"), "DAY"),
        TableOption("table.auto-partition.time-format", str),
        TableOption("table.auto-partition.time-zone", str),
        TableOption("table.auto-partition.num-precreate", _integer, "2", alterable=True),
        TableOption("table.auto-partition.num-retention", _integer, "7", alterable=True),
        TableOption("table.log.ttl", parse_duration_ms, "7 d", alterable=True),
        TableOption("table.log.local-ttl", parse_duration_ms, None, alterable=True),
        TableOption("table.log.tiered.local-segments", _integer, "2", alterable=True),
        TableOption("table.datalake.enabled", parse_bool, "false", alterable=True),
        TableOption("table.datalake.historical-partition.enabled", parse_bool, "false", alterable=True),
        TableOption("table.datalake.format", lake_format_name),
        TableOption("table.datalake.freshness", parse_duration_ms, "3 min", alterable=True),
        TableOption("table.datalake.auto-compaction", parse_bool, "false", alterable=True),
        TableOption("table.datalake.auto-expire-snapshot", parse_bool, "false", alterable=True),
        TableOption("table.merge-engine", _one_of("first_row", "versioned", "aggregation")),
        TableOption("table.merge-engine.versioned.ver-column", str),
        TableOption("table.delete.behavior", _one_of("allow", "ignore", "disable"), "ALLOW"),
        TableOption("table.auto-increment.cache-size", _integer, "100000"),
        TableOption("table.changelog.image", _one_of("full", "wal"), "FULL"),
        TableOption("table.statistics.columns", str, None, alterable=True),
    )
}

_UNSERVED: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("table.merge-engine", lambda _: True, "merge engines other than the default (last write wins)"),
    ("table.log.local-ttl", lambda _: True, "expiry of local log segments"),
    ("table.datalake.historical-partition.enabled", lambda value: value is True, "historical partitions"),
)


def option_value(descriptor: TableDescriptor, key: str) -> Any:
    """The parsed value of an option of a table, or its default. Raises `InvalidRequest` for an unreadable value."""
    option = TABLE_OPTIONS[key]
    text = descriptor.properties.get(key, option.default)
    return None if text is None else parse_option(key, text)


def parse_option(key: str, text: str) -> Any:
    """The value of `text` for option `key`. Raises `InvalidRequest` (INVALID_CONFIG) naming both."""
    try:
        return TABLE_OPTIONS[key].parse(text)
    except InvalidRequest as e:
        raise InvalidRequest(f"option '{key}': {e.message}", ErrorCode.INVALID_CONFIG_EXCEPTION) from e


def unserved_option(key: str, text: str) -> str | None:
    """Return the missing feature behind this value of the option, in words; None if the value is served."""
    value = parse_option(key, text)
    for unserved_key, applies, what in _UNSERVED:
        if key == unserved_key and applies(value):
            return what
    return None


def lake_options_prefix(descriptor: TableDescriptor) -> str | None:
    """How the keys begin under which a server puts its lake's options into a table's properties; None without a lake.

    They are the server's: a table that is created cannot have them.
    """
    return None if descriptor.lake_format is None else f"{TABLE_PREFIX}datalake.{descriptor.lake_format}."


def lake_options(info: TableInfo) -> dict[str, str]:
    """Return the options of the lake that a lake table is in, as `forebay.lake.registry.create_lake_storage` takes
    them.

    A server puts its `datalake.<format>.*` settings, without secrets, into the properties of the lake tables that it
    describes, under `table.datalake.<format>.*`. Empty if the table is not a lake table, or the server published no
    options.
    """
    prefix = lake_options_prefix(info.descriptor)
    if not info.lake_enabled or prefix is None:
        return {}
    return {key[len(prefix) :]: value for key, value in info.descriptor.properties.items() if key.startswith(prefix)}


class ArrowCompression(NamedTuple):
    """How the bodies of Arrow log batches are compressed: codec ('none', 'lz4' or 'zstd') and zstd's level."""

    codec: str = "zstd"
    level: int = 3


def arrow_compression(descriptor: TableDescriptor) -> ArrowCompression:
    """The compression of a table's Arrow log batches."""
    name = option_value(descriptor, "table.log.arrow.compression.type")
    level = option_value(descriptor, "table.log.arrow.compression.zstd.level")
    return ArrowCompression("lz4" if name == "lz4_frame" else name, level)
