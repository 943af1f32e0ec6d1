"""Sources and plans of lakes that are kept: what is read again for the same snapshot, and what must be seen."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay import col
from forebay.base.errors import ErrorCode, NotFound
from forebay.lake.source import LakeSource, LakeSplit
from forebay.lakes import iceberg_source
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.iceberg_tables import opened
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.lakes.paimon_source import PaimonLakeSource
from forebay.metadata.predicate import Predicate
from forebay.metadata.table import TablePath
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.manifests import ManifestCache, ManifestStore
from forebay.paimon.table import Table
from tests.paimon.lake import at_ms

PATH = TablePath("db", "t")
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are read from the local disk as a whole."""
    names: list[str] = []
    plain = LocalFileIO.read

    def noted(self: LocalFileIO, path: str) -> bytes:
        names.append(path.rpartition("/")[2])
        return plain(self, path)

    monkeypatch.setattr(LocalFileIO, "read", noted)
    return names


@pytest.fixture
def storage(tmp_path: Path) -> PaimonLakeStorage:
    return PaimonLakeStorage({"warehouse": str(tmp_path)})


@pytest.fixture
def table(storage: PaimonLakeStorage) -> Table:
    """The lake table, by a catalog of its own, as another process has it."""
    catalog = Catalog.open(storage.options)
    catalog.create_database("db")
    return catalog.create_table("db.t", COLUMNS, primary_key="id", buckets=1)


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "v": f"v{i}"} for i in ids]


def files(splits: list[LakeSplit]) -> list[str]:
    return [f.file_name for split in splits for f in split.data.files]  # type: ignore[attr-defined]


def filtered(storage: PaimonLakeStorage, predicate: Predicate) -> LakeSource:
    return storage.create_source(PATH).with_filters([predicate]).source


def test_a_snapshot_s_manifests_are_read_once(storage: PaimonLakeStorage, table: Table, read: list[str]) -> None:
    table.upsert(rows(1))
    first = storage.create_source(PATH).create_planner(1).plan()
    assert any(name.startswith("manifest") for name in read)
    read.clear()
    again = storage.create_source(PATH).create_planner(1).plan()
    assert again == first
    assert read == ["schema-0", "snapshot-1"], "what says that nothing has changed"


def test_a_list_of_splits_is_the_caller_s(storage: PaimonLakeStorage, table: Table) -> None:
    table.upsert(rows(1))
    planner = storage.create_source(PATH).create_planner(1)
    planner.plan().clear()
    assert len(planner.plan()) == 1


def test_a_source_is_the_same_until_the_table_changes(storage: PaimonLakeStorage, table: Table) -> None:
    source = storage.create_source(PATH)
    table.upsert(rows(1))
    assert storage.create_source(PATH) is source
    table.alter(add_columns={"w": "INT"})
    changed = storage.create_source(PATH)
    assert (source.schema.names, changed.schema.names) == (["id", "v"], ["id", "v", "w"])
    Catalog.open(storage.options).drop_table("db.t")
    with pytest.raises(NotFound):
        storage.create_source(PATH)
    assert changed.schema.names == ["id", "v", "w"], "sources do not change"


def test_a_snapshot_s_number_that_comes_again_after_a_rollback_has_its_own_plan(
    storage: PaimonLakeStorage, table: Table
) -> None:
    table.upsert(rows(1))
    table.upsert(rows(2))
    before = files(storage.create_source(PATH).create_planner(2).plan())
    table.rollback_to(1)
    with pytest.raises(NotFound) as gone:
        storage.create_source(PATH).create_planner(2)
    assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST
    table.upsert(rows(3, 4))
    after = files(storage.create_source(PATH).create_planner(2).plan())
    assert len(after) == len(before) == 2
    assert after != before


def test_a_table_that_was_recreated_has_no_plan_of_the_old_one(storage: PaimonLakeStorage, table: Table) -> None:
    table.upsert(rows(1))
    before = files(storage.create_source(PATH).create_planner(1).plan())
    catalog = Catalog.open(storage.options)
    catalog.drop_table("db.t")
    catalog.create_table("db.t", COLUMNS, primary_key="id", buckets=1).upsert(rows(5))
    after = files(storage.create_source(PATH).create_planner(1).plan())
    assert before != after


def test_an_expired_snapshot_is_noticed_although_its_plan_is_kept(storage: PaimonLakeStorage, table: Table) -> None:
    table.upsert(rows(1))
    source = storage.create_source(PATH)
    planner = source.create_planner(1)
    splits = planner.plan()
    table.compact(full=True)
    table.upsert(rows(2))
    table.compact(full=True)
    table.expire_snapshots(retain_min=1, retain_max=1, older_than=at_ms(0))
    for ask in (planner.plan, lambda: source.create_planner(1), lambda: _read(source, splits)):
        with pytest.raises(NotFound) as gone:
            ask()
        assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


def _read(source: LakeSource, splits: list[LakeSplit]) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    for split in splits:
        with source.create_record_reader(split) as reader:
            found += reader.read()
    return found


