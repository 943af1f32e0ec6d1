"""Full scans beside writers: a scan sees one state of its bucket, that of its log offset.

Writers and scanners run against one server at the same time; pages, pauses and batches are of random size. SCAN_ROUNDS
sets the number of scans of each scanner. SCAN_SEED repeats the random choices (not the timing).
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.client.table import Table
from forebay.codec.kv.value_batch import parse_value_batch
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.testing.server import EmbeddedServer
from tests.server.raw_client import RawClient

ROUNDS = int(os.environ.get("SCAN_ROUNDS", "12"))
SEED = int(os.environ.get("SCAN_SEED", random.SystemRandom().randrange(1 << 32)))
SETTINGS = {"log.segment.file-size": "1mb", "kv.checkpoint.records": "3000", "kv.snapshot.interval": "500 ms"}
KEYS = 300

Row = tuple[int | None, int | None]

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("a", pa.int64()), ("b", pa.int64())])


MakeScanner = Callable[[Table, int], "Scanner"]


@pytest.fixture
def make_scanner(server: EmbeddedServer) -> Iterator[MakeScanner]:
    """Makes scanners of a table with a seed; their connections end with the test."""
    with ExitStack() as clients:

        def make(table: Table, seed: int) -> Scanner:
            return Scanner(clients.enter_context(RawClient(server.addresses.tablet_servers)), table, seed)

        yield make


@pytest.fixture(params=["hlog", "lmdb"])
def server(request: pytest.FixtureRequest, tmp_path) -> Iterator[EmbeddedServer]:
    print(f"seed {SEED}, {ROUNDS} rounds")
    with EmbeddedServer(tmp_path / "data", settings={**SETTINGS, "kv.engine": request.param}) as started:
        yield started


class AtWork:
    """Runs `work` in threads over and over until the block ends, and raises what went wrong in them."""

    def __init__(self, *work: Callable[[], None]) -> None:
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in work]

    def _run(self, work: Callable[[], None]) -> None:
        try:
            while not self._stop.is_set():
                work()
        except BaseException as e:  # noqa: BLE001 - raised at the end of the block
            self._errors.append(e)

    def __enter__(self) -> AtWork:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)
        if self._errors:
            raise self._errors[0]


class Scanner:
    """Scans one bucket by ScanKv, page by page, with pages and pauses of random size."""

    def __init__(self, client: RawClient, table: Table, seed: int) -> None:
        self.client = client
        self.table_id = table.info.table_id
        self.rng = random.Random(seed)
        self.codec = _decoder(table)

    def scan(self, bucket: int) -> tuple[dict[int, Row], int]:
        """(rows by key, log offset). Fails when a key comes twice."""
        request = pb.ScanKvRequest(batch_size_bytes=self._page_bytes(), call_seq_id=0)
        request.bucket_scan_req.table_id = self.table_id
        request.bucket_scan_req.bucket_id = bucket
        answer = self.client.call(ApiKey.SCAN_KV, request)
        assert not answer.error_code, answer
        offset, scanner_id, call = answer.log_offset, answer.scanner_id, 0
        rows: list[tuple[int, Row]] = self.codec(answer.records)
        while answer.has_more_results:
            if self.rng.random() < 0.3:
                time.sleep(self.rng.random() / 100)
            call += 1
            request = pb.ScanKvRequest(scanner_id=scanner_id, call_seq_id=call, batch_size_bytes=self._page_bytes())
            answer = self.client.call(ApiKey.SCAN_KV, request)
            assert not answer.error_code, answer
            rows += self.codec(answer.records)
        assert len({key for key, _ in rows}) == len(rows), "a key came twice"
        return dict(rows), offset

    def _page_bytes(self) -> int:
        return self.rng.choice([1, 200, 1000, 5000, 1 << 20]) if self.rng.random() < 0.9 else 40


def _decoder(table: Table) -> Callable[[bytes], list[tuple[int, Row]]]:
    codec = row_codec(table.info.schema.columns, RowFormat.COMPACTED)

    def decode(records: bytes) -> list[tuple[int, Row]]:
        if not records:
            return []
        batch = codec.decode(parse_value_batch(records)[1])
        return [(row["k"], (row["a"], row["b"])) for row in batch.to_pylist()]

    return decode


def apply(rows: dict[int, Row], changelog: pa.Table, start: int) -> dict[int, Row]:
    """`rows` after the changes of one bucket from offset `start` on; each change must fit the rows before it."""
    rows = dict(rows)
    for change in changelog.to_pylist():
        if change["_log_offset"] < start:
            continue
        key, row = change["k"], (change["a"], change["b"])
        match change["_change_type"]:
            case "insert":
                assert key not in rows, f"offset {change['_log_offset']} inserts key {key}, which the scan had"
                rows[key] = row
            case "update_before":
                assert rows[key] == row
            case "update_after":
                rows[key] = row
            case "delete":
                assert rows.pop(key) == row
    return rows


def test_a_scan_sees_one_version_and_its_log_offset_is_exact(server: EmbeddedServer, make_scanner: MakeScanner) -> None:
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.t", SCHEMA, primary_key=["k"], buckets=1)
        table = connection.table("fluss.t")
        versions = iter(range(1, 1 << 30))

        def write() -> None:
            number = next(versions)
            table.upsert(pa.table({"k": range(KEYS), "a": [number] * KEYS, "b": [-number] * KEYS}))

        write()
        scans: list[tuple[dict[int, Row], int]] = []
        scanners = [make_scanner(table, SEED + i) for i in range(2)]
        with AtWork(write):
            for _ in range(ROUNDS):
                scans += [each.scan(0) for each in scanners]
        changelog = table.changes("earliest", "latest").to_arrow()
        final = scanners[0].scan(0)[0]
    offsets = [offset for _, offset in scans]
    assert offsets == sorted(offsets), "a later scan saw an earlier state"
    for rows, offset in scans:
        (version,) = {a for a, _ in rows.values()}
        assert rows == dict.fromkeys(range(KEYS), (version, -version))
        assert offset == KEYS + 2 * KEYS * (version - 1)
    assert len(set(offsets)) > 1, "nothing was written while scanning"
    for rows, offset in [scans[0], scans[len(scans) // 2], scans[-1]]:
        assert apply(rows, changelog, offset) == final


def test_a_scan_and_the_changelog_from_its_offset_make_the_final_state(
    server: EmbeddedServer, make_scanner: MakeScanner
) -> None:
    buckets = 3
    with forebay.connect(server.bootstrap_servers) as connection:
        connection.create_table("fluss.t", SCHEMA, primary_key=["k"], buckets=buckets)
        table = connection.table("fluss.t")
        table.upsert(pa.table({"k": range(KEYS), "a": [0] * KEYS, "b": [0] * KEYS}))
        writers = [_writer(table, random.Random(SEED + i)) for i in range(3)]
        scanners = [make_scanner(table, SEED + 10 + i) for i in range(2)]
        scans: list[tuple[int, dict[int, Row], int]] = []
        with AtWork(*writers):
            for _ in range(ROUNDS):
                for each in scanners:
                    bucket = each.rng.randrange(buckets)
                    scans.append((bucket, *each.scan(bucket)))
        final = {bucket: scanners[0].scan(bucket) for bucket in range(buckets)}
        logs = {b: table.changes("earliest", "latest", buckets=[b]).to_arrow() for b in range(buckets)}
    for bucket, rows, offset in scans:
        assert apply(rows, logs[bucket], offset) == final[bucket][0], f"bucket {bucket} from offset {offset}"
    for bucket in range(buckets):
        assert apply({}, logs[bucket], 0) == final[bucket][0]
    assert len({offset for _, _, offset in scans}) > buckets, "nothing was written while scanning"


def _writer(table: Table, rng: random.Random) -> Callable[[], None]:
    """Puts, partly updates and deletes keys that other writers write too."""

    def write() -> None:
        keys: Any = pa.array(rng.sample(range(KEYS), rng.randint(1, 60)), pa.int64())
        values = [rng.randrange(1000) for _ in range(len(keys))]
        match rng.choice(["put", "partial", "delete"]):
            case "put":
                table.upsert(pa.table({"k": keys, "a": values, "b": values}))
            case "partial":
                table.upsert(pa.table({"k": keys, "b": values}), columns=["k", "b"])
            case _:
                table.delete(pa.table({"k": keys}))

    return write
