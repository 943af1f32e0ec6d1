"""The rules of CREATE TABLE and ALTER TABLE, and the defaults that the server fills in.

The rules and their error codes are those of Fluss's coordinator (`TableDescriptorValidation`); Fluss features that
Forebay does not serve are refused here, by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from forebay.base.arguments import did_you_mean
from forebay.base.errors import ErrorCode, InvalidRequest, LimitExceeded, UnsupportedOperation
from forebay.codec.log.statistics import statistics_columns
from forebay.codec.rows.keys import bucket_key_encoder, primary_key_encoder
from forebay.kv.engines import ENGINE_PROPERTY, check_engine, wants_rocksdb_files
from forebay.metadata import json_serde
from forebay.metadata.auto_partition import AutoPartitioning
from forebay.metadata.merge_engines import with_function_options
from forebay.metadata.names import RESERVED_COLUMNS
from forebay.metadata.partitions import UNSUPPORTED_ROOTS
from forebay.metadata.table import Schema, TableDescriptor, TablePath
from forebay.metadata.table_options import (
    TABLE_OPTIONS,
    TABLE_PREFIX,
    KvFormat,
    LogFormat,
    parse_option,
    unserved_option,
)
from forebay.metadata.types import TypeRoot
from forebay.server.metadata.merge_rules import check_altered_options, check_merge_engine

COLUMNS_MAX = 4096
"""Maximum number of columns of a table, including fields of nested rows."""

SCHEMA_COLUMNS_MAX = 200_000
"""Maximum number of columns in all versions of a table's schema: all are kept, because old rows are read with them."""

DESCRIPTION_BYTES_MAX = 1 << 20
"""Maximum size of a table's description as JSON, including comments; a node of Fluss's ZooKeeper holds as much."""

HISTORY_BYTES_MAX = 64 << 20
"""Maximum size of a table's description times the versions of its schema."""

KV_FORMAT_VERSION = 2
"""The key layout of new primary-key tables (see codec.keys)."""


def _invalid(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_TABLE_EXCEPTION)


def _invalid_config(message: str) -> InvalidRequest:
    return InvalidRequest(message, ErrorCode.INVALID_CONFIG_EXCEPTION)


def with_defaults(descriptor: TableDescriptor, bucket_count: int, replication_factor: int) -> TableDescriptor:
    """Return the descriptor to store: bucket key, bucket count, version options and aggregate functions filled in.

    Raises `InvalidRequest` (INVALID_TABLE, INVALID_CONFIG) for keys or functions that contradict each other.
    """
    descriptor = with_function_options(descriptor)
    properties = dict(descriptor.properties)
    properties.setdefault("table.replication.factor", str(replication_factor))
    if descriptor.has_primary_key:
        properties.setdefault("table.kv.format-version", str(KV_FORMAT_VERSION))
        properties.setdefault("table.kv.standby-replica.enabled", "true")
    if descriptor.merge_engine is not None:
        properties.setdefault("table.delete.behavior", descriptor.delete_behavior.upper())
    if len(descriptor.partition_keys) > 1 and descriptor.option("table.auto-partition.enabled"):
        properties.setdefault("table.auto-partition.num-precreate", "0")
    return replace(
        descriptor,
        bucket_keys=_bucket_keys(descriptor),
        bucket_count=bucket_count if descriptor.bucket_count is None else descriptor.bucket_count,
        properties=properties,
    )


def _bucket_keys(descriptor: TableDescriptor) -> tuple[str, ...]:
    names = descriptor.schema.names
    primary_key, partition_keys = descriptor.schema.primary_key, descriptor.partition_keys
    for key in (*partition_keys, *descriptor.bucket_keys):
        if key not in names:
            raise _invalid(f"key column '{key}' is not a column; the columns are {', '.join(names)}")
    if primary_key:
        outside = [key for key in partition_keys if key not in primary_key]
        if outside:
            raise _invalid(
                f"partition key {', '.join(outside)} must be part of the primary key ({', '.join(primary_key)})"
            )
        if not descriptor.physical_primary_key:
            raise _invalid("the primary key has no column besides the partition keys")
    both = [key for key in descriptor.bucket_keys if key in partition_keys]
    if both:
        raise _invalid(f"{', '.join(both)} cannot be both bucket key and partition key")
    if primary_key and not descriptor.bucket_keys:
        return descriptor.physical_primary_key
    outside = [key for key in descriptor.bucket_keys if primary_key and key not in primary_key]
    if outside:
        raise _invalid(f"bucket key {', '.join(outside)} must be part of the primary key ({', '.join(primary_key)})")
    return descriptor.bucket_keys


