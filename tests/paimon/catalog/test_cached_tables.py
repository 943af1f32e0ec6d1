"""Opened tables that a catalog keeps: the same object while nothing has changed, whoever changes it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.errors import NotFound
from forebay.paimon.catalog.catalog import TABLES_CACHED_MAX, Catalog
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.io.local import LocalFileIO
from tests.paimon.catalog.conftest import drop_all
from tests.paimon.catalog.rest_server import RestServer
from tests.paimon.lake import put

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])
ROWS = [{"id": 1, "v": "a"}]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RestServer]:
    made = RestServer(tmp_path)
    yield made
    made.close()


@pytest.fixture(params=["filesystem", "jdbc", "rest", "hive"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Options by which two catalogs of the same tables can be opened."""
    if request.param == "rest":
        served: RestServer = request.getfixturevalue("server")
        return served.options
    if request.param == "hive":
        hive: dict[str, str] = request.getfixturevalue("hive_options")
        return hive
    uri = {"uri": f"jdbc:sqlite:{tmp_path / 'catalog.db'}"} if request.param == "jdbc" else {}
    return {"metastore": request.param, "warehouse": str(tmp_path / "lake"), **uri}


@pytest.fixture
def catalog(options: dict[str, str]) -> Iterator[Catalog]:
    made = Catalog.open(options)
    made.create_database("db")
    made.create_table("db.t", COLUMNS)
    yield made
    if options["metastore"] == "hive":
        drop_all(made)


@pytest.fixture
def other(options: dict[str, str], catalog: Catalog) -> Catalog:
    """The same tables by another catalog, as another process has it."""
    return Catalog.open(options)


@pytest.mark.one_in(2)
def test_a_table_that_nothing_changes_is_opened_once(catalog: Catalog, other: Catalog) -> None:
    kept = catalog.cached_table("db.t")
    put(other.table("db.t"), ROWS)
    assert catalog.cached_table("db.t") is kept, "rows are no part of a table's definition"
    assert kept.scan().to_arrow().to_pylist() == ROWS
    assert catalog.table("db.t") is not kept


def test_a_schema_that_another_catalog_changes_is_seen(catalog: Catalog, other: Catalog) -> None:
    kept = catalog.cached_table("db.t")
    other.table("db.t").alter(add_columns={"w": "INT"})
    changed = catalog.cached_table("db.t")
    assert (kept.schema.names, changed.schema.names) == (("id", "v"), ("id", "v", "w"))
    other.table("db.t").alter(set={"snapshot.num-retained.max": 20})
    assert catalog.cached_table("db.t").context.options.snapshot_num_retained_max == 20
    assert catalog.cached_table("db.t") is catalog.cached_table("db.t")


def test_a_table_that_was_dropped_and_recreated_is_another_one(catalog: Catalog, other: Catalog) -> None:
    put(other.table("db.t"), ROWS)
    kept = catalog.cached_table("db.t")
    assert kept.scan().to_arrow().num_rows == 1
    other.drop_table("db.t")
    with pytest.raises(NotFound):
        catalog.cached_table("db.t")
    other.create_table("db.t", COLUMNS)
    again = catalog.cached_table("db.t")
    assert again is not kept
    assert again.scan().to_arrow().num_rows == 0


def test_a_table_that_takes_the_name_of_another_is_seen(catalog: Catalog, other: Catalog) -> None:
    catalog.cached_table("db.t")
    other.create_table("db.u", pa.schema([("id", pa.int64())]))
    other.drop_table("db.t")
    other.rename_table("db.u", "db.t")
    assert catalog.cached_table("db.t").schema.names == ("id",)


def test_a_schema_of_the_same_number_time_and_size_is_told_by_its_content(tmp_path: Path) -> None:
    """Times of files may be the same for two files that were made one after the other."""
    catalog = FileSystemCatalog(LocalFileIO(sync=False), str(tmp_path))
    catalog.create_database("db")
    catalog.create_table("db.t", {"aa": "INT"})
    kept = catalog.cached_table("db.t")
    file = tmp_path / "db.db" / "t" / "schema" / "schema-0"
    before = file.stat()
    file.write_bytes(file.read_bytes().replace(b'"aa"', b'"bb"'))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert (kept.schema.names, catalog.cached_table("db.t").schema.names) == (("aa",), ("bb",))


def test_a_schema_change_that_is_taken_back_is_seen(tmp_path: Path) -> None:
    catalog = FileSystemCatalog(LocalFileIO(sync=False), str(tmp_path))
    catalog.create_database("db")
    table = catalog.create_table("db.t", COLUMNS)
    put(table, ROWS)
    put(table.alter(add_columns={"w": "INT"}), [{"id": 2, "v": "b", "w": 1}])
    assert catalog.cached_table("db.t").schema.names == ("id", "v", "w")
    table.context.schemas.delete(1)
    assert catalog.cached_table("db.t").schema.names == ("id", "v")


