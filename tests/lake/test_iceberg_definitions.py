"""The Iceberg table of a stream table, how an existing one differs, and the catalog options that determine it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.iceberg_tables import IcebergDefinition, catalog_properties, definition_of, difference, opened
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor
from forebay.metadata.types import DataType

SYSTEM = ["3: __bucket: required int", "4: __offset: required long", "5: __timestamp: required timestamptz"]


def describe(key: tuple[str, ...] = (), columns: dict[str, DataType] | None = None, **more: Any) -> TableDescriptor:
    named = {"id": types.int_(), "name": types.string()} if columns is None else columns
    schema = Schema.of([Column(n, t, f"about {n}") for n, t in named.items()], key)
    return TableDescriptor(schema, **{"bucket_count": 4, **more})


def spec_of(definition: IcebergDefinition) -> list[tuple[str, int, int, str]]:
    return [(f.name, f.source_id, f.field_id, str(f.transform)) for f in definition.spec.fields]


def metadata_of(definition: IcebergDefinition, **more: Any) -> TableMetadata:
    parts = {
        "schema": definition.schema, "partition_spec": definition.spec, "sort_order": definition.order,
        "location": "file:///lake", "properties": {"format-version": "2"},
    }  # fmt: skip
    return new_table_metadata(**{**parts, **more})


# ---- definitions ----------------------------------------------------------------------------------------------------


def test_a_log_is_spread_by_its_buckets_and_sorted_by_offset() -> None:
    made = definition_of(describe(comment="unused"))
    assert list(map(str, made.schema.fields)) == [
        "1: id: optional int (about id)", "2: name: optional string (about name)", *SYSTEM
    ]  # fmt: skip
    assert spec_of(made) == [("__bucket", 3, 1000, "identity")]
    assert str(made.order.fields[0]) == "4 ASC NULLS FIRST"
    assert (made.schema.identifier_field_ids, made.properties) == ([], {})


def test_keys_are_identifier_fields_and_rows_are_replaced_as_they_are_read() -> None:
    columns = {"id": types.int_(), "day": types.string(), "tags": types.array(types.string())}
    made = definition_of(describe(("id", "day"), columns, partition_keys=("day",)))
    assert made.schema.identifier_field_ids == [1, 2]
    assert [f.required for f in made.schema.fields] == [True, True, False, True, True, True]
    assert made.schema.find_field("tags.element").field_id == 7
    assert spec_of(made) == [("day", 2, 1000, "identity"), ("id_bucket", 1, 1001, "bucket[4]")]
    modes = ("write.delete.mode", "write.update.mode", "write.merge.mode")
    assert made.properties == dict.fromkeys(modes, "merge-on-read")


def test_options_of_iceberg_lose_their_prefix_and_others_get_one() -> None:
    given = {"properties": {"table.log.ttl": "1 d"}, "custom_properties": {"iceberg.a.b": "1", "owner": "me"}}
    expected = {"fluss.table.log.ttl": "1 d", "a.b": "1", "fluss.owner": "me"}
    assert definition_of(describe(**given)).properties == expected


def test_definitions_that_cannot_be_are_refused() -> None:
    for descriptor, kind, words in (
        (describe(bucket_keys=("id", "name")), InvalidRequest, r"this one has \['id', 'name'\]; name one"),
        (describe(("id", "name")), InvalidRequest, "at most one bucket key"),
        (describe(bucket_keys=("id",), bucket_count=None), InvalidRequest, "with a bucket key needs a bucket count"),
        (describe(("id",), {"id": types.array(types.int_())}), UnsupportedOperation, "cannot be part of the primary"),
        (describe(columns={"__offset": types.int_()}), InvalidRequest, "'__offset' is one of the lake's system"),
    ):
        with pytest.raises(kind, match=words) as refused:
            definition_of(descriptor)
        assert kind is UnsupportedOperation or refused.value.code == ErrorCode.INVALID_TABLE_EXCEPTION
    assert spec_of(definition_of(describe(bucket_count=None))) == [("__bucket", 3, 1000, "identity")]
    with pytest.raises(InvalidRequest, match=r"option 'iceberg\.write\.merge\.mode' follows from the table's primary"):
        definition_of(describe(custom_properties={"iceberg.write.merge.mode": "x"}))


# ---- differences ----------------------------------------------------------------------------------------------------

LOG, KEYED = describe(bucket_keys=("id",)), describe(("id",))
WIDE = describe(columns={"id": types.int_(), "name": types.string(), "more": types.int_()}, bucket_keys=("id",))


def told(there: TableDescriptor, asked: TableDescriptor, *, wider: bool = False) -> str | None:
    return difference(metadata_of(definition_of(there)), definition_of(asked), wider=wider)


@pytest.mark.parametrize(
    ("there", "asked", "problem"),
    [
        (LOG, LOG, None),
        (KEYED, KEYED, None),
        (LOG, replace(LOG, comment="other", properties={"a": "b"}), None),
        (KEYED, LOG, "its primary key is ['id'], and should be []"),
        (WIDE, LOG, "its columns are id, name, more, and should be id, name"),
        (LOG, WIDE, "its columns are id, name, and should be id, name, more"),
        (
            LOG,
            describe(columns={"id": types.int_(), "name": types.int_()}, bucket_keys=("id",)),
            "it has the column 'name string' where 'name int' should be",
        ),
        (
            describe(columns={"id": types.int_(), "name": types.string().not_null()}, bucket_keys=("id",)),
            LOG,
            "it has the column 'name string required' where 'name string' should be",
        ),
        (
            LOG,
            replace(LOG, bucket_count=5),
            "its partitions and buckets are bucket[4](id), and should be bucket[5](id)",
        ),
        (
            describe(partition_keys=("name",)),
            describe(),
            "its partitions and buckets are identity(name), identity(__bucket), and should be identity(__bucket)",
        ),
    ],
)
def test_a_table_that_is_there_is_compared_with_the_one_that_is_wanted(
    there: TableDescriptor, asked: TableDescriptor, problem: str | None
) -> None:
    assert told(there, asked) == problem


def test_a_table_may_have_more_columns_where_that_is_allowed_and_never_fewer() -> None:
    assert told(WIDE, LOG, wider=True) is None
    assert told(LOG, WIDE, wider=True) == "its columns are id, name, and should be id, name, more"


def test_tables_of_others_that_are_laid_out_otherwise_are_distinguished_from_ours() -> None:
    wanted = definition_of(LOG)
    for more, problem in (
        ({"sort_order": UNSORTED_SORT_ORDER}, r"its sort order is [], and should be [('__offset', 'identity'"),
        ({"partition_spec": UNPARTITIONED_PARTITION_SPEC}, "its partitions and buckets are none, and should be "),
        ({"properties": {"format-version": "1"}}, "its format version is 1, and should be 2"),
        (
            {
                "schema": IcebergSchema(NestedField(1, "id", LongType()), NestedField(4, "__offset", LongType())),
                "partition_spec": UNPARTITIONED_PARTITION_SPEC,
            },
            "its last columns are not the system columns ['__bucket', '__offset', '__timestamp']",
        ),
    ):
        found = difference(metadata_of(wanted, **more), wanted)
        assert found is not None
        assert found.startswith(problem)


# ---- catalogs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"warehouse": "file:/x"}, {"type": "sql", "warehouse": "file:///x", "uri": "sqlite:////x/catalog.db"}),
        ({"warehouse": "file:///x"}, {"type": "sql", "warehouse": "file:///x", "uri": "sqlite:////x/catalog.db"}),
        (
            {"warehouse": "file:/my ü/a b//"},
            {"type": "sql", "warehouse": "file:///my ü/a b", "uri": "sqlite:////my ü/a b/catalog.db"},
        ),
        (
            {"warehouse": "file://localhost/x", "uri": "jdbc:sqlite:/y"},
            {"type": "sql", "warehouse": "file:///x", "uri": "jdbc:sqlite:/y"},
        ),
        ({"type": "REST", "warehouse": "prod"}, {"type": "rest", "warehouse": "prod"}),
        ({"warehouse": "/x", "uri": "sqlite:////y"}, {"type": "sql", "warehouse": "file:///x", "uri": "sqlite:////y"}),
        (
            {"warehouse": "s3://b/w", "uri": "postgresql://h/n"},
            {"type": "sql", "warehouse": "s3://b/w", "uri": "postgresql://h/n"},
        ),
        (
            {"type": "JDBC", "uri": "jdbc:postgresql://h/n", "warehouse": "s3://b/w"},
            {"type": "sql", "uri": "postgresql://h/n", "warehouse": "s3://b/w"},
        ),
        ({"type": "hive", "uri": "thrift://h"}, {"type": "hive", "uri": "thrift://h"}),
        ({"type": "Glue", "warehouse": "/x"}, {"type": "glue", "warehouse": "/x"}),
    ],
)
def test_catalogs_are_found_by_their_options(given: dict[str, str], found: dict[str, str]) -> None:
    assert catalog_properties(given) == found


def test_a_relative_warehouse_lies_below_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = catalog_properties({"warehouse": "lake", "uri": "sqlite:///c.db?x=1"})
    assert (found["warehouse"], found["uri"]) == (f"file://{tmp_path}/lake", f"sqlite:///{tmp_path}/c.db?x=1")
    assert catalog_properties(found) == found
    storage = IcebergLakeStorage({"warehouse": "lake", "uri": "sqlite:///c.db"})
    assert storage.options == {"warehouse": f"{tmp_path}/lake", "uri": f"sqlite:///{tmp_path}/c.db"}


@pytest.mark.parametrize(
    ("warehouse", "says"),
    [("file://host/x", "on the host 'host'"), ("/a?b", r"has '\?'"), ("file:/a#b", "has '#'"), ("/a\tb", "pyiceberg")],
)
def test_a_warehouse_that_pyiceberg_would_take_for_another_folder_is_refused(warehouse: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"option 'warehouse'.*{says}"):
        catalog_properties({"warehouse": warehouse})


@pytest.mark.parametrize("folder", ["my lake", "50%25 ü"])
def test_tables_lie_in_the_warehouse_and_are_not_encoded(tmp_path: Path, folder: str) -> None:
    with opened({"warehouse": f"file:{tmp_path}/{folder}"}) as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", pa.schema([("a", pa.int64())]))
        table.append(pa.table({"a": [1]}))
    with opened({"warehouse": str(tmp_path / folder)}) as catalog:
        table = catalog.load_table("db.t")
        assert table.location().startswith(f"file://{tmp_path}/{folder}/")
        assert table.scan().to_arrow().to_pylist() == [{"a": 1}]
    assert [path.name for path in tmp_path.iterdir()] == [folder]
    assert list((tmp_path / folder).rglob("*.parquet"))
