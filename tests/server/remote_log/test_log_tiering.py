"""Log segments move to the store: what is copied, deleted and listed, and what readers notice of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay import Table
from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import CorruptData, InvalidRequest, StorageFailure, Unavailable
from forebay.inprocess import EmbeddedConnection
from forebay.log.remote import RemoteLogSegment
from forebay.log.tablet import LogTablet
from forebay.metadata.table import TableBucket
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.server.maintenance.retention import LogRetention
from forebay.server.metadata_store import METADATA_FILE, LocalDatabaseFile, MetadataStore
from forebay.server.remote_log import tiering as tiering_module
from forebay.server.remote_log.remote_log import RemoteLogTablet
from forebay.server.remote_log.tiering import LogTiering
from forebay.server.server import ForebayServer
from forebay.store.directory import DirectoryStore
from tests.patience import PATIENCE, until
from tests.server.raw_client import RawClient

Start = Callable[..., EmbeddedConnection]
COLUMNS = {"id": "BIGINT", "v": "STRING"}
KEPT = 2
"""Local segments that stay, by default."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a server with tiny segments, which moves them when it is told to."""
    running: list[EmbeddedConnection] = []

    def started(name: str = "data", **more: str) -> EmbeddedConnection:
        settings = {
            "store": str(tmp_path / "store"),
            "store.interval": "20 ms",
            "log.segment.file-size": "2kb",
            "remote.log.task-interval-duration": "1 d",
            "remote.log.task-max-upload-segments": "1000",
        }
        running.append(forebay.embedded(tmp_path / name, settings=settings | more))
        return running[-1]

    yield started
    for connection in running:
        connection.close()


def server_of(conn: EmbeddedConnection) -> ForebayServer:
    return conn.server.server


def tiering_of(conn: EmbeddedConnection) -> LogTiering:
    tiering = server_of(conn)._tiering
    assert tiering is not None
    return tiering


def tier(conn: EmbeddedConnection) -> None:
    """A round, after the journal has everything."""
    journal = server_of(conn)._journal
    assert journal is not None
    assert journal.wait_until_stored(PATIENCE)
    tiering_of(conn).run()


def log_of(conn: EmbeddedConnection, table: Table, bucket: int = 0) -> LogTablet:
    with server_of(conn).context.replicas.using(TableBucket(table.info.table_id, bucket)) as replica:
        return replica.log


def fill(table: Table, first: int, count: int) -> None:
    """Some rows, ten in a batch, which is about a quarter of a segment."""
    for start in range(first, first + count, 10):
        table.append(
            pa.table({"id": range(start, start + 10), "v": [f"row {i} " * 3 for i in range(start, start + 10)]})
        )


def ids(table: Table, start: Any = "earliest") -> list[int]:
    return [value for batch in table.changes(start, "latest") for value in batch.column("id").to_pylist()]


@pytest.mark.parametrize("access", ["server", "direct"])
def test_readers_cross_the_border_without_noticing(start: Start, access: str) -> None:
    conn = start(**{"store.client-access": access})
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 400)
    log = log_of(conn, table)
    segments = log.segments()
    assert len(segments) > KEPT + 5
    tier(conn)
    assert log.local_start_offset == segments[-KEPT].base_offset > 0
    assert log.log_start_offset == 0
    assert ids(table) == list(range(400))
    reads = conn.metrics()["readers"]["fluss.log"]
    assert (reads["remote_segments"] > 0) == (access == "direct")
    assert conn.table("fluss.log").scan().to_arrow()["id"].to_pylist() == list(range(400))
    for position in (5, 10, 199, log.local_start_offset - 1, log.local_start_offset):
        assert ids(table, {0: position}) == list(range(position, 400))
    fill(table, 400, 50)
    tier(conn)
    assert ids(table) == list(range(450))
    times = [header.commit_timestamp_ms for header, _ in log.iterate_batches(0)]
    offsets = [header.base_offset for header, _ in log.iterate_batches(0)]
    for time in sorted(set(times)):
        assert log.offset_for_timestamp(time) == offsets[times.index(time)]
    assert log.offset_for_timestamp(times[-1] + 1) is None


