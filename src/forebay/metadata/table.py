"""Names, schemas and descriptors of databases and tables: values that several packages share.

A `TableDescriptor` is what a user requests; a `TableInfo` is what exists: the descriptor with the server's defaults
filled in, plus identity (table id) and version (schema id). The words follow Fluss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.metadata.table_options import TABLE_PREFIX, ArrowCompression, KvFormat, LogFormat, option_value
from forebay.metadata.types import DataType, RowField, walk


@dataclass(frozen=True, slots=True, order=True)
class TablePath:
    """`database.table`."""

    database: str
    table: str

    @classmethod
    def parse(cls, text: str | TablePath) -> TablePath:
        """A path from "db.table"; a `TablePath` is returned as it is."""
        if isinstance(text, TablePath):
            return text
        if not isinstance(text, str):
            raise InvalidRequest(f"a table is named by text such as 'database.table', not by {text!r}")
        database, dot, table = text.partition(".")
        if not (dot and database and table and "." not in table):
            raise InvalidRequest(f"{text!r} does not name a table: write 'database.table'")
        return cls(database, table)

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True, order=True)
class PhysicalTablePath:
    """A table, or one partition of it by name (`2024-01-15$EMEA`)."""

    table: TablePath
    partition: str | None = None

    def __str__(self) -> str:
        return str(self.table) if self.partition is None else f"{self.table}(p={self.partition})"


class TableBucket(NamedTuple):
    """(table id, partition id, bucket): the unit of order, leadership and placement."""

    table_id: int
    bucket: int
    partition_id: int | None = None

    def __str__(self) -> str:
        partition = "" if self.partition_id is None else f", partition={self.partition_id}"
        return f"(table={self.table_id}{partition}, bucket={self.bucket})"


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `column_id` stays the same through schema changes and is never reused."""

    name: str
    data_type: DataType
    comment: str | None = None
    column_id: int | None = None
    aggregate: AggregateFunction | None = None


@dataclass(frozen=True, slots=True)
class AggregateFunction:
    """The function that merges a column's values under the `aggregation` merge engine."""

    name: str
    parameters: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, name: str, parameters: Mapping[str, str] | None = None) -> AggregateFunction:
        """The function of this name as users write it: in any case, with hyphens or underscores."""
        return cls(name.strip().replace("-", "_").lower(), tuple(sorted((parameters or {}).items())))

    def __str__(self) -> str:
        parameters = ", ".join(f"{key}={value!r}" for key, value in self.parameters)
        return f"{self.name}({parameters})" if parameters else self.name


