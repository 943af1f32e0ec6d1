"""Tiering into Paimon when processes die, storage fails, and several workers commit at the same time."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import Conflict, ForebayError, InvalidRequest
from forebay.lake.tiering import OFFSETS_PROPERTY, CommitterContext, WriterContext
from forebay.lakes.paimon import PaimonLakeStorage
from forebay.lakes.paimon_tables import open_catalog
from forebay.lakes.paimon_tiering import PaimonLakeCommitter, PaimonLakeWriter
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.commit.committer import Committable
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.io.local import LocalFileIO
from forebay.testing.lake_contract_base import ID_NAME, people
from forebay.testing.lake_rounds import PATH, TieredTable, changes_of, in_order
from tests.lake.paimon_tables import LAKE, create, describe, engine_table
from tests.paimon.failing import FailingFileIO, SimulatedCrash
from tests.paimon.lake import at_ms

COMPACTS = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true"}
SMALL = {"paimon.num-sorted-run.compaction-trigger": "2", "paimon.snapshot.num-retained.min": "1"}


@pytest.fixture
def table(tmp_path: Path) -> TieredTable:
    """A table with a key and one bucket, whose writers compact often and whose snapshots expire."""
    descriptor = describe(ID_NAME, primary_key=("id",), bucket_count=1, custom_properties=SMALL)
    descriptor = type(descriptor)(**{**vars(descriptor), "properties": {**LAKE, **COMPACTS}})
    return create(PaimonLakeStorage({"warehouse": str(tmp_path / "lake")}), descriptor)


def round_on(io: FailingFileIO, table: TieredTable, number: int) -> int:
    """A round as a worker and a driver of its own would do it, on `io`; the snapshot's id."""
    assert isinstance(table.storage, PaimonLakeStorage)
    catalog = FileSystemCatalog(io, table.storage.options["warehouse"])
    lake = catalog.table(str(PATH), options={"write-only": "false"})
    writer = PaimonLakeWriter(lake, WriterContext(table.info, 0))
    writer.write(changes_of(table.info, [("+U", r) for r in people(number % 5, name=f"r{number} ")]))
    result = writer.complete()
    context = CommitterContext(table.info, table.epoch, table.base)
    committer = PaimonLakeCommitter(catalog.table(str(PATH)), context)
    committed = committer.commit([result], {OFFSETS_PROPERTY: str(number)})
    committer.maintain()
    return committed.snapshot_id


def recover(table: TieredTable, number: int) -> None:
    """What the next driver does: take the round that is there, or do it again."""
    missing = table.committer().get_missing_lake_snapshot(table.base)
    if missing is not None:
        table.base = missing.snapshot_id
    if missing is None or missing.properties[OFFSETS_PROPERTY] != str(number):
        table.base = round_on(FailingFileIO(LocalFileIO()), table, number)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.one_in(2)
def test_a_round_that_ends_at_any_step_is_there_once_or_can_be_done_again(
    table: TieredTable, crashes: bool, after: bool
) -> None:
    model: dict[int, str] = {}
    for number in range(4):
        table.base = round_on(FailingFileIO(LocalFileIO()), table, number)
        model[number % 5] = f"r{number} {number % 5}"
    number = 4
    step = 2 * crashes + after  # each kind of failure at every fourth step, and together at all
    while True:
        io = FailingFileIO(
            LocalFileIO(),
            crash_at=step if crashes else None,
            crash_after=after,
            fail_number=None if crashes else step,
            fail_after=after,
        )
        number += 1
        try:
            table.base = round_on(io, table, number)
        except (SimulatedCrash, ForebayError):
            recover(table, number)
        model[number % 5] = f"r{number} {number % 5}"
        assert table.read() == in_order({"id": k, "name": v} for k, v in model.items())
        if io.count <= step:
            break
        step += 4
    assert step > 30, "a round has more steps than that"
    # Left-over files are found, and nothing else is.
    lake = engine_table(table.storage)
    removed = lake.remove_orphan_files(older_than=at_ms(SYSTEM_CLOCK.now_ms()))
    assert removed.files or not crashes
    assert table.read() == in_order({"id": k, "name": v} for k, v in model.items())


