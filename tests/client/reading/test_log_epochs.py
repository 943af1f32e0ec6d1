"""Positions that were stored before a server was restored from an older copy (docs/format/log_epochs.md)."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.base.errors import Conflict, CorruptData, ErrorCode, InvalidRequest
from forebay.client.connection import Connection, connect
from forebay.client.reading.log_reader import LogReader
from forebay.metadata.log_offset import LogOffset, LogPosition, epoch_of
from forebay.metadata.table import TableBucket
from forebay.server.embedded import EmbeddedServer
from tests.client.conftest import own_server

pytestmark = own_server


def append(conn: Connection, first: int, stop: int, name: str = "fluss.t") -> None:
    conn.table(name).append([{"a": value} for value in range(first, stop)])


def values(reader: LogReader) -> list[int]:
    return [value for batch in reader for value in batch["a"].to_pylist()]


def position_at_end(conn: Connection, name: str = "fluss.t") -> LogPosition:
    reader = conn.table(name).changes("earliest", "latest")
    values(reader)
    return reader.position


def made(folder: Path, count: int = 10, buckets: int = 1) -> Path:
    """A data directory with a table of `count` rows."""
    with forebay.embedded(folder) as conn:
        conn.create_table("fluss.t", {"a": "BIGINT"}, buckets=buckets)
        append(conn, 0, count)
    return folder


def plain_copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target)


def backup(source: Path, target: Path) -> None:
    from forebay.cli.main import main

    assert main(["backup", "--data-dir", str(source), str(target)]) == 0


def backup_while_it_runs(source: Path, target: Path) -> None:
    with forebay.embedded(source):
        backup(source, target)


def moved_back_and_marked(source: Path, target: Path) -> None:
    """As a volume that was put back: no file shows it, and the command says it."""
    from forebay.cli.main import main

    shutil.copytree(source, target)
    with forebay.embedded(target):  # another server has noticed the copy before, so this one does not
        pass
    assert main(["restored", "--data-dir", str(target)]) == 0


COPIES: list[Callable[[Path, Path], None]] = [plain_copy, backup, backup_while_it_runs, moved_back_and_marked]


@pytest.mark.parametrize("copy", COPIES)
def test_a_position_from_behind_the_copy_is_refused_also_when_the_log_has_grown_past_it(
    tmp_path: Path, copy: Callable[[Path, Path], None]
) -> None:
    data, restored = made(tmp_path / "data"), tmp_path / "restored"
    copy(data, restored)
    with forebay.embedded(data) as conn:
        shared = LogPosition({TableBucket(1, 0): LogOffset(10, conn.admin.describe_server().log_epoch)})
        append(conn, 10, 20)
        stored = json.dumps(position_at_end(conn).to_json())
    with forebay.embedded(restored) as conn:
        table = conn.table("fluss.t")
        for stop in ("latest", None, "2001-01-01"):  # the log ends before the position
            with pytest.raises(InvalidRequest, match="epoch") as raised:
                values(table.changes(json.loads(stored), stop, timeout=1))
            assert raised.value.code == ErrorCode.LOG_OFFSET_OUT_OF_RANGE_EXCEPTION
        append(conn, 100, 130)
        with pytest.raises(InvalidRequest, match=r"below offset 10 only.* from offset 10"):
            values(table.changes(json.loads(stored), "latest"))
        assert values(table.changes(shared, "latest")) == list(range(100, 130))
        assert values(table.changes({0: 20}, "latest")) == list(range(110, 130))  # plain numbers are what they say
    with forebay.embedded(data) as conn:  # the server from before knows its own
        append(conn, 20, 21)
        assert values(conn.table("fluss.t").changes(json.loads(stored), "latest")) == [20]


def test_a_position_of_the_restored_server_is_refused_by_the_one_from_before(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    shutil.copytree(data, tmp_path / "restored")
    with forebay.embedded(tmp_path / "restored") as conn:
        shared = position_at_end(conn)
        append(conn, 10, 11)
        stored = position_at_end(conn)
    with forebay.embedded(data) as conn:
        append(conn, 10, 12)
        with pytest.raises(InvalidRequest, match="have never had"):
            values(conn.table("fluss.t").changes(stored, "latest"))
        assert values(conn.table("fluss.t").changes(shared, "latest")) == [10, 11]


def test_an_offset_behind_the_end_of_the_log_is_refused_and_not_read_as_nothing(tmp_path: Path) -> None:
    with forebay.embedded(made(tmp_path / "data")) as conn:
        table = conn.table("fluss.t")
        for stop in ("latest", {0: 20}, "2001-01-01"):
            with pytest.raises(InvalidRequest, match="ends at offset 10"):
                table.changes({0: 30}, stop)
        assert values(table.changes({0: 10}, "latest")) == []
        assert values(table.changes({0: 9}, {0: 5})) == []


def test_a_reader_that_is_reading_notices_that_its_server_was_restored(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    with forebay.embedded(data) as conn:
        conn.create_table("fluss.quiet", {"a": "BIGINT"}, buckets=1)
        append(conn, 0, 10, "fluss.quiet")
    shutil.copytree(data, tmp_path / "copy")
    server = EmbeddedServer(data).start()
    port = int(server.bootstrap_servers.rpartition(":")[2])
    with connect(server.bootstrap_servers) as conn:
        append(conn, 10, 20)
        ahead, quiet = conn.table("fluss.t").changes(), conn.table("fluss.quiet").changes()
        assert sum(len(ahead.poll(5) or ()) for _ in range(2)) == 20
        assert len(quiet.poll(5) or ()) == 10
        server.stop()
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "copy", data)
        server = EmbeddedServer(data, coordinator_port=port).start()
        try:
            with pytest.raises(Conflict, match="out of order"):  # its writer has sent more than this server has
                append(conn, 20, 21)
            append(conn, 100, 115)
            append(conn, 100, 105, "fluss.quiet")
            read = quiet.poll(10)
            assert read is not None
            assert read["a"].to_pylist() == list(range(100, 105))
            assert quiet.position.to_json()["epoch"] == conn.admin.describe_server().log_epoch
            with pytest.raises(InvalidRequest, match="below offset 10 only"):
                ahead.poll(10)
        finally:
            server.stop()


def test_a_folder_that_is_moved_and_a_server_that_is_restarted_keep_their_epoch(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    with forebay.embedded(data) as conn:
        epoch = conn.admin.describe_server().log_epoch
        append(conn, 10, 11)
    data.rename(tmp_path / "moved")
    with forebay.embedded(tmp_path / "moved") as conn:
        assert conn.admin.describe_server().log_epoch == epoch
        assert position_at_end(conn).to_json()["epoch"] == epoch


def test_a_copy_that_takes_the_place_of_the_directory_begins_an_epoch(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    shutil.copytree(data, tmp_path / "copy")
    with forebay.embedded(data) as conn:
        epoch = conn.admin.describe_server().log_epoch
    shutil.rmtree(data)
    shutil.copytree(tmp_path / "copy", data)  # inode numbers may come again
    with forebay.embedded(data) as conn:
        assert conn.admin.describe_server().log_epoch != epoch


def test_metadata_that_are_put_back_in_place_begin_an_epoch(tmp_path: Path) -> None:
    """As rsync does, which leaves alone what has not changed."""
    data = made(tmp_path / "data")
    shutil.copytree(data, tmp_path / "copy")
    with forebay.embedded(data) as conn:
        epoch = conn.admin.describe_server().log_epoch
    shutil.copyfile(tmp_path / "copy" / "metadata.sqlite", data / "metadata.new")
    (data / "metadata.new").rename(data / "metadata.sqlite")
    with forebay.embedded(data) as conn:
        assert conn.admin.describe_server().log_epoch != epoch


def test_a_copy_gives_ids_that_the_server_from_before_does_not_give(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    shutil.copytree(data, tmp_path / "copy")
    ids = []
    for folder in (data, tmp_path / "copy"):
        with forebay.embedded(folder) as conn:
            conn.create_table("fluss.other", {"a": "BIGINT"}, buckets=1)
            with conn.transaction("app", 1) as transaction:
                transaction.append("fluss.other", [{"a": 1}])
            ids.append((conn.table("fluss.other").info.table_id, transaction.begun_id))
    assert {0, *ids[0]}.isdisjoint(ids[1])


def test_a_table_of_the_same_name_that_was_created_after_the_copy_is_another_one(tmp_path: Path) -> None:
    data = made(tmp_path / "data")
    shutil.copytree(data, tmp_path / "copy")
    with forebay.embedded(data) as conn:
        conn.create_table("fluss.late", {"a": "BIGINT"}, buckets=1)
        append(conn, 0, 5, "fluss.late")
        stored = position_at_end(conn, "fluss.late")
    with forebay.embedded(tmp_path / "copy") as conn:
        conn.create_table("fluss.late", {"a": "BIGINT"}, buckets=1)
        append(conn, 0, 9, "fluss.late")
        with pytest.raises(InvalidRequest, match="does not belong to table"):
            conn.table("fluss.late").changes(stored, "latest")


def test_snapshots_scans_and_conditions_of_commits_name_their_epoch(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with forebay.embedded(data) as conn:
        conn.create_table("fluss.kv", {"id": "BIGINT", "a": "BIGINT"}, primary_key="id", buckets=1)
        conn.table("fluss.kv").upsert([{"id": 1, "a": 0}])
    shutil.copytree(data, tmp_path / "copy")
    with forebay.embedded(data) as conn:
        kv = conn.table("fluss.kv")
        kv.upsert([{"id": 1, "a": 1}, {"id": 2, "a": 2}])
        with kv.snapshot() as snapshot:
            of_snapshot = snapshot.log_offsets
        rows = kv.scan().reader()
        rows.read_all()
        of_scan = rows.log_offsets
        assert {epoch_of(o) for o in [*of_snapshot.values(), *of_scan.values()]} == {
            conn.admin.describe_server().log_epoch
        }
    with forebay.embedded(tmp_path / "copy") as conn:
        kv = conn.table("fluss.kv")
        kv.upsert([{"id": value, "a": value} for value in range(10, 30)])
        for offsets in (of_snapshot, of_scan):
            with pytest.raises(InvalidRequest, match="below offset 1 only"):
                values(kv.changes(offsets, "latest"))
            transaction = conn.transaction().begin()
            transaction.watch("fluss.kv", offsets)
            transaction.upsert("fluss.kv", [{"id": 1, "a": 9}])
            with pytest.raises(InvalidRequest, match="below offset 1 only"):
                transaction.commit()
            transaction.abort()
        with pytest.raises(InvalidRequest, match="below offset 1 only"):
            list(kv.binlog(of_scan, "latest"))
        assert kv.lookup([1]).to_pylist() == [{"id": 1, "a": 0}]


def test_a_version_that_the_restored_server_does_not_know_is_written_again(tmp_path: Path) -> None:
    data = made(tmp_path / "data", 0)

    def run(conn: Connection, version: int) -> None:
        with conn.transaction("job", version) as transaction:
            if transaction.committed is None:
                transaction.append("fluss.t", [{"a": version}])

    with forebay.embedded(data) as conn:
        run(conn, 1)
    shutil.copytree(data, tmp_path / "copy")
    with forebay.embedded(data) as conn:
        run(conn, 2)
    with forebay.embedded(tmp_path / "copy") as conn:
        for version in (1, 2, 2, 3):
            run(conn, version)
        assert values(conn.table("fluss.t").changes("earliest", "latest")) == [1, 2, 3]


def histories(rng: random.Random, folder: Path) -> Iterator[tuple[Connection, list[int], Any]]:
    """A server that is restored from older copies of itself again and again: (connection, its rows, note)."""
    states: list[tuple[Path, list[int]]] = [(made(folder / "0", 3), [0, 1, 2])]
    value = 1000
    for number in range(1, 14):
        source, rows = rng.choice(states)
        target = folder / str(number)
        shutil.copytree(source, target)
        rows = list(rows)
        with forebay.embedded(target) as conn:
            yield conn, rows, None
            for _ in range(rng.randint(0, 2)):
                count = rng.randint(1, 4)
                append(conn, value, value + count)
                rows += range(value, value + count)
                value += count
                yield conn, rows, None
        states.append((target, rows))


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_restored_a_position_continues_exactly_or_is_refused(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    stored: list[tuple[dict[str, Any], list[int]]] = []
    accepted = refused = expected_refusals = 0
    for conn, rows, _ in histories(rng, tmp_path):
        table = conn.table("fluss.t")
        for document, before in stored:
            try:
                after = values(table.changes(document, "latest"))
            except InvalidRequest as e:
                refused += "epoch" in e.message and rows[: len(before)] != before
                expected_refusals += 1
            else:
                accepted += 1
                assert before + after == rows
        reader = table.changes("earliest", "latest")
        assert values(reader) == rows
        stored.append((json.loads(json.dumps(reader.position.to_json())), list(rows)))
    assert accepted
    assert 0 < refused == expected_refusals


def test_a_position_is_stored_as_json_with_the_epoch_of_each_bucket() -> None:
    same = LogPosition({TableBucket(7, 0): LogOffset(5, "ab"), TableBucket(7, 1, 3): LogOffset(6, "ab")})
    assert same.to_json() == {"version": 1, "table": 7, "epoch": "ab", "log": {"0": 5, "3/1": 6}}
    mixed = LogPosition({TableBucket(7, 0): LogOffset(5, "ab"), TableBucket(7, 1): LogOffset(6, "cd")})
    plain = LogPosition({TableBucket(7, 0): 5, TableBucket(7, 1): LogOffset(6, "ab")})
    for position in (same, mixed, plain, LogPosition({TableBucket(7, 0): 5})):
        again = LogPosition.from_json(json.loads(json.dumps(position.to_json())))
        assert again == position
        assert {bucket: epoch_of(offset) for bucket, offset in again.items()} == {
            bucket: epoch_of(offset) for bucket, offset in position.items()
        }
        assert pickle.loads(pickle.dumps(again)).to_json() == position.to_json()


@pytest.mark.parametrize("wrong", [{}, {"version": 1, "table": 1}, {"version": 1, "table": 1, "log": {"x": 1}}])
def test_other_values_are_no_position(wrong: dict[str, Any]) -> None:
    with pytest.raises(CorruptData, match="no position"):
        LogPosition.from_json(wrong)
