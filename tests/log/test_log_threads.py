"""Readers and syncs in threads while the log grows, rolls, is cut and ends."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.base.errors import ErrorCode, InvalidRequest, StorageFailure
from forebay.codec.log.header import iter_headers, verify_crc
from forebay.fs.local import LocalFileSystem
from forebay.log.config import LogConfig
from forebay.log.tablet import EARLIEST_OFFSET, LogSlice, LogTablet
from tests.log.log_batches import faulty_fs, make_batch, open_log
from tests.patience import PATIENCE

CONFIG = LogConfig(segment_bytes=3000, index_interval_bytes=300, scan_bytes=1000)
BODY = struct.Struct("<qq")


class Threads:
    """Runs functions over and over in threads until told to stop; their first exception fails the test."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self.rounds = 0

    def repeat(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                while not self._stop.is_set():
                    work()
                    self.rounds += 1
            except BaseException as failure:  # noqa: BLE001
                self._failures.append(failure)

        self._threads.append(threading.Thread(target=run))

    def __enter__(self) -> Threads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]


@pytest.fixture
def tablet(tmp_path: Path) -> LogTablet:
    return LogTablet.open(LocalFileSystem(), f"{tmp_path}/log-0", config=CONFIG)


def append(tablet: LogTablet, generation: int) -> None:
    """A batch that tells its offset and the generation of the log in which it was written."""
    offset = tablet.log_end_offset
    records = offset % 3 + 1
    tablet.append_as_leader(make_batch(records, BODY.pack(offset, generation) + bytes(offset % 90)))


def check(piece: LogSlice) -> None:
    """Whole, sealed batches without a gap; generations only grow, because a cut takes all that follows."""
    expected, newest = piece.base_offset, -1
    for position, header in iter_headers(piece.data):
        verify_crc(piece.data, position, header)
        offset, generation = BODY.unpack_from(piece.data, position + header.body_start)
        assert header.base_offset == offset == expected
        assert generation >= newest
        expected, newest = header.next_offset, generation
    assert expected == piece.next_offset


def reader(tablet: LogTablet, budget: int) -> Callable[[], None]:
    """Tails the log from its start again and again."""
    at = [EARLIEST_OFFSET]

    def read() -> None:
        try:
            piece = tablet.read(at[0], budget)
        except InvalidRequest as error:  # Cut away, or deleted.
            if error.code != ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION:
                raise
            at[0] = EARLIEST_OFFSET
            return
        check(piece)
        at[0] = EARLIEST_OFFSET if piece.next_offset == at[0] else piece.next_offset

    return read


def test_readers_see_whole_batches_while_the_log_grows_and_rolls(tablet: LogTablet) -> None:
    threads = Threads()
    for budget in (1, 500, 5000):
        threads.repeat(reader(tablet, budget))
    threads.repeat(tablet.sync)
    with threads:
        for number in range(600):
            append(tablet, 0)
            if number % 100 == 0:
                tablet.roll()
    assert len(tablet.segments()) > 10
    assert threads.rounds > 100


def test_readers_never_see_a_mixture_of_before_and_after_a_cut(tablet: LogTablet) -> None:
    for _ in range(60):
        append(tablet, 0)
    threads = Threads()
    for budget in (1, 700, 5000):
        threads.repeat(reader(tablet, budget))
    threads.repeat(lambda: tablet.offset_for_timestamp(1))
    threads.repeat(tablet.sync)
    with threads:
        for generation in range(1, 31):
            tablet.truncate_to(max(0, tablet.log_end_offset - 1 - generation * 7 % 60))
            for _ in range(15):
                append(tablet, generation)
            if generation % 10 == 0:
                tablet.truncate_to(0)
    assert threads.rounds > 30