def check_new_table(descriptor: TableDescriptor, bucket_count_max: int) -> None:
    """Raise unless a table like this (defaults filled in) can be created."""
    _check_properties(descriptor.properties)
    _check_buckets(descriptor, bucket_count_max)
    _check_columns(descriptor)
    _check_keys(descriptor)
    _check_formats(descriptor)
    check_merge_engine(descriptor)
    check_engine(descriptor)
    wants_rocksdb_files(descriptor)
    _check_partitioning(descriptor)
    _check_special_columns(descriptor)
    for key, text in descriptor.properties.items():
        missing = unserved_option(key, text)
        if missing is not None:
            raise UnsupportedOperation(
                f"Forebay does not serve {missing} yet, which option '{key}' = '{text}' asks for (docs/limits.md)",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )


def _check_properties(properties: Mapping[str, str]) -> None:
    for key, text in properties.items():
        if key in TABLE_OPTIONS:
            parse_option(key, text)
        elif key.startswith(TABLE_PREFIX):
            hint = did_you_mean(key, TABLE_OPTIONS)
            raise _invalid_config(
                f"'{key}' is not a recognized Fluss table property in the current cluster version{hint}"
            )
        else:
            raise _invalid_config(f"'{key}' is not a Fluss table property; give it as a custom property")


def _check_buckets(descriptor: TableDescriptor, bucket_count_max: int) -> None:
    count = descriptor.bucket_count
    if not isinstance(count, int) or count < 1:
        raise _invalid(f"a table needs at least one bucket, not {count}")
    if count > bucket_count_max:
        raise LimitExceeded(
            f"{count} buckets are more than the {bucket_count_max} that 'max.bucket.num' allows",
            ErrorCode.BUCKET_MAX_NUM_EXCEPTION,
        )
    factor = descriptor.option("table.replication.factor")
    if factor != 1:
        raise InvalidRequest(
            f"'table.replication.factor' must be 1, not {factor}: there is one tablet server",
            ErrorCode.INVALID_REPLICATION_FACTOR,
        )


def check_column_count(count: int, what: str) -> None:
    """Raise `InvalidRequest` if a table has, or would have, more than `COLUMNS_MAX` columns."""
    if count > COLUMNS_MAX:
        raise InvalidRequest(
            f"{what} has {count} columns, fields of rows included; a table may have {COLUMNS_MAX}",
            ErrorCode.INVALID_TABLE_EXCEPTION,
        )


def check_schema_history(path: TablePath, schemas: Iterable[Schema], added: Schema) -> None:
    """Raise `InvalidRequest` if a table cannot have one more version of its schema."""
    check_column_count(added.field_count, f"table {path}")
    count = sum(len(schema.columns) for schema in schemas) + len(added.columns)
    if count > SCHEMA_COLUMNS_MAX:
        raise InvalidRequest(
            f"the versions of the schema of table {path} would have {count} columns together; they may have "
            f"{SCHEMA_COLUMNS_MAX}: add many columns at a time, or make a new table",
            ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
        )


def check_description_size(path: TablePath, descriptor: TableDescriptor, versions: int) -> None:
    """Raise `InvalidRequest` if the description of a table with this many schema versions is too large."""
    size = len(json_serde.dumps(json_serde.descriptor_to_json(descriptor)))
    if size > DESCRIPTION_BYTES_MAX:
        raise _invalid(
            f"the description of table {path} takes {size} bytes as JSON; it may take {DESCRIPTION_BYTES_MAX}: "
            "shorten its comments and properties"
        )
    if size * versions > HISTORY_BYTES_MAX:
        raise _invalid(
            f"the {versions} versions of the schema of table {path} take up to {size} bytes each as JSON; together "
            f"they may take {HISTORY_BYTES_MAX}: add many columns at a time, shorten comments, or make a new table"
        )


def _check_columns(descriptor: TableDescriptor) -> None:
    check_column_count(descriptor.schema.field_count, "the table")
    if not all(name.strip() for name in descriptor.schema.names):
        raise _invalid("a column has no name")
    reserved = [name for name in descriptor.schema.names if name in RESERVED_COLUMNS]
    if reserved:
        raise _invalid(f"column names {', '.join(reserved)} are reserved; the reserved names are {RESERVED_COLUMNS}")
    keys = {"primary key": descriptor.schema.primary_key, "bucket key": descriptor.bucket_keys}
    for what, names in keys.items():
        for name in names:
            data_type = descriptor.schema.column(name).data_type
            if data_type.is_nested:
                raise _invalid(f"{what} column '{name}' has type {data_type}; nested types cannot be keys")


def _check_keys(descriptor: TableDescriptor) -> None:
    """Raise if no row could ever be written, because the lake's format has no encoding for keys of these types.

    For Hudi tables, clients that know how encode the keys; this server needs their primary keys only.
    """
    if descriptor.lake_format != "hudi":
        bucket_key_encoder(descriptor)
    if descriptor.has_primary_key:
        primary_key_encoder(descriptor)


