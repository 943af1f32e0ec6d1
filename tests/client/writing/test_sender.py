"""The sender's handling of batches whose leader cannot be found, without a server."""

from __future__ import annotations

from typing import Any, cast

import pytest

from forebay.base.ambient import ManualClock, SeededIds
from forebay.base.errors import AccessDenied, ErrorCode, ForebayError, NotFound, Unavailable
from forebay.client.cluster.cluster import ClusterView
from forebay.client.counters import ClientCounters
from forebay.client.settings import make_settings
from forebay.client.writing.accumulator import Batch, WriteTarget, WriteTracker
from forebay.client.writing.sender import Sender
from forebay.metadata.table import TableBucket, TableInfo, TablePath

PATH = TablePath("d", "t")
GONE = NotFound("the partition is gone", ErrorCode.PARTITION_NOT_EXISTS)


class Cluster:
    """A cluster that knows no leaders, and answers questions with the errors of a test."""

    def __init__(self, refreshing: ForebayError, looking_up: ForebayError, *, idempotent: bool = False) -> None:
        self.settings = make_settings("example.test:1", options={"writer_enable_idempotence": idempotent})
        self.clock, self.ids = ManualClock(), SeededIds(1)
        self.request_seconds = 30.0
        self.counters = ClientCounters()
        self.view = ClusterView()
        self.refreshing, self.looking_up = refreshing, looking_up
        self.asked = 0
        self.forgotten: list[TablePath] = []

    def refresh(self, paths: list[TablePath], partition_ids: dict[TablePath, set[int]] | None) -> ClusterView:
        assert (paths, partition_ids) == ([PATH], {PATH: {5}})
        self.asked += 1
        raise self.refreshing

    def retrying(self, attempt: object) -> int:
        raise self.looking_up

    def forget_table(self, path: TablePath) -> None:
        self.forgotten.append(path)

    def table_info(self, path: TablePath) -> TableInfo:
        raise self.looking_up


def waiting(cluster: Cluster) -> tuple[Sender, WriteTracker]:
    """A sender with one batch for a partition, and what is told of it."""
    sender, tracker = Sender(cast(Any, cluster)), WriteTracker()
    target = WriteTarget(PATH, 1, is_kv=False)
    sender.accumulator.add(Batch(target, TableBucket(1, 0, 5), bytearray(b"x"), 3, tracker, "p"))
    return sender, tracker


def test_rows_of_a_partition_that_is_gone_fail_if_their_table_is_gone_too() -> None:
    cluster = Cluster(GONE, NotFound("the table is gone", ErrorCode.TABLE_NOT_EXIST))
    sender, tracker = waiting(cluster)
    sender._turn()
    assert isinstance(tracker.error, NotFound)
    assert tracker.error.message == "the table is gone (3 rows were not written; 0 were written)"
    assert (sender.accumulator.unfinished, cluster.forgotten) == (0, [PATH])


@pytest.mark.parametrize("refreshing", [NotFound("the table is gone", ErrorCode.TABLE_NOT_EXIST), GONE])
def test_rows_of_a_table_that_has_got_the_name_of_one_that_is_gone_do_not_fail_with_it(
    refreshing: ForebayError,
) -> None:
    cluster = Cluster(refreshing, NotFound("the table is gone", ErrorCode.TABLE_NOT_EXIST))
    sender, tracker = waiting(cluster)
    later = WriteTracker()
    batch = Batch(WriteTarget(PATH, 2, is_kv=False), TableBucket(2, 0, 6), bytearray(b"x"), 1, later, "p")
    with pytest.MonkeyPatch.context() as patch:  # another thread creates the table again after it was asked for
        patch.setattr(cluster, "forget_table", lambda _: sender.accumulator.add(batch))
        sender._turn()
    assert isinstance(tracker.error, NotFound)
    assert (later.error, sender.accumulator.unfinished) == (None, 1)


@pytest.mark.parametrize("refreshing", [GONE, Unavailable("away")])
def test_rows_wait_while_it_cannot_be_asked_what_became_of_their_table(refreshing: ForebayError) -> None:
    cluster = Cluster(refreshing, Unavailable("away"))
    sender, tracker = waiting(cluster)
    sender._turn()
    assert (tracker.error, sender.accumulator.unfinished, cluster.asked) == (None, 1, 1)
    cluster.clock.advance(1)
    sender._turn()
    assert cluster.asked == 2
    cluster.refreshing = NotFound("the table is gone", ErrorCode.TABLE_NOT_EXIST)
    cluster.clock.advance(1)
    sender._turn()
    assert isinstance(tracker.error, NotFound)


def test_rows_that_have_waited_long_for_a_leader_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(Unavailable("nobody answers"), Unavailable("away"))
    sender, _ = waiting(cluster)
    sender._turn()
    assert not caplog.records
    for _ in range(5):
        cluster.clock.advance(1.5)
        sender._turn()
    (record,) = caplog.records  # at 3 s; the next one is due at 12
    assert "rows for table d.t have waited for 3 s to be written, and are retried: nobody" in record.getMessage()


def test_rows_whose_bucket_gets_no_leader_fail_with_that_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(GONE, GONE)
    monkeypatch.setattr(cluster, "refresh", lambda *_, **__: cluster.view)
    sender, tracker = waiting(cluster)
    sender._turn()
    assert tracker.error is None
    cluster.clock.advance(sender.cluster.settings["client.writer.delivery-timeout"])
    sender._turn()
    assert isinstance(tracker.error, Unavailable)
    assert "The last error was: bucket 0 of d.t has no leader at the moment" in tracker.error.message


@pytest.mark.parametrize(
    ("error", "told", "pauses"),
    [
        (Unavailable("nobody answers"), None, True),
        (NotFound("no such thing"), "no such thing", True),
        (ZeroDivisionError("a bug"), "the sender failed: ZeroDivisionError: a bug", False),
    ],
)
def test_the_sender_continues_after_an_error_and_asks_a_cluster_that_is_away_with_pauses(
    error: Exception, told: str | None, pauses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(GONE, GONE)
    sender, tracker = waiting(cluster)
    turns: list[float] = []

    def turn() -> None:
        turns.append(cluster.clock.monotonic())
        if len(turns) > 1:
            sender.stop()
        raise error

    monkeypatch.setattr(sender, "_turn", turn)
    monkeypatch.setattr(sender, "stop", lambda: setattr(sender, "_stopping", True))
    sender._run()
    assert (turns[1] > turns[0]) is pauses
    assert (None if tracker.error is None else tracker.error.message.split(" (")[0]) == told


def test_rows_for_which_the_server_gives_out_no_writer_id_fail_with_its_reason() -> None:
    sender, tracker = waiting(
        Cluster(GONE, AccessDenied("not you", ErrorCode.AUTHORIZATION_EXCEPTION), idempotent=True)
    )
    sender._get_writer_id()
    error = tracker.error
    assert isinstance(error, AccessDenied)
    assert error.message.startswith("the server assigned no writer id: not you (3 rows were not written")
    assert (error.code, sender.accumulator.unfinished) == (ErrorCode.AUTHORIZATION_EXCEPTION, 0)
