"""Table schemas, as values. `forebay.paimon.format.schema_json` converts them to and from JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from forebay.base.arguments import did_you_mean
from forebay.base.errors import InvalidRequest
from forebay.base.options import names
from forebay.metadata.types import DataType

SCHEMA_VERSION = 3
"""The JSON version that is written. Version 1 implies the defaults of Paimon 0.7: bucket 1, ORC files."""

SYSTEM_FIELD_ID_START = ((1 << 31) - 1) // 2
"""Ids from here on belong to columns that Paimon adds (`SpecialFields` in Java)."""

SEQUENCE_NUMBER = "_SEQUENCE_NUMBER"
VALUE_KIND = "_VALUE_KIND"
KEY_PREFIX = "_KEY_"
KEY_FIELD_ID_START = SYSTEM_FIELD_ID_START
SEQUENCE_NUMBER_ID = (1 << 31) - 2
VALUE_KIND_ID = (1 << 31) - 3


@dataclass(frozen=True, slots=True)
class DataField:
    """A column: an id that never changes, and a name and a type that may."""

    id: int
    name: str
    type: DataType
    description: str | None = None
    default: str | None = None

    def __hash__(self) -> int:  # columns are often keys of caches
        return hash((self.id, self.name))


@dataclass(frozen=True)
class TableSchema:
    """One version of a table's schema: file `schema/schema-<id>`."""

    id: int
    fields: tuple[DataField, ...]
    highest_field_id: int
    partition_keys: tuple[str, ...] = ()
    primary_keys: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    time_millis: int = 0
    version: int = SCHEMA_VERSION

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields)

    @cached_property
    def _by_name(self) -> dict[str, DataField]:
        return {f.name: f for f in self.fields}

    def field_named(self, name: str) -> DataField:
        """The column with this name. Raises `InvalidRequest`, with the existing names."""
        match = self._by_name.get(name)
        if match is None:
            hint = did_you_mean(name, self.names)
            raise InvalidRequest(f"there is no column '{name}'; columns are {', '.join(self.names)}{hint}")
        return match

    def fields_named(self, names: Sequence[str]) -> tuple[DataField, ...]:
        return tuple(self.field_named(name) for name in names)

    @cached_property
    def partition_fields(self) -> tuple[DataField, ...]:
        return self.fields_named(self.partition_keys)

    @cached_property
    def trimmed_primary_keys(self) -> tuple[str, ...]:
        """The primary key without the partition keys, which is the sort key of a bucket's rows."""
        trimmed = tuple(key for key in self.primary_keys if key not in self.partition_keys)
        if self.primary_keys and not trimmed:
            raise InvalidRequest(
                f"the primary key ({', '.join(self.primary_keys)}) is the same as the partition keys, "
                "so a partition would hold one row; add a column to the primary key"
            )
        return trimmed

    @cached_property
    def bucket_keys(self) -> tuple[str, ...]:
        """The columns that determine a row's bucket: `bucket-key`, or the trimmed primary key, or none."""
        return names(self.options.get("bucket-key", "")) or self.trimmed_primary_keys

    @cached_property
    def key_fields(self) -> tuple[DataField, ...]:
        """The first columns, `_KEY_<name>`, of primary-key data files: the trimmed primary key, NOT NULL."""
        return tuple(
            DataField(KEY_FIELD_ID_START + f.id, KEY_PREFIX + f.name, f.type.not_null(), f.description)
            for f in self.fields_named(self.trimmed_primary_keys)
        )

    @property
    def has_primary_key(self) -> bool:
        return bool(self.primary_keys)

    def with_options(self, options: Mapping[str, str]) -> TableSchema:
        """This schema with its options replaced (dynamic options of a reader, for example); the id stays."""
        return replace(self, options=dict(options))