def test_a_time_is_found_while_segments_leave_the_machine(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 400)
    log = log_of(conn, table)
    tier(conn)
    assert log.remote is not None
    before = log.local_start_offset
    assert before > 0
    fill(table, 400, 400)
    headers = [header for header, _ in log.iterate_batches(0)]
    wanted = next(header for header in headers if header.base_offset >= before + 1)
    in_store = type(log.remote).offset_for_timestamp

    def searched(*arguments: Any) -> int | None:
        found = in_store(*arguments)
        tier(conn)
        return found

    monkeypatch.setattr(type(log.remote), "offset_for_timestamp", searched)
    found = log.offset_for_timestamp(wanted.commit_timestamp_ms)
    assert log.local_start_offset > wanted.base_offset, "the segment has left meanwhile"
    assert found == next(h.base_offset for h in headers if h.commit_timestamp_ms >= wanted.commit_timestamp_ms)


@pytest.mark.parametrize("access", ["server", "direct"])
def test_records_are_read_whose_segment_leaves_the_machine_at_that_moment(
    start: Start, monkeypatch: pytest.MonkeyPatch, access: str
) -> None:
    conn = start(**{"store.client-access": access})
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 800)
    log = log_of(conn, table)
    read, moved = LogTablet._read, [0]

    def late(tablet: LogTablet, *arguments: Any) -> Any:
        is_reader = threading.current_thread().name.startswith(("MainThread", "forebay-io"))
        if tablet is log and moved[0] < 1 and is_reader:
            moved[0] += 1
            tier(conn)
        return read(tablet, *arguments)

    monkeypatch.setattr(LogTablet, "_read", late)
    assert ids(table, {0: 5}) == list(range(5, 800))
    assert (moved[0], log.local_start_offset > 100) == (1, True)
    fill(table, 800, 800)
    moved[0] = 0
    begun = log.local_start_offset
    offsets = [header.base_offset for header, _ in log.iterate_batches(begun - 1)]
    assert (moved[0], log.local_start_offset > begun) == (1, True)
    assert offsets == sorted(set(offsets))
    assert offsets[-1] < 1600 <= offsets[-1] + 50


def test_a_partition_that_is_dropped_meanwhile_fails_its_own_part_of_a_fetch(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start(**{"store.client-access": "direct"})
    parts = conn.create_table("fluss.parts", {**COLUMNS, "day": "STRING"}, partition_keys=["day"])
    for value in range(40):
        parts.append([{"id": value, "v": "x" * 200, "day": day} for day in ("mon", "tue")])
    tier(conn)
    replicas = server_of(conn).context.replicas
    names = server_of(conn).context.catalog.table(parts.path).current.partitions_by_id
    by_day = {partition.name: TableBucket(parts.info.table_id, 0, number) for number, partition in names.items()}
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1 << 20, max_wait_ms=0, min_bytes=1)
    of_table = request.tables_req.add(table_id=parts.info.table_id, projection_pushdown_enabled=False)
    for bucket in by_day.values():
        of_table.buckets_req.add(bucket_id=0, partition_id=bucket.partition_id, fetch_offset=0, max_fetch_bytes=1 << 20)
    named = RemoteLogTablet.fetch
    drops: list[threading.Thread] = []

    def dropped(log: RemoteLogTablet, offset: int) -> Any:
        found = named(log, offset)
        if log is replicas.opened(by_day["tue"]).log.remote:  # type: ignore[union-attr]
            drops.append(threading.Thread(target=parts.drop_partition, args=({"day": "mon"},)))
            drops[-1].start()
            until(lambda: replicas.find_table(by_day["mon"]) is None, "the partition is dropped")
        return found

    monkeypatch.setattr(RemoteLogTablet, "fetch", dropped)
    with closing(RawClient(server_of(conn)._addresses().tablet_servers)) as client:
        answers = client.call(ApiKey.FETCH_LOG, request).tables_resp[0].buckets_resp
    drops[0].join(PATIENCE)
    found = {answer.partition_id: answer.remote_log_fetch_info.partition_name for answer in answers}
    assert found[by_day["tue"].partition_id] == "tue"
    assert len(found) == 2
    with pytest.raises(Unavailable, match="the table or partition was dropped"):
        replicas.physical_path(by_day["mon"])
    other = server_of(conn).context.catalog.table(parts.path)
    monkeypatch.setattr(replicas, "find_table", lambda _: other)  # as if it was found just before
    with pytest.raises(Unavailable, match="the table or partition was dropped"):
        replicas.physical_path(by_day["mon"])


