"""Which segments of a bucket in the store have an offset."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.fs.local import LocalFileSystem
from forebay.log.config import LogConfig
from forebay.log.remote import RemoteLogSegment
from forebay.server.remote_log.remote_log import RemoteLogTablet, SegmentReaders
from forebay.store.directory import DirectoryStore

SEGMENTS = [RemoteLogSegment(str(n), 10 * n, 10 * n + 10, n, 1) for n in range(1, 1001)]


def log_of(tmp_path: Path, segments: list[RemoteLogSegment]) -> RemoteLogTablet:
    store = DirectoryStore(LocalFileSystem(), str(tmp_path))
    return RemoteLogTablet("log/bucket", segments, SegmentReaders(store, LogConfig(), 1 << 20))


@pytest.mark.parametrize(
    ("offset", "first"), [(9, None), (10, 0), (19, 0), (20, 1), (5005, 499), (10_009, 999), (10_010, None)]
)
def test_the_segment_that_has_an_offset_is_the_first(tmp_path: Path, offset: int, first: int | None) -> None:
    expected = [] if first is None else SEGMENTS[first : first + 3]
    log = log_of(tmp_path, SEGMENTS)
    assert list(log.segments_from(offset, 3)) == expected
    assert log.readable_bytes(offset) == len(expected[:1])


def test_without_segments_there_is_none(tmp_path: Path) -> None:
    assert list(log_of(tmp_path, []).segments_from(0, 1)) == []


def test_few_segments_of_a_long_list_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch looks for its offset more than once, and a log may have thousands of segments in the store."""
    log = log_of(tmp_path, SEGMENTS)
    looks: list[int] = []
    monkeypatch.setattr(RemoteLogSegment, "start_offset", property(lambda each: looks.append(each[1]) or each[1]))
    assert [each.segment_id for each in log.segments_from(5005, 1)] == ["500"]
    assert 0 < len(looks) <= 10
