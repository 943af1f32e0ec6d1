"""The files of staged rows: whole requests in order, whatever a crash has left of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.base.errors import Conflict, CorruptData, LimitExceeded
from forebay.fs.local import LocalFileSystem
from forebay.metadata.table import TableBucket
from forebay.server.transactions import stages
from forebay.server.transactions.stages import Stage, StageFiles

ONE, TWO = TableBucket(1, 0), TableBucket(1, 1, 7)


@pytest.fixture
def files(tmp_path: Path) -> StageFiles:
    return StageFiles(LocalFileSystem(), str(tmp_path / "stages"))


def filled(files: StageFiles, requests: int = 3) -> Stage:
    stage = files.begin(5, "a")
    for number in range(requests):
        batches = [(ONE, memoryview(b"x" * (number + 1))), (TWO, memoryview(b"y" * 1000))]
        assert files.append(stage, number, batches, (0, 300)) > 1000
    return stage


def content(files: StageFiles, stage: Stage) -> list[tuple[TableBucket, tuple[int, ...], bytes]]:
    return [(each.bucket, each.target_columns, bytes(files.batch(each))) for each in files.entries(stage)]


def test_batches_come_back_in_order_with_what_they_are_for(files: StageFiles) -> None:
    stage = filled(files)
    files.finish(stage, 3)
    expected = [
        each for n in range(3) for each in ((ONE, (0, 300), b"x" * (n + 1)), (TWO, (0, 300), b"y" * 1000))
    ]  # fmt: skip
    assert content(files, stage) == expected
    again = files.stages(5)["a"]
    assert again.is_finished
    assert content(files, again) == expected
    files.remove(5, [stage])
    assert files.transactions() == []


def test_a_stage_without_rows_can_be_finished(files: StageFiles) -> None:
    stage = files.begin(5, "empty")
    files.finish(stage, 0)
    files.finish(stage, 0)
    assert content(files, files.stages(5)["empty"]) == []


def test_requests_come_in_order_and_once(files: StageFiles) -> None:
    stage = filled(files, 2)
    batch = [(ONE, memoryview(b"z"))]
    assert files.append(stage, 1, batch) == 0
    with pytest.raises(Conflict, match="request 3 of attempt 'a' cannot be staged: the attempt has 2 requests"):
        files.append(stage, 3, batch)
    with pytest.raises(Conflict, match="it has sent 3 requests, of which 2 are here"):
        files.finish(stage, 3)
    files.finish(stage, 2)
    for number in (1, 2):
        with pytest.raises(Conflict, match="has ended"):
            files.append(stage, number, batch)
    assert len(content(files, stage)) == 4


def test_of_a_file_that_was_cut_whole_requests_are_left_and_the_attempt_goes_on(
    files: StageFiles, tmp_path: Path
) -> None:
    stage = filled(files)
    files.finish(stage, 3)
    path = tmp_path / "stages" / "5" / "a.stage"
    data = path.read_bytes()
    ends = [data.index(b"y" * 1000 + data[m.end() : m.end() + 1], m.start()) for m in re.finditer(b"y{1000}", data)]
    assert len(ends) == 3
    for cut in range(0, len(data), 13):
        path.write_bytes(data[:cut])
        found = files.stages(5)["a"]
        assert not found.is_finished
        assert found.requests == sum(end + 1000 <= cut for end in ends)
        while found.requests < 3:
            files.append(found, found.requests, [(ONE, memoryview(b"new"))])
        files.finish(found, 3)
        assert len(content(files, files.stages(5)["a"])) in range(3, 7)


def test_damage_is_cut_off_before_the_end_and_told_of_afterwards(files: StageFiles, tmp_path: Path) -> None:
    stage = filled(files)
    files.finish(stage, 3)
    path = tmp_path / "stages" / "5" / "a.stage"
    data = path.read_bytes()
    end = len(data) - stages._ENTRY.size  # the mark there is not read again once the stage is known to be finished
    for position in range(0, len(data), 7):
        path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        assert not files.stages(5)["a"].is_finished
        path.write_bytes(data[:position] + bytes([data[position] ^ 4]) + data[position + 1 :])
        if 8 <= position < end:
            with pytest.raises(CorruptData, match="is damaged at position"):
                content(files, stage)
    path.write_bytes(data)
    assert len(content(files, stage)) == 6


def test_an_attempt_has_so_many_batches(files: StageFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "ENTRIES_MAX", 6)
    stage = filled(files)
    with pytest.raises(LimitExceeded, match="has staged 6 batches, and can stage 6"):
        files.append(stage, 3, [(ONE, memoryview(b"x"))])


def test_few_files_stay_open(files: StageFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_OPEN_FILES_MAX", 2)
    begun = [files.begin(5, f"{n}") for n in range(5)]
    for request in range(3):
        for stage in begun:
            files.append(stage, request, [(ONE, memoryview(b"x"))])
            assert len(files._open) <= 2
    for stage in begun:
        files.finish(stage, 3)
        assert len(content(files, stage)) == 3
    files.close_all()
    assert not files._open