def test_a_changelog_whose_beginning_is_in_the_store_has_not_expired(start: Start) -> None:
    """Clients that cannot scan a table rebuild its rows from its changelog."""
    conn = start()
    table = conn.create_table("fluss.kv", COLUMNS, primary_key="id", buckets=1)
    for first in range(0, 400, 50):
        table.upsert([{"id": number, "v": f"row {number}"} for number in range(first, first + 50)])
    with server_of(conn).context.replicas.using(TableBucket(table.info.table_id, 0)) as replica:
        replica.checkpoint_if_grown(1)
    tier(conn)
    tier(conn)
    assert log_of(conn, table).local_start_offset > 0
    assert conn.admin.latest_kv_snapshots("fluss.kv") == {TableBucket(table.info.table_id, 0): None}
    other = start("other")
    assert other.admin.latest_kv_snapshots("fluss.kv") == {TableBucket(table.info.table_id, 0): None}


def test_columns_filters_and_small_requests_mean_the_same_in_the_store(start: Start) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 400)
    here = table.changes("earliest", "latest", columns=["v"]).to_arrow()
    few = table.changes("earliest", "latest", filter="id >= 70 AND id < 75").to_arrow()
    tier(conn)
    assert log_of(conn, table).local_start_offset > 300
    assert table.changes("earliest", "latest", columns=["v"]).to_arrow().equals(here)
    assert table.changes("earliest", "latest", filter="id >= 70 AND id < 75").to_arrow().equals(few)
    with forebay.connect(conn.bootstrap_servers, **{"client.scanner.log.fetch.max-bytes": "1kb"}) as other:
        assert ids(other.table("fluss.log")) == list(range(400))


def test_a_store_that_answers_slowly_delays_no_reads_of_local_segments(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start(**{"server.io-pool.size": "1"})
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 400)
    tier(conn)
    border = log_of(conn, table).local_start_offset
    goes_on, read = threading.Event(), DirectoryStore.read

    def slow(*arguments: Any) -> bytes:
        assert goes_on.wait(PATIENCE)
        return read(*arguments)

    monkeypatch.setattr(DirectoryStore, "read", slow)
    with ThreadPoolExecutor(1) as pool:
        old = pool.submit(ids, table)
        try:
            assert ids(conn.table("fluss.log"), {0: border}) == list(range(border, 400))
            assert not old.done()
        finally:
            goes_on.set()
        assert old.result(PATIENCE) == list(range(400))


def test_a_restarted_server_goes_on_with_the_same_remote_log(start: Start) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS, buckets=2)
    fill(table, 0, 600)
    tier(conn)
    starts = [log_of(conn, table, bucket).local_start_offset for bucket in range(2)]
    assert all(starts)
    conn.close()
    again = start()
    table = again.table("fluss.log")
    assert sorted(ids(table)) == list(range(600))
    assert [log_of(again, table, bucket).local_start_offset for bucket in range(2)] == starts
    fill(table, 600, 200)
    tier(again)
    assert sorted(ids(table)) == list(range(800))


def test_a_new_machine_has_the_remote_log_too(start: Start) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 400)
    tier(conn)
    fill(table, 400, 30)
    assert server_of(conn)._journal.wait_until_stored(PATIENCE)  # type: ignore[union-attr]
    new = start("new")
    there = new.table("fluss.log")
    assert ids(there) == list(range(430))
    fill(there, 430, 100)
    tier(new)
    log = log_of(new, there)
    assert log.remote is not None
    assert log.remote.offsets == (0, log.segments()[-1].base_offset)
    assert ids(there) == list(range(530))