def test_of_workers_that_commit_at_once_on_one_base_exactly_one_does(table: TieredTable) -> None:
    table.upsert(*people(0))
    base = table.base
    results = [table.write(((), 0), [("+U", r) for r in people(0, name=f"w{i} ")]) for i in range(4)]
    committers = [table.committer(base=base) for _ in results]
    start, won, lost = threading.Barrier(4), [], []

    def commit(i: int) -> None:
        start.wait()
        try:
            won.append((i, committers[i].commit([results[i]], {OFFSETS_PROPERTY: str(i)}).snapshot_id))
        except Conflict:
            committers[i].abort([results[i]])
            lost.append(i)

    threads = [threading.Thread(target=commit, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (len(won), len(lost)) == (1, 3)
    (winner, snapshot_id), *_ = won
    assert table.read(snapshot_id) == people(0, name=f"w{winner} ")


def test_rounds_continue_while_another_job_compacts(table: TieredTable) -> None:
    stop = threading.Event()
    failures: list[Exception] = []

    def compact() -> None:
        while not stop.is_set():
            try:
                engine_table(table.storage).compact(full=True)
            except Conflict:
                continue
            except Exception as e:  # noqa: BLE001 - told to the test's own thread
                failures.append(e)
                return

    thread = threading.Thread(target=compact)
    thread.start()
    try:
        for i in range(25):
            table.upsert(*people(i % 5, name=f"r{i} "))
            assert {"id": i % 5, "name": f"r{i} {i % 5}"} in table.read()
    finally:
        stop.set()
        thread.join()
    assert failures == []
    assert table.read() == [{"id": k, "name": f"r{20 + k} {k}"} for k in range(5)]


def test_a_base_that_has_expired_behind_snapshots_of_others_does_not_stop_tiering(table: TieredTable) -> None:
    table.upsert(*people(1))
    table.upsert(*people(1, 2, name="new"))
    for _ in range(3):
        lake = engine_table(table.storage)
        if lake.compact(full=True) is None:
            lake.new_commit(ignore_empty=False).commit([])
    engine_table(table.storage).expire_snapshots(retain_min=1, retain_max=1, older_than=at_ms(0))
    assert table.base not in engine_table(table.storage).context.snapshots.ids()
    table.upsert(*people(3))
    assert table.read() == in_order([*people(1, 2, name="new"), *people(3)])


def test_a_lake_table_that_was_recreated_refuses_rounds_of_the_old_one(table: TieredTable) -> None:
    table.upsert(*people(1))
    table.upsert(*people(2))
    assert isinstance(table.storage, PaimonLakeStorage)
    late = table.write(((), 0), [("+U", r) for r in people(3)])
    open_catalog(table.storage.options).drop_table(str(PATH))
    create(table.storage, table.info.descriptor)
    with pytest.raises(Conflict):
        table.committer().commit([late], {})
    assert engine_table(table.storage).context.snapshots.latest() is None


def test_a_commit_that_is_asked_at_each_try_whether_it_may_follow_leaves_nothing_when_it_may_not(
    table: TieredTable,
) -> None:
    table.upsert(*people(1))
    lake = engine_table(table.storage)
    files = {s.path for s in LocalFileIO().walk(lake.context.paths.root)}
    asked: list[int | None] = []

    def once_only(latest: Snapshot | None) -> None:
        """Let another commit win the first attempt; refuse the second."""
        asked.append(None if latest is None else latest.id)
        if len(asked) == 1:
            engine_table(table.storage).new_commit("other", ignore_empty=False).commit([])
        else:
            raise Conflict("not any more")

    before = lake.context.snapshots.latest_id()
    with pytest.raises(Conflict, match="not any more"):
        lake.new_commit("me", ignore_empty=False).commit_if(once_only, Committable(1, ()))
    assert asked == [before, (before or 0) + 1]
    made = {s.path for s in LocalFileIO().walk(lake.context.paths.root)} - files
    assert {p.rpartition("/")[2].partition("-")[0] for p in made} == {"snapshot", "manifest"}
    assert [s.commit_user for s in lake.context.snapshots.snapshots()][-1] == "other"
    lake.remove_orphan_files(older_than=at_ms(SYSTEM_CLOCK.now_ms()))
    assert made <= {s.path for s in LocalFileIO().walk(lake.context.paths.root)}


@pytest.fixture
def plain(tmp_path: Path) -> TieredTable:
    """A table with a key and one bucket that is never compacted; its snapshots do not expire."""
    descriptor = describe(ID_NAME, primary_key=("id",), bucket_count=1)
    return create(PaimonLakeStorage({"warehouse": str(tmp_path / "lake")}), descriptor)


def data_files(table: TieredTable) -> set[str]:
    return {
        s.path
        for s in LocalFileIO().walk(engine_table(table.storage).context.paths.root)
        if s.path.endswith(".parquet")
    }


def test_files_of_rounds_that_were_committed_are_not_removed_when_they_are_given_up(plain: TieredTable) -> None:
    plain.upsert(*people(1))
    before = plain.base
    results = [plain.write(((), 0), [("+U", r) for r in people(i)]) for i in (2, 3, 4)]
    for result in results[:2]:
        plain.base = plain.committer().commit([result], {}).snapshot_id
    files = data_files(plain)
    engine_table(plain.storage).new_commit("other", ignore_empty=False).commit([])
    for base in (before, None):
        plain.committer(base=base).abort(results[:2])
        assert data_files(plain) == files
    for base in (before, plain.base):
        plain.committer(base=base).abort(results[2:])
        assert len(data_files(plain)) == len(files) - 2  # rows, and their changelog
    assert plain.read() == people(1, 2, 3)


def test_a_round_follows_on_its_base_alone_whatever_others_commit(plain: TieredTable) -> None:
    other = engine_table(plain.storage).new_commit("other", ignore_empty=False)
    result = plain.write(((), 0), [("+U", r) for r in people(1)])
    none = "the newest one is None"
    for base, newest in ((5, none), (1, none)):
        with pytest.raises(Conflict, match=f"it started from lake snapshot {base}, and {newest}"):
            plain.committer(base=base).commit([result], {})
        other.commit([])  # so there is a snapshot 1 that belongs to no round
    plain.base = plain.committer(base=None).commit([result], {}).snapshot_id
    assert plain.base == 3
    for base in (None, 2):
        with pytest.raises(Conflict, match=f"it started from lake snapshot {base}, and the newest one is 3"):
            plain.committer(base=base).commit([], {})
    committer = plain.committer()
    assert [committer.commit([], {}).snapshot_id for _ in range(2)] == [4, 5]  # each follows on the one before
    assert plain.read(5) == people(1)


def test_rounds_that_the_cluster_does_not_know_are_found(plain: TieredTable) -> None:
    committer = plain.committer(base=None)
    assert committer.get_missing_lake_snapshot(None) is None
    plain.round({((), 0): [("+U", r) for r in people(1)]}, {OFFSETS_PROPERTY: "one"})
    engine_table(plain.storage).new_commit("other", ignore_empty=False).commit([])
    found = committer.get_missing_lake_snapshot(None)
    assert found is not None
    assert (found.snapshot_id, found.properties[OFFSETS_PROPERTY]) == (1, "one")
    assert committer.get_missing_lake_snapshot(0) == found
    assert committer.get_missing_lake_snapshot(1) is None
    assert [committer.has_snapshot(number) for number in (1, 2, 3)] == [True, True, False]


def test_rows_for_a_bucket_that_is_not_there_are_refused(table: TieredTable) -> None:
    with pytest.raises(InvalidRequest, match="bucket 1 is none"):
        table.write(((), 1), [("+U", r) for r in people(1)])


def test_a_lake_in_a_sql_catalog_is_tiered_into_and_read(tmp_path: Path) -> None:
    options = {"warehouse": str(tmp_path / "lake"), "metastore": "jdbc", "uri": f"jdbc:sqlite:{tmp_path}/catalog.db"}
    storage = PaimonLakeStorage(options)
    lake = create(storage, describe(ID_NAME, primary_key=("id",)))
    lake.upsert(*people(1, 2))
    late, base = [lake.write(lake.place_of(r), [("+U", r)]) for r in people(2, name="late")], lake.base
    lake.delete(*people(1))
    with pytest.raises(Conflict):
        lake.committer(base=base).commit(late, {})
    assert lake.read() == people(2)
    assert open_catalog(options).list_tables("db") == ["t"]
