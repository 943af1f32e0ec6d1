"""Tiering into Iceberg when storage fails, catalogs do not respond, and several writers commit at the same time.

A round fails at some of its steps, `ICEBERG_STEPS=1` at each of them (`make lake-trials`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.update import SetSnapshotRefUpdate

from forebay.base.errors import Conflict, ErrorCode, ForebayError, InvalidRequest, OutcomeUnknown, Unavailable
from forebay.lake.tiering import OFFSETS_PROPERTY
from forebay.lakes.iceberg import IcebergLakeStorage
from forebay.lakes.iceberg_errors import lake_errors
from forebay.lakes.iceberg_tables import opened
from forebay.lakes.iceberg_upkeep import _removed_paths
from forebay.testing.lake_contract_base import people
from forebay.testing.lake_rounds import PATH, TieredTable, in_order
from tests.every_run import every_run
from tests.lake import failing_iceberg_io
from tests.lake.iceberg_contract import IcebergContract
from tests.lake.iceberg_tables import END_OF_TIME, compact, expire, lake_table

UPKEEP = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true"}
STRIDE = int(os.environ.get("ICEBERG_STEPS", "8"))
EAGER = {"iceberg.history.expire.max-snapshot-age-ms": "0", "iceberg.commit.manifest.min-count-to-merge": "3"}


@pytest.fixture
def table(tmp_path: Path) -> TieredTable:
    """A table with a key and one bucket, that is compacted, and whose snapshots expire at once."""
    options = {"warehouse": str(tmp_path / "lake"), "py-io-impl": failing_iceberg_io.NAME}
    storage = IcebergLakeStorage(options)
    return IcebergContract().keyed_table(storage, buckets=1, properties=UPKEEP, custom=EAGER)


@pytest.fixture(autouse=True)
def no_failures() -> Iterator[None]:
    yield
    failing_iceberg_io.plan()


def round_on(table: TieredTable, number: int) -> int:
    """A round with upkeep; the snapshot's id."""
    result = table.write(((), 0), [("+U", r) for r in people(number % 5, name=f"r{number} ")])
    committer = table.committer()
    committed = committer.commit([result], {OFFSETS_PROPERTY: str(number)})
    committer.maintain()
    return committed.snapshot_id


def recover(table: TieredTable, number: int) -> None:
    """What the next driver does: take the round that is there, or do it again."""
    missing = table.committer().get_missing_lake_snapshot(table.base)
    if missing is not None:
        table.base = missing.snapshot_id
    if missing is None or missing.properties[OFFSETS_PROPERTY] != str(number):
        table.base = round_on(table, number)


@pytest.mark.parametrize("after", every_run([False, True], lambda after: after))
def test_a_round_that_fails_at_any_step_is_there_once_or_can_be_done_again(table: TieredTable, after: bool) -> None:
    model: dict[int, str] = {}
    for number in range(4):
        table.base = round_on(table, number)
        model[number % 5] = f"r{number} {number % 5}"
    number, step = 4, 1 + after
    while True:
        number += 1
        plan = failing_iceberg_io.plan(step, after)
        try:
            table.base = round_on(table, number)
        except ForebayError:
            failing_iceberg_io.plan()
            recover(table, number)
            table.committer().maintain()
        failing_iceberg_io.plan()
        model[number % 5] = f"r{number} {number % 5}"
        assert table.read() == in_order({"id": k, "name": v} for k, v in model.items())
        if plan.steps < step:
            break
        step += STRIDE
        number += 1  # one that does not fail compacts the files that failed rounds have left, or each has more steps
        table.base = round_on(table, number)
        model[number % 5] = f"r{number} {number % 5}"
    assert step > 20, "a round has more steps than that"
    assert len(lake_table(table.storage).metadata.snapshots) <= 6


def _lose_answers(patched: pytest.MonkeyPatch, *, done: bool) -> None:
    """Let commits of a SQL catalog end without an answer, with the change made or not."""
    real = SqlCatalog.commit_table

    def unanswered(self: SqlCatalog, *words: Any) -> Any:
        if done:
            real(self, *words)
        raise OSError("the connection was lost")

    patched.setattr(SqlCatalog, "commit_table", unanswered)


