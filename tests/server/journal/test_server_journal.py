"""Servers with a store: a new machine has what the store has, and one server at a time writes to it."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay import Connection, Table
from forebay.base.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    ForebayError,
    InternalError,
    StorageFailure,
    Unavailable,
)
from forebay.fs.local import LocalFileSystem
from forebay.inprocess import EmbeddedConnection
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.server.config import server_config
from forebay.server.handlers import offsets
from forebay.server.journal.loss import read_loss
from forebay.server.journal.server_journal import ServerJournal
from forebay.server.journal.uploader import JournalUploader
from forebay.server.lake.lake_snapshots import LakeSnapshots
from forebay.server.standby.standby import Standby
from forebay.store import journal as journal_module
from forebay.store.directory import DirectoryStore
from forebay.store.journal import JournalCursor, JournalWriter
from tests.patience import PATIENCE, until

Start = Callable[..., EmbeddedConnection]

KV = {"id": "BIGINT", "v": "STRING"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server in a data directory of this name, with the one store."""
    running: list[EmbeddedConnection] = []

    def started(name: str, **more: str) -> EmbeddedConnection:
        settings = {"store": str(tmp_path / "store"), "store.interval": "20 ms", "store.lease": "0 s"}
        settings |= {f"store.{option}": value for option, value in more.items()}
        running.append(forebay.embedded(tmp_path / name, settings=settings, writer_delivery_timeout="2 s"))
        return running[-1]

    yield started
    for connection in running:
        connection.close()


def journal_of(conn: EmbeddedConnection) -> ServerJournal:
    journal = conn.server.server._journal
    assert journal is not None
    return journal


def store(conn: EmbeddedConnection) -> None:
    """Wait until all that was acknowledged is in the store."""
    assert journal_of(conn).wait_until_stored(PATIENCE)


def rows(conn: Connection, table: str) -> list[dict[str, object]]:
    return sorted(conn.table(table).scan().to_arrow().to_pylist(), key=lambda row: str(list(row.values())))


def now_ms() -> int:
    return int(time.time() * 1000)


def append_until_it_fails(table: Table) -> int:
    """The number of rows that were acknowledged."""
    for number in itertools.count():
        try:
            table.append([{"id": number, "v": "x"}])
        except ForebayError:
            return number
    raise AssertionError("unreachable")


def upsert_until_it_fails(table: Table) -> None:
    while True:
        table.upsert([{"id": 1, "v": "too late"}])


def test_a_new_machine_has_tables_partitions_rows_and_transactions(start: Start) -> None:
    old = start("old")
    kv = old.create_table("fluss.kv", KV, primary_key="id", buckets=3)
    log = old.create_table("fluss.log", KV)
    parts = old.create_table("fluss.parts", {**KV, "day": "STRING"}, primary_key=["id", "day"], partition_keys=["day"])
    kv.upsert(pa.table({"id": range(500), "v": ["first"] * 500}))
    kv.upsert([{"id": 7, "v": "second"}])
    kv.delete([{"id": 8}])
    log.append(pa.table({"id": range(300), "v": ["row"] * 300}))
    parts.upsert([{"id": 1, "v": "a", "day": "mon"}, {"id": 1, "v": "b", "day": "tue"}])
    old.create_table("fluss.gone", KV).append([{"id": 1, "v": "x"}])
    old.drop_table("fluss.gone")
    with old.transaction("app", 1) as tx:
        tx.append(log, [{"id": 1000, "v": "committed"}])
        tx.upsert(kv, [{"id": 1000, "v": "committed"}])
    tables = {name: rows(old, f"fluss.{name}") for name in ("kv", "log", "parts")}
    changes = [batch.num_rows for batch in kv.changes("earliest", "latest")]
    store(old)

    new = start("new")
    assert {name: rows(new, f"fluss.{name}") for name in tables} == tables
    assert sum(batch.num_rows for batch in new.table("fluss.kv").changes("earliest", "latest")) == sum(changes)
    assert new.list_tables("fluss") == ["kv", "log", "parts"]
    assert new.admin.committed_version("app") == 1
    assert new.table("fluss.kv").lookup(7).to_pylist() == [{"id": 7, "v": "second"}]
    new.table("fluss.kv").upsert([{"id": 7, "v": "third"}])
    store(new)
    new.close()
    third = start("third")
    assert third.table("fluss.kv").lookup(7).to_pylist() == [{"id": 7, "v": "third"}]


