"""The definition of a new table: columns from Arrow or fields, ids assigned, with the checks of Java Paimon."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from forebay.api.schemas import SchemaLike, columns_of
from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.arguments import name_list, whole_number
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata.table import Column
from forebay.metadata.types import DataType, TypeRoot, child
from forebay.paimon.bucket_function import bucket_function
from forebay.paimon.format.schema import KEY_PREFIX, SEQUENCE_NUMBER, VALUE_KIND, DataField, TableSchema
from forebay.paimon.format.schema_json import highest_field_id
from forebay.paimon.merge.spec import merge_function
from forebay.paimon.option_names import option_texts
from forebay.paimon.options import POSTPONE_BUCKET, CoreOptions

COMMENT = "comment"
"""The property that holds a database's comment, as in Java Paimon."""

SYSTEM_NAMES = frozenset({SEQUENCE_NUMBER, VALUE_KIND, "_LEVEL", "rowkind", "_ROW_ID"})


def new_schema(
    columns: SchemaLike | Sequence[DataField],
    primary_keys: Iterable[str] = (),
    partition_keys: Iterable[str] = (),
    options: Mapping[str, str] | None = None,
    comment: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> TableSchema:
    """The first schema of a new table. Columns are those of users, or Paimon's fields (whose ids are ignored).

    Raises `InvalidRequest` saying what is wrong with the definition.
    """
    keys = name_list(primary_keys, "primary_keys")
    fields = new_fields(columns, keys)
    schema = TableSchema(
        id=0,
        fields=fields,
        highest_field_id=highest_field_id(fields),
        partition_keys=name_list(partition_keys, "partition_keys"),
        primary_keys=keys,
        options=option_texts(options),
        comment=comment,
        time_millis=clock.now_ms(),
    )
    validate(schema)
    return schema


def new_fields(columns: SchemaLike | Sequence[DataField], keys: Sequence[str] = ()) -> tuple[DataField, ...]:
    """The fields for columns, with ids from 0 on; those in `keys` are NOT NULL."""
    numbering = [-1]
    fields = []
    for f in _fields(columns):
        numbering[0] += 1
        field_id = numbering[0]
        t = f.type.not_null() if f.name in keys else f.type
        fields.append(replace(f, id=field_id, type=_numbered(t, numbering)))
    return tuple(fields)


def with_buckets(options: Mapping[str, Any] | None, buckets: int | None, bucket_keys: Sequence[str]) -> dict[str, str]:
    """`options` with Paimon's bucket options added. Raises `InvalidRequest` if both are given and differ."""
    texts = option_texts(options)
    arguments = {} if buckets is None else {"bucket": str(whole_number(buckets, "buckets"))}
    if bucket_keys:
        arguments["bucket-key"] = ",".join(bucket_keys)
    for key, value in arguments.items():
        if texts.get(key, value).replace(" ", "") != value:
            raise InvalidRequest(f"option '{key}' is '{texts[key]}', and the argument for it says '{value}'; give one")
    return {**texts, **arguments}


def _fields(columns: SchemaLike | Sequence[DataField]) -> list[DataField]:
    if isinstance(columns, list | tuple) and columns and all(isinstance(c, DataField) for c in columns):
        return list(columns)
    return [_field(column) for column in columns_of(cast(SchemaLike, columns))]


def _field(column: Column) -> DataField:
    if column.aggregate is not None:
        raise InvalidRequest(
            f"column '{column.name}' has the aggregate function {column.aggregate.name}; in a lake table say so by "
            f"option 'fields.{column.name}.aggregate-function'"
        )
    return DataField(-1, column.name, column.data_type, column.comment)


def _numbered(t: DataType, numbering: list[int]) -> DataType:
    """`t` with ids for nested fields: a row's own fields before the fields inside them, as in Java."""
    match t.root:
        case TypeRoot.ARRAY:
            return replace(t, element=_numbered(child(t.element), numbering))
        case TypeRoot.MAP:
            key = _numbered(child(t.key), numbering)
            return replace(t, key=key, value=_numbered(child(t.value), numbering))
        case TypeRoot.ROW:
            fields = []
            for f in t.fields:
                numbering[0] += 1
                field_id = numbering[0]
                fields.append(replace(f, field_id=field_id, data_type=_numbered(f.data_type, numbering)))
            return replace(t, fields=tuple(fields))
    return t


# ---- validation -----------------------------------------------------------------------------------------------------


def validate(schema: TableSchema) -> None:
    """Raise `InvalidRequest` (or `UnsupportedOperation`) for a schema that is not valid for a table."""
    options = CoreOptions(schema.options)
    options.check_supported()
    options.check_values()
    _validate_names(schema)
    for what, names in (("primary key", schema.primary_keys), ("partition keys", schema.partition_keys)):
        _validate_key(schema, what, names)
    if schema.has_primary_key:
        _ = schema.trimmed_primary_keys  # rejects a primary key equal to the partition keys
        merge_function(schema)
    _validate_bucket(schema, options)
    _validate_changelog(schema, options)
    _validate_retention(options)
    rowkind = options.rowkind_field
    if rowkind is not None and rowkind not in schema.names:
        raise InvalidRequest(f"rowkind.field '{rowkind}' is no column; columns are {', '.join(schema.names)}")


def _validate_names(schema: TableSchema) -> None:
    if not schema.fields:
        raise InvalidRequest("a table needs at least one column")
    repeated = {name for name in schema.names if schema.names.count(name) > 1}
    if repeated:
        raise InvalidRequest(f"columns {sorted(repeated)} are defined more than once")
    for name in schema.names:
        if not name.strip():
            raise InvalidRequest("a column needs a name that is not blank")
        if name in SYSTEM_NAMES or name.startswith(KEY_PREFIX):
            raise InvalidRequest(f"column name '{name}' is reserved by Paimon; choose another")


def _validate_key(schema: TableSchema, what: str, names: Sequence[str]) -> None:
    if len(set(names)) != len(names):
        raise InvalidRequest(f"the {what} ({', '.join(names)}) names a column twice")
    for name in names:
        if name not in schema.names:
            raise InvalidRequest(f"'{name}' of the {what} is no column; columns are {', '.join(schema.names)}")
        t = schema.field_named(name).type
        if t.is_nested:
            raise InvalidRequest(f"'{name}' of the {what} has type {t}; keys cannot be nested")


def _validate_bucket(schema: TableSchema, options: CoreOptions) -> None:
    bucket, keys = options.bucket, options.bucket_key
    for name in keys:
        if name not in schema.names:
            raise InvalidRequest(f"bucket-key '{name}' is no column; columns are {', '.join(schema.names)}")
        if name in schema.partition_keys:
            raise InvalidRequest(f"bucket-key '{name}' is a partition key, and so the same in a whole partition")
        if schema.has_primary_key and name not in schema.primary_keys:
            raise InvalidRequest(f"bucket-key '{name}' is not in the primary key ({', '.join(schema.primary_keys)})")
        if schema.field_named(name).type.is_nested:
            raise InvalidRequest(f"bucket-key '{name}' has type {schema.field_named(name).type}; it cannot be nested")
    if bucket == -1:
        if keys:
            raise InvalidRequest("option 'bucket-key' needs a number of buckets: set option 'bucket'")
        if not schema.has_primary_key and options.full_compaction_delta_commits is not None:
            raise InvalidRequest("a table without buckets takes no option 'full-compaction.delta-commits'")
    elif bucket == POSTPONE_BUCKET:
        if not schema.has_primary_key:
            raise InvalidRequest("postponed buckets (bucket = -2) are for primary-key tables")
    elif bucket < 1:
        raise InvalidRequest(f"option 'bucket' is {bucket}; write a positive number, or -1")
    elif not schema.has_primary_key and not keys:
        raise InvalidRequest("a table with buckets and without a primary key needs option 'bucket-key'")
    if bucket != -1:
        bucket_function(schema)  # rejects keys that it cannot hash


def _validate_changelog(schema: TableSchema, options: CoreOptions) -> None:
    producer = options.changelog_producer
    if options.streaming_read_overwrite and not schema.has_primary_key:
        raise InvalidRequest(
            "option 'streaming-read-overwrite' needs a primary key; without one it is 'streaming-read-append-overwrite'"
        )
    if producer == "none":
        return
    if not schema.has_primary_key:
        raise UnsupportedOperation(f"changelog-producer '{producer}' needs a primary key")
    if options.merge_engine == "first-row" and producer != "lookup":
        raise InvalidRequest(f"merge-engine 'first-row' takes changelog-producer none or lookup, not {producer}")
    if options.streaming_read_overwrite and producer in ("full-compaction", "lookup"):
        raise UnsupportedOperation(f"streaming-read-overwrite with changelog-producer {producer} would repeat changes")
    if producer == "lookup" and options.full_compaction_delta_commits is not None:
        raise InvalidRequest("full-compaction.delta-commits does not go with changelog-producer lookup")


def _validate_retention(options: CoreOptions) -> None:
    for kind, least, most in (
        ("snapshot", options.snapshot_num_retained_min, options.snapshot_num_retained_max),
        ("changelog", options.changelog_num_retained_min, options.changelog_num_retained_max),
    ):
        if least < 1:
            raise InvalidRequest(f"{kind}.num-retained.min must be at least 1, got {least}")
        if least > most:
            raise InvalidRequest(f"{kind}.num-retained.min ({least}) is above {kind}.num-retained.max ({most})")
    if options.target_file_row_num < 1:
        raise InvalidRequest(f"target-file-row-num must be at least 1, got {options.target_file_row_num}")
