"""Of two writers that overlap, the one that commits later is newer: for reads, and after any compaction."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import Conflict
from forebay.paimon.commit.committer import Committable, FileStoreCommit
from forebay.paimon.commit.sequence_numbers import Numbering
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.table import Table
from tests.paimon.lake import live_files, new_catalog, put, rows_of, stream_of
from tests.paimon.stream.model import compact_fully, drain

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.int64())])
WRITE_ONLY = {"bucket": "1", "write-only": "true"}
LAST = {"merge-engine": "aggregation", "fields.v.aggregate-function": "last_value"}
SUM = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}
FIRST = {"merge-engine": "aggregation", "fields.v.aggregate-function": "first_value"}


def keyed(folder: Path, **options: str) -> Table:
    return new_catalog(folder).create_table("db.t", COLUMNS, primary_key=["id"], options={**WRITE_ONLY, **options})


def prepared(table: Table, rows: list[dict[str, int]], kinds: list[str] | None = None) -> list[CommitMessage]:
    with table.new_write() as writer:
        writer.write(pa.Table.from_pylist(rows, COLUMNS), kinds)
        return writer.prepare_commit()


def each(*ids: int, v: int) -> list[dict[str, int]]:
    return [{"id": i, "v": v} for i in ids]


def stable(table: Table, expected: list[tuple[int, ...]]) -> None:
    """The table has these rows, before and after compactions of level 0 and of everything."""
    assert rows_of(table) == expected
    for full in (False, True):
        table.compact(full=full)
        assert rows_of(table) == expected
        assert table.lookup([1])["v"].to_pylist() == [expected[0][1]]


@pytest.mark.parametrize("options", [{}, LAST, {"merge-engine": "partial-update"}, {"changelog-producer": "lookup"}])
@pytest.mark.parametrize("ids", [(1,), (1, 2, 3)])
def test_the_later_commit_is_newer(tmp_path: Path, options: dict[str, str], ids: tuple[int, ...]) -> None:
    table = keyed(tmp_path, **options)
    put(table, each(1, v=1))
    first, second = prepared(table, each(*ids, v=9)), prepared(table, each(2, 1, v=8))
    table.new_commit().commit(second)
    assert rows_of(table) == [(1, 8), (2, 8)]
    table.new_commit().commit(first)
    rest = [(i, 9) for i in ids[1:]] or [(2, 8)]
    stable(table, [(1, 9), *rest])


def test_the_first_commit_keeps_the_first_value(tmp_path: Path) -> None:
    table = keyed(tmp_path, **FIRST)
    first, second = prepared(table, each(1, v=9)), prepared(table, each(2, 1, v=8))
    table.new_commit().commit(second)
    table.new_commit().commit(first)
    stable(table, [(1, 8), (2, 8)])


def test_a_delete_that_is_committed_later_deletes(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    put(table, each(1, 2, v=1))
    delete, update = prepared(table, each(1, v=0), ["-D"]), prepared(table, each(3, 1, v=8))
    table.new_commit().commit(update)
    table.new_commit().commit(delete)
    assert rows_of(table) == [(2, 1), (3, 8)]
    table.compact(full=True)
    assert rows_of(table) == [(2, 1), (3, 8)]


def test_rows_that_were_compacted_in_between_are_older_too(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{"changelog-producer": "lookup"})
    first = prepared(table, each(1, v=9))
    put(table, each(2, 1, v=8))
    table.compact(full=True)
    stream = stream_of(table, scan_mode="latest", follow=False)
    assert drain(stream) == []
    table.new_commit().commit(first)
    table.compact(full=True)
    assert drain(stream) == [("-U", (1, 8)), ("+U", (1, 9))]
    assert rows_of(table) == [(1, 9), (2, 8)]


@pytest.mark.parametrize("threads", [4])
def test_threads_that_upsert_the_same_keys(tmp_path: Path, threads: int) -> None:
    table = keyed(tmp_path, **{"commit.max-retries": "100"})
    start = threading.Barrier(threads)

    def write(number: int) -> None:
        for i in range(5):
            start.wait()
            table.upsert(each(*range(number, 25), v=10 * i + number))

    workers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    before = rows_of(table)
    spans = sorted((f.min_sequence_number, f.max_sequence_number) for f in live_files(table))
    assert len(spans) == 5 * threads
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans)), "no two commits have equal numbers"
    table.compact(full=True)
    assert rows_of(table) == before


def test_a_lost_race_numbers_again_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = keyed(tmp_path, **{"changelog-producer": "input"})
    messages = prepared(table, each(1, v=9))
    others = [prepared(table, each(1, 2, v=8)), prepared(table, each(3, 1, v=7))]
    table.new_commit().commit(others.pop())
    real: Callable[..., Any] = Numbering.after

    def raced(self: Numbering, latest: Any) -> Any:
        changes = real(self, latest)
        if others:
            table.new_commit().commit(others.pop())
        return changes

    monkeypatch.setattr(Numbering, "after", raced)
    committer = table.new_commit()
    committer.commit(messages)
    assert committer.renumbered
    stable(table, [(1, 9), (2, 8), (3, 7)])
    stored = {p.name for p in Path(table.context.paths.bucket_directory(messages[0].partition, 0)).iterdir()}
    manifests = table.context.manifests
    known = {
        e.file.file_name
        for s in table.context.snapshots.snapshots()
        for e in manifests.entries([*manifests.delta_manifests(s), *manifests.changelog_manifests(s)])
    }
    assert stored == known


def test_a_refused_commit_leaves_the_files_of_its_writer(tmp_path: Path) -> None:
    table = keyed(tmp_path)
    messages = prepared(table, each(1, v=9))
    put(table, each(1, v=8))

    def refuse(_: Any) -> None:
        raise Conflict("not now")

    committer = table.new_commit()
    with pytest.raises(Conflict, match="not now"):
        committer.commit_if(refuse, Committable(1, tuple(messages)))
    directory = Path(table.context.paths.bucket_directory(messages[0].partition, 0))
    assert len(list(directory.iterdir())) == 2
    committer.commit(messages)
    stable(table, [(1, 9)])


def test_a_stream_writer_continues_with_the_numbers_of_the_table(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{"write-only": "false", "num-sorted-run.compaction-trigger": "2"})
    with table.stream_writer("s") as writer:
        for number in range(1, 7):
            writer.upsert(each(1, v=number))
            if number % 2:
                put(table, each(2, 1, v=100 + number))
            writer.commit(number)
            assert rows_of(table)[0] == (1, number)
            assert writer._committer.renumbered == bool(number % 2)
    compact_fully(table)
    assert rows_of(table) == [(1, 6), (2, 105)]


def test_files_that_must_keep_their_names_are_refused(tmp_path: Path) -> None:
    table = keyed(tmp_path, **{"commit.discard-duplicate-files": "true"})
    messages = prepared(table, each(1, v=9))
    put(table, each(1, v=8))
    with pytest.raises(Conflict, match="write the rows again"):
        table.new_commit().commit(messages)
    assert rows_of(table) == [(1, 8)]


@pytest.mark.parametrize("options", [{}, {"changelog-producer": "lookup"}, LAST])
@pytest.mark.parametrize("widths", [(1, 1), (1, 3), (3, 1)])
def test_equal_numbers_of_other_writers_are_merged_as_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], widths: tuple[int, int]
) -> None:
    """Java Paimon commits such files: the order of commits decides then, for all readers of ours and compactions."""
    table = keyed(tmp_path, **options)
    put(table, each(5, v=0))
    first = prepared(table, each(*range(1, widths[0] + 1), v=9))
    second = prepared(table, each(*range(1, widths[1] + 1), v=8))
    monkeypatch.setattr(Numbering, "after", lambda self, latest: self.changes)
    for messages in (second, first):
        FileStoreCommit(table.context, "java").commit(messages)
    before = rows_of(table)
    assert before[0] == (1, 9)
    stable(table, before)


def test_equal_numbers_of_a_compacted_and_a_new_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = keyed(tmp_path)
    first, second = prepared(table, each(1, v=9)), prepared(table, each(1, v=8))
    monkeypatch.setattr(Numbering, "after", lambda self, latest: self.changes)
    FileStoreCommit(table.context, "java").commit(second)
    table.compact(full=True)
    FileStoreCommit(table.context, "java").commit(first)
    assert sorted(f.level for f in live_files(table)) == [0, 5]
    stable(table, [(1, 9)])


@pytest.mark.parametrize("producer", ["lookup", "full-compaction"])
def test_a_commit_whose_own_compaction_conflicts_has_its_rows_once(tmp_path: Path, producer: str) -> None:
    """Who tries again after `Conflict` would add them twice."""
    table = keyed(tmp_path, **{**SUM, "write-only": "false", "changelog-producer": producer})
    put(table, each(1, v=1))
    first, second = prepared(table, each(1, v=10)), prepared(table, each(1, v=100))
    for messages in (second, first):
        assert table.new_commit().commit(messages)
    stable(table, [(1, 111)])