def test_filters_have_plans_of_their_own(storage: PaimonLakeStorage, table: Table) -> None:
    for i in range(4):
        table.upsert(rows(i))
    latest = table.context.snapshots.latest_id()
    assert latest is not None

    def planned(predicate: Predicate) -> int:
        return len(files(filtered(storage, predicate).create_planner(latest).plan()))

    assert [planned(col("id") == 1), planned(col("id") >= 2), planned(col("id") >= 0)] == [1, 2, 4]
    assert [planned(col("id") == 1), planned(col("id") >= 2), planned(col("id") >= 0)] == [1, 2, 4]


def test_options_have_plans_of_their_own(storage: PaimonLakeStorage) -> None:
    catalog = Catalog.open(storage.options)
    catalog.create_database("db")
    table = catalog.create_table("db.t", COLUMNS)
    for i in range(4):
        table.append(rows(i))
    source = storage.create_source(PATH)
    assert isinstance(source, PaimonLakeSource)
    schema = source.table.schema
    small = {**schema.options, "source.split.target-size": "1 b", "source.split.open-file-cost": "1 b"}
    cut = replace(source, table=source.table.with_schema(schema.with_options(small)))
    for _ in range(2):
        assert [len(chosen.create_planner(4).plan()) for chosen in (source, cut)] == [1, 4]


def test_a_plan_is_of_the_lists_the_index_and_the_request(storage: PaimonLakeStorage, table: Table) -> None:
    table.upsert(rows(1))
    context, made = table.context, list[object]()
    snapshot = context.snapshots.snapshot(1)

    def planned(store: ManifestStore, found: Any, request: object = None, schema: Any = context.schema) -> int:
        before = len(made)
        store.planned(found, schema, request, lambda: made.append(request) or (request,))  # type: ignore[func-returns-value]
        return len(made) - before

    store = context.manifests
    assert [planned(store, snapshot), planned(store, snapshot)] == [1, 0]
    assert planned(store, snapshot, "another") == 1
    for change in ({"id": 2}, {"base_manifest_list": "x"}, {"delta_manifest_list": "x"}, {"index_manifest": "x"}):
        assert planned(store, replace(snapshot, **change)) == 1, change
    assert planned(store, snapshot, schema=replace(context.schema, id=7)) == 1
    assert planned(store, snapshot, schema=context.schema.with_options({"a": "b"})) == 1
    assert planned(store, snapshot) == 0


def test_plans_of_two_tables_in_one_cache_are_kept_apart(table: Table) -> None:
    table.upsert(rows(1))
    context, cache = table.context, ManifestCache()
    snapshot = context.snapshots.snapshot(1)
    stores = [ManifestStore(context.io, context.paths, context.schema, cache) for _ in range(2)]
    plans = [s.planned(snapshot, context.schema, "r", lambda i=i: (i,)) for i, s in enumerate(stores)]  # type: ignore[misc]
    assert plans == [(0,), (1,)]


def test_a_plan_that_is_larger_than_the_memory_for_it_is_not_kept(table: Table) -> None:
    table.upsert(rows(1))
    context, made = table.context, list[int]()
    snapshot = context.snapshots.snapshot(1)
    store = ManifestStore(context.io, context.paths, context.schema, ManifestCache(20_000))

    def plan(count: int) -> list[int]:
        made.append(count)
        return list(range(count))

    for count in (5, 5, 50, 50, 5):
        assert len(store.planned(snapshot, context.schema, count, lambda count=count: plan(count))) == count  # type: ignore[misc]
    assert made == [5, 50, 50, 5], "the large one has taken the place of the small one, and then its own"


def test_threads_that_plan_at_once_get_the_same(storage: PaimonLakeStorage, table: Table) -> None:
    for i in range(3):
        table.upsert(rows(i))
    with ThreadPoolExecutor(4) as pool:
        plans = list(pool.map(lambda _: files(storage.create_source(PATH).create_planner(3).plan()), range(12)))
    assert all(plan == plans[0] for plan in plans)
    assert len(plans[0]) == 3


def test_a_storage_and_a_source_pickle_without_what_they_keep(storage: PaimonLakeStorage, table: Table) -> None:
    table.upsert(rows(1))
    source, unkept = storage.create_source(PATH), PaimonLakeSource(table.context)
    splits = source.create_planner(1).plan()
    assert unkept.create_planner(1).plan() == splits
    assert len(pickle.dumps(source)) == len(pickle.dumps(unkept))
    moved = pickle.loads(pickle.dumps((storage, source)))
    assert moved[0].create_source(PATH).create_planner(1).plan() == splits
    assert moved[1].create_planner(1).plan() == splits


# ---- Iceberg --------------------------------------------------------------------------------------------------------


@pytest.fixture
def iceberg(tmp_path: Path) -> IcebergLakeStorage:
    made = IcebergLakeStorage({"warehouse": str(tmp_path / "lake")})
    _on_table(made, lambda catalog: (catalog.create_namespace("db"), catalog.create_table("db.t", schema=COLUMNS)))
    return made


