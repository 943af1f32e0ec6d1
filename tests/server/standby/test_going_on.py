"""What reads of a standby see while it goes on: never less than it says, and never more than all of something."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import StorageFailure, Unavailable
from forebay.inprocess import EmbeddedConnection
from forebay.metadata.table import TableBucket
from forebay.server.config import server_config
from forebay.server.journal.followed_logs import FollowedLogs
from forebay.server.journal.followed_metadata import FollowedMetadata
from forebay.server.journal.follower import JournalFollower
from forebay.server.standby import standby as standby_module
from forebay.server.standby.boundary import Boundary
from forebay.server.standby.reads import serve_reads
from forebay.server.standby.standby import Standby
from forebay.server.standby.standby_server import StandbyServer
from forebay.server.transactions.stages import StageFiles
from forebay.store.journal import JournalObject, newest_object
from forebay.store.opening import open_store
from tests.patience import PATIENCE, until
from tests.server.standby.reading_standby import ReadingStandby, reading


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby_module, "POLL_SECONDS", 0.01)


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    return {"store": str(tmp_path / "store"), "store.interval": "10 ms", "store.lease": "1 h"}


@pytest.fixture
def primary(tmp_path: Path, settings: dict[str, str]) -> Iterator[EmbeddedConnection]:
    with forebay.embedded(tmp_path / "primary", settings=settings) as conn:
        yield conn


@pytest.fixture
def standby(tmp_path: Path, primary: EmbeddedConnection, settings: dict[str, str]) -> Iterator[ReadingStandby]:
    with reading(tmp_path / "standby", settings) as standby:
        yield standby


def rows(first: int, count: int = 20) -> pa.Table:
    return pa.table({"id": range(first, first + count), "v": [f"row {first}"] * count})


def stored(primary: EmbeddedConnection) -> None:
    journal = primary.server.server._journal
    assert journal is not None
    assert journal.wait_until_stored(PATIENCE)


class Offers:
    """Reads that note what they are offered, and check that it is as current as is said."""

    def __init__(self, logs: FollowedLogs) -> None:
        self.logs = logs
        self.boundaries: list[Boundary] = []
        self.current_at = -math.inf
        self.seen: list[tuple[float, int]] = []
        """Objects of the journal that were there at some times (monotonic seconds)."""
        self.shown: int | None = None
        """The object that is read; None: the last that was offered."""

    def offer(self, boundary: Boundary | None, current_at: float) -> None:
        if boundary is not None:
            self.boundaries.append(boundary)
        self.current_at = current_at
        assert [number for at, number in self.seen if at <= current_at and number > self.number] == []

    @property
    def number(self) -> int:
        if self.shown is not None:
            return self.shown
        return self.boundaries[-1].number if self.boundaries else 0

    def stop(self) -> None: ...


def offered(folder: Path, settings: dict[str, str]) -> tuple[Standby, Offers]:
    standby = Standby.of(server_config(folder, settings=settings))
    offers = standby.serve_reads(Offers)
    assert offers is not None
    return standby, offers


def killed(standby: Standby) -> None:
    """Let go of a standby's files without anything that it does at its end."""
    assert standby._follower is not None
    standby._follower._end_ahead()
    standby._follower.logs.close()
    standby._directory.close()


def newest(settings: dict[str, str]) -> int:
    found = newest_object(open_store(settings["store"]))
    return 0 if found is None else found.footer.identity.number


# ---- how current reads are -------------------------------------------------------------------------------------------


def test_reads_are_refused_until_the_end_of_the_journal_was_seen(
    tmp_path: Path, settings: dict[str, str], primary: EmbeddedConnection
) -> None:
    primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"}).append(rows(0))
    stored(primary)
    for _ in range(2):  # the second time what was repeated before is there
        config = server_config(tmp_path / "standby", settings=settings)
        standby = Standby.of(config)
        reads = serve_reads(standby, config, 0)
        assert reads is not None
        assert math.isinf(reads.server.staleness_seconds())
        assert math.isinf(standby.staleness_seconds)
        with pytest.raises(Unavailable, match="has not seen the end of the journal since it was started"):
            forebay.connect(reads.addresses.bootstrap_servers)
        thread = threading.Thread(target=standby.wait)
        thread.start()
        until(lambda server=reads.server: server.staleness_seconds() < 10, "the standby sees the end")  # type: ignore[misc]
        with forebay.connect(reads.addresses.bootstrap_servers) as conn:
            assert conn.table("fluss.log").scan().to_arrow().num_rows == 20
        standby.stop()
        thread.join(PATIENCE)
        reads.join()


def test_a_standby_of_an_empty_journal_serves_no_reads(tmp_path: Path, settings: dict[str, str]) -> None:
    config = server_config(tmp_path / "standby", settings=settings)
    standby = Standby.of(config)
    reads = serve_reads(standby, config, 0)
    assert reads is not None
    thread = threading.Thread(target=standby.wait)
    thread.start()
    until(lambda: standby.staleness_seconds < 10, "the standby sees the end")
    with pytest.raises(Unavailable, match="has not seen the end of the journal since it was started"):
        forebay.connect(reads.addresses.bootstrap_servers)
    standby.stop()
    thread.join(PATIENCE)
    reads.join()