def test_a_server_from_which_another_has_taken_over_stops_and_is_refused(start: Start, tmp_path: Path) -> None:
    old = start("old")
    kv = old.create_table("fluss.kv", KV, primary_key="id")
    kv.upsert([{"id": 1, "v": "stored"}])
    store(old)
    new = start("new")
    with pytest.raises(ForebayError):
        upsert_until_it_fails(kv)
    assert journal_of(old).is_fenced
    old.close()
    with pytest.raises(Conflict, match=r"another server has taken over the store .* Start with a new data directory"):
        start("old")
    assert rows(new, "fluss.kv") == [{"id": 1, "v": "stored"}]


def test_a_server_goes_on_with_its_directory_and_its_store(start: Start) -> None:
    for number in range(3):
        conn = start("home")
        kv = conn.create_table("fluss.kv", KV, primary_key="id", ignore_if_exists=True)
        kv.upsert([{"id": number, "v": "x"}])
        conn.close()
    assert len(rows(start("elsewhere"), "fluss.kv")) == 3


def test_what_a_crash_kept_from_the_store_is_stored_after_the_next_start(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start("home")
    kv = conn.create_table("fluss.kv", KV, primary_key="id")
    kv.upsert([{"id": 1, "v": "x"}])
    store(conn)
    with monkeypatch.context() as patch:  # it stops uploading, as if it died
        patch.setattr("forebay.server.journal.uploader.JournalUploader.upload", lambda *_args, **_more: False)
        kv.upsert([{"id": 2, "v": "y"}])
        conn.close()
    again = start("home")
    assert len(rows(again, "fluss.kv")) == 2  # its log is noted when the bucket is opened
    store(again)
    assert len(rows(start("elsewhere"), "fluss.kv")) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_ours_ends_the_server_and_all_waiting(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = start("home", durability="store")
    table = conn.create_table("fluss.kv", KV, primary_key="id")

    def fails(*_args: object, **_more: object) -> bool:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(JournalUploader, "upload", fails)
    with pytest.raises(ForebayError):
        table.upsert([{"id": 1, "v": "x"}])
    with pytest.raises(InternalError, match="ended by a fault of the server: ValueError"):
        journal_of(conn).wait_until_stored(PATIENCE)


def test_files_of_lake_snapshots_are_stored_after_a_crash(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("home").close()
    (tmp_path / "home" / "round.offsets").write_bytes(b"offsets")  # whose note has ended with its process
    monkeypatch.setattr(LakeSnapshots, "paths", lambda _: ["round.offsets"])
    again = start("home")
    store(again)
    start("elsewhere")
    assert (tmp_path / "elsewhere" / "round.offsets").read_bytes() == b"offsets"


def test_a_log_that_the_store_lacks_is_stored_in_objects_of_bounded_size(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start("home")
    log = conn.create_table("fluss.log", KV)
    store(conn)
    with monkeypatch.context() as patch:
        patch.setattr("forebay.server.journal.uploader.JournalUploader.upload", lambda *_args, **_more: False)
        for number in range(40):
            log.append([{"id": number, "v": random.Random(number).randbytes(4000).hex()}])
        conn.close()
    monkeypatch.setitem(JournalUploader.__init__.__kwdefaults__, "object_bytes", 20_000)
    again = start("home")
    before = set((tmp_path / "store" / "journal").iterdir())
    assert len(rows(again, "fluss.log")) == 40
    store(again)
    sizes = [path.stat().st_size for path in (tmp_path / "store" / "journal").iterdir() if path not in before]
    assert max(sizes) < 60_000
    assert sum(sizes) > 100_000
    assert len(rows(start("elsewhere"), "fluss.log")) == 40


def test_starts_whose_fences_come_late_do_not_lock_the_directory_out(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start("home")
    conn.create_table("fluss.kv", KV, primary_key="id").upsert([{"id": 1, "v": "x"}])
    conn.close()
    fence = JournalCursor.fence

    def unanswered(*args: Any) -> JournalWriter | None:
        fence(*args)
        raise StorageFailure("the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(JournalCursor, "fence", unanswered)
        for _ in range(3):
            with pytest.raises(StorageFailure, match="the answer was lost"):
                start("home")
    assert len(rows(start("home"), "fluss.kv")) == 1


def test_a_server_that_writes_without_pause_is_asked_to_end(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.server.journal.server_journal._ASKED_SECONDS", 0.0)
    old = start("old", durability="store")
    kv = old.create_table("fluss.kv", KV, primary_key="id")
    kv.upsert([{"id": 1, "v": "too late"}])
    fence = JournalCursor.fence

    def losing(*args: Any) -> JournalWriter | None:
        return fence(*args) if journal_of(old).is_fenced else None

    monkeypatch.setattr(JournalCursor, "fence", losing)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(upsert_until_it_fails, kv)
        new = start("new", durability="store")
        with pytest.raises(ForebayError):
            writing.result(PATIENCE)
    assert rows(new, "fluss.kv") == [{"id": 1, "v": "too late"}]
    assert not list((tmp_path / "store" / "takeover").iterdir())


def test_a_directory_without_this_store_is_refused(start: Start, tmp_path: Path) -> None:
    with forebay.embedded(tmp_path / "plain") as conn:
        conn.create_table("fluss.kv", KV, primary_key="id")
    with pytest.raises(Conflict, match="is the data directory of a server; a copy needs a new one"):
        start("plain")
    start("home").close()
    with pytest.raises(Conflict, match="belongs to another store"):
        forebay.embedded(tmp_path / "home", settings={"store": str(tmp_path / "another")})


def copied_while_it_runs(start: Start, tmp_path: Path) -> EmbeddedConnection:
    """A server, of whose directory there is a copy, "copy"."""
    conn = start("home")
    conn.create_table("fluss.kv", KV, primary_key="id").upsert([{"id": 1, "v": "x"}])
    store(conn)
    ignored = shutil.ignore_patterns(".*.tmp")  # which are renamed while the server runs
    shutil.copytree(tmp_path / "home", tmp_path / "copy", ignore=ignored)
    return conn


def test_metadata_that_were_put_back_from_a_copy_do_not_replace_those_of_the_store(
    start: Start, tmp_path: Path
) -> None:
    conn = copied_while_it_runs(start, tmp_path)
    conn.create_table("fluss.later", KV)
    conn.close()
    with pytest.raises(Conflict, match="is older than the store's: it was put back from a copy"):
        start("copy")
    assert start("new").list_tables("fluss") == ["kv", "later"]


def test_a_log_that_was_put_back_from_a_copy_is_not_used(start: Start, tmp_path: Path) -> None:
    conn = copied_while_it_runs(start, tmp_path)
    conn.table("fluss.kv").upsert([{"id": 2, "v": "y"}])
    conn.close()
    # The server ends when its journal meets the log; before that, readers are refused.
    with pytest.raises((CorruptData, Unavailable), match=r"ends at offset 1, and the store has its|is shutting down"):
        start("copy").table("fluss.kv").lookup(1)
    assert len(rows(start("new"), "fluss.kv")) == 2


# ---- answers that wait for the store --------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nothing gets into the store until this is set."""
    may_go = threading.Event()
    may_go.set()
    create = DirectoryStore.create

    def slow(store: DirectoryStore, name: str, data: bytes) -> bool:
        assert may_go.wait(PATIENCE)
        return create(store, name, data)

    monkeypatch.setattr(DirectoryStore, "create", slow)
    yield may_go
    may_go.set()


def test_what_is_acknowledged_is_in_the_store(start: Start, held: threading.Event) -> None:
    conn = start("old", durability="store", interval="1 h")
    kv = conn.create_table("fluss.kv", KV, primary_key="id")
    log = conn.create_table("fluss.log", KV)
    kv.upsert([{"id": 1, "v": "x"}])
    log.append([{"id": 1, "v": "x"}])
    held.clear()
    with ThreadPoolExecutor(3) as pool:
        upsert = pool.submit(kv.upsert, [{"id": 1, "v": "y"}])
        append = pool.submit(log.append, [{"id": 2, "v": "y"}])
        replica = next(each for each in conn.server.server.context.replicas.replicas() if each.has_kv)
        until(lambda: replica.log.synced_offset == 3, "the upsert is on the disk")
        lookup = pool.submit(kv.lookup, 1)  # it sees the new row, which may still be lost
        assert log.scan(limit=None).to_arrow().num_rows == 1
        assert not any(each.done() for each in (upsert, append, lookup))
        held.set()
        assert lookup.result(PATIENCE).to_pylist() == [{"id": 1, "v": "y"}]
        upsert.result(PATIENCE)
        append.result(PATIENCE)
    new = start("new")
    assert rows(new, "fluss.kv") == [{"id": 1, "v": "y"}]
    assert len(rows(new, "fluss.log")) == 2


def test_what_a_table_held_at_a_time_waits_for_the_store(
    start: Start, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start("old", durability="store", interval="1 h")
    log = conn.create_table("fluss.log", KV, buckets=1)
    log.append([{"id": 0, "v": "x"}])
    looked = threading.Event()

    def noticed(look: Callable[..., Any]) -> Callable[..., Any]:
        def looking(*args: Any) -> Any:
            result = look(*args)
            if result is not None:  # the offsets, or why they are not known yet
                looked.set()
            return result

        return looking

    for name in ("_unsettled", "_offsets"):
        monkeypatch.setattr(offsets, name, noticed(getattr(offsets, name)))
    held.clear()
    with ThreadPoolExecutor(2) as pool:
        append = pool.submit(log.append, [{"id": 1, "v": "x"}])
        [replica] = conn.server.server.context.replicas.replicas()
        until(lambda: replica.log.synced_offset == 2, "it is written")
        until(lambda: now_ms() > replica.log.last_timestamp_ms, "a millisecond has passed")
        asked = pb.ListOffsetsRequest(
            follower_server_id=-1,
            offset_type=2,
            table_id=log.info.table_id,
            bucket_id=[0],
            startTimestamp=now_ms(),
        )
        [node] = conn.cluster.view.tablet_servers.values()
        listed = pool.submit(conn.cluster.call, node, ApiKey.LIST_OFFSETS, asked, pb.ListOffsetsResponse)
        assert looked.wait(PATIENCE)
        held.set()
        assert [each.offset for each in listed.result(PATIENCE).buckets_resp] == [2]
        append.result(PATIENCE)


def test_rows_wait_for_the_store_whatever_acks_says(start: Start, held: threading.Event) -> None:
    """Without, another client would see what is lost with the machine."""
    conn = start("old", durability="store", interval="1 h")
    conn.create_table("fluss.kv", KV, primary_key="id")
    conn.create_table("fluss.log", KV)
    with forebay.connect(conn.server.bootstrap_servers, writer_acks=1) as hasty, ThreadPoolExecutor(3) as pool:
        for each in (hasty.table("fluss.kv").upsert, hasty.table("fluss.log").append):
            held.clear()
            write = pool.submit(each, [{"id": 1, "v": "x"}])
            with pytest.raises(TimeoutError):
                write.result(0.3)
            held.set()
            write.result(PATIENCE)


def test_an_error_waits_for_the_store_as_an_answer_does(start: Start, held: threading.Event) -> None:
    """It tells of what another client has done, which a server that takes over may not know."""
    conn = start("old", durability="store", interval="1 h")
    with forebay.connect(conn.server.bootstrap_servers) as other, ThreadPoolExecutor(3) as pool:
        other.list_databases()
        held.clear()
        creation = pool.submit(conn.create_table, "fluss.new", KV)
        until(lambda: "new" in conn.server.server.context.catalog.table_names("fluss"), "it is created")
        again = pool.submit(other.create_table, "fluss.new", KV)
        with pytest.raises(TimeoutError):
            again.result(0.3)
        held.set()
        with pytest.raises(AlreadyExists):
            again.result(PATIENCE)
        creation.result(PATIENCE)


def test_a_server_without_the_lease_says_nothing_and_changes_nothing(start: Start, held: threading.Event) -> None:
    conn = start("old", lease="1 s")
    conn.create_table("fluss.old", KV)
    with forebay.connect(conn.server.bootstrap_servers, retry_timeout="500 ms") as other:
        other.list_databases()
        store(conn)
        held.clear()
        until(lambda: not journal_of(conn).has_lease, "the lease ends")
        calls: list[Callable[[], object]] = [
            lambda: other.table("fluss.missing"), lambda: other.drop_table("fluss.missing"),
            lambda: other.create_table("fluss.old", KV), lambda: other.create_table("fluss.new", KV),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(Unavailable, match="another one may have taken over"):
                call()
        held.set()
        until(lambda: journal_of(conn).has_lease, "the lease is there again")
        assert other.list_tables("fluss") == ["old"]


def test_staged_rows_stay_until_the_journal_has_them(start: Start, tmp_path: Path, held: threading.Event) -> None:
    """An object that has the decision and not the rows would end in a state from which no server starts."""
    conn = start("old")
    conn.create_table("fluss.kv", KV, primary_key="id")
    store(conn)
    held.clear()
    with conn.transaction("job", 1) as transaction:
        transaction.upsert("fluss.kv", [{"id": 1, "v": "x"}])
    assert rows(conn, "fluss.kv") == [{"id": 1, "v": "x"}]
    assert list((tmp_path / "old").rglob("*.stage"))
    held.set()
    until(lambda: not list((tmp_path / "old").rglob("*.stage")), "what was staged is removed")


def test_a_server_that_is_asked_to_end_leaves_all_that_it_has_acknowledged(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.server.journal.server_journal._IDLE_LOOK_SECONDS", 0.3)
    conn = start("old")
    log = conn.create_table("fluss.log", KV)
    uploads = JournalUploader.upload

    def slow(uploader: JournalUploader, **more: bool) -> bool:
        time.sleep(0.05)  # rows come meanwhile
        return uploads(uploader, **more)

    monkeypatch.setattr(JournalUploader, "upload", slow)
    last = journal_module.newest_object(journal_of(conn).store)
    assert last is not None
    other = DirectoryStore(LocalFileSystem(), str(tmp_path / "store"))
    JournalCursor.behind(last, other, journal_module.open_journal(other)).request_takeover()
    count = append_until_it_fails(log)
    until(lambda: journal_of(conn).is_fenced, "it has ended")
    monkeypatch.undo()
    new = start("new")
    found = {row["id"] for row in rows(new, "fluss.log")}
    assert found >= set(range(count))
    assert read_loss(LocalFileSystem(), str(tmp_path / "new")) is None


def test_a_server_without_the_lease_answers_nothing(start: Start, held: threading.Event) -> None:
    conn = start("old", durability="store", lease="1 s")
    kv = conn.create_table("fluss.kv", KV, primary_key="id")
    log = conn.create_table("fluss.log", KV)
    kv.upsert([{"id": 1, "v": "x"}])
    log.append([{"id": 1, "v": "x"}])
    with forebay.connect(conn.server.bootstrap_servers, retry_timeout="1 s") as client:
        calls: list[Callable[[], int]] = [
            lambda: client.table("fluss.kv").lookup(1).num_rows,
            lambda: client.table("fluss.log").scan().count(),
        ]
        assert [call() for call in calls] == [1, 1]
        held.clear()
        until(lambda: not journal_of(conn).has_lease, "the lease is over")
        for call in calls:
            with pytest.raises(Unavailable, match="cannot reach its store, and another one may have taken over"):
                call()
        assert client.admin.describe_server().buckets == 2
        held.set()
        until(lambda: journal_of(conn).has_lease, "it is renewed")
        assert [call() for call in calls] == [1, 1]


def test_a_write_is_not_acknowledged_by_a_server_that_was_fenced(start: Start) -> None:
    old = start("old", durability="store")
    kv = old.create_table("fluss.kv", KV, primary_key="id")
    kv.upsert([{"id": 1, "v": "stored"}])
    new = start("new", durability="store")
    with pytest.raises(ForebayError):
        kv.upsert([{"id": 1, "v": "too late"}])
    assert rows(new, "fluss.kv") == [{"id": 1, "v": "stored"}]


# ---- standby --------------------------------------------------------------------------------------------------------


def standing_by(tmp_path: Path, name: str) -> Standby:
    return Standby.of(server_config(tmp_path / name, settings={"store": str(tmp_path / "store"), "store.lease": "1 h"}))


def test_a_standby_takes_over_when_the_lease_ends_and_the_server_has_stopped_before(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = start("old", lease="2 s")
    kv = old.create_table("fluss.kv", KV, primary_key="id")
    kv.upsert([{"id": 1, "v": "stored"}])
    store(old)
    standby = standing_by(tmp_path, "standby")
    with ThreadPoolExecutor(1) as pool, ExitStack() as pool_end:
        ended = pool.submit(standby.wait)
        pool_end.callback(standby.stop)
        until(lambda: standby.number == journal_of(old)._writer.number, "the standby has what the store has")
        assert str(tmp_path / "old") in standby.holder
        kv.upsert([{"id": 2, "v": "stored, too"}])
        store(old)
        assert not ended.done()

        def away(*_args: object) -> bool:
            raise StorageFailure("the store is away")

        monkeypatch.setattr(journal_of(old).store, "create", away)
        assert ended.result(PATIENCE)
        assert not journal_of(old).has_lease
    with pytest.raises(ForebayError):
        kv.upsert([{"id": 1, "v": "not acknowledged"}])
    new = start("standby")
    assert rows(new, "fluss.kv") == [{"id": 1, "v": "stored"}, {"id": 2, "v": "stored, too"}]


def test_a_standby_takes_over_at_once_from_a_server_that_is_stopped(start: Start, tmp_path: Path) -> None:
    old = start("old", lease="1 h")
    old.create_table("fluss.kv", KV, primary_key="id").upsert([{"id": 1, "v": "x"}])
    standby = standing_by(tmp_path, "standby")
    with ThreadPoolExecutor(1) as pool, ExitStack() as pool_end:
        ended = pool.submit(standby.wait)
        pool_end.callback(standby.stop)
        until(lambda: standby.holder, "it follows")
        assert not ended.done()
        old.close()
        assert ended.result(PATIENCE)
    assert rows(start("standby"), "fluss.kv") == [{"id": 1, "v": "x"}]
    with pytest.raises(Conflict, match="another server has taken over"):
        start("old")


def test_of_two_standbys_one_takes_over_and_the_other_stands_by_for_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = start("old", lease="1 h")
    old.create_table("fluss.kv", KV, primary_key="id").upsert([{"id": 1, "v": "x"}])
    standbys = {name: standing_by(tmp_path, name) for name in ("one", "two")}
    both = threading.Barrier(2)
    fence = JournalCursor.fence

    def at_once(*args: Any) -> JournalWriter | None:
        both.wait(PATIENCE)
        return fence(*args)

    with ThreadPoolExecutor(2) as pool, ExitStack() as pool_end:
        ended = {name: pool.submit(standby.wait) for name, standby in standbys.items()}
        for standby in standbys.values():
            pool_end.callback(standby.stop)
        until(lambda: all(standby.holder for standby in standbys.values()), "they follow")
        monkeypatch.setattr(JournalCursor, "fence", at_once)
        old.close()
        until(lambda: any(each.done() for each in ended.values()), "one takes over")
        monkeypatch.undo()
        (first,) = [name for name, each in ended.items() if each.done()]
        (second,) = {"one", "two"} - {first}
        new = start(first, lease="1 h")
        until(lambda: standbys[second].number == journal_of(new)._writer.number, "it follows the new one")
        assert str(tmp_path / first) in standbys[second].holder
        assert not ended[second].done()
        new.close()
        assert ended[second].result(PATIENCE)
    assert rows(start(second), "fluss.kv") == [{"id": 1, "v": "x"}]


@pytest.mark.parametrize("begins", ["at a checkpoint", "where it was"])
def test_a_standby_that_has_not_read_the_beginning_of_an_epoch_knows_its_lease(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: str
) -> None:
    monkeypatch.setattr(journal_module, "ANCHOR_EVERY", 4)
    old = start("old", lease="1 h")
    if begins == "at a checkpoint":
        kv = old.create_table("fluss.kv", KV, primary_key="id")
        for number in range(100):
            kv.upsert([{"id": number, "v": "x"}])
            store(old)
    else:
        first = standing_by(tmp_path, "standby")
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(first.wait)
            until(lambda: first.number == journal_of(old)._writer.number, "it follows")
            first.stop()
            ended.result(PATIENCE)
    standby = standing_by(tmp_path, "standby")
    try:
        assert (str(tmp_path / "old") in standby.holder, standby._lease_ms) == (True, 3_600_000)
        assert standby.number > 4 or begins == "where it was"
    finally:
        standby._close()
    old.close()
    for _ in range(2):  # the first one ends before it can take over
        last = standing_by(tmp_path, "standby")
        last._follow()
        assert last._lease_has_ended()
        last._close()


def test_a_standby_that_is_stopped_serves_nothing_and_goes_on_later(start: Start, tmp_path: Path) -> None:
    old = start("old", lease="1 h")
    old.create_table("fluss.kv", KV, primary_key="id").upsert([{"id": 1, "v": "x"}])
    store(old)
    for _ in range(2):
        standby = standing_by(tmp_path, "standby")
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(standby.wait)
            until(lambda: standby.number == journal_of(old)._writer.number, "it follows")  # noqa: B023
            standby.stop()
            assert not ended.result(PATIENCE)


def test_metrics_say_how_far_the_store_is_behind(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = start("home")
    journal = journal_of(conn)
    table = conn.create_table("fluss.kv", KV, primary_key="id")
    table.upsert([{"id": 1, "v": "x"}])
    store(conn)
    assert journal.behind_seconds == 0
    before = journal.objects
    assert before > 0
    with monkeypatch.context() as patch:
        patch.setattr("forebay.server.journal.uploader.JournalUploader.upload", lambda *_args, **_more: False)
        table.upsert([{"id": 2, "v": "y"}])
        until(lambda: journal.behind_seconds > 0.05, "time passes")
    store(conn)
    assert journal.behind_seconds == 0
    assert journal.objects == before + 1