def test_the_changelog_of_a_primary_key_table_moves_as_far_as_its_state_allows(start: Start) -> None:
    conn = start()
    table = conn.create_table("fluss.kv", COLUMNS, primary_key="id")
    for value in range(60):
        table.upsert(pa.table({"id": range(10), "v": [f"value {value} " * 3] * 10}))
    log = log_of(conn, table)
    replica = server_of(conn).context.replicas.opened(TableBucket(table.info.table_id, 0))
    assert replica is not None
    tier(conn)
    needed = replica.changelog_needed_from()
    assert log.local_start_offset <= needed
    assert log.remote is not None
    assert log.remote.offsets == (0, log.segments()[-1].base_offset)
    replica.checkpoint_if_grown(1)
    tier(conn)
    assert needed < log.local_start_offset
    assert len(log.segments()) == KEPT
    assert len(ids(table)) == 10 + 59 * 20
    assert table.lookup(3)["v"].to_pylist() == ["value 59 " * 3]


def test_a_state_that_is_lost_is_made_again_from_the_remote_log(start: Start, tmp_path: Path) -> None:
    conn = start()
    table = conn.create_table("fluss.kv", COLUMNS, primary_key="id")
    for value in range(60):
        table.upsert(pa.table({"id": range(value, value + 10), "v": [f"value {value} " * 3] * 10}))
    replica = server_of(conn).context.replicas.opened(TableBucket(table.info.table_id, 0))
    assert replica is not None
    replica.checkpoint_if_grown(1)
    tier(conn)
    rows = conn.table("fluss.kv").scan().to_arrow().sort_by("id")
    assert log_of(conn, table).local_start_offset > 0
    conn.close()
    (folder,) = (tmp_path / "data").rglob("kv-0")
    folder.rename(tmp_path / "lost")
    assert start().table("fluss.kv").scan().to_arrow().sort_by("id") == rows


def test_a_slow_log_is_copied_when_its_segment_is_old(start: Start) -> None:
    conn = start(**{"store.segment-age": "0 ms"})
    table = conn.create_table("fluss.slow", COLUMNS)
    fill(table, 0, 10)
    log = log_of(conn, table)
    server_of(conn).context.replicas.close_idle()
    tier(conn)
    assert log.remote is not None
    assert log.remote.offsets == (0, 10)


def test_manifests_are_those_of_fluss_and_are_listed(start: Start, tmp_path: Path) -> None:
    conn = start()
    parts = conn.create_table("fluss.parts", {**COLUMNS, "day": "STRING"}, partition_keys=["day"])
    for value in range(40):
        parts.append([{"id": value, "v": "x" * 200, "day": "mon"}])
    (partition,) = server_of(conn).context.catalog.table(parts.path).current.partitions_by_id
    tier(conn)
    request = pb.ListRemoteLogManifestsRequest(table_id=parts.info.table_id, partition_id=partition)
    with closing(RawClient(server_of(conn)._addresses().bootstrap_servers)) as client:
        (entry,) = client.call(ApiKey.LIST_REMOTE_LOG_MANIFESTS, request).manifests
    document = json.loads(Path(entry.remote_log_manifest_path).read_text())
    segments = document.pop("remote_log_segments")
    assert document == {
        "version": 1, "database": "fluss", "table": "parts", "partition_name": "mon",
        "table_id": parts.info.table_id, "partition_id": partition, "bucket_id": 0,
    }  # fmt: skip
    assert (segments[0]["start_offset"], segments[-1]["end_offset"]) == (0, entry.remote_log_end_offset)
    folder = Path(entry.remote_log_manifest_path).parents[1]
    assert folder.relative_to(tmp_path / "store").parts[:2] == ("log", "fluss")
    for each in segments:
        path = folder / each["segment_id"] / f"{each['start_offset']:020d}.log"
        assert path.stat().st_size == each["size_in_bytes"]
        assert path.with_suffix(".index").exists()
        assert path.with_suffix(".timeindex").exists()
        assert path.with_name(f"{each['end_offset']:020d}.writer_snapshot").exists()


