"""A server whose disk is full: clear errors, reads continue, nothing acknowledged is lost, writes resume with space."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.base.errors import ErrorCode, ForebayError
from forebay.codec.log.header import iter_headers
from forebay.codec.log.log_batch import decode_arrow_batch
from forebay.fs import names
from forebay.metadata import types
from forebay.metadata.table import Column, Schema
from tests.every_run import every_run
from tests.patience import until
from tests.server.full_disk import met_by_the_write
from tests.server.running import KV_COLUMNS, Bench, kv_key, kv_records, log_records, running
from tests.small_disk import SmallDisk, mounted_tmpfs

LEFT_BYTES = [0, 8192, 40960, 98304]
PER_WRITE = 40
SETTINGS = {"log_segment_file__size": "24kb", "log_replica_high__watermark_checkpoint__interval": "100ms"}
LOG_TABLE = Schema.of([Column("a", types.int_()), Column("s", types.string())])
RETRIABLE = {ErrorCode.DISK_WRITE_LOCKED, ErrorCode.KV_STORAGE_EXCEPTION, ErrorCode.LOG_STORAGE_EXCEPTION}


class Writers:
    """Writes into one log table and one table with a key, and what has become of each write."""

    def __init__(self, bench: Bench) -> None:
        self.log = bench.create("events", {"a": types.int_(), "s": types.string()})
        self.keyed = bench.create("state", KV_COLUMNS, ["id"])
        self.acknowledged: dict[int, list[int]] = {self.log: [], self.keyed: []}
        self.refused: dict[int, list[int]] = {self.log: [], self.keyed: []}
        self.next = 0

    def write(self, bench: Bench, table: int) -> ErrorCode | None:
        """Write some rows that were never written before; the error that this ended with."""
        first, self.next = self.next, self.next + PER_WRITE
        numbers = range(first, self.next)
        if table == self.log:
            answer = bench.append(table, log_records(numbers))
        else:
            answer = bench.put(table, kv_records([{"id": n, "name": f"{n:0300d}"} for n in numbers]))
        if not answer.error_code:
            self.acknowledged[table] += numbers
            return None
        code = ErrorCode(answer.error_code)
        assert code in RETRIABLE, answer.error_message
        assert str(bench.server.server.config.data_dir) in answer.error_message
        assert "B free" in answer.error_message or code is not ErrorCode.DISK_WRITE_LOCKED
        if code is ErrorCode.DISK_WRITE_LOCKED:  # the code says that nothing was written
            self.refused[table] += numbers
        return code

    def check(self, bench: Bench) -> None:
        """All that was acknowledged is there, once, and nothing that was refused."""
        stored: list[int] = []
        offset, end = 0, bench.log_end(self.log)
        while offset < end:
            records = bench.fetch(self.log, offset).records
            for position, header in iter_headers(records):
                stored += decode_arrow_batch(records, position, header, LOG_TABLE).column("a").to_pylist()
                offset = header.next_offset
        assert len(set(stored)) == len(stored)
        assert set(self.acknowledged[self.log]) <= set(stored)
        assert not set(self.refused[self.log]) & set(stored)
        for numbers, expected in ((self.acknowledged[self.keyed], True), (self.refused[self.keyed], False)):
            found = bench.lookup(self.keyed, [kv_key(n) for n in numbers]).values
            assert {bool(value.values) for value in found} <= {expected}


@pytest.mark.parametrize(
    ("engine", "refused"),
    every_run([("hlog", True), ("hlog", False), ("lmdb", True)], lambda case: case[0] == "hlog"),
)
def test_writes_on_a_full_disk_fail_and_continue_with_room_and_nothing_is_lost(
    engine: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not refused:
        met_by_the_write(monkeypatch)
    with mounted_tmpfs(tmp_path / "disk", 96) as disk:
        directory = disk.path / "data"
        settings = {**SETTINGS, "kv_engine": engine, "server_data__disk_reserve": "64kb"}
        with running(directory, **settings) as bench:
            writers = Writers(bench)
            for table in (writers.log, writers.keyed):
                assert writers.write(bench, table) is None
            for left in LEFT_BYTES:
                codes = write_while_full(disk, bench, writers, left)
                assert codes - {None}, f"every write fitted on a disk with {left} bytes"
                for table in (writers.log, writers.keyed):
                    for _ in range(4):
                        assert writers.write(bench, table) is None
            writers.check(bench)
        with running(directory, **settings) as bench:
            writers.check(bench)


def write_while_full(disk: SmallDisk, bench: Bench, writers: Writers, left: int) -> set[ErrorCode | None]:
    """How writes on a disk with `left` bytes end. Reads go on; there is room again then."""
    disk.fill(leave_bytes=left)
    try:
        codes = {writers.write(bench, table) for _ in range(8 + left // 2000) for table in (writers.log, writers.keyed)}
        assert bench.lookup(writers.keyed, [kv_key(n) for n in writers.acknowledged[writers.keyed][:50]]).values
        assert bench.fetch(writers.log, 0).records
    finally:
        disk.make_room()
    return codes


def test_metadata_on_a_full_disk_stays_as_it_is_and_can_be_changed_with_room(tmp_path: Path) -> None:
    columns = {"a": types.int_()}
    with mounted_tmpfs(tmp_path / "disk", 32) as disk, running(disk.path / "data") as bench:
        bench.create("first", columns)
        tried: list[str] = []

        def create_all(number: int) -> None:
            for i in range(100):
                tried.append(f"t{number}_{i}")
                bench.create(tried[-1], columns)

        for number, left in enumerate((0, 4096, 8192, 16384)):
            disk.fill(leave_bytes=left)
            with pytest.raises(ForebayError) as caught:
                create_all(number)
            assert caught.value.code == ErrorCode.DISK_WRITE_LOCKED
            words = rf"metadata.sqlite: no space is left, and nothing was changed; .*{disk.path}/data, which has [0-9]"
            assert re.search(words, caught.value.message)
            assert bench.info("first").table_id == 1
            disk.make_room()
            bench.create(tried[-1], columns)  # the name is not taken


def test_upkeep_on_a_full_disk_is_a_line_in_the_log_and_continues_with_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted_tmpfs(tmp_path / "disk", 32) as disk, running(disk.path / "data", **SETTINGS) as bench:
        writers = Writers(bench)
        writers.write(bench, writers.log)
        disk.fill()
        met_by_the_write(monkeypatch)
        assert writers.write(bench, writers.log) is None  # there is room in the log's last page, so its end moves
        until(lambda: "maintenance failed and will be retried: cannot write" in caplog.text, "the error")
        assert "Traceback" not in caplog.text
        disk.make_room()
        points = disk.path / "data" / names.RECOVERY_POINTS_FILE
        before = points.stat().st_mtime_ns if points.exists() else 0
        until(lambda: points.exists() and points.stat().st_mtime_ns > before, "new recovery points")