@dataclass(frozen=True)
class Schema:
    """Columns, primary key and auto-increment column, with ids assigned (see `assign_ids`)."""

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...] = ()
    auto_increment_column: str | None = None
    highest_field_id: int = -1

    @classmethod
    def of(
        cls,
        columns: Sequence[Column],
        primary_key: Sequence[str] = (),
        auto_increment_column: str | None = None,
    ) -> Schema:
        """A checked schema: names unique, key columns present and made NOT NULL, ids assigned where missing."""
        names = [column.name for column in columns]
        _require(len(names) > 0, "a table needs at least one column")
        different = Counter(names)
        duplicates = sorted(name for name, count in different.items() if count > 1)
        _require(not duplicates, f"duplicate column names: {', '.join(duplicates)}")
        key = set(primary_key)
        for name in primary_key:
            _require(name in different, f"primary key column '{name}' is not a column; the columns are {names}")
        _require(len(key) == len(primary_key), f"the primary key repeats a column: {list(primary_key)}")
        keyed = tuple(
            replace(column, data_type=column.data_type.not_null()) if column.name in key else column
            for column in columns
        )
        if auto_increment_column is not None:
            _require(
                auto_increment_column in names,
                f"auto-increment column '{auto_increment_column}' is not a column; the columns are {names}",
            )
        numbered, highest = assign_ids(keyed)
        return cls(numbered, tuple(primary_key), auto_increment_column, highest)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def types(self) -> tuple[DataType, ...]:
        return tuple(column.data_type for column in self.columns)

    @cached_property
    def field_count(self) -> int:
        """Columns, and fields of rows inside of them."""
        return len(self.columns) + sum(len(t.fields) for column in self.columns for t in walk(column.data_type))

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names)}

    def index(self, name: str) -> int:
        """The position of column `name`; `InvalidRequest` lists the existing columns."""
        position = self._positions.get(name)
        if position is None:
            raise InvalidRequest(f"there is no column '{name}'; the columns are {', '.join(self.names)}")
        return position

    def indexes(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the positions of columns; `InvalidRequest` names the existing columns."""
        return tuple(self.index(name) for name in names)

    def column(self, name: str) -> Column:
        return self.columns[self.index(name)]


def assign_ids(columns: Sequence[Column], first_id: int = 0) -> tuple[tuple[Column, ...], int]:
    """Columns with ids from `first_id` on, and the highest id used.

    Ids are given depth first over columns and nested row fields in one number space, as Fluss does: a column, then
    the fields inside it, then the next column. Either all columns carry ids already or none does.
    """
    has_id = [column.column_id is not None for column in columns]
    if all(has_id):
        return tuple(columns), max(_all_ids(columns), default=-1)
    _require(not any(has_id), "either all columns carry ids or none does")
    counter = iter(range(first_id, 1 << 31))

    def number_type(t: DataType) -> DataType:
        if t.element is not None:
            return replace(t, element=number_type(t.element))
        if t.key is not None and t.value is not None:
            key = number_type(t.key)
            return replace(t, key=key, value=number_type(t.value))
        if t.fields:
            return replace(t, fields=tuple(number_field(f) for f in t.fields))
        return t

    def number_field(f: RowField) -> RowField:
        own_id = next(counter)
        return replace(f, field_id=own_id, data_type=number_type(f.data_type))

    def number_column(c: Column) -> Column:
        own_id = next(counter)
        return replace(c, column_id=own_id, data_type=number_type(c.data_type))

    numbered = tuple(number_column(column) for column in columns)
    return numbered, next(counter) - 1


def _all_ids(columns: Sequence[Column]) -> list[int]:
    ids = [column.column_id for column in columns]
    ids += [f.field_id for column in columns for t in walk(column.data_type) for f in t.fields]
    assigned_ids = [i for i in ids if i is not None]
    _require(len(set(assigned_ids)) == len(assigned_ids), f"column ids are not unique: {sorted(assigned_ids)}")
    return assigned_ids


@dataclass(frozen=True)
class TableDescriptor:
    """The definition of a table: schema, distribution, partitioning, options.

    `properties` holds `table.*` options, which the server understands; `custom_properties` holds everything else.
    """

    schema: Schema
    partition_keys: tuple[str, ...] = ()
    bucket_keys: tuple[str, ...] = ()
    bucket_count: int | None = None
    comment: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    custom_properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_primary_key(self) -> bool:
        return bool(self.schema.primary_key)

    @property
    def is_partitioned(self) -> bool:
        return bool(self.partition_keys)

    @cached_property
    def physical_primary_key(self) -> tuple[str, ...]:
        """The primary key without the partition keys: what key bytes are made of within one partition."""
        return tuple(name for name in self.schema.primary_key if name not in self.partition_keys)

    @property
    def is_default_bucket_key(self) -> bool:
        """Whether the bucket key equals the default, whether or not it was named."""
        return self.bucket_keys == (self.physical_primary_key if self.has_primary_key else ())

    def property_or(self, key: str, default: str) -> str:
        """Return a `table.*` property, or `default` if it is not set."""
        return self.properties.get(key, default)

    def option(self, key: str) -> Any:
        """The parsed value of a `table.*` option, or its default. Raises `InvalidRequest` for an unreadable value."""
        return option_value(self.properties, key)

    @cached_property
    def log_format(self) -> LogFormat:
        return LogFormat(self.property_or("table.log.format", "ARROW").upper())

    @cached_property
    def kv_format(self) -> KvFormat:
        return KvFormat(self.property_or("table.kv.format", "COMPACTED").upper())

    @property
    def kv_format_version(self) -> int:
        """1 for tables of old clusters, 2 for new ones: decides the key encoder (see codec.rows.keys)."""
        return int(self.property_or("table.kv.format-version", "1"))

    @cached_property
    def has_full_changelog(self) -> bool:
        """Whether the changelog has old rows beside new ones (`table.changelog.image` = full)."""
        return bool(self.option("table.changelog.image") == "full")

    @cached_property
    def merge_engine(self) -> str | None:
        """The merge engine of a table: 'first_row', 'versioned', 'aggregation', or None for the default."""
        engine: str | None = self.option("table.merge-engine")
        return engine

    @cached_property
    def delete_behavior(self) -> str:
        """Return how a table treats deletes: 'allow', 'ignore' or 'disable'. Tables with a merge engine ignore them."""
        if self.merge_engine is not None and "table.delete.behavior" not in self.properties:
            return "ignore"
        behavior: str = self.option("table.delete.behavior")
        return behavior

    @cached_property
    def lake_format(self) -> str | None:
        """The recorded lake format, lower case: it decides key encoding and bucketing even when tiering is off."""
        value = self.properties.get("table.datalake.format")
        return None if value is None else value.lower()

    @property
    def lake_enabled(self) -> bool:
        """Whether the table is tiered into a lake (`table.datalake.enabled`)."""
        return self.property_or("table.datalake.enabled", "false").strip().lower() == "true"

    @property
    def lake_options_prefix(self) -> str | None:
        """The prefix under which a server publishes its lake options in a table's properties; None without a lake.

        It is reserved for the server: new tables cannot set such keys.
        """
        return None if self.lake_format is None else f"{TABLE_PREFIX}datalake.{self.lake_format}."

    @cached_property
    def arrow_compression(self) -> ArrowCompression:
        """The compression of the table's Arrow log batches.

        The level matters only to who writes a batch: every reader reads all of them. Where the table sets none, it is
        1: half the time of 3 for batches of the same size.
        """
        name = self.option("table.log.arrow.compression.type")
        level = self.option("table.log.arrow.compression.zstd.level")
        return ArrowCompression("lz4" if name == "lz4_frame" else name, level)


@dataclass(frozen=True)
class TableInfo:
    """A table that exists."""

    path: TablePath
    table_id: int
    schema_id: int
    descriptor: TableDescriptor
    created_ms: int = -1
    modified_ms: int = -1

    @property
    def schema(self) -> Schema:
        return self.descriptor.schema

    @property
    def bucket_count(self) -> int:
        count = self.descriptor.bucket_count
        if count is None:
            raise InvalidRequest(f"table {self.path} has no bucket count", ErrorCode.INVALID_TABLE_EXCEPTION)
        return count

    @property
    def has_primary_key(self) -> bool:
        return self.descriptor.has_primary_key

    @property
    def is_partitioned(self) -> bool:
        return self.descriptor.is_partitioned

    @property
    def lake_enabled(self) -> bool:
        """Whether the table is tiered into a lake. Where that is: `lake_options`."""
        return self.descriptor.lake_enabled

    @property
    def log_expires(self) -> bool:
        """Whether `table.log.ttl` removes records.

        Clients without ScanKv rebuild a primary-key table's rows from the whole changelog, so that of a table without a
        lake only expires if the table sets `table.log.ttl` itself.
        """
        return not self.has_primary_key or self.lake_enabled or "table.log.ttl" in self.descriptor.properties

    def lake_options(self) -> dict[str, str]:
        """Return the options of the lake that a lake table is in, as `forebay.lake.formats.create_lake_storage` takes
        them.

        A server puts its `datalake.<format>.*` settings, without secrets, into the properties of the lake tables that
        it describes, under `table.datalake.<format>.*`. Empty if the table is not a lake table, or the server
        published no options.
        """
        prefix = self.descriptor.lake_options_prefix
        if not self.lake_enabled or prefix is None:
            return {}
        properties = self.descriptor.properties
        return {key[len(prefix) :]: value for key, value in properties.items() if key.startswith(prefix)}


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition that exists: values by partition key, in key order."""

    partition_id: int
    spec: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The values joined by '$' in the order of the partition keys."""
        return "$".join(value for _, value in self.spec)


@dataclass(frozen=True)
class DatabaseInfo:
    """A database that exists."""

    name: str
    comment: str | None = None
    custom_properties: Mapping[str, str] = field(default_factory=dict)
    created_ms: int = -1
    modified_ms: int = -1
    table_count: int | None = None


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidRequest(message, ErrorCode.INVALID_TABLE_EXCEPTION)
