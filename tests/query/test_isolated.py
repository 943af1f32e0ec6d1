"""Statements in processes of their own: their limits, and what is left when one is reached."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import forebay.paimon
from forebay.base import threads
from forebay.base.ambient import ManualClock
from forebay.base.errors import InvalidRequest, LimitExceeded, NotFound, OutcomeUnknown, Unavailable
from forebay.base.host import resident_bytes
from forebay.query.frames import CANCELLED
from forebay.query.isolated import IsolatedExecution, StatementLimits, StatementProcesses, _Process
from forebay.query.run import CLOSED_IN, SqlDatabase
from tests.patience import PATIENCE, until

pytest.importorskip("duckdb")

ENDLESS = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range * b.range % 7 = 3"
MEMORY = 300 << 20


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> SqlDatabase:
    warehouse = str(tmp_path_factory.mktemp("lake"))
    catalog = forebay.paimon.Catalog.open(warehouse)
    catalog.create_database("shop")
    catalog.create_table("shop.items", {"id": "BIGINT", "name": "STRING"}).append([{"id": 1, "name": "tea"}])
    return SqlDatabase(None, {"lake": warehouse})


@pytest.fixture(scope="module")
def processes() -> Iterator[StatementProcesses]:
    running = StatementProcesses(StatementLimits(2, MEMORY))
    yield running
    running.close()


def rows(processes: StatementProcesses, database: SqlDatabase, text: str, *parameters: object) -> list[Any]:
    with processes.execution(database, settings=CLOSED_IN).run(text, parameters) as result:
        return [tuple(row.values()) for batch in result for row in batch.to_pylist()]


def ended(execution: IsolatedExecution, text: str) -> Callable[[], None]:
    """Runs a statement that is cancelled."""

    def run() -> None:
        with pytest.raises(InvalidRequest, match=CANCELLED):
            execution.run(text)

    return run


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def test_a_statement_reads_and_writes_tables(processes: StatementProcesses, database: SqlDatabase) -> None:
    assert rows(processes, database, "SELECT name FROM shop.items WHERE id = ?", 1) == [("tea",)]
    new = pa.table({"id": range(2, 100_000), "name": ["x" * 100] * 99_998})
    given = {"new": new.to_reader(10_000)}
    with processes.execution(database, given).run("INSERT INTO shop.items SELECT * FROM new") as result:
        assert result.to_pylist() == [{"rows": new.num_rows}]
    parameters = pa.table({"1": [100_000, 100_001], "2": ["y", "z"]}).to_reader()
    processes.execution(database).run("INSERT INTO shop.items VALUES (?, ?)", parameters).to_pylist()
    assert rows(processes, database, "SELECT count(*), sum(id) FROM shop.items") == [(100_001, 5_000_150_001)]


def test_errors_are_those_of_this_process(processes: StatementProcesses, database: SqlDatabase) -> None:
    with pytest.raises(NotFound, match=r"no table 'shop\.itmes'.*did you mean 'shop\.items'"):
        rows(processes, database, "FROM shop.itmes")
    with pytest.raises(InvalidRequest, match="not SQL"):
        rows(processes, database, "SELEC 1")
    with pytest.raises(InvalidRequest, match="Could not convert string"):
        rows(processes, database, "SELECT CAST(x AS INT) FROM (VALUES ('1'), ('not a number')) t(x)")


def test_the_columns_of_a_statement_come_from_another_process_too(
    processes: StatementProcesses, database: SqlDatabase
) -> None:
    found = processes.execution(database).describe("SELECT name FROM shop.items WHERE id = ?")
    assert (found.schema.names, found.parameters.types, found.is_insert) == (["name"], [pa.int64()], False)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT repeat('x', 2000000000)",
        "SELECT list(range) FROM range(80000000)",
        "SELECT repeat('x', 50000000) FROM range(20)",
    ],
)
def test_a_statement_that_needs_too_much_memory_hurts_no_other(
    processes: StatementProcesses, database: SqlDatabase, statement: str
) -> None:
    before = resident_bytes()
    with pytest.raises(LimitExceeded, match=r"more than its memory of 300\.0 MiB \(--query-memory\)"):
        rows(processes, database, statement)
    assert rows(processes, database, "SELECT 1") == [(1,)]
    assert before is None or (resident_bytes() or 0) - before < 100 << 20


def test_a_row_that_is_too_large_for_a_result_is_refused(database: SqlDatabase) -> None:
    with closing(StatementProcesses(StatementLimits(1))) as processes:
        with pytest.raises(LimitExceeded, match=r"a row of the result has more than 64 MiB.*left\(text, 1000\)"):
            rows(processes, database, "SELECT repeat('x', 70000000) AS x")
        assert rows(processes, database, "SELECT repeat('x', 60000000) AS x")[0][0].count("x") == 60_000_000


def test_large_results_cross_in_small_batches(processes: StatementProcesses, database: SqlDatabase) -> None:
    with processes.execution(database).run("SELECT repeat('x', 10000) AS x FROM range(5000)") as result:
        sizes = [(batch.num_rows, batch.nbytes) for batch in result]
    assert sum(count for count, _ in sizes) == 5000
    assert max(size for _, size in sizes) <= 4 << 20


def test_dictionaries_and_nested_types_cross(processes: StatementProcesses, database: SqlDatabase) -> None:
    text = "SELECT CAST('b' AS ENUM('a', 'b')) AS e, {'k': [1, NULL]} AS s, MAP {'a': 1} AS m, INTERVAL 1 DAY AS i"
    with processes.execution(database).run(text) as result, database.execution().run(text) as expected:
        assert result.to_arrow().equals(expected.to_arrow())


def test_a_result_that_is_not_read_to_its_end_leaves_its_process_usable(
    processes: StatementProcesses, database: SqlDatabase
) -> None:
    execution = processes.execution(database)
    with execution.run("SELECT * FROM range(1000000000)") as result:
        batches = iter(result)
        assert next(batches).num_rows
        process = execution._process
    until(lambda: not processes._busy)
    assert process in processes._idle


def test_a_statement_that_takes_too_long_is_ended(database: SqlDatabase) -> None:
    with (
        closing(StatementProcesses(StatementLimits(1, seconds=0.2))) as processes,
        pytest.raises(LimitExceeded, match=r"more than 0\.2 seconds \(--query-timeout\)"),
    ):
        rows(processes, database, ENDLESS)


def test_a_cancelled_statement_ends_by_itself(database: SqlDatabase) -> None:
    with closing(StatementProcesses(StatementLimits(1), ManualClock())) as processes:  # whose patience never ends
        assert rows(processes, database, "SELECT 1") == [(1,)]
        (process,) = processes._idle
        before = cpu_seconds(process._child.pid)
        execution = processes.execution(database)
        running = threads.thread(ended(execution, ENDLESS), name="running")
        running.start()
        until(lambda: cpu_seconds(process._child.pid) > before + 0.5)
        execution.cancel()
        running.join(PATIENCE)
        assert not running.is_alive()


def test_a_statement_that_is_cancelled_while_its_process_starts_is_not_begun(
    database: SqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(StatementProcesses(StatementLimits(1), ManualClock())) as processes:
        execution = processes.execution(database)
        wait = _Process.wait_until_ready

        def cancelled_meanwhile(process: _Process) -> None:
            wait(process)
            execution.cancel()

        monkeypatch.setattr(_Process, "wait_until_ready", cancelled_meanwhile)
        running = threads.thread(ended(execution, ENDLESS), name="running")
        running.start()
        running.join(PATIENCE)
        assert not running.is_alive()


def test_a_process_that_dies_is_replaced(processes: StatementProcesses, database: SqlDatabase) -> None:
    execution = processes.execution(database)
    with execution.run("SELECT * FROM range(1000000000)") as result:
        assert execution._process is not None
        os.kill(execution._process._child.pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="by signal 9"):
            list(result)
    assert rows(processes, database, "SELECT 1") == [(1,)]


def test_what_is_being_committed_is_not_stopped_and_its_end_is_not_invented(
    processes: StatementProcesses, database: SqlDatabase
) -> None:
    execution = processes.execution(database)
    with execution.run("SELECT * FROM range(1000000000)") as result:
        process = execution._process
        assert process is not None
        process.is_committing = True  # as before the commit of an INSERT
        execution.cancel()
        process.end_at = 0.0
        with pytest.raises(InvalidRequest, match="cancelled"):  # as the statement itself says
            list(result)
    execution = processes.execution(database)
    with execution.run("SELECT * FROM range(1000000000)") as result:
        assert execution._process is not None
        execution._process.is_committing = True
        execution._process.end()
        with pytest.raises(OutcomeUnknown, match="committed"):
            list(result)


def test_processes_end_when_all_is_closed(database: SqlDatabase) -> None:
    processes = StatementProcesses(StatementLimits(2))
    execution = processes.execution(database)
    result = execution.run("SELECT * FROM range(1000000000)")
    assert execution._process is not None
    pids = [each._child.pid for each in (execution._process, *processes._idle)]
    assert len(pids) == 2  # one waits for the next statement
    closing = threads.thread(processes.close, name="closing")
    closing.start()
    with pytest.raises(Unavailable, match="the endpoint is stopping"):
        list(result)
    closing.join(PATIENCE)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    with pytest.raises(Unavailable, match="the endpoint is stopping"):
        rows(processes, database, "SELECT 1")
