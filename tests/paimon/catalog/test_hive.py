"""The Hive catalog in a real metastore: names, descriptions, schemas and files."""

from __future__ import annotations

import getpass
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import (
    AlreadyExists,
    InvalidRequest,
    NotFound,
    StorageFailure,
    Unavailable,
    UnsupportedOperation,
)
from forebay.hive.catalog import HiveCatalog
from forebay.hive.metastore import Metastore
from forebay.hive.tables import hive_type
from forebay.metadata import types
from forebay.metadata.types import DataType, TypeRoot
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.format.schema import DataField
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store import schema_changes as changes
from forebay.paimon.store.branches import BranchManager
from tests.paimon.lake import altered, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])
PAIMON_INPUT = "org.apache.paimon.hive.mapred.PaimonInputFormat"


def _described(options: dict[str, str], database: str, table: str) -> Any:
    """A table as the metastore describes it."""
    client = Metastore(options)
    return client.call("get_table_req", client.new("GetTableRequest", dbName=database, tblName=table)).table


def _columns(described: Any) -> list[tuple[str, str, str | None]]:
    return [(c.name, c.type, c.comment) for c in described.sd.cols]


# ---- names ----------------------------------------------------------------------------------------------------------


def test_databases_and_tables_come_and_go(hive_catalog: Catalog, hive_options: dict[str, str]) -> None:
    hive_catalog.create_database("other")
    with pytest.raises(AlreadyExists, match="database 'other'"):
        hive_catalog.create_database("other")
    hive_catalog.create_database("other", ignore_if_exists=True)
    assert (hive_catalog.database_exists("other"), hive_catalog.database_exists("nix")) == (True, False)
    table = hive_catalog.create_table(
        "db.t", COLUMNS, primary_key=["id"], options={"bucket": "1"}, comment="what it is"
    )
    put(table, [{"id": 1, "v": "x"}])
    again = Catalog.open(hive_options)
    assert again.list_databases() == ["db", "default", "other"]
    assert (again.list_tables("db"), again.list_tables("other")) == (["t"], [])
    assert (rows_of(again.table("db.t")), again.table_exists("db.t")) == ([(1, "x")], True)
    with pytest.raises(AlreadyExists, match=r"db\.t"):
        again.create_table("db.t", COLUMNS)
    assert again.create_table("db.t", {"x": types.int_()}, ignore_if_exists=True).schema.names == ("id", "v")
    with pytest.raises(InvalidRequest, match="has tables"):
        again.drop_database("db")
    directory = Path(hive_options["warehouse"]) / "db.db" / "t"
    assert directory.exists()
    again.drop_table("db.t")
    assert (directory.exists(), again.list_tables("db")) == (False, [])
    with pytest.raises(NotFound):
        again.drop_table("db.t")
    again.drop_table("db.t", ignore_if_not_exists=True)
    with pytest.raises(NotFound, match=r"db\.t"):
        again.table("db.t")
    again.drop_database("other")
    with pytest.raises(NotFound, match="'other'"):
        again.list_tables("other")
    with pytest.raises(NotFound):
        again.drop_database("other")
    again.drop_database("other", ignore_if_not_exists=True)
    with pytest.raises(NotFound, match="'other'"):
        again.create_table("other.t", COLUMNS)


@pytest.mark.parametrize("name", ["Upper", "a/b", "a.b", ""])
def test_names_that_a_metastore_would_change_are_refused(hive_catalog: Catalog, name: str) -> None:
    with pytest.raises(InvalidRequest):
        hive_catalog.create_database(name)
    with pytest.raises(InvalidRequest):
        hive_catalog.create_table(f"db.{name}", COLUMNS)
    hive_catalog.create_table("db.t", COLUMNS)
    with pytest.raises(InvalidRequest):
        hive_catalog.rename_table("db.t", f"db.{name}")
    assert hive_catalog.list_tables("db") == ["t"]