@pytest.mark.parametrize("pause_before_read", [1, 2])
def test_a_read_that_a_cut_overtakes_begins_again(monkeypatch: pytest.MonkeyPatch, pause_before_read: int) -> None:
    """The header would come from before the cut and the body from after it."""
    fs = faulty_fs()
    tablet = open_log(fs)
    tablet.append_as_leader(make_batch(1, b"old" * 500))
    reader_type = type(fs.open_reader(tablet.read(0, 1).path))
    real = reader_type.pread
    calls = [0]

    def interrupted(self: object, offset: int, length: int) -> bytes:
        calls[0] += 1
        if calls[0] == pause_before_read:
            monkeypatch.undo()
            tablet.truncate_to(0)
            tablet.append_as_leader(make_batch(2, b"new" * 100) + make_batch(1, b"newer" * 300))
        return real(self, offset, length)  # type: ignore[arg-type]

    monkeypatch.setattr(reader_type, "pread", interrupted)
    piece = tablet.read(0, 10)
    assert calls[0] == pause_before_read
    assert bytes(piece.data[48:]) == b"new" * 100
    assert (piece.base_offset, piece.next_offset) == (0, 2)


def test_readers_continue_while_old_segments_are_deleted(tablet: LogTablet) -> None:
    for _ in range(100):
        append(tablet, 0)
    threads = Threads()
    for budget in (1, 2000):
        threads.repeat(reader(tablet, budget))
    threads.repeat(lambda: tablet.offset_for_timestamp(tablet.last_timestamp_ms))
    with threads:
        for _ in range(20):
            for _ in range(20):
                append(tablet, 0)
            tablet.delete_segments_before(tablet.log_end_offset - 60)
    assert tablet.log_start_offset > 300


@pytest.mark.parametrize("end", ["close", "delete"])
def test_readers_of_a_log_that_ends_get_a_clear_error(tablet: LogTablet, end: str) -> None:
    for _ in range(200):
        append(tablet, 0)
    ended = threading.Event()
    threads = Threads()

    def read_until_the_end(read: Callable[[], None]) -> Callable[[], None]:
        def work() -> None:
            try:
                read()
            except StorageFailure as failure:
                if "is closed" not in failure.message and "was deleted" not in failure.message:
                    raise
                ended.set()

        return work

    for budget in (1, 300, 5000):
        threads.repeat(read_until_the_end(reader(tablet, budget)))
    with threads:
        for _ in range(100):
            append(tablet, 0)
        getattr(tablet, end)()
        assert ended.wait(PATIENCE)


def test_a_synced_offset_never_runs_ahead_of_what_was_synced(tmp_path: Path) -> None:
    """With many callers at once, each finds its own appends covered when its sync returns."""
    tablet = LogTablet.open(LocalFileSystem(), f"{tmp_path}/log-1", config=CONFIG)
    lock = threading.Lock()

    def append_and_sync() -> None:
        with lock:
            append(tablet, 0)
            mine = tablet.log_end_offset
        assert tablet.sync() >= mine
        assert tablet.synced_offset >= mine

    threads = Threads()
    for _ in range(4):
        threads.repeat(append_and_sync)
    with threads:
        while tablet.log_end_offset < 600:
            tablet.read(EARLIEST_OFFSET, 1000)
    assert tablet.sync() == tablet.log_end_offset


def test_an_index_rebuilt_by_a_reader_misses_nothing_that_is_appended_meanwhile(tmp_path: Path) -> None:
    folder = f"{tmp_path}/log-2"
    first = LogTablet.open(LocalFileSystem(), folder, config=LogConfig(index_interval_bytes=100))
    for _ in range(500):
        append(first, 0)
    first.close()
    index = next(Path(folder).glob("*.index"))
    index.write_bytes(bytes(byte ^ (5 if number % 16 == 7 else 0) for number, byte in enumerate(index.read_bytes())))
    tablet = LogTablet.open(
        LocalFileSystem(),
        folder,
        config=LogConfig(index_interval_bytes=100),
        clean_shutdown=True,
        recovery_point=first.log_end_offset,
    )
    threads = Threads()
    for budget in (1, 500):
        threads.repeat(reader(tablet, budget))
    with threads:
        for _ in range(500):
            append(tablet, 0)
    for offset in range(0, tablet.log_end_offset, 7):
        piece = tablet.read(offset, 1)
        check(piece)
        assert piece.base_offset <= offset < piece.next_offset
