"""A warehouse is one folder, however it is written, and no name from data leaves it.

Java Paimon and pypaimon on the same folders: `foreign/test_foreign_java_locations.py`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forebay.base.errors import CorruptData, ForebayError, InvalidRequest, NotFound
from forebay.paimon import Catalog
from forebay.paimon.format.file_meta import IndexFileMeta
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.options import CoreOptions
from forebay.paimon.store.branches import BranchManager
from forebay.paimon.store.consumers import ConsumerManager
from forebay.paimon.store.paths import DataFileNames, PathFactory
from forebay.paimon.table import Table
from tests.paimon.lake import live_files, rows_of
from tests.paimon.partition_locations import COLUMNS, VALUES, fast, numbered, partitioned

SPELLINGS: dict[str, Callable[[Path], Any]] = {
    "path": str,
    "URI with one slash": lambda folder: f"file:{folder}",
    "URI with three slashes": lambda folder: f"file://{folder}",
    "URI of this host": lambda folder: f"file://localhost{folder}",
    "Path": lambda folder: folder,
    "relative": lambda folder: folder.name,
    "slashes": lambda folder: f"file:{folder.parent}//{folder.name}//",
}


def files_below(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_spelling_of_a_warehouse_is_the_same_folder_with_the_same_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "50%25 of my ü lake"
    catalog = fast(Catalog.open(SPELLINGS[spelling](place)))
    values = list(VALUES)
    partitioned(catalog, values)
    assert catalog.warehouse == str(place)
    assert {f.name for f in (place / "db.db/t").glob("p=*")} == {f"p={name}" for name in VALUES.values()}
    assert files_below(tmp_path) == files_below(place / "db.db/t"), "nothing lies elsewhere"
    rows = sorted(((None if v == " " else v, i) for i, v in enumerate(values)), key=repr)
    for other in SPELLINGS.values():
        found = rows_of(Catalog.open(other(place)).table("db.t"))
        assert sorted(((None if v == " " else v, i) for v, i in found), key=repr) == rows


def test_the_working_directory_may_change_after_a_warehouse_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    catalog = fast(Catalog.open("lake"))
    table = partitioned(catalog, ["x"])
    by_path = Table(LocalFileIO(sync=False), "lake/db.db/t")
    carried = pickle.dumps((catalog, table, by_path))
    monkeypatch.chdir(tmp_path / "elsewhere")
    table.append(numbered(["y"], 1))
    for same in (table, catalog.table("db.t"), by_path):
        assert rows_of(same) == [("x", 0), ("y", 1)]
    kept, opened, direct = pickle.loads(carried)
    assert [rows_of(t) for t in (kept.table("db.t"), opened, direct)] == [[("x", 0), ("y", 1)]] * 3
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("file://host/data/lake", "option 'warehouse' 'file://host/data/lake' lies on the host 'host'"),
        ("file:lake", "no absolute path"),
        ("s3:/bucket/lake", "lacks '//'"),
        (Path("s3://bucket/lake"), "write the URI"),
        ("nosuch://x/y", "no file system serves 'nosuch://'"),
    ],
)
def test_a_warehouse_that_names_no_place_of_this_machine_is_refused(where: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        Catalog.open(where)
    with pytest.raises(InvalidRequest, match=says):
        Catalog.open({"warehouse": where})


# ---- names from data ------------------------------------------------------------------------------------------------

EVIL = st.lists(
    st.sampled_from([".", "..", "/", "%2F", "%2e", "\\", "\0", "a", ":", "é", " ", "~", "file:", "$", "="]), max_size=8
).map("".join)
NAMES = EVIL | st.text(max_size=8)
FEW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)


@FEW
@given(st.lists(NAMES, min_size=1, max_size=6, unique=True))
@example(["../../../../../outside", "%2e%2e%2f%2e%2e"])
def test_partitions_of_any_value_stay_in_their_table(
    tmp_path_factory: pytest.TempPathFactory, values: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    table = partitioned(fast(Catalog.open(f"file:{folder}/lake")), values)
    assert files_below(folder) == files_below(folder / "lake/db.db/t")
    assert len(live_files(table)) == len(list((folder / "lake/db.db/t").glob("p=*/bucket-*/*.parquet")))
    assert sorted(v for _, v in rows_of(Catalog.open(folder / "lake").table("db.t"))) == list(range(len(values)))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Catalog, Table]:
    folder = tmp_path_factory.mktemp("names")
    (folder / "kept").write_text("kept")
    catalog = fast(Catalog.open(folder / "a/b/lake"))
    table = partitioned(catalog, ["x"])
    table.create_tag("one")
    return folder, catalog, table


@FEW
@given(NAMES)
@example("..")
@example("../../../../../kept")
@example("a/../../../../../outside")
@example("a\\..\\b")
def test_names_given_by_users_stay_in_their_folder_or_are_refused(
    shared: tuple[Path, Catalog, Table], name: str
) -> None:
    folder, catalog, table = shared
    io = LocalFileIO(sync=False)
    consumers = ConsumerManager(io, table.context.paths)
    acts: list[Callable[[], object]] = [
        lambda: catalog.create_database(name, ignore_if_exists=True),
        lambda: catalog.drop_database(name + "x", cascade=True, ignore_if_not_exists=True),
        lambda: catalog.create_table(f"db.{name}", COLUMNS, ignore_if_exists=True),
        lambda: catalog.table(f"db.{name}"),
        lambda: catalog.rename_table("db.t", f"db.{name}x"),
        lambda: catalog.rename_table(f"db.{name}x", "db.t"),
        lambda: catalog.drop_table(f"{name}.{name}", ignore_if_not_exists=True),
        lambda: table.create_tag(name) if name != "one" else None,
        lambda: BranchManager(io, table.context.paths).create(name),
        lambda: table.on_branch(name),
        lambda: consumers.record(name, 1),
        lambda: consumers.next_snapshot(name),
    ]
    for act in acts:
        try:
            act()
        except ForebayError:
            continue
    lake = folder / "a/b/lake"
    assert {path for path in files_below(folder) if not path.is_relative_to(lake)} == {folder / "kept"}
    assert {path.name for path in (folder / "a").iterdir()} == {"b"}
    assert all(path.suffix == ".db" for path in lake.iterdir())
    assert files_below(lake / "db.db/t")


@pytest.mark.parametrize("table", [".", "..", "a\\b", "a\0b"])
def test_a_table_is_no_other_folder(tmp_path: Path, table: str) -> None:
    catalog = fast(Catalog.open(tmp_path / "lake"))
    catalog.create_database("db")
    with pytest.raises(InvalidRequest, match="cannot name a folder or file"):
        catalog.drop_table(f"db.{table}", ignore_if_not_exists=True)
    assert (tmp_path / "lake/db.db").exists()


BAD = ["../x", "..", ".", "", "/etc/passwd", "a/b", "a\\b", "a\0b", "a/../../b"]


@pytest.mark.parametrize("name", BAD)
def test_names_in_metadata_of_others_stay_in_their_directory(name: str) -> None:
    paths = PathFactory("/lake/db.db/t")
    for method in (paths.manifest, paths.statistics):
        with pytest.raises(CorruptData, match="cannot name a folder or file"):
            method(name)
    index = IndexFileMeta("HASH", name, 1, 1)
    with pytest.raises(CorruptData, match="index file"):
        paths.index_file(index, b"", 0)


@pytest.mark.parametrize("name", BAD)
def test_files_of_foreign_manifests_stay_in_their_bucket(tmp_path: Path, name: str) -> None:
    table = partitioned(fast(Catalog.open(tmp_path / "lake")), ["x"])
    paths, (file,) = table.context.paths, live_files(table)
    entry = table.context.manifests.live_files(table.context.snapshots.latest())[0]  # type: ignore[arg-type]
    with pytest.raises(CorruptData, match="data file"):
        paths.data_file(entry.partition, 0, replace(file, file_name=name))
    with pytest.raises(CorruptData, match="extra file"):
        paths.data_file_and_companions(entry.partition, 0, replace(file, extra_files=(name,)))


def test_an_external_path_is_read_as_java_writes_it(tmp_path: Path) -> None:
    table = partitioned(fast(Catalog.open(tmp_path / "lake")), ["x"])
    (file,), paths = live_files(table), table.context.paths
    for written, place in {
        "file:/ext/p=a%2Fb/f": "/ext/p=a%2Fb/f", "/ext/a b/f": "/ext/a b/f", "s3://b/p=%3A/f": "s3://b/p=%3A/f",
    }.items():  # fmt: skip
        assert paths.data_file(b"", 0, replace(file, external_path=written)) == place
    for bad in ("file://host/f", "ext/f", "/ext/../f", "s3://b/../f", "/a\0b"):
        with pytest.raises(CorruptData, match="external path"):
            paths.data_file(b"", 0, replace(file, external_path=bad))


@pytest.mark.parametrize("directory", ["../x", "/x", "a/../../x", "s3://b/x"])
def test_the_directory_of_data_files_is_in_the_table(directory: str) -> None:
    options = CoreOptions({"data-file.path-directory": directory})
    with pytest.raises(InvalidRequest, match=r"data-file\.path-directory"):
        PathFactory("/lake/db.db/t", (), options).bucket_directory(b"", 0)
    inside = CoreOptions({"data-file.path-directory": "./a//b/"})
    assert PathFactory("/lake/db.db/t", (), inside).bucket_directory(b"", 0) == "/lake/db.db/t/a/b/bucket-0"


def test_a_prefix_of_files_leads_to_no_other_directory() -> None:
    names = DataFileNames(CoreOptions({"data-file.prefix": "../data-"}), "uuid")
    with pytest.raises(InvalidRequest, match="data file"):
        names.data()


def test_a_missing_table_is_not_looked_for_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    partitioned(fast(Catalog.open(tmp_path / "a b")), ["x"])
    with pytest.raises(NotFound):
        Catalog.open(f"file:{tmp_path}/a%20b").table("db.t")