def _on_table(storage: IcebergLakeStorage, change: Callable[[Any], object]) -> None:
    """Change something by a catalog of its own, as another process does."""
    with opened(storage.options) as catalog:
        change(catalog)


def _appended(storage: IcebergLakeStorage, *ids: int) -> int:
    """The id of a new snapshot with these rows."""
    found: list[int] = []

    def append(catalog: Any) -> None:
        table = catalog.load_table("db.t")
        table.append(pa.Table.from_pylist(rows(*ids), schema=table.schema().as_arrow()))
        found.append(table.current_snapshot().snapshot_id)

    _on_table(storage, append)
    return found[0]


@pytest.fixture
def layouts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The ids of snapshots whose manifests are read."""
    ids: list[int] = []
    plain = iceberg_source.live_files  # type: ignore[attr-defined]

    def noted(metadata: Any, snapshot: Any, *rest: Any, **more: Any) -> Any:
        ids.append(snapshot.snapshot_id)
        return plain(metadata, snapshot, *rest, **more)

    monkeypatch.setattr(iceberg_source, "live_files", noted)
    return ids


def test_an_iceberg_snapshot_is_planned_once_while_the_metadata_file_is_the_same(
    iceberg: IcebergLakeStorage, layouts: list[int]
) -> None:
    first = _appended(iceberg, 1)
    source = iceberg.create_source(PATH)
    splits = source.create_planner(first).plan()
    assert iceberg.create_source(PATH) is source
    assert source.create_planner(first).plan() == splits
    assert layouts == [first]
    second = _appended(iceberg, 2)
    assert iceberg.create_source(PATH) is not source
    assert len(source.create_planner(second).plan()[0].files) == 2  # type: ignore[attr-defined]
    assert layouts == [first, second]


def test_columns_and_filters_of_an_iceberg_scan_have_plans_of_their_own(
    iceberg: IcebergLakeStorage, layouts: list[int]
) -> None:
    snapshot = _appended(iceberg, 1)
    source = iceberg.create_source(PATH)
    none = source.with_filters([col("id") == 7]).source
    for _ in range(2):
        assert len(source.create_planner(snapshot).plan()) == 1
        assert none.create_planner(snapshot).plan() == []
        assert len(source.with_project([[1]]).create_planner(snapshot).plan()) == 1
    assert layouts == [snapshot] * 3


def test_an_iceberg_table_that_was_dropped_recreated_or_altered_is_seen(iceberg: IcebergLakeStorage) -> None:
    snapshot = _appended(iceberg, 1)
    source = iceberg.create_source(PATH)
    source.create_planner(snapshot).plan()

    def alter(catalog: Any) -> None:
        with catalog.load_table("db.t").update_schema() as update:
            update.union_by_name(pa.schema([("w", pa.int32())]))

    _on_table(iceberg, alter)
    assert iceberg.create_source(PATH).schema.names == ["id", "v", "w"]
    _on_table(iceberg, lambda catalog: catalog.drop_table("db.t"))
    with pytest.raises(NotFound):
        iceberg.create_source(PATH)
    _on_table(iceberg, lambda catalog: catalog.create_table("db.t", schema=pa.schema([("other", pa.int64())])))
    assert iceberg.create_source(PATH).schema.names == ["other"]
    with pytest.raises(NotFound) as gone:
        source.create_planner(snapshot)
    assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


def test_an_expired_iceberg_snapshot_is_noticed_although_its_plan_is_kept(iceberg: IcebergLakeStorage) -> None:
    first = _appended(iceberg, 1)
    source = iceberg.create_source(PATH)
    source.create_planner(first).plan()
    _appended(iceberg, 2)
    with iceberg.upkeep(PATH) as upkeep:
        upkeep.expire(older_than="9999-01-01T00:00:00Z", keep=1)
    with pytest.raises(NotFound) as gone:
        source.create_planner(first)
    assert gone.value.code == ErrorCode.LAKE_SNAPSHOT_NOT_EXIST


def test_a_database_of_an_iceberg_catalog_that_was_replaced_is_asked_and_not_the_old_one(
    iceberg: IcebergLakeStorage,
) -> None:
    iceberg.create_source(PATH)
    database = Path(iceberg.options["warehouse"]) / "catalog.db"
    database.unlink()
    with pytest.raises(NotFound):
        iceberg.create_source(PATH)
    _on_table(iceberg, lambda catalog: catalog.create_namespace("db"))
    _on_table(iceberg, lambda catalog: catalog.create_table("db.t", schema=pa.schema([("other", pa.int64())])))
    assert iceberg.create_source(PATH).schema.names == ["other"]


def test_an_iceberg_source_pickles_without_what_is_kept(iceberg: IcebergLakeStorage) -> None:
    snapshot = _appended(iceberg, 1)
    source = iceberg.create_source(PATH)
    splits = source.create_planner(snapshot).plan()
    moved = pickle.loads(pickle.dumps(source))
    assert moved == source
    assert moved.tables is None
    assert moved.create_planner(snapshot).plan() == splits
    assert pickle.loads(pickle.dumps(iceberg)).create_source(PATH) == source