def test_a_standby_whose_server_writes_without_a_pause_is_current(
    tmp_path: Path, settings: dict[str, str], primary: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby_module, "_FOLLOW_SECONDS", 0.02)
    log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    stored(primary)
    standby, offers = offered(tmp_path / "standby", settings)
    while standby.number < newest(settings) - 1:
        standby._follow()
    follow_one = JournalFollower.follow_one

    def follow_with_a_next(follower: JournalFollower) -> JournalObject | None:
        for _ in range(2):  # there is one behind it, too
            log.append(rows(0, 1))
            stored(primary)
        offers.seen.append((time.monotonic(), newest(settings)))
        found = follow_one(follower)
        assert found is not None
        return found

    offers.current_at = standby.current_at = -math.inf
    standby._is_behind = True
    monkeypatch.setattr(JournalFollower, "follow_one", follow_with_a_next)
    before = time.monotonic()
    for _ in range(1000):
        standby._follow()
        if offers.current_at > before:
            break
    assert offers.current_at > before
    killed(standby)


def test_what_was_repeated_before_a_failure_is_read(
    tmp_path: Path, settings: dict[str, str], primary: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    stored(primary)
    standby, offers = offered(tmp_path / "standby", settings)
    standby._follow()
    number = offers.number
    for _ in range(2):
        log.append(rows(0))
        stored(primary)
    follow_one, calls = JournalFollower.follow_one, [0]

    def fail(follower: JournalFollower) -> JournalObject | None:
        calls[0] += 1
        if calls[0] == 2:
            raise StorageFailure("the store is away")
        return follow_one(follower)

    monkeypatch.setattr(JournalFollower, "follow_one", fail)
    assert standby._follow()
    assert offers.number == number + 1
    standby._follow()
    assert offers.number == newest(settings)
    killed(standby)


def test_a_killed_standby_offers_nothing_before_all_that_it_may_have_had(
    tmp_path: Path, settings: dict[str, str], primary: EmbeddedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    primary.create_table("fluss.before", {"id": "BIGINT", "v": "STRING"})
    stored(primary)
    standby, offers = offered(tmp_path / "standby", settings)
    standby._follow()
    with monkeypatch.context() as patch:
        patch.setattr(JournalFollower, "save", lambda _: None)
        for number in range(4):
            primary.create_table(f"fluss.t{number}", {"id": "BIGINT", "v": "STRING"}).append(rows(0))
            stored(primary)
        standby._follow()
    end = offers.number
    killed(standby)
    assert end == newest(settings)
    standby, offers = offered(tmp_path / "standby", settings)
    assert standby.number < end
    monkeypatch.setattr(standby_module, "_FOLLOW_SECONDS", 0.0)  # one object at a time
    follow_for = Standby._follow_for
    monkeypatch.setattr(Standby, "_follow_for", lambda self, _, follower: follow_for(self, 1e-9, follower))
    while standby.number < end:
        standby._follow()
    assert [each.number for each in offers.boundaries] == [end]
    killed(standby)


# ---- the end, and failures -------------------------------------------------------------------------------------------


def test_nothing_is_opened_for_reads_once_the_directory_is_a_servers(
    tmp_path: Path, settings: dict[str, str], primary: EmbeddedConnection
) -> None:
    log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    log.append(rows(0))
    stored(primary)
    standby, offers = offered(tmp_path / "standby", settings)
    standby._follow()
    bucket = TableBucket(log.info.table_id, 0)
    assert offers.logs.borrow(bucket) is not None
    offers.logs.give_back(bucket)
    primary.close()
    assert standby.wait()
    with pytest.raises(Unavailable, match="takes over: read from the server"):
        offers.logs.borrow(bucket)


def test_segments_stay_until_reads_know_that_the_store_has_them(tmp_path: Path, settings: dict[str, str]) -> None:
    settings = {
        **settings, "log.segment.file-size": "2kb", "remote.log.task-interval-duration": "1 d",
        "remote.log.task-max-upload-segments": "1000",
    }  # fmt: skip
    with forebay.embedded(tmp_path / "primary", settings=settings) as primary:
        log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
        for number in range(20):
            log.append(pa.table({"id": range(20), "v": [f"row {number} " * 20] * 20}))
        stored(primary)
        standby, offers = offered(tmp_path / "standby", {**settings, "remote.log.task-interval-duration": "1 ms"})
        standby._follow()
        offers.shown = offers.number
        server = primary.server.server
        assert server._tiering is not None
        server._tiering.run()
        stored(primary)

        def segments() -> int:
            return len(list((tmp_path / "standby").rglob("*.log")))

        before = segments()
        assert before > 3
        for shown in (offers.shown, None):
            offers.shown = shown
            log.append(rows(0, 1))
            stored(primary)
            standby._next_save = 0.0
            SYSTEM_CLOCK.sleep(0.01)
            standby._follow()
            assert (segments() >= before) == (shown is not None)
        killed(standby)


def test_reads_keep_nothing_of_what_was_dropped(primary: EmbeddedConnection, standby: ReadingStandby) -> None:
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    parts = primary.create_table(
        "fluss.parts", {"id": "BIGINT", "p": "STRING"}, primary_key=("id", "p"), partition_keys="p"
    )
    kv.upsert(rows(0))
    for name in ("a", "b"):
        parts.create_partition({"p": name})
        parts.upsert([{"id": 1, "p": name}])
    standby.await_all(primary)
    for table in ("fluss.kv", "fluss.parts"):
        assert standby.conn.table(table).scan().to_arrow().num_rows > 0
    server = standby.reads.server
    folder = Path(server._standby_dir) / "standby.reads"
    remote_logs = server.context.remote_logs
    assert remote_logs is not None
    assert len(list(folder.rglob("kv-0"))) == len(remote_logs._logs) == 3
    parts.drop_partition({"p": "a"})
    primary.drop_table("fluss.kv")
    standby.await_all(primary)
    assert len(list(folder.rglob("kv-0"))) == len(remote_logs._logs) == 1
    assert standby.conn.table("fluss.parts").scan().to_arrow().num_rows == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_fault_of_ours_ends_the_reads_and_not_the_standby(
    primary: EmbeddedConnection, standby: ReadingStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(server: StandbyServer, boundary: Boundary) -> None:
        raise ValueError("a fault of ours")

    monkeypatch.setattr(StandbyServer, "advance", fail)
    log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    standby.reads.join()
    with pytest.raises(Unavailable):
        forebay.connect(standby.reads.addresses.bootstrap_servers)
    log.append(rows(0))
    stored(primary)
    number = newest_object(standby.standby.store)
    assert number is not None
    until(lambda: standby.standby.number >= number.footer.identity.number, "the standby goes on")


def test_a_standby_goes_on_after_failures_of_its_own_disk(
    primary: EmbeddedConnection, standby: ReadingStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = primary.create_table("fluss.log", {"id": "BIGINT", "v": "STRING"})
    log.append(rows(0))
    standby.await_all(primary)
    failed: set[str] = set()

    def failing(owner: type, name: str) -> None:
        whole = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            if name not in failed:
                failed.add(name)
                raise StorageFailure("the disk fails once")
            return whole(*arguments)

        monkeypatch.setattr(owner, name, call)

    monkeypatch.setattr(standby_module, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(standby_module, "_STATES_SECONDS", 0.0)
    of = standby.standby
    of._trim_seconds = of._next_save = of._next_states = of._next_trim = 0.0
    names = [(JournalFollower, "save"), (JournalFollower, "state_snapshots"), (FollowedLogs, "trim")]
    for owner, name in (*names, (FollowedMetadata, "content")):
        failing(owner, name)
    follower = standby.standby._follower
    assert follower is not None
    for number in range(100):
        primary.create_table(f"fluss.t{number}", {"id": "BIGINT"})
        standby.await_all(primary)
        if len(failed) == 4:
            break
    assert failed == {"save", "state_snapshots", "trim", "content"}
    bucket = TableBucket(log.info.table_id, 0)
    followed = follower.logs.borrow(bucket)
    assert followed is not None
    follower.logs.give_back(bucket)
    followed.take_offline(StorageFailure("the disk fails once"))
    log.append(rows(100))
    standby.await_all(primary)
    assert standby.conn.table("fluss.log").scan().to_arrow().num_rows == 40


def test_what_transactions_have_staged_leaves_the_standby_when_it_is_written(
    primary: EmbeddedConnection, standby: ReadingStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.server.journal.feed._PART_BYTES", 100)
    monkeypatch.setattr(StageFiles, "remove", lambda *_: None)
    kv = primary.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
    with primary.transaction("app", 1) as transaction:
        transaction.upsert("fluss.kv", rows(0, 100))
    standby.await_all(primary)
    home, copy = Path(primary.server.server.config.data_dir), Path(standby.reads.server._standby_dir)
    staged = {path.relative_to(home): path.read_bytes() for path in home.rglob("*.stage")}
    assert sum(map(len, staged.values())) > 300
    assert {path: (copy / path).read_bytes() for path in staged} == staged
    monkeypatch.undo()
    with primary.transaction("app", 2) as transaction:
        transaction.upsert("fluss.kv", rows(100, 100))

    def left(folder: Path) -> set[Path]:
        return {path.relative_to(folder) for path in folder.rglob("*.stage")}

    until(lambda: left(home) == staged.keys(), "the primary removes what it has written")
    standby.await_all(primary)
    assert left(copy) == staged.keys()
    assert kv.scan().to_arrow().num_rows == 200