class Later:
    """The system's clock, some time later."""

    def __init__(self, hours: float) -> None:
        self._ms = round(hours * 3_600_000)

    def now_ms(self) -> int:
        return SYSTEM_CLOCK.now_ms() + self._ms


def wait_hours(conn: EmbeddedConnection, hours: float) -> None:
    """Let time pass for the remote logs alone."""
    tiering = tiering_of(conn)
    tiering._clock = tiering._logs._clock = Later(hours)  # type: ignore[assignment]


def objects(tmp_path: Path) -> set[str]:
    folder = tmp_path / "store" / "log"
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_expired_segments_leave_the_list_and_are_deleted_later(start: Start, tmp_path: Path) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS, options={"table.log.ttl": "10 d"})
    fill(table, 0, 400)
    tier(conn)
    log = log_of(conn, table)
    local = log.local_start_offset
    there = objects(tmp_path)
    wait_hours(conn, 11 * 24)
    tier(conn)
    start_offset = log.log_start_offset
    assert start_offset == log.local_start_offset >= local
    assert ids(table) == list(range(start_offset, 400))
    # Readers that know their names still find them.
    assert objects(tmp_path) >= there
    wait_hours(conn, 11 * 24 + 2)
    tier(conn)
    assert not there & {name for name in objects(tmp_path) if name.endswith(".log")}


def test_the_lake_keeps_what_it_needs(start: Start) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS, options={"table.log.ttl": "10 d"})
    fill(table, 0, 400)
    tier(conn)
    tiering = tiering_of(conn)
    info = replace(table.info, descriptor=replace(table.info.descriptor, properties={"table.datalake.enabled": "true"}))
    bucket = TableBucket(table.info.table_id, 0)
    wait_hours(conn, 11 * 24)
    tiering._snapshots = SimpleNamespace(log_needed_from=lambda *_: 100)  # type: ignore[assignment]
    tiering._expire(bucket, info, tiering._replicas.physical_path(bucket))
    start_offset = log_of(conn, table).log_start_offset
    assert 0 < start_offset <= 100
    assert ids(table) == list(range(start_offset, 400))


def test_objects_of_dropped_tables_are_deleted(start: Start, tmp_path: Path) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 200)
    tier(conn)
    conn.drop_table("fluss.log")
    tier(conn)
    assert objects(tmp_path)
    wait_hours(conn, 2)
    tier(conn)
    assert not objects(tmp_path)
    assert not server_of(conn).context.store.remote_logs()


def test_an_upload_that_fails_lists_nothing_and_leaves_nothing(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 400)
    upload = DirectoryStore.upload
    count = 0

    def fails(store: DirectoryStore, name: str, parts: Any) -> None:
        nonlocal count
        count += 1
        if count == 9:
            raise StorageFailure("the store is away")
        upload(store, name, parts)

    monkeypatch.setattr(DirectoryStore, "upload", fails)
    tier(conn)
    log = log_of(conn, table)
    assert log.local_start_offset == 0
    assert log.remote is not None
    assert log.remote.offsets is None
    orphans = objects(tmp_path)
    assert len(orphans) == 8
    tier(conn)
    assert log.log_start_offset == 0 < log.local_start_offset
    assert ids(table) == list(range(400))
    wait_hours(conn, 25)
    tier(conn)
    assert not orphans & objects(tmp_path)