def test_branches_are_kept_beside_each_other_and_seen_when_main_becomes_one(tmp_path: Path) -> None:
    catalog = FileSystemCatalog(LocalFileIO(sync=False), str(tmp_path))
    catalog.create_database("db")
    table = catalog.create_table("db.t", COLUMNS)
    put(table, ROWS)
    table.create_tag("start")
    table.context.branches.create("dev", "start")
    main, dev = catalog.cached_table("db.t"), catalog.cached_table("db.t", branch="dev")
    assert main is not dev
    assert catalog.cached_table("db.t$branch_dev") is dev
    put(table.on_branch("dev").alter(add_columns={"w": "INT"}), [{"id": 2, "v": "b", "w": 1}])
    assert catalog.cached_table("db.t", branch="dev").schema.names == ("id", "v", "w")
    assert catalog.cached_table("db.t") is main
    table.context.branches.fast_forward("dev")
    assert catalog.cached_table("db.t").schema.names == ("id", "v", "w")
    table.context.branches.drop("dev")
    with pytest.raises(NotFound, match="branch_dev"):
        catalog.cached_table("db.t", branch="dev")


def test_so_many_tables_are_kept_and_no_more(tmp_path: Path) -> None:
    catalog = FileSystemCatalog(LocalFileIO(sync=False), str(tmp_path))
    catalog.create_database("db")
    for i in range(TABLES_CACHED_MAX + 1):
        catalog.create_table(f"db.t{i}", COLUMNS)
    first = catalog.cached_table("db.t0")
    second = catalog.cached_table("db.t1")
    for i in range(2, TABLES_CACHED_MAX):
        catalog.cached_table(f"db.t{i}")
    assert catalog.cached_table("db.t0") is first
    catalog.cached_table(f"db.t{TABLES_CACHED_MAX}")
    assert catalog.cached_table("db.t0") is first
    assert catalog.cached_table("db.t1") is not second


def test_cached_tables_share_the_memory_for_manifests(catalog: Catalog) -> None:
    catalog.create_table("db.u", COLUMNS)
    kept = catalog.cached_table("db.t").context, catalog.cached_table("db.u").context
    assert kept[0].manifest_cache is kept[1].manifest_cache is not None
    assert kept[0].manifests._cache is kept[1].manifests._cache


def test_threads_that_ask_at_once_all_see_the_newest_schema(catalog: Catalog, other: Catalog) -> None:
    for number in range(5):
        other.table("db.t").alter(add_columns={f"c{number}": "INT"})
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: catalog.cached_table("db.t").schema.names[-1], range(8)))
        assert found == [f"c{number}"] * 8


def test_a_catalog_pickles_without_what_it_keeps(catalog: Catalog) -> None:
    kept = catalog.cached_table("db.t")
    put(kept.new_handle(), ROWS)
    moved = pickle.loads(pickle.dumps(catalog))
    assert moved.cached_table("db.t").scan().to_arrow().to_pylist() == ROWS
    assert catalog.cached_table("db.t") is kept
    table = pickle.loads(pickle.dumps(kept))
    assert table.context.manifest_cache is None
    assert pickle.loads(pickle.dumps(kept.context)).manifest_cache is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_opens_tables_itself_so_that_names_of_files_stay_unique(tmp_path: Path) -> None:
    catalog = FileSystemCatalog(LocalFileIO(sync=False), str(tmp_path))
    catalog.create_database("db")
    catalog.create_table("db.t", COLUMNS)
    name = catalog.cached_table("db.t").context.paths.new_manifest_name()
    uuid = name.rpartition("-")[0]
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, catalog.cached_table("db.t").context.paths.new_manifest_name().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert not os.read(reading, 1000).decode().startswith(uuid)
    assert catalog.cached_table("db.t").context.paths.new_manifest_name().startswith(uuid)


def test_another_handle_shares_what_was_read_and_has_its_own_schedule(catalog: Catalog) -> None:
    kept = catalog.cached_table("db.t")
    handle = kept.new_handle()
    assert handle.context is kept.context
    assert handle._expiry_schedule is not kept._expiry_schedule
    assert (handle.name, handle.schema, type(handle)) == (kept.name, kept.schema, type(kept))


def test_a_rest_server_s_new_configuration_gives_another_catalog(server: RestServer) -> None:
    catalog = Catalog.open(server.options)
    assert catalog.renewed() is catalog
    server.overrides["s3.access-key"] = "new"
    renewed = catalog.renewed()
    assert renewed is not catalog
    assert renewed.renewed() is renewed


def test_a_table_of_a_rest_server_with_another_id_is_another_table(
    server: RestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = Catalog.open(server.options)
    catalog.create_database("db")
    catalog.create_table("db.t", COLUMNS)
    kept, tell = catalog.cached_table("db.t"), server._table
    assert catalog.cached_table("db.t") is kept
    monkeypatch.setattr(server, "_table", lambda *name: {**tell(*name), "id": "another"})
    assert catalog.cached_table("db.t") is not kept