def test_a_round_whose_answer_was_lost_is_found_in_the_table(
    table: TieredTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.upsert(*people(1))
    result = table.write(((), 0), [("+U", r) for r in people(1, name="new")])
    with monkeypatch.context() as patched:
        _lose_answers(patched, done=True)
        table.base = table.committer().commit([result], {OFFSETS_PROPERTY: "2"}).snapshot_id
    assert table.read() == people(1, name="new")


def test_a_round_whose_answer_was_lost_and_that_is_not_to_be_seen_has_an_unknown_outcome(
    table: TieredTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.upsert(*people(1))
    result = table.write(((), 0), [("+U", r) for r in people(1, name="new")])
    with monkeypatch.context() as patched:
        _lose_answers(patched, done=False)
        with pytest.raises(OutcomeUnknown, match="the connection was lost"):
            table.committer().commit([result], {OFFSETS_PROPERTY: "2"})
    assert table.committer().get_missing_lake_snapshot(table.base) is None
    table.base = table.committer().commit([result], {}).snapshot_id
    assert table.read() == people(1, name="new")


def test_of_workers_that_commit_at_once_on_one_base_exactly_one_does(table: TieredTable) -> None:
    table.upsert(*people(0))
    base = table.base
    results = [table.write(((), 0), [("+U", r) for r in people(0, name=f"w{i} ")]) for i in range(4)]
    committers = [table.committer(base=base) for _ in results]
    start, won, lost = threading.Barrier(4), [], []

    def commit(i: int) -> None:
        start.wait()
        for _ in range(10):
            try:
                won.append((i, committers[i].commit([results[i]], {OFFSETS_PROPERTY: str(i)}).snapshot_id))
            except Conflict:
                committers[i].abort([results[i]])
                lost.append(i)
            except Unavailable:
                continue  # SQLite was busy
            return

    threads = [threading.Thread(target=commit, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (len(won), len(lost)) == (1, 3)
    (winner, snapshot_id), *_ = won
    assert table.read(snapshot_id) == people(0, name=f"w{winner} ")


def test_a_commit_is_tried_again_on_the_new_head_when_others_were_faster(
    table: TieredTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.upsert(*people(1, 2))
    real, refused = SqlCatalog.commit_table, [0]

    def busy(self: SqlCatalog, *words: Any) -> Any:
        refused[0] += 1
        if refused[0] < 3:
            raise CommitFailedException("somebody was faster")
        return real(self, *words)

    result = table.write(((), 0), [("+U", r) for r in people(1, name="new")])
    monkeypatch.setattr(SqlCatalog, "commit_table", busy)
    table.base = table.committer().commit([result], {}).snapshot_id
    assert refused == [3]
    assert table.read() == in_order([*people(2), *people(1, name="new")])
    metadata = Path(lake_table(table.storage).location().removeprefix("file://")) / "metadata"
    used = {m.manifest_path for s in lake_table(table.storage).metadata.snapshots for m in s.manifests(lake_io(table))}
    lists = {s.manifest_list for s in lake_table(table.storage).metadata.snapshots}
    assert {f"file://{p}" for p in metadata.glob("*.avro")} == used | lists


def test_files_of_attempts_that_were_too_late_are_removed(table: TieredTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        table.upsert(*people(2 * i, 2 * i + 1))
    result = table.write(((), 0), [("+U", r) for r in people(0, name="new")])
    assert compact(table.storage) is not None  # so each attempt writes a file of the places where rows are now
    real, refused = SqlCatalog.commit_table, [0]

    def busy(self: SqlCatalog, *words: Any) -> Any:
        refused[0] += 1
        if refused[0] < 3:
            raise CommitFailedException("somebody was faster")
        return real(self, *words)

    monkeypatch.setattr(SqlCatalog, "commit_table", busy)
    table.base = table.committer().commit([result], {}).snapshot_id
    assert refused == [3]
    check_files(lake_table(table.storage))
    assert table.read() == in_order([*people(1, 2, 3, 4, 5), *people(0, name="new")])


def test_files_of_a_round_that_was_committed_and_compacted_are_not_removed_when_it_is_given_up(
    table: TieredTable,
) -> None:
    for i in range(2):
        table.upsert(*people(i))
    before = table.base
    result = table.write(((), 0), [("+U", r) for r in people(0, 5, name="new")])
    committed = table.committer().commit([result], {}).snapshot_id
    assert compact(table.storage) is not None
    for base in (before, None):
        table.committer(base=base).abort([result])
        check_files(lake_table(table.storage))
        assert table.read(committed) == in_order([*people(1), *people(0, 5, name="new")])
    other = table.write(((), 0), [("+U", r) for r in people(0)])
    table.committer(base=before).abort([other])
    check_files(lake_table(table.storage))


def lake_io(table: TieredTable) -> Any:
    return lake_table(table.storage).io


@pytest.mark.parametrize("expired", [False, True])
def test_rows_that_were_compacted_while_a_round_was_written_are_found_again(table: TieredTable, expired: bool) -> None:
    for i in range(3):
        table.upsert(*people(3 * i, 3 * i + 1, 3 * i + 2))
    changes = [("+U", people(0, name="new")[0]), ("-D", people(4)[0]), ("+I", people(99)[0]), ("-D", people(99)[0])]
    result = table.write(((), 0), changes, chunk=1)
    assert compact(table.storage) is not None
    committer = table.committer()
    if expired:
        expire(table.storage)
        # The tag keeps the newest tiering snapshot, and with it the files that the writer has seen.
    table.base = committer.commit([result], {}).snapshot_id
    expected = in_order([*people(1, 2, 3, 5, 6, 7, 8), *people(0, name="new")])
    assert table.read() == expected
    found = lake_table(table.storage).scan().to_arrow().select(["id", "name"]).to_pylist()
    assert in_order(found) == expected
    data = Path(lake_table(table.storage).location().removeprefix("file://")) / "data"
    assert result.deletes is not None
    assert Path(result.deletes.path.removeprefix("file://")) not in set(data.rglob("*.parquet"))


def test_a_compaction_gives_way_to_a_round_that_was_faster(table: TieredTable, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        table.upsert(*people(i))
    real, asked = SqlCatalog.commit_table, [0]

    def overtaken(self: SqlCatalog, *words: Any) -> Any:
        asked[0] += 1
        if asked[0] == 1:
            table.upsert(*people(0, name="new"))
        return real(self, *words)

    monkeypatch.setattr(SqlCatalog, "commit_table", overtaken)
    assert compact(table.storage) is None
    assert table.read() == in_order([*people(1, 2), *people(0, name="new")])
    check_files(lake_table(table.storage))


def test_rounds_continue_while_another_job_compacts(table: TieredTable) -> None:
    stop = threading.Event()
    failures: list[Exception] = []
    compacted: list[int] = []

    def go_on() -> None:
        rest = 0.01
        while not stop.wait(rest):  # as long as a compaction takes: else it can win every one of a round's attempts
            began = time.monotonic()
            try:
                done = compact(table.storage)
                if done is not None:
                    compacted.append(done)
            except (Conflict, Unavailable):
                continue
            except Exception as e:  # noqa: BLE001 - told to the test's own thread
                if "database is locked" not in str(e):
                    failures.append(e)
                    return
            finally:
                rest = time.monotonic() - began

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        for i in range(15):
            table.upsert(*people(i % 5, name=f"r{i} "))
            assert {"id": i % 5, "name": f"r{i} {i % 5}"} in table.read()
    finally:
        stop.set()
        thread.join()
    assert failures == []
    assert table.read() == [{"id": k, "name": f"r{10 + k} {k}"} for k in range(5)]
    assert compacted


def test_a_catalog_is_closed_after_its_use_also_after_an_error(
    table: TieredTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[SqlCatalog] = []
    close = SqlCatalog.close

    def noted(catalog: SqlCatalog) -> None:
        closed.append(catalog)
        close(catalog)

    monkeypatch.setattr(SqlCatalog, "close", noted)
    assert isinstance(table.storage, IcebergLakeStorage)
    with opened(table.storage.options) as first:
        assert closed == []
    with pytest.raises(InvalidRequest, match="on purpose"), opened(table.storage.options) as second:
        raise InvalidRequest("on purpose")
    assert closed == [first, second]


def test_a_catalog_that_refuses_connections_was_not_asked_and_one_that_hangs_up_may_have_been() -> None:
    with socket.socket() as refusing, socket.create_server(("127.0.0.1", 0)) as hanging_up:
        refusing.bind(("127.0.0.1", 0))
        threading.Thread(target=lambda: hanging_up.accept()[0].close(), daemon=True).start()
        outcomes = {}
        for name, sock in (("refusing", refusing), ("hanging up", hanging_up)):
            address = f"127.0.0.1:{sock.getsockname()[1]}"
            with pytest.raises(Unavailable, match="the catalog") as raised, lake_errors("the catalog"):
                requests.post(f"http://{address}/v1/config", timeout=30)
            assert name != "refusing" or address in raised.value.message
            outcomes[name] = raised.value
    assert "cannot be reached (Connection refused), so the request was not sent" in outcomes["refusing"].message
    assert outcomes["refusing"].code == ErrorCode.OPERATION_NOT_ATTEMPTED_EXCEPTION
    assert outcomes["hanging up"].code == ErrorCode.NETWORK_EXCEPTION


def test_a_lake_table_that_was_recreated_refuses_rounds_of_the_old_one(table: TieredTable) -> None:
    first = table.write(((), 0), [("+U", r) for r in people(3)])
    assert isinstance(table.storage, IcebergLakeStorage)
    with opened(table.storage.options) as catalog:
        catalog.drop_table((PATH.database, PATH.table))
    IcebergContract().create(table.storage, table.info.descriptor)
    with pytest.raises(Conflict, match="recreated"):
        table.committer().commit([first], {})
    assert lake_table(table.storage).current_snapshot() is None


def test_rows_for_a_bucket_that_is_not_there_are_refused(table: TieredTable) -> None:
    with pytest.raises(InvalidRequest, match="bucket 1 is none"):
        table.write(((), 1), [("+U", r) for r in people(1)])


def test_expiry_removes_files_that_no_snapshot_has_and_keeps_the_newest_round(table: TieredTable) -> None:
    for i in range(4):
        table.upsert(*people(1, 2, name=f"r{i} "))
    compact(table.storage)
    assert len(expire(table.storage)) == 3
    lake = lake_table(table.storage)
    assert {s.snapshot_id for s in lake.metadata.snapshots} == {table.base, lake.metadata.current_snapshot_id}
    check_files(lake)
    assert table.read() == people(1, 2, name="r3 ")


def check_files(lake: Any) -> None:
    """The table's folder has the files of its snapshots and no others."""
    root = Path(lake.location().removeprefix("file://"))
    needed = set()
    for snapshot in lake.metadata.snapshots:
        for manifest in snapshot.manifests(lake.io):
            needed |= {e.data_file.file_path for e in manifest.fetch_manifest_entry(lake.io)} | {manifest.manifest_path}
        needed.add(snapshot.manifest_list)
    there = {f"file://{p}" for p in [*root.rglob("*.parquet"), *root.rglob("*.avro")]}
    assert there == needed


def roll_back(storage: IcebergLakeStorage, snapshot_id: int) -> None:
    lake = lake_table(storage)
    back = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot_id)
    lake.catalog.commit_table(lake, (), (back,))


def test_expiry_leaves_the_files_of_a_snapshot_whose_parent_goes_and_is_not_the_last_that_goes(
    table: TieredTable,
) -> None:
    for i in range(3):
        table.upsert(*people(1, i + 2, name=f"r{i} "))
    parent = table.base
    compact(table.storage)
    table.upsert(*people(1, name="r3 "))
    lake = lake_table(table.storage)
    lake.manage_snapshots().create_tag(table.base, "mine").commit()
    roll_back(table.storage, parent)
    table.base = parent
    table.upsert(*people(2, name="r4 "))  # on top of files that the compaction removed
    gone = expire(table.storage)
    assert parent in gone
    lake = lake_table(table.storage)
    assert len(lake.metadata.snapshots) == 2
    check_files(lake)
    for snapshot in lake.metadata.snapshots:
        assert lake.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 4


@pytest.mark.parametrize("history", ["straight", "tagged", "rolled back"])
@pytest.mark.one_in(3)
def test_expiry_leaves_the_files_of_the_snapshots_that_stay_however_they_follow_each_other(
    table: TieredTable, history: str
) -> None:
    for i in range(3):
        table.upsert(*people(1, i + 2, name=f"r{i} "))
    compact(table.storage)
    lake = lake_table(table.storage)
    compacted = lake.metadata.current_snapshot_id
    if history == "tagged":
        lake.manage_snapshots().create_tag(compacted, "mine").commit()
    elif history == "rolled back":
        roll_back(table.storage, table.base)
    table.upsert(*people(1, 2, name="r3 "))
    compact(table.storage)
    table.upsert(*people(1, name="r4 "))
    gone = expire(table.storage)
    lake = lake_table(table.storage)
    assert (compacted in gone) == (history != "tagged")
    assert len(lake.metadata.snapshots) == 1 + (history == "tagged")
    check_files(lake)
    for snapshot in lake.metadata.snapshots:
        assert lake.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows == 4


def test_expiry_removes_the_files_of_a_snapshot_that_was_rolled_back_whose_parent_is_gone(table: TieredTable) -> None:
    table.upsert(*people(1))
    first = table.base
    table.upsert(*people(2))
    dead = table.base
    roll_back(table.storage, first)
    table.base = first
    table.upsert(*people(3))
    assert expire(table.storage, older_than=END_OF_TIME, keep=2) == [first]
    check_files(lake_table(table.storage))
    assert expire(table.storage, older_than=END_OF_TIME, keep=1) == [dead]
    check_files(lake_table(table.storage))
    assert table.read() == people(1, 3)


def test_of_a_manifest_that_also_adds_files_only_those_that_its_snapshot_removed_go() -> None:
    """Other engines merge what a snapshot adds and removes into one manifest."""
    status = ManifestEntryStatus

    def manifest(added: int, deleted: int, *entries: tuple[ManifestEntryStatus, int, str]) -> Any:
        made = [
            SimpleNamespace(status=kind, snapshot_id=snapshot, data_file=SimpleNamespace(file_path=path))
            for kind, snapshot, path in entries
        ]
        return SimpleNamespace(
            added_snapshot_id=added, deleted_files_count=deleted, fetch_manifest_entry=lambda _io, **_: made
        )

    mixed = manifest(
        2, 2, (status.ADDED, 2, "added"), (status.EXISTING, 1, "kept"), (status.DELETED, 1, "old"),
        (status.DELETED, 2, "removed"),
    )  # fmt: skip
    earlier = manifest(1, 1, (status.DELETED, 2, "of the manifest of another"))
    snapshot: Any = SimpleNamespace(snapshot_id=2, manifests=lambda _io: [mixed, earlier])
    io: Any = None
    assert list(_removed_paths(io, [snapshot])) == ["removed"]


def test_files_of_a_worker_that_died_are_orphans_and_nothing_else_is(table: TieredTable) -> None:
    for i in range(3):
        table.upsert(*people(1, i + 2, name=f"r{i} "))
    compact(table.storage)
    expected = table.read()
    lost = table.write(((), 0), [("+U", r) for r in people(1, 9)])
    assert isinstance(table.storage, IcebergLakeStorage)
    with table.storage.upkeep(PATH) as upkeep:
        assert upkeep.remove_orphan_files("1970-01-01T00:00:00Z") == []
        removed = upkeep.remove_orphan_files(END_OF_TIME)
    assert {f"file://{path}" for path in removed} == set(lost.paths)
    assert len(lost.paths) == 2
    for snapshot in lake_table(table.storage).metadata.snapshots:
        table.read(snapshot.snapshot_id)
    assert table.read() == expected


def test_orphans_are_removed_that_are_older_than_the_limit(table: TieredTable) -> None:
    table.upsert(*people(1))
    root = Path(lake_table(table.storage).location().removeprefix("file://"))
    old, young, note = (root / "data" / name for name in ("old.parquet", "young.avro", "note.txt"))
    for path, second in ((old, 4), (young, 5), (note, 1)):
        path.touch()
        os.utime(path, (second, second))
    assert isinstance(table.storage, IcebergLakeStorage)
    with table.storage.upkeep(PATH) as upkeep:
        assert upkeep.remove_orphan_files("1970-01-01T00:00:05Z") == [str(old)]
    assert [path.exists() for path in (old, young, note)] == [False, True, True]
    assert table.read() == people(1)


def test_manifests_are_merged_so_that_their_number_does_not_grow_with_the_rounds(table: TieredTable) -> None:
    for i in range(12):
        table.upsert(*people(i % 3, name=f"r{i} "))
    lake = lake_table(table.storage)
    head = lake.current_snapshot()
    assert head is not None
    assert len(head.manifests(lake.io)) <= 8
    assert in_order(lake.scan().to_arrow().select(["id", "name"]).to_pylist()) == table.read()
