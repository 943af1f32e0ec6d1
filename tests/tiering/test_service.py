"""The service: table assignment, several tables at once, broken and slow ones, restarts, stopping."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import InvalidRequest, NotFound
from forebay.client.admin.lake import Heartbeat
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.metadata.table import TablePath
from forebay.testing.memory_lake import MemoryLakeStorage
from forebay.tiering import service as module
from forebay.tiering.control import RoundControl
from forebay.tiering.now import lake_tables, tier_now
from forebay.tiering.report import RoundReport
from forebay.tiering.runner import OnResult, ThreadRunner
from forebay.tiering.service import TieringService
from forebay.tiering.splits import SplitTask
from forebay.tiering.status import TableStatus
from forebay.tiering.steps import RoundStep
from tests.patience import PATIENCE, until
from tests.tiering.running import LakeCluster, lake_cluster, paimon_storage

SCHEMA = {"k": pa.int32(), "v": pa.string()}
OFTEN = {"table.datalake.freshness": "20 ms"}


def fill(table: Table, *keys: int) -> None:
    data = [{"k": k, "v": f"value {k}"} for k in keys]
    (table.upsert if table.has_primary_key else table.append)(data)


def is_complete(cluster: LakeCluster, table: Table) -> bool:
    """Whether the lake has the whole log."""
    admin = cluster.connection.admin
    try:
        known = admin.lake_snapshot(table.path, readable=True).log_offsets
    except NotFound:
        return False
    return all(known.get(bucket, 0) == end for bucket, end in admin.list_offsets(table.path, "latest").items())


def status_of(service: TieringService, table: Table) -> TableStatus:
    return next(status for status in service.status().tables if status.path == table.path)


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_FIRST_SECONDS", 0.05)


def service_of(cluster: LakeCluster, **options: object) -> TieringService:
    options.setdefault("poll_seconds", 0.02)
    return TieringService(cluster.connection, lake=cluster.lake, **options)  # type: ignore[arg-type]


def test_tables_are_tiered_while_they_are_written_to(any_lake: LakeCluster) -> None:
    log = any_lake.create("log", SCHEMA, options=OFTEN)
    keyed = any_lake.create("keyed", SCHEMA, primary_key=["k"], options=OFTEN)
    reports: list[RoundReport] = []
    with service_of(any_lake, on_round=reports.append) as service:
        for i in range(4):
            fill(log, i, i + 1)
            fill(keyed, i, i + 1)
            time.sleep(0.05)
        until(lambda: is_complete(any_lake, log) and is_complete(any_lake, keyed), "both lakes are complete")
        until(lambda: {r.path for r in reports if r.rows} == {log.path, keyed.path}, "both were reported")
        status = service.status()
        assert status.running
        assert status.failures == 0
        assert status_of(service, log).rows <= 8
    assert len(any_lake.check_complete(log)) == 8
    assert len(any_lake.check_complete(keyed)) == 5
    assert not service.running
    assert sum(report.rows for report in reports if report.path == log.path) == 8


def test_a_broken_lake_table_fails_alone_and_is_tiered_when_it_is_mended(
    memory_lake: LakeCluster, short_pauses: None
) -> None:
    tables = [memory_lake.create(f"t{i}", SCHEMA, options=OFTEN) for i in range(3)]
    broken, *others = tables
    for table in tables:
        fill(table, 1, 2)
    storage = memory_lake.storage
    assert isinstance(storage, MemoryLakeStorage)
    hidden = storage.lake.tables.pop(broken.path)
    with service_of(memory_lake, tables_max=1) as service:
        until(lambda: all(is_complete(memory_lake, table) for table in others), "the others are tiered")
        until(lambda: status_of(service, broken).failures >= 2, "the broken one is tried again")
        assert "no table" in (status_of(service, broken).last_error or "")
        storage.lake.tables[broken.path] = hidden
        until(lambda: is_complete(memory_lake, broken), "the mended one is tiered")
    assert len(memory_lake.check_complete(broken)) == 2


def test_pauses_after_failures_double_and_are_reset_by_a_round_that_succeeds(memory_lake: LakeCluster) -> None:
    table = memory_lake.create("t", SCHEMA, options=OFTEN)
    fill(table, 1)
    storage = memory_lake.storage
    assert isinstance(storage, MemoryLakeStorage)
    tables, clock = storage.lake.tables, ManualClock()
    beats: list[int] = []
    service = service_of(memory_lake, clock=clock)
    plain = service._tiering.heartbeat

    def counted(*arguments: Any, **options: Any) -> Heartbeat:
        beats.append(1)
        return plain(*arguments, **options)

    service._tiering.heartbeat = counted  # type: ignore[method-assign]

    def has_failed(times: int) -> bool:
        return bool(service.status().tables) and status_of(service, table).failures == times

    def pauses_after(failure: int, seconds: int) -> None:
        """The service sees that the pause is not over, again and again; then it is over."""
        until(lambda: has_failed(failure), f"failure {failure}")
        clock.advance(seconds - 0.5)
        seen = len(beats)
        until(lambda: len(beats) > seen + 20, "heartbeats are sent")
        assert has_failed(failure)
        clock.advance(0.5)

    hidden = tables.pop(table.path)
    with service:
        for failure, seconds in ((1, 1), (2, 2), (3, 4)):
            pauses_after(failure, seconds)
        until(lambda: has_failed(4), "failure 4")
        tables[table.path] = hidden
        clock.advance(8)
        until(lambda: is_complete(memory_lake, table), "the mended table is tiered")
        until(lambda: status_of(service, table).rounds > 0, "the round is counted")
        tables.pop(table.path)
        fill(table, 2)  # a table without news is not handed out
        pauses_after(5, 1)
        until(lambda: has_failed(6), "failure 6")
        tables[table.path] = hidden


class _Holding(ThreadRunner):
    """A runner that does not let go of the splits of one table."""

    def __init__(self, held: TablePath) -> None:
        super().__init__()
        self._held = held
        self.let_go = threading.Event()

    def run(
        self, tasks: Sequence[SplitTask], connection: Connection, control: RoundControl, on_result: OnResult
    ) -> None:
        if tasks[0].info.path == self._held:
            control.when_cancelled(self.let_go.set)
            assert self.let_go.wait(PATIENCE)
            control.check()
        super().run(tasks, connection, control, on_result)


def test_a_slow_table_holds_back_no_other_and_keeps_its_place(memory_lake: LakeCluster) -> None:
    slow, quick = (memory_lake.create(name, SCHEMA, options=OFTEN) for name in ("slow", "quick"))
    fill(slow, 1)
    fill(quick, 1)
    runner = _Holding(slow.path)
    with service_of(memory_lake, runner=runner, tables_max=2) as service:
        until(lambda: is_complete(memory_lake, quick), "the quick table is tiered")
        for key in (2, 3, 4):
            fill(quick, key)
            until(lambda: is_complete(memory_lake, quick), "it is tiered again and again")
        assert status_of(service, slow).phase == "writing"
        runner.let_go.set()
        until(lambda: is_complete(memory_lake, slow), "the slow table is tiered")
        assert service.status().failures == 0
    assert len(memory_lake.check_complete(slow)) == 1


def test_a_table_that_is_dropped_during_its_round_is_given_up_and_nothing_is_committed(
    memory_lake: LakeCluster, short_pauses: None
) -> None:
    table = memory_lake.create("t", SCHEMA, options=OFTEN)
    fill(table, 1)
    runner = _Holding(table.path)
    storage = memory_lake.storage
    assert isinstance(storage, MemoryLakeStorage)
    with service_of(memory_lake, runner=runner) as service:
        until(lambda: bool(service.status().tables) and status_of(service, table).phase == "writing", "it is written")
        memory_lake.connection.drop_table(table.path)
        until(lambda: status_of(service, table).failures == 1, "the round is given up")
        assert runner.let_go.is_set()
        assert storage.table(table.path).snapshots == []
        assert status_of(service, table).phase == "waiting"


def test_stopping_commits_what_was_read_and_stopping_now_does_not(memory_lake: LakeCluster) -> None:
    table = memory_lake.create("t", SCHEMA, options=OFTEN, buckets=1)
    fill(table, 1)
    runner = _Holding(table.path)
    service = service_of(memory_lake, runner=runner).start()
    until(lambda: bool(service.status().tables) and status_of(service, table).phase == "writing", "it is written")
    stopping = threading.Thread(target=service.stop)
    stopping.start()
    runner.let_go.set()
    stopping.join(PATIENCE)
    assert (service.status().rounds, service.running) == (1, False)
    assert is_complete(memory_lake, table)

    fill(table, 2)
    second = service_of(memory_lake, runner=_Holding(table.path)).start()
    until(lambda: bool(second.status().tables) and status_of(second, table).phase == "writing", "it is written")
    second.stop(now=True)
    second.stop()
    assert (second.status().rounds, second.status().failures) == (0, 1)
    assert not is_complete(memory_lake, table)
    with pytest.raises(InvalidRequest, match="started before"):
        second.start()


def test_a_table_that_is_assigned_while_a_service_is_stopped_now_is_abandoned_too(
    memory_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = memory_lake.create("t", SCHEMA, options=OFTEN, buckets=1)
    fill(table, 1)
    begin, stopping = TieringService._begin, list[threading.Thread]()

    def late(self: TieringService, assigned: Any) -> None:
        stopping.append(threading.Thread(target=self.stop, kwargs={"now": True}))
        stopping[0].start()
        until(self._news.is_set, "the rounds of then are abandoned")
        begin(self, assigned)

    monkeypatch.setattr(TieringService, "_begin", late)
    service = service_of(memory_lake).start()
    service.wait(PATIENCE)
    stopping[0].join(PATIENCE)
    assert (service.status().rounds, service.status().failures) == (0, 1)
    assert not is_complete(memory_lake, table)


def test_a_service_that_runs_is_stopped_at_the_end_of_a_with_block(memory_lake: LakeCluster) -> None:
    running = service_of(memory_lake).start()
    with running as service:
        assert service is running
        assert service.running
    assert not running.running
    with pytest.raises(InvalidRequest, match="started before"), running:
        pass


def test_a_service_remembers_a_bounded_number_of_tables(
    memory_lake: LakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TABLES_REMEMBERED", 2)
    with service_of(memory_lake) as service:
        for number in range(4):
            table = memory_lake.create(f"t{number}", SCHEMA, options=OFTEN)
            fill(table, 1)
            until(lambda: is_complete(memory_lake, table), "the round of the table")  # noqa: B023 - called here
        until(lambda: status_of(service, table).rounds >= 1, "the round is counted, which is after its rows are there")
        assert len(service.status().tables) == 2


def test_two_services_share_the_tables_and_write_every_row_once(any_lake: LakeCluster) -> None:
    tables = [any_lake.create(f"t{i}", SCHEMA, options=OFTEN) for i in range(3)]
    with service_of(any_lake), service_of(any_lake):
        for i in range(5):
            for table in tables:
                fill(table, i)
        until(lambda: all(is_complete(any_lake, table) for table in tables), "all tables are tiered")
    for table in tables:
        assert len(any_lake.check_complete(table)) == 5


@pytest.mark.parametrize("step", [RoundStep.WRITE, RoundStep.COMMIT])
def test_a_service_continues_with_a_server_that_was_restarted(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_FIRST_SECONDS", 0.05)
    restart, restarted = threading.Event(), threading.Event()

    def wait_for_the_restart(reached: str) -> None:
        if reached == step and not restarted.is_set():
            restart.set()
            assert restarted.wait(PATIENCE)

    with lake_cluster(tmp_path, paimon_storage) as before:
        table = before.create("t", SCHEMA, options=OFTEN)
        fill(table, 1, 2)
        addresses = before.server.addresses
        ports = tuple(int(a.rpartition(":")[2]) for a in (addresses.bootstrap_servers, addresses.tablet_servers))
        connection = Connection(before.connection.settings)
        service = TieringService(connection, lake=before.lake, poll_seconds=0.02, reached=wait_for_the_restart).start()
        assert restart.wait(PATIENCE)
    with lake_cluster(tmp_path, paimon_storage, ports=(ports[0], ports[1])) as after:
        restarted.set()
        again = after.connection.table(table.path)
        fill(again, 3)
        until(lambda: is_complete(after, again), "the table is tiered")
        service.stop()
        assert len(after.check_complete(again)) == 3
        connection.close()


def test_what_a_service_is_at_is_shown_in_text_and_html(memory_lake: LakeCluster) -> None:
    table = memory_lake.create("t", SCHEMA, options=OFTEN)
    fill(table, 1)
    service = service_of(memory_lake)
    assert "stopped" in repr(service)
    with service:
        until(lambda: is_complete(memory_lake, table), "the table is tiered")
        until(lambda: status_of(service, table).rows == 1, "it is counted")
    assert "1 rows" in repr(service)
    for html in (service._repr_html_(), service.status()._repr_html_()):
        assert "<table>" in html
        assert "fluss.t" in html


@pytest.mark.parametrize("options", [{"tables_max": 0}, {"poll_seconds": 0}])
def test_impossible_settings_are_refused(memory_lake: LakeCluster, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        TieringService(memory_lake.connection, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest):
        ThreadRunner(0)


def test_all_tables_can_be_tiered_at_once_without_a_service_and_one_failure_stops_no_other(
    memory_lake: LakeCluster,
) -> None:
    tables = [memory_lake.create(f"t{i}", SCHEMA) for i in range(3)]
    memory_lake.create("plain", SCHEMA, options={"table.datalake.enabled": "false"})
    for table in tables:
        fill(table, 1)
    assert lake_tables(memory_lake.connection) == [table.path for table in tables]
    storage = memory_lake.storage
    assert isinstance(storage, MemoryLakeStorage)
    del storage.lake.tables[tables[0].path]
    seen: list[TablePath] = []
    outcomes = tier_now(memory_lake.connection, lake=memory_lake.lake, on_outcome=lambda o: seen.append(o.path))
    assert [outcome.path for outcome in outcomes] == [table.path for table in tables]
    assert outcomes[0].error is not None
    assert [outcome.report.rows for outcome in outcomes if outcome.report is not None] == [1, 1]
    assert sorted(seen) == [table.path for table in tables]


def test_a_heartbeat_without_an_answer_shows_in_the_status_before_it_has_failed(memory_lake: LakeCluster) -> None:
    clock, sent, answered = ManualClock(), threading.Event(), threading.Event()
    service = service_of(memory_lake, clock=clock)

    def silent(*_: Any, **__: Any) -> Heartbeat:
        sent.set()
        answered.wait(PATIENCE)
        return Heartbeat(1)

    service._tiering.heartbeat = silent  # type: ignore[method-assign]
    with service:
        assert sent.wait(PATIENCE)
        assert service.status().cluster_error is None
        clock.advance(5)
        assert service.status().cluster_error == "no answer for 5 s"
        answered.set()
        until(lambda: service.status().cluster_error is None, "the answer is there")
