"""The rules of CREATE TABLE and ALTER TABLE: each rule, and the nearest allowed case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest
from forebay.metadata import json_serde, types
from forebay.metadata.table import AggregateFunction, Column, TableDescriptor, TablePath
from forebay.server.metadata.table_rules import (
    COLUMNS_MAX,
    DESCRIPTION_BYTES_MAX,
    HISTORY_BYTES_MAX,
    SCHEMA_COLUMNS_MAX,
    altered_properties,
    check_description_size,
    check_schema_history,
    with_defaults,
)
from tests.server.metadata.described_tables import K, V, created, described

NESTED = Column("n", types.array(types.int_()))
TABLE, CONFIG = ErrorCode.INVALID_TABLE_EXCEPTION, ErrorCode.INVALID_CONFIG_EXCEPTION


def test_what_is_not_said_is_filled_in() -> None:
    log = with_defaults(described(), 3, 1)
    assert (log.bucket_count, log.bucket_keys, log.properties) == (3, (), {"table.replication.factor": "1"})
    keyed = with_defaults(described(key=("k", "p"), partitions=("p",), count=5), 3, 1)
    assert (keyed.bucket_count, keyed.bucket_keys) == (5, ("k",))
    assert keyed.properties == {
        "table.replication.factor": "1",
        "table.kv.format-version": "2",
        "table.kv.standby-replica.enabled": "true",
    }
    auto = {"table.auto-partition.enabled": "true"}
    one = with_defaults(described(partitions=("p",), properties=auto), 1, 1)
    assert "table.auto-partition.num-precreate" not in one.properties
    two = with_defaults(described(partitions=("p", "v"), properties=auto), 1, 1)
    assert two.properties["table.auto-partition.num-precreate"] == "0"
    assert "table.auto-partition.num-precreate" not in with_defaults(described(partitions=("p", "v")), 1, 1).properties


@pytest.mark.parametrize(
    "allowed",
    [
        described(count=8),
        described(key=("k",)),
        described(key=("k", "p"), partitions=("p",), buckets=("k",)),
        described(buckets=("v",), partitions=("p",)),
        described(K, NESTED, key=("k",)),
        described(properties={"table.log.arrow.compression.zstd.level": "1"}),
        described(properties={"table.log.arrow.compression.zstd.level": "22"}),
        described(properties={"table.log.tiered.local-segments": "1"}),
        described(properties={"table.log.format": "INDEXED"}),
        described(key=("k",), properties={"table.log.format": "INDEXED", "table.kv.format": "INDEXED"}),
        described(key=("k",), properties={"table.kv.format-version": "1"}),
        described(key=("k",), properties={"table.delete.behavior": "ignore"}),
        described(K, Column("id", types.int_()), key=("k",), auto_increment="id"),
        described(K, Column("id", types.bigint()), key=("k",), auto_increment="id"),
        described(properties={"table.statistics.columns": "k"}),
        described(custom={"fields.agg": "sum", "fields..agg": "sum"}),
        described(properties={"table.datalake.historical-partition.enabled": "false"}),
    ],
)
def test_what_is_allowed_is_taken(allowed: TableDescriptor) -> None:
    created(allowed)


@pytest.mark.parametrize(
    ("refused", "code", "words"),
    [
        (described(partitions=("x",)), TABLE, "key column 'x' is not a column"),
        (described(buckets=("x",)), TABLE, "key column 'x' is not a column"),
        (described(key=("k",), partitions=("p",)), TABLE, "partition key p must be part of the primary key"),
        (described(key=("p",), partitions=("p",)), TABLE, "no column besides the partition keys"),
        (described(partitions=("p",), buckets=("p",)), TABLE, "cannot be both bucket key and partition key"),
        (described(key=("k",), buckets=("v",)), TABLE, "bucket key v must be part of the primary key"),
        (described(count=0), TABLE, "at least one bucket, not 0"),
        (described(count=9), ErrorCode.BUCKET_MAX_NUM_EXCEPTION, "9 buckets are more than the 8"),
        (
            described(properties={"table.replication.factor": "3"}),
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "must be 1, not 3",
        ),
        (described(K, Column(" ", types.int_())), TABLE, "a column has no name"),
        (described(K, Column("__offset", types.int_())), TABLE, "__offset are reserved"),
        (described(K, NESTED, key=("n",)), TABLE, "primary key column 'n' has type .*nested types cannot be keys"),
        (described(K, NESTED, buckets=("n",)), TABLE, "bucket key column 'n' has type"),
        (
            described(K, replace(V, aggregate=AggregateFunction("sum")), key=("k",)),
            CONFIG,
            "column 'v' has aggregate function 'sum'",
        ),
        (described(custom={"fields.v.agg": "sum"}), CONFIG, "'fields.v.agg' = 'sum' asks for an aggregate function"),
        (described(properties={"table.nonsense": "1"}), CONFIG, "not a recognized Fluss table property"),
        (described(properties={"nonsense": "1"}), CONFIG, "give it as a custom property"),
        (described(properties={"table.log.arrow.compression.zstd.level": "0"}), CONFIG, "from 1 to 22, not 0"),
        (described(properties={"table.log.arrow.compression.zstd.level": "23"}), CONFIG, "from 1 to 22, not 23"),
        (described(properties={"table.log.tiered.local-segments": "0"}), CONFIG, "at least 1, not 0"),
        (described(key=("k",), properties={"table.log.format": "INDEXED"}), CONFIG, "needs log format ARROW"),
        (described(key=("k",), properties={"table.kv.format-version": "3"}), CONFIG, "may be up to 2"),
        (described(properties={"table.delete.behavior": "ignore"}), CONFIG, "is for primary-key tables only"),
        (described(properties={"table.auto-partition.enabled": "true"}), CONFIG, "needs a partitioned table"),
        (
            described(K, V, Column("a", types.decimal(5, 2)), partitions=("a",)),
            TABLE,
            "partition key 'a' has type DECIMAL",
        ),
        (
            described(K, Column("id", types.int_()), auto_increment="id"),
            TABLE,
            "'id' needs a primary-key table",
        ),
        (described(K, Column("id", types.int_()), key=("k", "id"), auto_increment="id"), TABLE, "cannot be part of"),
        (described(key=("k",), auto_increment="v"), TABLE, "must be INT or BIGINT"),
        (described(key=("k",), properties={"table.statistics.columns": "v"}), CONFIG, "is for log tables only"),
        (described(properties={"table.statistics.columns": "x"}), CONFIG, "x"),
        (
            described(properties={"table.datalake.historical-partition.enabled": "true"}),
            CONFIG,
            "does not serve historical partitions",
        ),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(refused: TableDescriptor, code: ErrorCode, words: str) -> None:
    with pytest.raises(ForebayError, match=words) as caught:
        created(refused)
    assert caught.value.code == code


def test_keys_that_the_lake_has_no_bytes_for_are_refused_where_this_server_encodes_them() -> None:
    iceberg, hudi = {"table.datalake.format": "iceberg"}, {"table.datalake.format": "hudi"}
    for refused in (described(key=("k", "v"), properties=iceberg), described(buckets=("k", "v"), properties=iceberg)):
        with pytest.raises(ForebayError, match=r"Iceberg tables need exactly one key column.*by 'bucket.key'"):
            created(refused)
    created(described(key=("k",), properties=iceberg))
    created(described(buckets=("k",), properties=iceberg))
    created(described(key=("k", "v")))
    created(described(buckets=("k", "v"), properties=hudi))


def test_options_are_changed_and_taken_back() -> None:
    before = created(described(properties={"table.log.ttl": "1 d"}, custom={"own": "1", "other": "2"}))
    after = altered_properties(before, {"table.log.ttl": "2 d", "own": "3"}, ["other", "never set"])
    assert after.properties == {**before.properties, "table.log.ttl": "2 d"}
    assert after.custom_properties == {"own": "3"}
    again = altered_properties(after, {}, ["table.log.ttl", "own"])
    assert (again.properties, again.custom_properties) == ({"table.replication.factor": "1"}, {})


@pytest.mark.parametrize(
    ("to_set", "to_reset", "code", "words"),
    [
        ({"table.log.format": "INDEXED"}, [], ErrorCode.INVALID_ALTER_TABLE_EXCEPTION, "cannot be altered"),
        ({}, ["table.kv.format"], ErrorCode.INVALID_ALTER_TABLE_EXCEPTION, "'table.kv.format' cannot be altered"),
        ({"table.nonsense": "1"}, [], ErrorCode.INVALID_ALTER_TABLE_EXCEPTION, "table.log.ttl"),
        ({"table.log.ttl": "soon"}, [], CONFIG, "option 'table.log.ttl'"),
        ({"fields.v.agg": "sum"}, [], CONFIG, "asks for an aggregate function"),
        ({"table.auto-partition.enabled": "true"}, [], CONFIG, "needs a partitioned table"),
        ({"table.statistics.columns": "x"}, [], CONFIG, "x"),
        ({"table.log.local-ttl": "soon"}, [], CONFIG, "option 'table.log.local-ttl'"),
    ],
)
def test_a_change_that_is_not_allowed_is_refused_by_name(
    to_set: dict[str, str], to_reset: list[str], code: ErrorCode, words: str
) -> None:
    with pytest.raises(ForebayError, match=words) as caught:
        altered_properties(created(described()), to_set, to_reset)
    assert caught.value.code == code


def test_columns_are_counted_with_the_fields_of_rows_in_them() -> None:
    fields = [types.RowField(f"f{number}", types.int_()) for number in range(COLUMNS_MAX - 2)]
    widest = Column("w", types.array(types.row(*fields)))
    created(described(K, widest))
    with pytest.raises(InvalidRequest, match=rf"{COLUMNS_MAX + 1} columns.* may have {COLUMNS_MAX}") as error:
        created(described(K, V, widest))
    assert error.value.code == TABLE


def test_the_versions_of_a_schema_are_bounded_together() -> None:
    path = TablePath("d", "t")
    narrow, wide = described(K).schema, described(*(Column(f"c{n}", types.int_()) for n in range(COLUMNS_MAX))).schema
    most = SCHEMA_COLUMNS_MAX // COLUMNS_MAX
    left = SCHEMA_COLUMNS_MAX - most * COLUMNS_MAX
    check_schema_history(path, [narrow] * left + [wide] * (most - 1), wide)
    with pytest.raises(InvalidRequest, match=rf"{SCHEMA_COLUMNS_MAX + 1} columns together") as error:
        check_schema_history(path, [narrow] * (left + 1) + [wide] * (most - 1), wide)
    assert error.value.code == ErrorCode.INVALID_ALTER_TABLE_EXCEPTION


def test_the_description_of_a_table_is_bounded_alone_and_times_its_versions() -> None:
    path = TablePath("d", "t")
    empty = len(json_serde.dumps(json_serde.descriptor_to_json(replace(described(), comment=""))))
    largest = replace(described(), comment="x" * (DESCRIPTION_BYTES_MAX - empty))
    check_description_size(path, largest, versions=HISTORY_BYTES_MAX // DESCRIPTION_BYTES_MAX)
    with pytest.raises(InvalidRequest, match=rf"d\.t takes {DESCRIPTION_BYTES_MAX + 1} bytes") as error:
        check_description_size(path, replace(largest, comment=largest.comment + "x"), versions=1)
    assert error.value.code == TABLE
    with pytest.raises(InvalidRequest, match="65 versions of the schema") as error:
        check_description_size(path, largest, versions=HISTORY_BYTES_MAX // DESCRIPTION_BYTES_MAX + 1)
    assert error.value.code == TABLE