def _check_formats(descriptor: TableDescriptor) -> None:
    level = descriptor.option("table.log.arrow.compression.zstd.level")
    if not 1 <= level <= 22:
        raise _invalid_config(f"'table.log.arrow.compression.zstd.level' must be from 1 to 22, not {level}")
    segments = descriptor.option("table.log.tiered.local-segments")
    if segments < 1:
        raise _invalid_config(f"'table.log.tiered.local-segments' must be at least 1, not {segments}")
    local_ttl, ttl = descriptor.option("table.log.local-ttl"), descriptor.option("table.log.ttl")
    if local_ttl is not None and local_ttl > ttl > 0:
        raise _invalid_config(
            f"'table.log.local-ttl' must not be longer than 'table.log.ttl': {local_ttl} ms and {ttl} ms"
        )
    if descriptor.has_primary_key:
        if descriptor.kv_format is KvFormat.COMPACTED and descriptor.log_format is LogFormat.INDEXED:
            raise _invalid_config("a primary-key table of kv format COMPACTED needs log format ARROW or COMPACTED")
        if descriptor.kv_format_version > KV_FORMAT_VERSION:
            raise _invalid_config(f"'table.kv.format-version' may be up to {KV_FORMAT_VERSION}")
    if "table.delete.behavior" in descriptor.properties and not descriptor.has_primary_key:
        raise _invalid_config("'table.delete.behavior' is for primary-key tables only")


def _check_partitioning(descriptor: TableDescriptor) -> None:
    _check_auto_partitioning(descriptor)
    for key in descriptor.partition_keys:
        data_type = descriptor.schema.column(key).data_type
        if data_type.root in UNSUPPORTED_ROOTS:
            raise _invalid(f"partition key '{key}' has type {data_type}, which partition keys cannot have")


def _check_auto_partitioning(descriptor: TableDescriptor) -> None:
    if not descriptor.is_partitioned and descriptor.option("table.auto-partition.enabled"):
        raise _invalid_config("'table.auto-partition.enabled' needs a partitioned table")
    AutoPartitioning.of(descriptor)


def _check_special_columns(descriptor: TableDescriptor) -> None:
    name = descriptor.schema.auto_increment_column
    if name is not None:
        if not descriptor.has_primary_key:
            raise _invalid(f"auto-increment column '{name}' needs a primary-key table")
        if name in descriptor.schema.primary_key:
            raise _invalid(f"auto-increment column '{name}' cannot be part of the primary key")
        root = descriptor.schema.column(name).data_type.root
        if root not in (TypeRoot.INT, TypeRoot.BIGINT):
            raise _invalid(f"auto-increment column '{name}' must be INT or BIGINT")
    if "table.statistics.columns" in descriptor.properties:
        check_statistics_option(descriptor)


def check_statistics_option(descriptor: TableDescriptor) -> None:
    """Raise `InvalidRequest` (INVALID_CONFIG) unless 'table.statistics.columns' names columns that can have any."""
    if descriptor.has_primary_key:
        raise _invalid_config("'table.statistics.columns' is for log tables only")
    statistics_columns(descriptor.schema, descriptor.properties["table.statistics.columns"])


def altered_properties(
    descriptor: TableDescriptor, to_set: Mapping[str, str], to_reset: Iterable[str]
) -> TableDescriptor:
    """The descriptor with options changed. Raises `InvalidRequest` (INVALID_ALTER_TABLE) for fixed ones."""
    properties, custom = dict(descriptor.properties), dict(descriptor.custom_properties)
    resets = list(to_reset)
    for key in (*to_set, *resets):
        option = TABLE_OPTIONS.get(key)
        if key.startswith(TABLE_PREFIX) and (option is None or not option.alterable):
            alterable = ", ".join(sorted(o.name for o in TABLE_OPTIONS.values() if o.alterable))
            raise InvalidRequest(
                f"option '{key}' cannot be altered; those that can are {alterable}"
                f"{'' if option else did_you_mean(key, TABLE_OPTIONS)}",
                ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
            )
    for key, text in to_set.items():
        (properties if key.startswith(TABLE_PREFIX) else custom)[key] = text
    for key in resets:
        (properties if key.startswith(TABLE_PREFIX) else custom).pop(key, None)
    altered = replace(descriptor, properties=properties, custom_properties=custom)
    _check_properties(properties)
    check_altered_options(altered)
    if ENGINE_PROPERTY in to_set:
        check_engine(altered)
    wants_rocksdb_files(altered)
    _check_auto_partitioning(altered)
    _check_special_columns(altered)
    for key in to_set:
        missing = unserved_option(key, to_set[key]) if key in TABLE_OPTIONS else None
        if missing is not None:
            raise UnsupportedOperation(
                f"Forebay does not serve {missing} yet, which option '{key}' = '{to_set[key]}' asks for",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )
    return altered