@pytest.mark.parametrize("suffix", ["index", "timeindex"])
def test_an_index_that_cannot_be_read_once_does_not_have_the_whole_segment_read(
    start: Start, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 400)
    tier(conn)
    log = log_of(conn, table)
    assert log.remote is not None
    read, reads = DirectoryStore.read, list[str]()

    def fails(store: DirectoryStore, name: str, start: int = 0, end: int | None = None) -> bytes:
        reads.append(name.rsplit(".")[-1])
        if reads.count(suffix) == 1 and reads[-1] == suffix:
            raise StorageFailure("the store is too busy (503)")
        return read(store, name, start, end)

    monkeypatch.setattr(DirectoryStore, "read", fails)
    with pytest.raises(StorageFailure, match="too busy"):
        log.remote.read(20, 100, 400)
    assert "log" not in reads
    piece = log.remote.read(20, 100, 400)
    assert (piece.base_offset, piece.next_offset) == (20, 30)


def test_nothing_is_deleted_that_the_journal_does_not_know_of(start: Start, tmp_path: Path) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 200)
    tier(conn)
    conn.drop_table("fluss.log")
    tier(conn)
    there = objects(tmp_path)
    wait_hours(conn, 2)
    tiering_of(conn)._wait_until_stored = lambda: False
    tier(conn)
    assert objects(tmp_path) == there


def test_what_the_journal_lacks_stays_here(start: Start) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 400)
    log = log_of(conn, table)
    stored = log.segments()[3].base_offset + 1
    tiering_of(conn)._stored_end = lambda _: stored
    tier(conn)
    assert log.local_start_offset == stored - 1


def test_a_log_that_is_shorter_than_the_store_is_refused_by_name(start: Start, tmp_path: Path) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 200)
    tier(conn)
    conn.close()
    metadata = MetadataStore(LocalDatabaseFile(str(tmp_path / "data" / METADATA_FILE)), is_new=False)
    beyond = RemoteLogSegment("of-another-history", 1000, 2000, 0, 10)
    bucket = TableBucket(table.info.table_id, 0)
    metadata.change_remote_log(bucket, 2000, "log/x/metadata/y.manifest", added=[beyond], doomed={})
    metadata.close()
    with pytest.raises(CorruptData, match="ends at offset 200, and the store has its records up to offset 2000"):
        ids(start().table("fluss.log"))


def test_what_expires_before_it_is_copied_is_skipped(start: Start) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS)
    fill(table, 0, 200)
    tier(conn)
    log = log_of(conn, table)
    fill(table, 200, 200)
    log.roll()
    end = log.log_end_offset
    journal = server_of(conn)._journal
    assert journal is not None
    assert journal.wait_until_stored(PATIENCE)
    assert log.delete_segments_before(end)
    tier(conn)
    logs = server_of(conn).context.remote_logs
    assert logs is not None
    assert logs.end(TableBucket(table.info.table_id, 0)) == end
    assert log.log_start_offset == log.local_start_offset == end
    fill(table, 400, 100)
    tier(conn)
    assert log.log_start_offset == end < log.local_start_offset
    assert ids(table) == list(range(400, 500))


def test_what_the_journal_lacks_does_not_expire(start: Start) -> None:
    conn = start()
    table = conn.create_table("fluss.log", COLUMNS, options={"table.log.ttl": "1 ms"})
    fill(table, 0, 200)
    context = server_of(conn).context
    log = log_of(conn, table)
    stored = log.segments()[3].base_offset + 1
    retention = LogRetention(context.replicas, context.catalog, context.lake.snapshots, Later(1), lambda _: stored)  # type: ignore[arg-type]
    retention.run()
    assert log.local_start_offset == stored - 1


def test_local_segments_go_by_age_and_number(start: Start) -> None:
    conn = start()
    many = conn.create_table("fluss.many", COLUMNS, options={"table.log.tiered.local-segments": "6"})
    old = conn.create_table("fluss.old", COLUMNS, options={"table.log.local-ttl": "1 h"})
    fill(many, 0, 400)
    fill(old, 0, 400)
    tier(conn)
    assert len(log_of(conn, many).segments()) == 6
    assert len(log_of(conn, old).segments()) == KEPT
    wait_hours(conn, 2)
    tier(conn)
    # The active segment was closed by its age, and is copied; the next append begins another one.
    assert len(log_of(conn, old).segments()) == 1
    assert log_of(conn, old).local_start_offset == 400
    assert ids(old) == list(range(400))
    with pytest.raises(InvalidRequest, match="must not be longer than"):
        conn.create_table("fluss.no", COLUMNS, options={"table.log.local-ttl": "8 d"})


