"""The service's exchange with the cluster, and parts of a round: without a server, with a clock of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import Conflict, ForebayError, InvalidRequest, NotFound, Unavailable
from forebay.client.admin.lake import Heartbeat, TieringDone, TieringTable
from forebay.lake.offsets import BucketOffsets
from forebay.lake.tiering import OFFSETS_PROPERTY, TABLE_PROPERTY, CommittedLakeSnapshot
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from forebay.tiering import service as module
from forebay.tiering.base import _offsets_path
from forebay.tiering.control import RoundControl
from forebay.tiering.report import RoundReport
from forebay.tiering.service import TieringService
from forebay.tiering.splits import SplitResult
from forebay.tiering.status import ServiceStatus, TableStatus
from tests.patience import PATIENCE, until


def table(number: int) -> TieringTable:
    return TieringTable(number, TablePath("d", f"t{number}"), 1, number)


class Cluster:
    """Answers heartbeats with what the test has put into `answers`, and notes what it was told."""

    def __init__(self) -> None:
        self.answers: list[Heartbeat | Exception] = []
        self.told: list[tuple[list[int], list[int], list[int], bool]] = []

    def heartbeat(
        self, working: Any = (), finished: Any = (), failed: Any = (), *, request: bool = False, **_: float
    ) -> Heartbeat:
        self.told.append((
            sorted(each.table_id for each in working),
            sorted(each.table.table_id for each in finished),
            sorted(each.table_id for each in failed),
            request,
        ))  # fmt: skip
        answer = self.answers.pop(0) if self.answers else Heartbeat(1)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Rounds:
    """Stands for `run_round`: a round lasts until the test ends it, or until it is cancelled."""

    def __init__(self) -> None:
        self.controls: dict[int, RoundControl] = {}
        self._ends: dict[int, RoundReport | BaseException] = {}
        self._changed = threading.Condition()

    def end(self, number: int, outcome: RoundReport | BaseException | None = None) -> None:
        with self._changed:
            self._ends[number] = outcome or RoundReport(table(number).path, number, rows=3, read_bytes=10)
            self._changed.notify_all()

    def __call__(self, _connection: object, job: TieringTable, _runner: object, control: RoundControl,
                 *_: object) -> RoundReport:  # fmt: skip
        def cancelled() -> None:
            with self._changed:
                self._changed.notify_all()

        control.when_cancelled(cancelled)
        with self._changed:
            self.controls[job.table_id] = control
            self._changed.notify_all()
            self._changed.wait_for(lambda: job.table_id in self._ends or control._error is not None, PATIENCE)
        control.check()
        outcome = self._ends.pop(job.table_id)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Rounds:
    rounds = Rounds()
    monkeypatch.setattr(module, "run_round", rounds)
    return rounds


Service = Callable[..., tuple[TieringService, Cluster]]


@pytest.fixture
def service(rounds: Rounds) -> Iterator[Service]:
    made: list[TieringService] = []

    def make(clock: ManualClock | None = None, **options: Any) -> tuple[TieringService, Cluster]:
        connection = cast(Any, SimpleNamespace(cluster=SimpleNamespace(tracing=None), closed=False))
        service, cluster = TieringService(connection, clock=clock or ManualClock(), **options), Cluster()
        service._tiering = cast(Any, cluster)
        made.append(service)
        return service, cluster

    yield make
    for each in made:
        each.stop(now=True)


def phases(service: TieringService) -> dict[str, str]:
    return {str(status.path): status.phase for status in service.status().tables}


# ---- heartbeats -----------------------------------------------------------------------------------------------------


def test_tables_are_requested_while_there_is_room_and_reported_once_when_they_are_done(
    service: Service, rounds: Rounds
) -> None:
    tiering, cluster = service(tables_max=2)
    cluster.answers = [Heartbeat(1, table(1)), Heartbeat(1, table(2))]
    assert tiering._heartbeat()
    assert tiering._heartbeat()
    assert not tiering._heartbeat()
    assert cluster.told == [([], [], [], True), ([1], [], [], True), ([1, 2], [], [], False)]
    until(lambda: set(rounds.controls) == {1, 2})
    rounds.end(1)
    until(lambda: phases(tiering)["d.t1"] == "waiting")
    tiering._heartbeat()
    tiering._heartbeat()
    assert cluster.told[3:] == [([2], [1], [], True), ([2], [], [], True)]
    status = tiering.status()
    assert (status.rounds, status.failures, status.rows, status.read_bytes) == (1, 0, 3, 10)


def test_a_report_that_does_not_get_through_is_repeated(service: Service, rounds: Rounds) -> None:
    tiering, cluster = service()
    cluster.answers = [Heartbeat(1, table(1)), Unavailable("away"), Unavailable("still away")]
    tiering._heartbeat()
    rounds.end(1)
    until(lambda: phases(tiering)["d.t1"] == "waiting")
    for text in ("away", "still away"):
        assert not tiering._heartbeat()
        assert tiering.status().cluster_error == text
        assert f"the cluster does not respond: {text}" in tiering.status().title
    tiering._heartbeat()
    assert tiering.status().cluster_error is None
    assert [told[1] for told in cluster.told[1:]] == [[1], [1], [1]]


def test_a_table_that_failed_is_kept_for_a_pause_and_then_given_back(service: Service, rounds: Rounds) -> None:
    clock = ManualClock()
    tiering, cluster = service(clock, tables_max=1)
    for failure, pause in ((1, 1.0), (2, 2.0), (3, 4.0)):
        cluster.answers = [Heartbeat(1, table(1))]
        assert tiering._heartbeat()
        rounds.end(1, ValueError("broken") if failure == 2 else NotFound("broken"))
        until(lambda failure=failure: tiering.status().failures == failure)  # type: ignore[misc]
        assert phases(tiering) == {"d.t1": "pausing"}
        assert tiering.status().tables[0].last_error == "broken"
        clock.advance(pause - 0.001)
        tiering._heartbeat()
        assert cluster.told[-1] == ([1], [], [], True)  # it holds no place
        clock.advance(0.001)
        tiering._heartbeat()
        assert cluster.told[-1] == ([], [], [1], True)
        tiering._heartbeat()
        assert cluster.told[-1] == ([], [], [], True)


def test_many_broken_tables_do_not_take_in_everything(service: Service, rounds: Rounds) -> None:
    tiering, cluster = service(tables_max=1)
    for number in range(16):
        cluster.answers = [Heartbeat(1, table(number))]
        assert tiering._heartbeat()
        assert cluster.told[-1][3]
        rounds.end(number, NotFound("broken"))
        until(lambda number=number: tiering.status().failures == number + 1)  # type: ignore[misc]
    tiering._heartbeat()
    assert cluster.told[-1] == (list(range(16)), [], [], False)


def test_a_table_that_the_cluster_has_taken_away_is_given_up_and_not_reported(service: Service, rounds: Rounds) -> None:
    tiering, cluster = service()
    cluster.answers = [Heartbeat(1, table(1)), Heartbeat(1, table(2)), Heartbeat(2, None, {1: NotFound("dropped")})]
    for _ in range(3):
        tiering._heartbeat()
    until(lambda: phases(tiering)["d.t1"] == "waiting")
    assert tiering.status().tables[0].last_error == "dropped"
    tiering._heartbeat()
    assert cluster.told[-1] == ([2], [], [], True)
    # What is known no more may be named, too.
    cluster.answers = [Heartbeat(2, None, {77: NotFound("unknown")})]
    tiering._heartbeat()
    assert phases(tiering)["d.t2"] == "planning"


def test_a_table_that_is_handed_out_again_ends_the_older_round(service: Service, rounds: Rounds) -> None:
    tiering, cluster = service()
    cluster.answers = [Heartbeat(1, table(1)), Heartbeat(2, table(1))]
    tiering._heartbeat()
    until(lambda: 1 in rounds.controls)
    older = rounds.controls[1]
    tiering._heartbeat()
    with pytest.raises(Unavailable, match="reassigned the table"):
        older.check()
    until(lambda: rounds.controls[1] is not older)
    rounds.controls[1].check()
    rounds.end(1)
    until(lambda: tiering.status().rounds == 1)


def test_rounds_are_cut_once_the_service_stops_and_it_ends_without_the_cluster(
    service: Service, rounds: Rounds
) -> None:
    tiering, cluster = service(poll_seconds=0.001)
    cluster.answers = [Heartbeat(1, table(1))]
    tiering.wait(0)  # not started: nothing to wait for
    with tiering:
        until(lambda: 1 in rounds.controls)
        assert not rounds.controls[1].should_cut
        tiering.wait(0.001)
        assert tiering.running
        with pytest.raises(InvalidRequest, match="started before"):
            tiering.start()
        tiering._stopping.set()
        tiering._begin(table(2))
        until(lambda: 2 in rounds.controls)
        assert rounds.controls[2].should_cut
        assert not rounds.controls[1].should_cut
        cluster.answers = [Unavailable("away")] * 100_000
        rounds.end(1)
        time.sleep(0.01)
        assert tiering.running  # the other round is not over yet
        rounds.end(2)
        tiering.wait(PATIENCE)
        assert not tiering.running
    assert rounds.controls[1].should_cut


def test_of_too_many_tables_the_one_is_forgotten_whose_last_round_began_the_longest_ago(
    service: Service, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TABLES_REMEMBERED", 2)
    tiering, cluster = service()

    def run(number: int, *, to_its_end: bool = True) -> None:
        cluster.answers = [Heartbeat(1, table(number))]
        tiering._heartbeat()
        if to_its_end:
            rounds.end(number)
            until(lambda: phases(tiering)[f"d.t{number}"] == "waiting")
            tiering._heartbeat()

    for number in (1, 2, 1, 3):
        run(number)
    assert sorted(phases(tiering)) == ["d.t1", "d.t3"]
    run(1, to_its_end=False)
    run(4, to_its_end=False)
    assert sorted(phases(tiering)) == ["d.t1", "d.t4"]
    run(5, to_its_end=False)  # all others have a round under way
    assert sorted(phases(tiering)) == ["d.t1", "d.t4", "d.t5"]


def test_what_follows_a_round_may_fail_and_the_round_counts(service: Service, rounds: Rounds) -> None:
    seen: list[RoundReport] = []

    def follow(report: RoundReport) -> None:
        seen.append(report)
        raise ValueError("not ours")

    tiering, cluster = service(on_round=follow)
    cluster.answers = [Heartbeat(1, table(1))]
    tiering._heartbeat()
    rounds.end(1, RoundReport(table(1).path, 1, maintenance_error="no compaction"))
    until(lambda: bool(seen))
    until(lambda: tiering.status().rounds == 1)
    assert tiering.status().tables[0].last_error == "no compaction"
    job = tiering._jobs[1]
    assert (job.done, job.running) == (TieringDone(table(1)), False)


def test_a_round_asks_the_cluster_whether_the_table_is_still_its_own_and_shows_how_far_it_is(
    service: Service, rounds: Rounds
) -> None:
    clock = ManualClock()
    tiering, cluster = service(clock)
    cluster.answers = [Heartbeat(1, table(1))]
    tiering._heartbeat()
    until(lambda: 1 in rounds.controls)
    control = rounds.controls[1]
    control.check_still_mine()
    assert cluster.told[-1] == ([1], [], [], False)
    cluster.answers = [Heartbeat(1, None, {1: NotFound("another worker has it"), 2: NotFound("of no interest")})]
    with pytest.raises(NotFound, match="another worker has it"):
        control.check_still_mine()
    control.on_phase("writing")
    control.on_progress(2, 5)
    assert tiering.status().tables[0].cells()[1:3] == ("writing", "2/5")
    control.begin(5_000)
    clock.advance(4.999)
    assert not control.should_cut
    clock.advance(0.001)
    assert control.should_cut


# ---- small parts ----------------------------------------------------------------------------------------------------


def test_the_first_reason_to_give_a_round_up_counts_and_all_who_listen_hear_of_it_once() -> None:
    control, heard = RoundControl(), []
    control.when_cancelled(lambda: heard.append("early"))
    control.check()
    control.check_still_mine()
    control.cancel(Unavailable("first"))
    control.cancel(Unavailable("second"))
    control.when_cancelled(lambda: heard.append("late"))
    assert heard == ["early", "late"]
    for check in (control.check, control.check_still_mine):
        with pytest.raises(ForebayError, match="first"):
            check()


def test_a_round_asks_whether_its_table_is_still_its_own() -> None:
    def lost() -> None:
        raise Conflict("another worker has it")

    with pytest.raises(Conflict, match="another worker has it"):
        RoundControl(check_still_mine=lost).check_still_mine()
    RoundControl().check_still_mine()


def test_a_round_with_a_limit_is_cut_when_its_time_is_up() -> None:
    clock = ManualClock()
    control = RoundControl(clock=clock, limit_to_freshness=True)
    assert not control.should_cut
    control.begin(10_000)
    clock.advance(9.999)
    assert not control.should_cut
    clock.advance(0.001)
    assert control.should_cut
    control.check()


def test_a_round_without_a_limit_is_cut_only_by_hand() -> None:
    clock = ManualClock()
    control = RoundControl(clock=clock)
    control.begin(1)
    clock.advance(10)
    assert not control.should_cut
    control.cut()
    assert control.should_cut
    control.check()


@pytest.mark.parametrize(
    ("newest", "finished", "behind", "lag"),
    [
        (3_000, 4_500, 2, 1.5), (3_000, 4_500, 0, 0.0), (3_000, 4_500, None, None), (None, 4_500, 2, None),
        (3_000, None, 2, None), (6_000, 4_500, 2, 0.0),
    ],
)  # fmt: skip
def test_a_report_tells_how_far_it_is_behind(
    newest: int | None, finished: int | None, behind: int | None, lag: float | None
) -> None:
    report = RoundReport(TablePath("d", "t"), 1, newest_ms=newest, finished_ms=finished, lag_records=behind)
    assert report.lag_seconds == lag


def test_a_report_adds_up_what_became_of_the_splits() -> None:
    info = TableInfo(TablePath("d", "t"), 7, 1, TableDescriptor(Schema((Column("a", types.int_()),)), bucket_count=1))
    bucket = TableBucket(7, 0)
    results = [
        SplitResult(bucket, 5, "files", 10, 100, 3000, 4000),
        SplitResult(bucket, 5, None),
        SplitResult(bucket, None),
        SplitResult(bucket, 9, "files", 2, 50, 2000, 3500, was_cut=True),
    ]
    expected = RoundReport(
        info.path, 7, splits=4, rows=12, read_bytes=150, oldest_ms=2000, newest_ms=4000, was_cut=True,
        dropped_buckets=1, lost_records=6,
    )  # fmt: skip
    assert RoundReport.of(info, results, 6) == expected
    assert RoundReport.of(info, results[1:2]) == RoundReport(info.path, 7, splits=1)


def test_a_line_of_a_report_says_what_was_done_and_what_is_left() -> None:
    path = TablePath("d", "t")
    assert str(RoundReport(path, 1)).startswith("d.t: nothing new, ")
    told = str(RoundReport(path, 1, snapshot_id=4, rows=12_000, lag_records=1_500))
    assert "12,000 rows in lake snapshot 4" in told
    assert told.endswith(", 1,500 records behind")
    assert "behind" not in str(RoundReport(path, 1))


def test_a_status_adds_up_its_tables_and_leaves_out_what_is_not_known() -> None:
    path = TablePath("d", "t")
    report = RoundReport(path, 1, newest_ms=1_000, finished_ms=3_000, lag_records=1_234)
    one = TableStatus(path, "waiting", 3, 4, rounds=2, rows=1_000, read_bytes=1_500_000, last_report=report)
    two = TableStatus(path, "pausing", rounds=1, failures=2, rows=5, read_bytes=1, last_error="broken")
    assert one.cells() == ("d.t", "waiting", "", "2", "1,000", "1.5", "1,234", "2.0", "")
    assert two.cells() == ("d.t", "pausing", "", "1 (2 failed)", "5", "0.0", "", "", "broken")
    assert replace(one, phase="writing").cells()[2] == "3/4"
    status = ServiceStatus(False, (one, two))
    assert (status.rounds, status.failures, status.rows, status.read_bytes) == (3, 2, 1_005, 1_500_001)
    assert status.title == "stopped, 3 rounds, 1,005 rows"
    assert ServiceStatus(True, (), "gone").title == "running, 0 rounds, 0 rows, the cluster does not respond: gone"


def test_a_lake_snapshot_of_another_or_unknown_table_is_not_continued() -> None:
    schema = Schema.of([Column("a", types.int_())])
    info = TableInfo(TablePath("d", "t"), 7, 1, TableDescriptor(schema, bucket_count=1), created_ms=5)
    prepared: list[object] = []

    def prepare(_info: TableInfo, offsets: object) -> str:
        prepared.append(offsets)
        return "written anew"

    def path(**properties: str) -> str:
        held = {name.replace("_", "-"): value for name, value in properties.items()}
        snapshot = CommittedLakeSnapshot(4, held)
        return _offsets_path(cast(Any, SimpleNamespace(prepare=prepare)), info, snapshot)

    assert path(fluss_offsets="a/path") == "a/path"
    with pytest.raises(
        Conflict, match=r"\(table id 7\) holds snapshot 4 of a writer that recorded no log offsets; drop"
    ):
        path()
    with pytest.raises(Conflict, match=r"holds snapshot 4 of table 8; drop the lake table"):
        _offsets_path(cast(Any, None), info, CommittedLakeSnapshot(4, {OFFSETS_PROPERTY: "p", TABLE_PROPERTY: "8"}))
    assert prepared == []
    offsets = BucketOffsets(7, {TableBucket(7, 0): 3})
    assert path(fluss_offsets=" " + offsets.to_json().decode()) == "written anew"
    assert prepared == [offsets.offsets]