def test_a_database_is_kept_with_its_comment_and_options(hive_catalog: Catalog, hive_options: dict[str, str]) -> None:
    hive_catalog.create_database("other", comment="why", options={"owned-by": "me"})
    kept = Metastore(hive_options).call("get_database", "other")
    assert (kept.description, kept.parameters["owned-by"]) == ("why", "me")
    assert "comment" not in kept.parameters


def test_the_directory_of_a_database_is_made_by_who_writes_there(
    hive_catalog: Catalog, hive_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metastore would make it as the user that it runs as."""
    call, found = Metastore.call, []

    def watched(self: Metastore, method: str, *arguments: Any) -> Any:
        if method == "create_database":
            found.append((Path(hive_options["warehouse"]) / "other.db").is_dir())
        return call(self, method, *arguments)

    monkeypatch.setattr(Metastore, "call", watched)
    hive_catalog.create_database("other")
    assert found == [True]


def test_a_table_that_is_created_while_one_of_its_name_is_dropped_keeps_its_files(
    hive_catalog: Catalog, hive_options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(hive_catalog.create_table("db.t", COLUMNS), [{"id": 1, "v": "old"}])
    call, others = Metastore.call, iter([True])

    def called(self: Metastore, method: str, *arguments: Any) -> Any:
        answer = call(self, method, *arguments)
        if method == "drop_table_with_environment_context" and next(others, False):
            LocalFileIO().delete_directory(f"{hive_options['warehouse']}/db.db/t")  # as the metastore does
            put(Catalog.open(hive_options).create_table("db.t", COLUMNS), [{"id": 2, "v": "new"}])
        return answer

    monkeypatch.setattr(Metastore, "call", called)
    hive_catalog.drop_table("db.t")
    assert rows_of(hive_catalog.table("db.t")) == [(2, "new")]


def test_a_database_is_dropped_with_its_tables_and_their_files(
    hive_catalog: Catalog, hive_options: dict[str, str]
) -> None:
    hive_catalog.create_database("other")
    for name in ("other.t", "other.u"):
        hive_catalog.create_table(name, COLUMNS)
    hive_catalog.drop_database("other", cascade=True)
    assert hive_catalog.list_databases() == ["db", "default"]
    assert not (Path(hive_options["warehouse"]) / "other.db").exists()


def test_a_renamed_table_takes_its_files_along(hive_catalog: Catalog, hive_options: dict[str, str]) -> None:
    hive_catalog.create_database("other")
    for name in ("db.t", "db.taken"):
        put(hive_catalog.create_table(name, COLUMNS), [{"id": 1, "v": name}])
    with pytest.raises(AlreadyExists, match=r"db\.taken"):
        hive_catalog.rename_table("db.t", "db.taken")
    with pytest.raises(NotFound, match="'elsewhere'"):
        hive_catalog.rename_table("db.t", "elsewhere.t")
    with pytest.raises(NotFound):
        hive_catalog.rename_table("db.missing", "db.u")
    hive_catalog.rename_table("db.t", "db.u")
    hive_catalog.rename_table("db.u", "other.w")
    assert (hive_catalog.list_tables("db"), rows_of(hive_catalog.table("other.w"))) == (["taken"], [(1, "db.t")])
    location = Path(hive_options["warehouse"]) / "other.db" / "w"
    assert _described(hive_options, "other", "w").sd.location == f"file:{location}"
    assert (location.exists(), (Path(hive_options["warehouse"]) / "db.db" / "t").exists()) == (True, False)


@pytest.mark.parametrize("what", ["the files cannot move", "the metastore does not answer"])
def test_a_rename_that_fails_half_way_is_taken_back(
    hive_catalog: Catalog, hive_options: dict[str, str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Here the metastore does not reach the files, so the catalog moves them."""
    hive_catalog.create_database("other")
    old, new = (Path(hive_options["warehouse"]) / name for name in ("db.db/t", "other.db/w"))
    put(hive_catalog.create_table("db.t", COLUMNS), [{"id": 1, "v": "x"}])
    before = _described(hive_options, "db", "t").sd.location
    alter, asked = HiveCatalog._alter, []

    def changed(self: HiveCatalog, database: str, table: str, described: Any) -> None:
        asked.append(table)
        if len(asked) == 2 and what == "the metastore does not answer":
            raise Unavailable("no answer")
        alter(self, database, table, described)
        if len(asked) == 1:
            new.rename(old)

    def refuse(*_: object) -> None:
        raise StorageFailure("no room")

    monkeypatch.setattr(HiveCatalog, "_alter", changed)
    if what == "the files cannot move":
        monkeypatch.setattr(LocalFileIO, "rename", refuse)
    with pytest.raises((StorageFailure, Unavailable), match=r"no room|no answer"):
        hive_catalog.rename_table("db.t", "other.w")
    monkeypatch.undo()
    assert (hive_catalog.list_tables("db"), hive_catalog.list_tables("other")) == (["t"], [])
    assert rows_of(hive_catalog.table("db.t")) == [(1, "x")]
    assert _described(hive_options, "db", "t").sd.location == before
    hive_catalog.rename_table("db.t", "other.w")
    assert rows_of(hive_catalog.table("other.w")) == [(1, "x")]


def test_tables_of_other_formats_are_left_alone(
    hive_catalog: Catalog, hive_options: dict[str, str], tmp_path: Path
) -> None:
    client = Metastore(hive_options)
    hive_catalog.create_table("db.ours", COLUMNS)
    theirs = _described(hive_options, "db", "ours")
    theirs.tableName, theirs.parameters = "theirs", {}
    theirs.sd.location = f"file:{tmp_path}/theirs"
    theirs.sd.inputFormat = "org.apache.hadoop.mapred.TextInputFormat"
    client.call("create_table", theirs)
    assert (hive_catalog.list_tables("db"), hive_catalog.table_exists("db.theirs")) == (["ours"], False)
    for forbidden in (hive_catalog.table, hive_catalog.drop_table):
        with pytest.raises(NotFound, match="is not a Paimon table, but a MANAGED_TABLE"):
            forbidden("db.theirs")
    with pytest.raises(AlreadyExists):
        hive_catalog.create_table("db.theirs", COLUMNS)
    hive_catalog.drop_table("db.ours")
    with pytest.raises(InvalidRequest, match="theirs"):
        hive_catalog.drop_database("db")
    assert (tmp_path / "theirs").exists()


# ---- descriptions ---------------------------------------------------------------------------------------------------


def test_a_table_is_described_as_java_paimon_describes_it(hive_catalog: Catalog, hive_options: dict[str, str]) -> None:
    fields = [
        DataField(0, "id", types.bigint(), "y" * 255),
        DataField(1, "day", types.string(), "the\nday " + "x" * 300),
    ]
    hive_catalog.create_table(
        "db.t", fields, primary_key=["id", "day"], partition_keys=["day"], options={"bucket": "2"}, comment="why"
    )
    described = _described(hive_options, "db", "t")
    assert described.tableType == "MANAGED_TABLE"
    wanted = {
        "table_type": "PAIMON",
        "storage_handler": "org.apache.paimon.hive.PaimonStorageHandler",
        "bucket": "2",
        "primary-key": "id,day",
        "partition": "day",
        "bucket-key": "id",
        "comment": "why",
    }
    assert wanted.items() <= described.parameters.items()
    assert described.sd.inputFormat == PAIMON_INPUT
    assert described.sd.outputFormat == "org.apache.paimon.hive.mapred.PaimonOutputFormat"
    assert described.sd.serdeInfo.serializationLib == "org.apache.paimon.hive.PaimonSerDe"
    comment = "the day " + "x" * 244 + "..."
    assert _columns(described) == [("id", "bigint", "y" * 255), ("day", "string", comment)]
    assert described.partitionKeys == []


@pytest.mark.parametrize("told", [None, "hadoops"])
def test_a_table_belongs_to_the_user_that_hadoop_is_told(
    hive_catalog: Catalog, hive_options: dict[str, str], monkeypatch: pytest.MonkeyPatch, told: str | None
) -> None:
    monkeypatch.delenv("HADOOP_USER_NAME", raising=False)
    if told is not None:
        monkeypatch.setenv("HADOOP_USER_NAME", told)
    hive_catalog.create_table("db.t", COLUMNS)
    assert _described(hive_options, "db", "t").owner == (told or getpass.getuser())


def test_without_sync_all_properties_only_options_for_hive_stand_in_the_metastore(
    hive_catalog: Catalog, hive_options: dict[str, str]
) -> None:
    plain = Catalog.open({**hive_options, "sync-all-properties": "false"})
    given = {"bucket": "-1", "hive.owner-team": "sales", "partition.expiration-time": "7 d"}
    plain.create_table("db.t", COLUMNS, options=given, partition_keys=["v"])
    parameters = _described(hive_options, "db", "t").parameters
    assert {"owner-team": "sales", "partition.expiration-time": "7 d"}.items() <= parameters.items()
    assert parameters.keys() & {"bucket", "hive.owner-team", "partition"} == set()
    altered(plain.table("db.t"), [changes.SetOption("hive.owner-team", "stock")])
    assert _described(hive_options, "db", "t").parameters["owner-team"] == "stock"


@pytest.mark.parametrize(
    ("ours", "hives"),
    [
        (types.tinyint(), "tinyint"),
        (types.decimal(10, 2), "decimal(10,2)"),
        (types.char(5), "char(5)"),
        (types.char(255), "char(255)"),
        (types.char(256), "string"),
        (DataType(TypeRoot.STRING, length=65_535), "varchar(65535)"),
        (DataType(TypeRoot.STRING, length=65_536), "string"),
        (types.string(), "string"),
        (types.bytes_(), "binary"),
        (types.time(0), "string"),
        (types.timestamp(6), "timestamp"),
        (types.timestamp_ltz(6), "timestamp"),
        (types.map_(types.string(), types.array(types.int_())), "map<string,array<int>>"),
        (types.row(types.field("a", types.date()), types.field("b", types.float_())), "struct<a:date,b:float>"),
    ],
)
def test_types_have_hives_names(ours: types.DataType, hives: str) -> None:
    assert hive_type(ours) == hives


def test_locations_may_stand_in_properties(hive_catalog: Catalog, hive_options: dict[str, str]) -> None:
    apart = Catalog.open({**hive_options, "location-in-properties": "true"})
    apart.create_database("apart")
    put(apart.create_table("apart.t", COLUMNS), [{"id": 1, "v": "x"}])
    location = Path(hive_options["warehouse"]) / "apart.db" / "t"
    described = _described(hive_options, "apart", "t")
    assert described.parameters["paimon_location"] == f"file:{location}"
    assert (location.exists(), rows_of(apart.table("apart.t"))) == (True, [(1, "x")])
    apart.create_table("apart.v", COLUMNS)
    apart.drop_table("apart.v")
    assert not location.with_name("v").exists()
    apart.rename_table("apart.t", "apart.u")
    assert rows_of(apart.table("apart.u")) == [(1, "x")]
    apart.drop_database("apart", cascade=True)
    assert not location.parent.exists()


# ---- external tables ------------------------------------------------------------------------------------------------


def test_an_external_table_keeps_its_files_and_is_registered_again(
    hive_catalog: Catalog, hive_options: dict[str, str], tmp_path: Path
) -> None:
    path = {"path": f"file://{tmp_path}/elsewhere"}
    put(hive_catalog.create_table("db.t", COLUMNS, options={**path, "bucket": "-1"}), [{"id": 1, "v": "x"}])
    described = _described(hive_options, "db", "t")
    assert (described.tableType, described.parameters["EXTERNAL"]) == ("EXTERNAL_TABLE", "TRUE")
    hive_catalog.rename_table("db.t", "db.u")
    hive_catalog.drop_table("db.u")
    with pytest.raises(InvalidRequest, match="other columns or keys"):
        hive_catalog.create_table("db.t", {"id": types.int_()}, options=path)
    with pytest.raises(InvalidRequest, match="other options"):
        hive_catalog.create_table("db.t", COLUMNS, options={**path, "bucket": "3", "bucket-key": "id"})
    assert rows_of(hive_catalog.create_table("db.t", COLUMNS, options=path)) == [(1, "x")]
    hive_catalog.drop_database("db", cascade=True)
    assert (tmp_path / "elsewhere" / "schema" / "schema-0").exists()


def test_the_catalog_and_the_table_may_ask_for_external_tables(
    hive_catalog: Catalog, hive_options: dict[str, str]
) -> None:
    Catalog.open({**hive_options, "table.type": "external"}).create_table("db.t", COLUMNS)
    hive_catalog.create_table("db.u", COLUMNS, options={"external": "true"})
    for name in ("t", "u"):
        assert _described(hive_options, "db", name).tableType == "EXTERNAL_TABLE"
        hive_catalog.drop_table(f"db.{name}")
        assert (Path(hive_options["warehouse"]) / "db.db" / name / "schema" / "schema-0").exists()
    hive_catalog.create_table("db.u", COLUMNS, options={"external": "true"})
    hive_catalog.drop_database("db", cascade=True)
    assert (Path(hive_options["warehouse"]) / "db.db" / "u" / "schema" / "schema-0").exists()
    with pytest.raises(InvalidRequest, match=r"'table\.type' is 'rented'"):
        Catalog.open({**hive_options, "table.type": "rented"})


def test_files_that_are_not_registered_are_not_taken_for_a_table(
    hive_catalog: Catalog, hive_options: dict[str, str]
) -> None:
    Catalog.open(hive_options["warehouse"]).create_table("db.t", COLUMNS)
    with pytest.raises(NotFound):
        hive_catalog.table("db.t")
    with pytest.raises(InvalidRequest, match="not registered"):
        hive_catalog.create_table("db.t", COLUMNS)


def test_a_table_that_another_client_created_meanwhile_exists(
    hive_catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(hive_catalog.create_table("db.t", COLUMNS), [{"id": 1, "v": "x"}])
    find, asked = HiveCatalog._find, []

    def find_nothing_at_first(self: HiveCatalog, database: str, table: str) -> Any:
        asked.append(table)
        return find(self, database, table) if len(asked) % 4 != 1 else None

    monkeypatch.setattr(HiveCatalog, "_find", find_nothing_at_first)
    assert rows_of(hive_catalog.create_table("db.t", COLUMNS, ignore_if_exists=True)) == [(1, "x")]
    asked.clear()
    with pytest.raises(AlreadyExists):
        hive_catalog.create_table("db.t", COLUMNS)


# ---- schemas --------------------------------------------------------------------------------------------------------


def test_the_metastore_follows_changes_of_the_schema(hive_catalog: Catalog, hive_options: dict[str, str]) -> None:
    table = hive_catalog.create_table(
        "db.t", COLUMNS, options={"write-only": "true", "snapshot.num-retained.max": "99"}
    )
    altered(hive_catalog.table("db.t"), [changes.AddColumn(("n",), types.int_(), "a number")])
    altered(table, [changes.RenameColumn(("v",), "w"), changes.RemoveOption("snapshot.num-retained.max")])
    altered(hive_catalog.table("db.t"), [changes.SetOption("write-only", "false"), changes.UpdateComment("new")])
    described = _described(hive_options, "db", "t")
    assert _columns(described) == [("id", "bigint", None), ("w", "string", None), ("n", "int", "a number")]
    assert {"write-only": "false", "comment": "new"}.items() <= described.parameters.items()
    assert "snapshot.num-retained.max" not in described.parameters
    assert hive_catalog.table("db.t").schema.names == ("id", "w", "n")


def test_a_change_that_the_metastore_refuses_is_not_made(hive_catalog: Catalog, hive_options: dict[str, str]) -> None:
    hive_catalog.create_table("db.t", COLUMNS)
    with pytest.raises(InvalidRequest, match="types incompatible with the existing columns"):
        altered(
            hive_catalog.table("db.t"), [changes.AddColumn(("n",), types.int_(), position=changes.Position("first"))]
        )
    assert hive_catalog.table("db.t").schema.names == ("id", "v")
    assert hive_catalog.table("db.t").context.schemas.ids() == [0]
    assert [c[0] for c in _columns(_described(hive_options, "db", "t"))] == ["id", "v"]


def test_a_branch_has_a_schema_of_its_own_that_the_metastore_does_not_follow(
    hive_catalog: Catalog, hive_options: dict[str, str]
) -> None:
    table = hive_catalog.create_table("db.t", COLUMNS)
    put(table, [{"id": 1, "v": "x"}])
    BranchManager(table.context.io, table.context.paths).create("b")
    altered(hive_catalog.table("db.t$branch_b"), [changes.AddColumn(("n",), types.int_())])
    assert hive_catalog.table("db.t", branch="b").schema.names == ("id", "v", "n")
    assert len(_columns(_described(hive_options, "db", "t"))) == 2


def test_a_table_that_the_metastore_refuses_leaves_no_files(
    hive_catalog: Catalog, hive_options: dict[str, str]
) -> None:
    with pytest.raises(InvalidRequest, match="t-1 is not a valid object name"):
        hive_catalog.create_table("db.t-1", COLUMNS)
    assert not (Path(hive_options["warehouse"]) / "db.db" / "t-1").exists()
    elsewhere = Path(hive_options["warehouse"]).parent / "elsewhere"
    with pytest.raises(InvalidRequest):
        hive_catalog.create_table("db.t-1", COLUMNS, options={"path": str(elsewhere)})
    assert list(elsewhere.rglob("schema-0")) == []


def test_rolling_back_is_done_in_the_files(hive_catalog: Catalog) -> None:
    table = hive_catalog.create_table("db.t", COLUMNS)
    for i in (1, 2):
        put(table, [{"id": i, "v": "x"}])
    hive_catalog.table("db.t").rollback_to(1)
    assert rows_of(hive_catalog.table("db.t")) == [(1, "x")]


@pytest.mark.parametrize(
    "asked",
    [
        {"options": {"metastore.tag-to-partition": "day"}},
        {"options": {"metastore.partitioned-table": "true"}, "partition_keys": ["v"]},
    ],
)
def test_partitions_and_tags_that_the_metastore_must_know_are_refused_by_name(
    hive_catalog: Catalog, asked: dict[str, Any]
) -> None:
    with pytest.raises(UnsupportedOperation, match=next(iter(asked["options"]))):
        hive_catalog.create_table("db.t", COLUMNS, **asked)
    assert hive_catalog.list_tables("db") == []


def test_a_table_whose_partitions_the_metastore_must_know_is_read_but_not_written(
    hive_catalog: Catalog, hive_options: dict[str, str]
) -> None:
    put(hive_catalog.create_table("db.t", COLUMNS, partition_keys=["v"]), [{"id": 1, "v": "x"}])
    schema = Path(hive_options["warehouse"]) / "db.db" / "t" / "schema" / "schema-0"
    described = json.loads(schema.read_text())
    described["options"]["metastore.tag-to-partition"] = "day"
    schema.write_text(json.dumps(described))
    with pytest.raises(UnsupportedOperation, match="tag-to-partition"):
        hive_catalog.table("db.t")
    del described["options"]["metastore.tag-to-partition"]
    described["options"]["metastore.partitioned-table"] = "true"
    schema.write_text(json.dumps(described))
    table = hive_catalog.table("db.t")
    assert rows_of(table) == [(1, "x")]
    with pytest.raises(UnsupportedOperation, match="partitioned-table"):
        put(table, [{"id": 2, "v": "y"}])
    assert rows_of(table) == [(1, "x")]