@pytest.mark.parametrize("reason", ["age", "number"])
def test_local_segments_of_closed_buckets_go_as_well(start: Start, reason: str) -> None:
    """When they are closed, a segment is too young, or the journal does not have it yet."""
    conn = start(**{"server.open-buckets.max": "1"})
    options = {"table.log.local-ttl": "1 h"} if reason == "age" else {}
    table = conn.create_table("fluss.log", COLUMNS, options=options)
    fill(table, 0, 400)
    log_of(conn, table).roll()
    tiering, replicas = tiering_of(conn), server_of(conn).context.replicas
    stored_end = tiering._stored_end
    if reason == "number":
        tiering._stored_end = lambda _: 0
    tier(conn)
    bucket = TableBucket(table.info.table_id, 0)
    before = replicas.segment_offsets(bucket)
    assert len(before) > 1
    other = conn.create_table("fluss.other", COLUMNS)
    fill(other, 0, 10)
    replicas.close_idle()
    assert replicas.opened(bucket) is None
    tier(conn)
    assert replicas.segment_offsets(bucket) == before
    assert replicas.opened(bucket) is None, "it is not opened for nothing"
    tiering._stored_end = stored_end
    wait_hours(conn, 2)
    tier(conn)
    assert replicas.segment_offsets(bucket) == ([400] if reason == "age" else before[-KEPT:])
    assert ids(table) == list(range(400))


def test_a_closed_bucket_whose_state_needs_its_changelog_is_not_opened_for_nothing(start: Start) -> None:
    conn = start()
    table = conn.create_table("fluss.kv", COLUMNS, primary_key="id", buckets=1)
    bucket = TableBucket(table.info.table_id, 0)
    for value in range(60):
        table.upsert(pa.table({"id": range(10), "v": [f"value {value} " * 3] * 10}))
    log_of(conn, table).roll()
    tier(conn)
    assert log_of(conn, table).local_start_offset == 0
    conn.close()
    conn = start()
    wait_hours(conn, 2)
    tier(conn)
    replicas = server_of(conn).context.replicas
    assert replicas.opened(bucket) is None
    assert replicas.changelog_needed_from(bucket) == replicas.segment_offsets(bucket)[0] == 0
    with replicas.using(bucket) as replica:
        replica.checkpoint_if_grown(1)
        end = replica.log.log_end_offset
    conn.close()
    conn = start()
    replicas = server_of(conn).context.replicas
    assert replicas.changelog_needed_from(bucket) == end
    wait_hours(conn, 2)
    tier(conn)
    assert len(replicas.segment_offsets(bucket)) == KEPT


def test_the_largest_active_segments_are_closed_when_all_together_are_large(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiering_module, "_CLOSED_BYTES_MIN", 2000)
    conn = start(**{"log.segment.file-size": "1mb"})
    tables = [conn.create_table(f"fluss.t{number}", COLUMNS) for number in range(4)]
    for table, count in zip(tables, (10, 200, 400, 600), strict=True):
        fill(table, 0, count)
    tiering = tiering_of(conn)
    sizes = [log_of(conn, table).active_bytes for table in tables]
    tiering._settings = tiering._settings._replace(tail_bytes=sizes[0] + sizes[1])
    tier(conn)
    assert [len(log_of(conn, table).segments()) for table in tables] == [1, 1, 2, 2]
    assert [log_of(conn, table).copied_end for table in tables] == [0, 0, 400, 600]
    tiering._settings = tiering._settings._replace(tail_bytes=0)
    tier(conn)
    assert log_of(conn, tables[0]).copied_end == 0, "an object for each small log"
    assert log_of(conn, tables[1]).copied_end == 200
    assert [ids(table) for table in tables] == [list(range(count)) for count in (10, 200, 400, 600)]
