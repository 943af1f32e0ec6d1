"""The file system catalog, and valid definitions of tables."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from forebay.base.errors import AlreadyExists, ForebayError, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.table import AggregateFunction, Column, Schema
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.catalog.definition import new_schema
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from tests.paimon.lake import new_catalog, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int32()), ("l", pa.list_(pa.int32()))])


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


def test_databases_come_and_go(catalog: FileSystemCatalog) -> None:
    catalog.create_database("other")
    assert catalog.list_databases() == ["db", "other"]
    with pytest.raises(AlreadyExists):
        catalog.create_database("other")
    catalog.create_database("other", ignore_if_exists=True)
    catalog.drop_database("other")
    with pytest.raises(NotFound):
        catalog.drop_database("other")
    catalog.drop_database("other", ignore_if_not_exists=True)
    assert catalog.list_databases() == ["db"]
    assert (catalog.database_exists("db"), catalog.database_exists("other")) == (True, False)


def test_a_database_with_tables_is_dropped_only_with_all_of_them(catalog: FileSystemCatalog) -> None:
    catalog.create_table("db.t", COLUMNS)
    with pytest.raises(InvalidRequest, match="has tables"):
        catalog.drop_database("db")
    catalog.drop_database("db", cascade=True)
    assert catalog.list_databases() == []


def test_a_table_that_is_created_while_its_database_is_dropped_stays(
    catalog: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, asked = FileSystemCatalog.list_tables, list[str]()

    def list_tables(self: FileSystemCatalog, database: str) -> list[str]:
        found = listed(self, database)
        if not asked:
            asked.append(database)
            put(self.create_table("db.t", COLUMNS), [{"id": 1}])
        return found

    monkeypatch.setattr(FileSystemCatalog, "list_tables", list_tables)
    with pytest.raises(InvalidRequest, match="has tables"):
        catalog.drop_database("db")
    assert rows_of(catalog.table("db.t"), ["id"]) == [(1,)]


def test_what_is_beside_tables_goes_with_their_database(catalog: FileSystemCatalog, tmp_path: Path) -> None:
    (tmp_path / "lake" / "db.db" / "half" / "bucket-0").mkdir(parents=True)
    (tmp_path / "lake" / "db.db" / "half" / "bucket-0" / "data").write_text("left")
    (tmp_path / "lake" / "db.db" / "note").write_text("of somebody")
    catalog.drop_database("db")
    assert catalog.list_databases() == []


def test_tables_come_and_go(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS, comment="what it is")
    assert (catalog.list_tables("db"), table.schema.comment) == (["t"], "what it is")
    with pytest.raises(AlreadyExists, match=r"table 'db\.t'"):
        catalog.create_table("db.t", COLUMNS)
    assert catalog.create_table("db.t", {"x": types.int_()}, ignore_if_exists=True).schema.names == ("id", "v", "l")
    put(table, [{"id": 1}])
    catalog.rename_table("db.t", "db.u")
    assert rows_of(catalog.table("db.u"), ["id"]) == [(1,)]
    with pytest.raises(NotFound, match=r"no table 'db.t'"):
        catalog.table("db.t")
    catalog.drop_table("db.u")
    with pytest.raises(NotFound):
        catalog.drop_table("db.u")
    catalog.drop_table("db.u", ignore_if_not_exists=True)
    assert catalog.list_tables("db") == []


def test_a_table_that_is_created_while_one_of_its_name_is_dropped_keeps_its_files(
    catalog: FileSystemCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(catalog.create_table("db.t", COLUMNS), [{"id": 1}])
    remove = shutil.rmtree

    def slowly(path: str) -> None:
        """The schemas first, by which there is no table any more, and then what was there at the beginning."""
        names = sorted(os.listdir(path), key=lambda name: name != "schema")
        for name in names:
            remove(os.path.join(path, name))
            if name == "schema":
                put(catalog.create_table("db.t", COLUMNS), [{"id": 2}])
        os.rmdir(path)

    monkeypatch.setattr(shutil, "rmtree", slowly)
    catalog.drop_table("db.t")
    assert rows_of(catalog.table("db.t"), ["id"]) == [(2,)]
    assert os.listdir(catalog.warehouse) == ["db.db"]


@pytest.mark.parametrize("name", ["t", "db.", ".t", "db/x.t", "no.t"])
def test_names_that_are_no_tables_are_refused(catalog: FileSystemCatalog, name: str) -> None:
    with pytest.raises((InvalidRequest, NotFound)):
        catalog.create_table(name, COLUMNS)


def test_ids_are_given_to_columns_and_then_to_what_is_inside_them() -> None:
    inner = types.row(types.field("x", types.int_()), types.field("y", types.row(types.field("z", types.int_()))))
    schema = new_schema({"a": types.array(inner), "b": types.int_()}, ["b"])
    row = schema.fields[0].type.element
    assert row is not None
    assert [f.id for f in schema.fields] == [0, 4]
    assert [f.field_id for f in row.fields] == [1, 2]
    assert [f.field_id for f in row.fields[1].data_type.fields] == [3]
    assert schema.highest_field_id == 4
    assert not schema.fields[1].type.nullable


def test_types_by_name_may_be_of_arrow() -> None:
    by_name = new_schema({"a": pa.int64(), "b": types.string()})
    assert by_name.fields == new_schema(pa.schema([("a", pa.int64()), ("b", pa.string())])).fields


@pytest.mark.parametrize("given", ["BIGGINT", 7, pa.month_day_nano_interval()])
def test_what_is_no_type_of_a_column_is_refused_by_the_name_of_the_column(given: Any) -> None:
    with pytest.raises(InvalidRequest, match="column 'a': "):
        new_schema({"a": given})


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"primary_key": ["nope"]}, "'nope' of the primary key is no column"),
        ({"primary_key": ["l"]}, "keys cannot be nested"),
        ({"primary_key": ["id", "id"]}, "names a column twice"),
        ({"primary_key": ["id"], "partition_keys": ["id"]}, "same as the partition keys"),
        ({"partition_keys": ["nope"]}, "'nope' of the partition keys is no column"),
        ({"options": {"bucket": "2"}}, "needs option 'bucket-key'"),
        ({"options": {"bucket-key": "id"}}, "needs a number of buckets"),
        ({"options": {"bucket": "2", "bucket-key": "nope"}}, "bucket-key 'nope' is no column"),
        ({"primary_key": ["id"], "options": {"bucket": "2", "bucket-key": "v"}}, "not in the primary key"),
        ({"partition_keys": ["v"], "options": {"bucket": "2", "bucket-key": "v"}}, "is a partition key"),
        ({"options": {"changelog-producer": "input"}}, "needs a primary key"),
        ({"options": {"streaming-read-overwrite": "true"}}, "streaming-read-append-overwrite"),
        ({"options": {"precommit-compact": "maybe"}}, "option 'precommit-compact': 'maybe' is not"),
        ({"options": {"scan.mode": "nonsense"}}, "option 'scan.mode': 'nonsense' is not"),
        ({"options": {"partition.expiration-time": "soon"}}, "option 'partition.expiration-time': 'soon' is not"),
        ({"options": {"bucket": "-2"}}, "are for primary-key tables"),
        ({"options": {"rowkind.field": "nope"}}, "rowkind.field 'nope'"),
        ({"options": {"snapshot.num-retained.min": "0"}}, "must be at least 1"),
        ({"options": {"snapshot.num-retained.min": "5", "snapshot.num-retained.max": "4"}}, "is above"),
        (
            {"primary_key": ["id"], "options": {"merge-engine": "first-row", "changelog-producer": "input"}},
            "first-row",
        ),
        ({"primary_key": ["id"], "options": {"sequence.field": "nope"}}, "sequence.field 'nope'"),
        ({"options": {"type": "object-table"}}, "'type' is 'object-table'"),
    ],
)
def test_definitions_that_no_table_may_have_are_refused(
    catalog: FileSystemCatalog, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(ForebayError, match=message):
        catalog.create_table("db.t", COLUMNS, **keywords)
    assert catalog.list_tables("db") == []


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("id", pa.int64()), ("v", pa.string())]),
        {"id": "BIGINT", "v": "STRING"},
        [("id", pa.int64()), ("v", types.string())],
        pa.table({"id": pa.array([1]), "v": ["x"]}),
        pd.DataFrame({"id": [1], "v": ["x"]}),
        Schema.of([Column("id", types.bigint()), Column("v", types.string())], ("id",)),
    ],
    ids=lambda schema: type(schema).__name__,
)
def test_a_schema_may_be_written_in_every_way_that_a_live_table_takes(catalog: FileSystemCatalog, schema: Any) -> None:
    table = catalog.create_table("db.t", schema, primary_key="id", buckets=2)
    assert [(f.name, f.type) for f in table.schema.fields] == [
        ("id", types.bigint().not_null()),
        ("v", types.string()),
    ]
    assert (table.schema.primary_keys, table.context.options.bucket) == (("id",), 2)


def test_one_name_is_a_key_and_not_its_letters(catalog: FileSystemCatalog) -> None:
    columns = {"city": "STRING", "id": "INT"}
    table = catalog.create_table("db.t", columns, partition_keys="city", bucket_keys="id", buckets=3)
    assert (table.schema.partition_keys, table.context.options.bucket_key, table.context.options.bucket) == (
        ("city",),
        ("id",),
        3,
    )
    keyed = catalog.create_table("db.k", columns, primary_key=["id", "city"], bucket_keys=["id", "city"], buckets=3)
    assert keyed.context.options.bucket_key == ("id", "city")


def test_buckets_may_be_said_twice_only_if_both_say_the_same(catalog: FileSystemCatalog) -> None:
    columns, given = {"a": "INT", "b": "INT"}, {"bucket": 2, "bucket-key": "a, b"}
    table = catalog.create_table("db.t", columns, buckets=2, bucket_keys=["a", "b"], options=given)
    assert (table.context.options.bucket, table.context.options.bucket_key) == (2, ("a", "b"))
    with pytest.raises(InvalidRequest, match="option 'bucket-key' is 'a, b', and the argument for it says 'a'"):
        catalog.create_table("db.u", columns, buckets=2, bucket_keys="a", options=given)


def test_what_only_a_server_can_do_is_refused(catalog: FileSystemCatalog) -> None:
    with pytest.raises(UnsupportedOperation, match="auto_increment='id' is not possible in a lake"):
        catalog.create_table("db.t", COLUMNS, auto_increment="id")
    for given in ({"comment": "why"}, {"options": {"owner": "me"}}):
        with pytest.raises(UnsupportedOperation, match="a JDBC, Hive or REST catalog keeps"):
            catalog.create_database("other", **given)
    assert catalog.list_databases() == ["db"]


def test_a_column_that_is_merged_by_a_function_says_so_by_an_option(catalog: FileSystemCatalog) -> None:
    summed = Column("n", types.bigint(), aggregate=AggregateFunction("sum"))
    with pytest.raises(InvalidRequest, match=r"option 'fields\.n\.aggregate-function'"):
        catalog.create_table("db.t", [Column("id", types.bigint()), summed], primary_key="id")


@pytest.mark.parametrize("name", ["_KEY_id", "_SEQUENCE_NUMBER", "_ROW_ID", " "])
def test_reserved_column_names_are_refused(catalog: FileSystemCatalog, name: str) -> None:
    with pytest.raises(InvalidRequest):
        catalog.create_table("db.t", {name: types.int_()})


def test_opening_needs_a_warehouse_and_a_known_metastore() -> None:
    with pytest.raises(InvalidRequest, match="'warehouse'"):
        Catalog.open({})
    with pytest.raises(ForebayError, match="metastore 'glue'"):
        Catalog.open({"metastore": "glue", "warehouse": "/x"})


def test_a_table_lies_nowhere_but_in_the_warehouse(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    with pytest.raises(UnsupportedOperation, match="a Hive or REST catalog can place tables"):
        catalog.create_table("db.t", COLUMNS, options={"path": str(tmp_path / "elsewhere")})
    assert not catalog.table_exists("db.t")


# ---- what is not there ----------------------------------------------------------------------------------------------


def test_a_warehouse_that_does_not_exist_is_named_when_it_is_listed_and_created_with_its_first_database(
    tmp_path: Path,
) -> None:
    catalog = Catalog.open(str(tmp_path / "typo"))
    assert not catalog.warehouse_exists()
    with pytest.raises(NotFound, match=r"there is no warehouse .*typo: correct its path, or create it with its first"):
        catalog.list_databases()
    with pytest.raises(NotFound, match=r"there is no database 'db' in .*typo, only no databases yet"):
        catalog.list_tables("db")
    catalog.create_database("db")
    assert (catalog.list_databases(), catalog.warehouse_exists()) == (["db"], True)
    (tmp_path / "empty").mkdir()
    assert Catalog.open(str(tmp_path / "empty")).list_databases() == []


def test_a_warehouse_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match=r"the warehouse .*/file is a file"):
        Catalog.open(str(tmp_path / "file"))


def test_an_installation_without_the_extra_fails_where_a_catalog_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(UnsupportedOperation, match=r"pip install 'forebay\[paimon\]'"):
        Catalog.open(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("db.ordres", r"there is no table 'db.ordres' in .*; did you mean 'db.orders'\?"),
        ("dbb.orders", r"there is no table 'dbb.orders' in .*; there is no database 'dbb'; did you mean 'db'\?"),
        ("db.Orders$branch_x", r"there is no table 'db.Orders\$branch_x' in .*; did you mean 'db.orders'\?"),
        ("db.zzz", "there is no table 'db.zzz' in [^;]*$"),
        ("transactions.zzz", "there is no table 'transactions.zzz' in [^;]*$"),
    ],
)
def test_a_misspelt_table_is_not_found_with_the_one_that_was_meant(
    catalog: FileSystemCatalog, name: str, meant: str
) -> None:
    catalog.create_database("transactions")
    for database in ("db", "transactions"):
        catalog.create_table(f"{database}.orders", COLUMNS)
    with pytest.raises(NotFound, match=meant):
        catalog.table(name)


# ---- branches -------------------------------------------------------------------------------------------------------


def test_a_table_creates_renames_writes_and_deletes_its_branches(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS)
    put(table, [{"id": 1}])
    table.create_tag("start")
    table.create_branch("dev", "start")
    table.create_branch("dev", ignore_if_exists=True)
    with pytest.raises(AlreadyExists, match="there is a branch 'dev' already"):
        table.create_branch("dev")
    table.create_branch("other")
    table.rename_branch("other", "empty")
    assert table.branches() == ["dev", "empty"]
    table.delete_branch("empty")
    put(catalog.table("db.t", branch="dev"), [{"id": 2}])
    assert rows_of(table, ["id"]) == [(1,)]
    table.fast_forward("dev")
    assert sorted(rows_of(catalog.table("db.t"), ["id"])) == [(1,), (2,)]
    with pytest.raises(NotFound, match="there is no branch 'nope'; branches are dev"):
        table.delete_branch("nope")
