"""The merge options of a table: the engine, and the function of each column.

`merge_function(schema)` reads and checks the options once, when a table is opened; the result is a small value that can
be pickled. Semantics are those of the Paimon version whose sum and product fail on overflow instead of wrapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from forebay.base.errors import InvalidRequest
from forebay.base.options import names
from forebay.metadata.types import NESTED_ROOTS
from forebay.paimon.format.schema import TableSchema
from forebay.paimon.merge.functions import Aggregator, boolean_option, column_aggregator
from forebay.paimon.options import CoreOptions

SEQUENCE_GROUP_SUFFIX = ".sequence-group"
REMOVE_ON_DELETE = {
    "partial-update": "partial-update.remove-record-on-delete",
    "aggregation": "aggregation.remove-record-on-delete",
}
REMOVE_ON_SEQUENCE_GROUP = "partial-update.remove-record-on-sequence-group"
IGNORE_DELETE_KEYS = (
    "ignore-delete",
    "first-row.ignore-delete",
    "deduplicate.ignore-delete",
    "partial-update.ignore-delete",
)

RUNS_MAX = 64
"""The maximum number of runs merged at once if `sort-spill-threshold` is not set."""


class MergeEngine(StrEnum):
    """Option `merge-engine`: how rows of one key are merged."""

    DEDUPLICATE = "deduplicate"
    PARTIAL_UPDATE = "partial-update"
    AGGREGATION = "aggregation"
    FIRST_ROW = "first-row"


@dataclass(frozen=True)
class SequenceGroupSpec:
    """Columns ordered by separate sequence fields. `removes`: a delete that wins here removes the whole row."""

    sequence_fields: tuple[str, ...]
    columns: tuple[str, ...]
    removes: bool = False


@dataclass(frozen=True)
class MergeSpec:
    """How rows of one key are merged into one row.

    `aggregators` has an entry for each column with a function; in an aggregation table, these are all columns.
    `not_null` names the columns that may not become null. A merge loads about `bytes_max` bytes of rows at a time, from
    at most `runs_max` runs; if there are more, it first combines them on the local disk. `place` is the location of the
    table, for error messages.
    """

    engine: MergeEngine
    key_columns: tuple[str, ...]
    sequence_fields: tuple[str, ...] = ()
    sequence_descending: bool = False
    ignore_delete: bool = False
    remove_record_on_delete: bool = False
    aggregators: Mapping[str, Aggregator] = field(default_factory=dict)
    sequence_groups: tuple[SequenceGroupSpec, ...] = ()
    not_null: frozenset[str] = frozenset()
    needs_lookup: bool = False
    reads_level0: bool = True
    runs_max: int = RUNS_MAX
    bytes_max: int = 64 << 20
    place: str = ""

    def part_bytes(self, runs: int) -> int:
        """The number of bytes of each run to load at a time when merging this many runs."""
        return max(1, self.bytes_max // max(1, min(runs, self.runs_max)))

    def required_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """`columns`, followed by the other value columns that merging needs, such as sequence fields.

        Groups whose deletes remove the row are needed even if none of their columns is requested.
        """
        required = dict.fromkeys(columns)
        required.update(dict.fromkeys(self.sequence_fields))
        for group in self.sequence_groups:
            if group.removes or not set(columns).isdisjoint((*group.columns, *group.sequence_fields)):
                required.update(dict.fromkeys(group.sequence_fields))
        return tuple(required)

    def group_of(self, column: str) -> SequenceGroupSpec | None:
        """The sequence group that the column belongs to or orders."""
        for group in self.sequence_groups:
            if column in group.columns or column in group.sequence_fields:
                return group
        return None


def merge_function(schema: TableSchema, place: str = "") -> MergeSpec:
    """The merge spec of the primary-key table at `place`.

    Raises `InvalidRequest` if options contradict each other, name unknown columns or functions, or do not fit the
    columns' types; `UnsupportedOperation`, naming the function, for functions that are not implemented.
    """
    options = schema.options
    core = CoreOptions(options)
    engine = _engine(options)
    if not schema.has_primary_key:
        raise InvalidRequest("a table without a primary key has nothing to merge")
    ignore_delete = any(boolean_option(options, key) for key in IGNORE_DELETE_KEYS)
    remove = engine in REMOVE_ON_DELETE and boolean_option(options, REMOVE_ON_DELETE[engine])
    sequence_fields = _sequence_fields(schema, engine)
    groups = _sequence_groups(schema) if engine is MergeEngine.PARTIAL_UPDATE else ()
    if engine is MergeEngine.PARTIAL_UPDATE:
        _check_deletes(options, ignore_delete, remove, groups)
    vectors = boolean_option(options, "deletion-vectors.enabled")
    producer = options.get("changelog-producer", "none").lower()
    first_row = engine is MergeEngine.FIRST_ROW
    waits = vectors and not core.deletion_vectors_merge_on_read
    return MergeSpec(
        engine=engine,
        key_columns=tuple(f.name for f in schema.key_fields),
        sequence_fields=sequence_fields,
        sequence_descending=_descending(options),
        ignore_delete=ignore_delete,
        remove_record_on_delete=remove,
        aggregators=_aggregators(schema, engine, sequence_fields, groups),
        sequence_groups=groups,
        not_null=frozenset(f.name for f in schema.fields if not f.type.nullable),
        needs_lookup=first_row or vectors or producer == "lookup" or boolean_option(options, "force-lookup"),
        reads_level0=not (first_row or waits),
        runs_max=_runs_max(core),
        bytes_max=core.sort_spill_buffer_size,
        place=place,
    )


def _runs_max(options: CoreOptions) -> int:
    threshold = options.sort_spill_threshold
    if threshold is not None and threshold < 2:
        raise InvalidRequest(f"option 'sort-spill-threshold' is {threshold}; write 2 or more")
    return threshold or RUNS_MAX


def _engine(options: Mapping[str, str]) -> MergeEngine:
    name = options.get("merge-engine", MergeEngine.DEDUPLICATE).lower()
    try:
        return MergeEngine(name)
    except ValueError as e:
        raise InvalidRequest(f"merge-engine '{name}' is unknown; there are {', '.join(MergeEngine)}") from e


def _descending(options: Mapping[str, str]) -> bool:
    order = options.get("sequence.field.sort-order", "ascending").lower()
    if order not in ("ascending", "descending"):
        raise InvalidRequest(f"sequence.field.sort-order is 'ascending' or 'descending', not '{order}'")
    return order == "descending"


def _sequence_fields(schema: TableSchema, engine: MergeEngine) -> tuple[str, ...]:
    fields = names(schema.options.get("sequence.field", ""))
    for name in fields:
        if name not in schema.names:
            raise InvalidRequest(f"sequence.field '{name}' is no column; columns are {', '.join(schema.names)}")
        if fields.count(name) > 1:
            raise InvalidRequest(f"sequence.field names '{name}' twice")
        if f"fields.{name}.aggregate-function" in schema.options:
            raise InvalidRequest(f"the sequence field '{name}' cannot have an aggregate function")
        if schema.field_named(name).type.root in NESTED_ROOTS:
            raise InvalidRequest(f"sequence.field '{name}' has the nested type {schema.field_named(name).type}")
    if fields and engine is MergeEngine.FIRST_ROW:
        raise InvalidRequest(
            "merge-engine 'first-row' keeps the row that was written first: it takes no sequence.field"
        )
    return fields


def _sequence_groups(schema: TableSchema) -> tuple[SequenceGroupSpec, ...]:
    removing = names(schema.options.get(REMOVE_ON_SEQUENCE_GROUP, ""))
    groups: list[SequenceGroupSpec] = []
    group_of: dict[str, str] = {}
    for key, value in schema.options.items():
        if not (key.startswith("fields.") and key.endswith(SEQUENCE_GROUP_SUFFIX)):
            continue
        ordering = names(key[len("fields.") : -len(SEQUENCE_GROUP_SUFFIX)])
        protected = names(value)
        for name in (*ordering, *protected):
            if name not in schema.names:
                raise InvalidRequest(f"option '{key}' names the unknown column '{name}'")
            if name in schema.primary_keys:
                raise InvalidRequest(f"option '{key}' names '{name}': primary-key columns cannot be in sequence groups")
            if name in group_of:
                raise InvalidRequest(f"column '{name}' is in the sequence groups '{group_of[name]}' and '{key}'")
            group_of[name] = key
        for name in ordering:
            if schema.field_named(name).type.root in NESTED_ROOTS:
                raise InvalidRequest(f"option '{key}': '{name}' has a nested type and cannot order a sequence group")
        groups.append(SequenceGroupSpec(ordering, protected, not set(removing).isdisjoint(ordering)))
    sequence_names = {name for group in groups for name in group.sequence_fields}
    for name in removing:
        if name not in sequence_names:
            raise InvalidRequest(f"{REMOVE_ON_SEQUENCE_GROUP} names '{name}', which orders no sequence group")
    return tuple(groups)


def _check_deletes(
    options: Mapping[str, str], ignore_delete: bool, remove: bool, groups: Sequence[SequenceGroupSpec]
) -> None:
    removal = REMOVE_ON_DELETE["partial-update"]
    for is_set, name in ((remove, removal), (REMOVE_ON_SEQUENCE_GROUP in options, REMOVE_ON_SEQUENCE_GROUP)):
        if is_set and ignore_delete:
            raise InvalidRequest(f"options 'ignore-delete' and '{name}' contradict each other")
    if remove and groups:
        raise InvalidRequest(
            f"option '{removal}' cannot be combined with sequence groups; use {REMOVE_ON_SEQUENCE_GROUP}"
        )


def _aggregators(
    schema: TableSchema, engine: MergeEngine, sequence_fields: Sequence[str], groups: Sequence[SequenceGroupSpec]
) -> dict[str, Aggregator]:
    if engine not in (MergeEngine.PARTIAL_UPDATE, MergeEngine.AGGREGATION):
        return {}
    default = schema.options.get("fields.default-aggregate-function")
    ordering = {name for group in groups for name in group.sequence_fields}
    protected = {name for group in groups for name in group.columns}
    aggregators: dict[str, Aggregator] = {}
    for column in schema.fields:
        function = schema.options.get(f"fields.{column.name}.aggregate-function", default)
        if column.name in ordering:
            continue
        if engine is MergeEngine.AGGREGATION and column.name in sequence_fields:
            function = "last_value"
        elif column.name in schema.primary_keys:
            function = "primary-key"
        elif engine is MergeEngine.AGGREGATION:
            function = function or "last_non_null_value"
        elif function not in (None, "last_non_null_value") and column.name not in protected:
            raise InvalidRequest(
                f"column '{column.name}' aggregates by '{function}' in a partial-update table, so it needs a sequence "
                f"group: set 'fields.<sequence field>.sequence-group' to a list with '{column.name}'"
            )
        if function is not None:
            aggregators[column.name] = column_aggregator(column, function, schema.options)
    return aggregators
