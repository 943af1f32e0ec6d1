"""Damage after `kill -9`, between two recovery points: it is told, and `forebay repair` goes on without it.

A directory is copied while its server runs: page cache and mount are the same, so the copy is what `kill -9` leaves.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import Conflict, CorruptData, NotFound
from forebay.cli.main import main
from forebay.codec.log.header import iter_headers
from forebay.fs import names
from forebay.fs.local import LocalFileSystem
from forebay.log.log_ends import LogEndEvidence, StoredMarks
from forebay.testing.server import EmbeddedServer
from forebay.verify import repair_directory, verify_directory, verify_server
from forebay.verify.log_repair import LogRepair
from forebay.verify.logs import check_log
from forebay.verify.report import Report, no_steps
from tests.log.log_batches import FOLDER, faulty_fs, filled_log, open_log, payloads, read_all

ROUNDS, KEYS = 40, 15
SETTINGS = {"log.replica.high-watermark.checkpoint-interval": "1 h", "log.index.interval-size": "1kb"}
LOG, KV = "fluss.log", "fluss.kv"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("s", pa.string())])
    with (
        EmbeddedServer(folder / "data", settings=SETTINGS) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        connection.create_table(LOG, schema, buckets=1)
        connection.create_table(KV, schema, primary_key=["k"], buckets=1)
        for number in range(ROUNDS):
            connection.table(LOG).append([{"k": number, "s": f"row {number}"}])
            connection.table(KV).upsert([{"k": number % KEYS, "s": f"row {number}"}])
        shutil.copytree(folder / "data", folder / "killed")
    return folder / "killed"


@pytest.fixture
def data(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path / "data")
    return tmp_path / "data"


def segment(data: Path, table: str) -> Path:
    (path,) = data.glob(f"{table.replace('.', '/')}-*/log-0/*.log")
    return path


def damage(path: Path, change: Callable[[bytearray], bytearray | None]) -> None:
    content = bytearray(path.read_bytes())
    path.write_bytes(change(content) or content)


def flip(position: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[position] ^= 1

    return change


def batch_starts(path: Path) -> list[int]:
    return [position for position, _ in iter_headers(path.read_bytes())]


def final_rows() -> dict[int, str]:
    return {number % KEYS: f"row {number}" for number in range(ROUNDS)}


class Opened:
    """What a server on the directory has."""

    def __init__(self, data: Path) -> None:
        with (
            EmbeddedServer(data, settings=SETTINGS) as server,
            forebay.connect(server.bootstrap_servers, retry_timeout="300 ms") as connection,
        ):
            self.log = self._asked(lambda: [r["k"] for r in connection.table(LOG).scan().to_arrow().to_pylist()])
            self.rows = self._asked(
                lambda: {r["k"]: r["s"] for r in connection.table(KV).scan().to_arrow().to_pylist()}
            )
            description = connection.admin.describe_server()
            self.damaged = {str(each.path): each.message for each in description.damaged}
            self.offline = description.offline_buckets
            self.health = connection.admin.cluster_health()
            self.row_count = self._asked(lambda: connection.admin.table_stats(KV).row_count)
            self.findings = verify_server(connection).findings

    def _asked(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except CorruptData as e:
            return e.message


def test_a_bit_of_any_batch_takes_its_bucket_offline_by_name_and_verify_says_what_is_lost(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = segment(data, LOG)
    whole, starts = path.read_bytes(), batch_starts(path)
    for number, place in ((0, 9), (0, 100), (20, 3), (39, 100)):  # a length, bodies, an offset
        path.write_bytes(whole)
        damage(path, flip(starts[number] + place))
        lost = f"offset {number} is lost"
        (fault,) = verify_directory(data).faults
        assert fault.place == str(path)
        assert fault.message.endswith(lost)
    opened = Opened(data)
    assert opened.rows == final_rows()
    assert opened.log.startswith(f"{path} is damaged at byte {starts[39]}, where offset 39 should begin")
    assert f"The log was durable up to offset 40, so this is damage, and nothing was cut: {lost}" in opened.log
    assert list(opened.damaged) == [LOG]
    assert lost in opened.damaged[LOG]
    assert (opened.offline, opened.health.status.name) == (1, "RED")
    assert [finding.is_fault for finding in opened.findings] == [True, False]
    assert lost in opened.findings[0].message
    assert f"of table {LOG} is offline: {path} is damaged" in caplog.text
    assert "truncated" not in caplog.text
    assert path.stat().st_size == len(whole)


DAMAGES: dict[str, tuple[Callable[[bytearray], bytearray | None], int]] = {
    "a bit": (flip(6500), 1),
    "512 zeros": (lambda content: content[:4096] + bytes(512) + content[4608:], 3),
    "a lost page": (lambda content: content[:4096] + bytes(4096) + content[8192:], 14),
    "swapped pages": (lambda content: content[4096:8192] + content[:4096] + content[8192:], 26),
    "a lost end": (lambda content: content[:-1000], 4),
    "another segment's bytes": (lambda content: content[:5000] + random.Random(1).randbytes(700) + content[5700:], 3),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_repair_keeps_every_sound_batch_at_its_offset_and_the_damaged_bytes_aside(
    data: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change, lost_max = DAMAGES[kind]
    path = segment(data, LOG)
    before = {header.base_offset: position for position, header in iter_headers(path.read_bytes())}
    damage(path, change)
    damaged = path.read_bytes()
    assert main(["repair", "--data-dir", str(data)]) == 1
    assert "nothing was changed" in capsys.readouterr().out
    assert path.read_bytes() == damaged
    assert not (data / names.RESTORED_FILE).exists()
    assert main(["repair", "--data-dir", str(data), "--accept-loss", "--table", LOG]) == 0
    told = capsys.readouterr().out
    repaired = {header.base_offset: header for _, header in iter_headers(path.read_bytes())}
    assert list(repaired) == list(before) == list(range(ROUNDS))
    lost = [offset for offset, header in repaired.items() if header.record_count == 0]
    assert 0 < len(lost) <= lost_max
    for first, last in ((a, b) for a in lost for b in lost if a - 1 not in lost and b + 1 not in lost and a <= b):
        if set(range(first, last + 1)) <= set(lost):
            assert (f"offsets {first} to {last}: lost" if last > first else f"offset {first}: lost") in told
    kept = sorted(path.parent.glob(f"*{names.DAMAGED_SUFFIX}"))
    assert [int(file.stem) for file in kept] == [offset for offset in lost if offset - 1 not in lost]
    assert all(file.read_bytes() in damaged for file in kept)
    assert verify_directory(data).faults == []
    assert (data / names.RESTORED_FILE).exists()  # positions of clients are of an earlier log epoch
    assert main(["repair", "--data-dir", str(data), "--accept-loss"]) == 0
    opened = Opened(data)
    assert opened.log == [offset for offset in range(ROUNDS) if offset not in lost]
    assert opened.rows == final_rows()
    assert all("have no row" in f.message or "has no row" in f.message for f in opened.findings)
    assert verify_directory(data).findings == []


@pytest.mark.parametrize("place", [0, 5, 8, 11, 12])
def test_a_batch_of_which_only_unchecked_fields_are_damaged_is_corrected_without_loss(data: Path, place: int) -> None:
    path = segment(data, LOG)
    whole = path.read_bytes()
    for number in (0, 17, ROUNDS - 1):
        path.write_bytes(whole)
        damage(path, flip(batch_starts(path)[number] + place))
        ((loss,),) = [bucket.losses for bucket in repair_directory(data, accept_loss=True)]
        assert (loss.offsets, loss.is_mended) == (range(number, number + 1), True)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("has_state", [True, False])
def test_rows_of_a_primary_key_table_are_restored_from_its_state_if_that_is_sound(
    data: Path, kind: str, has_state: bool
) -> None:
    path = segment(data, KV)
    damage(path, DAMAGES[kind][0])
    if not has_state:
        shutil.rmtree(next(data.glob("fluss/kv-*/kv-0")))
    (done,) = repair_directory(data, accept_loss=True)
    assert done.is_done
    assert done.lost_records > 0
    opened = Opened(data)
    wrong = {key for key, value in final_rows().items() if opened.rows.get(key) != value}
    if has_state:
        assert not wrong
        assert done.restored_up_to >= max(loss.offsets.stop for loss in done.losses)
        assert len(done.restored_keys) == done.restored_rows
    else:
        assert (done.restored_up_to, done.restored_rows) == (-1, 0)
    assert opened.row_count == len(opened.rows)
    assert opened.findings == []
    assert verify_directory(data).findings == []


@pytest.mark.parametrize("has_folder", [True, False])
def test_a_log_that_is_gone_is_told_and_replaced_by_an_empty_one_of_its_length(data: Path, has_folder: bool) -> None:
    for path in (segment(data, LOG), segment(data, KV)):
        path.unlink()
        if not has_folder:
            shutil.rmtree(path.parent)
    lost = [(fault.place, fault.message.rpartition(": ")[2]) for fault in verify_directory(data).faults]
    (log,), (kv,) = data.glob("fluss/log-*"), data.glob("fluss/kv-*")
    assert lost == [(str(kv / "log-0"), "offsets 0 to 64 are lost"), (str(log / "log-0"), "offsets 0 to 39 are lost")]
    opened = Opened(data)
    assert "holds no log, which was durable up to offset 40" in opened.log
    assert "holds no log" in opened.rows
    done = repair_directory(data, accept_loss=True)
    assert [(repair.lost_records, repair.restored_rows) for repair in done] == [(65, 15), (40, 0)]
    opened = Opened(data)
    assert (opened.log, opened.rows, opened.row_count) == ([], final_rows(), KEYS)
    assert verify_directory(data).findings == []


def test_a_repair_fills_no_segment_beyond_its_limit() -> None:
    fs = faulty_fs()
    fs.make_directories(FOLDER)
    with pytest.raises(CorruptData, match="too much is lost to continue without it"):
        LogRepair(fs, FOLDER, LogEndEvidence(False, 1 << 40), is_append_only=True)


def test_a_lost_insert_of_a_row_that_was_updated_later_counts_its_row(data: Path) -> None:
    damage(segment(data, KV), flip(200))
    (done,) = repair_directory(data, accept_loss=True)
    assert done.restored_rows == 0
    opened = Opened(data)
    assert (opened.rows, opened.row_count) == (final_rows(), KEYS)


def test_keys_that_are_restored_are_told(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segment(data, KV)
    damage(path, flip(batch_starts(path)[-1] + 100))
    assert main(["repair", "--data-dir", str(data)]) == 1
    told = capsys.readouterr().out
    assert "1 rows are restored from the key-value state:\n    k = 9\n" in told
    assert "the history of these changes is lost, their rows are not" in told


def test_a_repair_refuses_what_it_cannot_mend(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(NotFound, match=r"has no table fluss\.nosuch"):
        repair_directory(data, tables=["fluss.nosuch"])
    with pytest.raises(NotFound, match="is not a data directory"):
        repair_directory(tmp_path / "nothing")
    with EmbeddedServer(data), pytest.raises(Conflict, match="a server uses the data directory"):
        repair_directory(data)
    shutil.rmtree(segment(data, LOG).parent)
    (data / names.RECOVERY_POINTS_FILE).write_bytes(b"rot")
    assert main(["repair", "--data-dir", str(data)]) == 2
    assert "recovery-points.checkpoint is damaged" in capsys.readouterr().err


def test_a_repair_that_is_interrupted_anywhere_is_finished_by_the_next(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = segment(data, KV)
    damage(path, flip(batch_starts(path)[-1] + 100))
    calls = ("publish_if_absent", "write_atomic", "remove_tree", "remove", "rename", "sync_directory")
    left = 0

    def interrupted(real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise InterruptedError
            return real(*arguments)

        return counted

    for stop in range(1, 100):
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(data, copy)
        left = stop
        with monkeypatch.context() as patch:
            for name in calls:
                patch.setattr(LocalFileSystem, name, interrupted(getattr(LocalFileSystem, name)))
            with suppress(InterruptedError):
                repair_directory(copy, accept_loss=True)
        if left > 0:
            break
        repair_directory(copy, accept_loss=True)
        assert repair_directory(copy) == []
        assert not list(copy.rglob(names.RESTORED_CHANGES_FILE))
        if stop % 4 == 0:
            assert Opened(copy).rows == final_rows()
    assert stop > 8


# ---- logs of many segments -----------------------------------------------------------------------------------------


def test_damage_in_several_segments_and_a_missing_one_are_repaired_in_one_go() -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    tablet.sync()
    before = payloads(read_all(tablet))
    bases = [info.base_offset for info in tablet.segments()]
    assert len(bases) > 3
    fs.flip_byte(names.log_file(FOLDER, bases[0]), 70)
    fs.remove(names.log_file(FOLDER, bases[1]))
    last = names.log_file(FOLDER, bases[-1])
    fs.set_content(last, fs.content(last)[:-5])
    repair = LogRepair(fs, FOLDER, LogEndEvidence(False, 20, StoredMarks(20, 60)), is_append_only=True)
    assert [loss.offsets for loss in repair.losses] == [range(2), range(bases[1], bases[2]), range(58, 60)]
    repair.keep_damaged()
    repair.rewrite()
    after = open_log(fs.kill(), 20, known_end=StoredMarks(20, 60))
    headers = [header for header, _ in after.iterate_batches(0)]
    lost = [*range(2), *range(bases[1], bases[2]), 58, 59]
    assert [header.base_offset for header in headers if header.record_count == 0] == lost
    assert [p for p in payloads(read_all(after)) if p in before] == [
        payload for number, payload in enumerate(before) if number * 2 not in lost
    ]
    times = [header.commit_timestamp_ms for header in headers]
    assert times == sorted(times)


@pytest.mark.parametrize("expired", [0, 14])
def test_first_segments_that_are_lost_are_told_and_become_empty_batches(expired: int) -> None:
    fs = faulty_fs()
    tablet = filled_log(fs)
    tablet.sync()
    tablet.delete_segments_before(expired)
    bases = [info.base_offset for info in tablet.segments()]
    kept = payloads(read_all(tablet))[(bases[2] - bases[0]) // 2 :]
    fs = fs.kill()
    for base in bases[:2]:
        fs.remove(names.log_file(FOLDER, base))
    known = LogEndEvidence(False, 60)
    report = Report()
    check_log(fs, FOLDER, known, report, no_steps)
    told = f"begins at offset {bases[2]}, and should at {bases[0]}: offsets {bases[0]} to {bases[2] - 1} are lost"
    assert told in str(report.faults[0])
    repair = LogRepair(fs, FOLDER, known, is_append_only=True)
    assert [loss.offsets for loss in repair.losses] == [range(bases[0], bases[2])]
    repair.keep_damaged()
    repair.rewrite()
    after = open_log(fs.kill(), 60)
    assert payloads(read_all(after))[-len(kept) :] == kept
    empty = [header.base_offset for header, _ in after.iterate_batches(bases[0]) if not header.record_count]
    assert empty == list(range(bases[0], bases[2]))
