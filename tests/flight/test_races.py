"""Races of calls to an endpoint: what happens while a call waits. Without a server and without DuckDB."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock, SeededIds
from forebay.base.errors import Conflict, LimitExceeded, NotFound, Unavailable
from forebay.flight.sessions import ClientSession, Expiring, Sessions
from forebay.flight.statements import Limits, Statements, StoredStatement
from forebay.query.run import Description
from tests.patience import PATIENCE

NOTHING = Description(pa.schema([]), pa.schema([]), False)


class FakeExecution:
    """What would be a DuckDB. It counts how often it was interrupted."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.is_closed = False

    def cancel(self) -> None:
        self.cancelled += 1

    def close(self) -> None:
        self.is_closed = True


class FakeResult:
    """No rows."""

    def __iter__(self) -> Any:
        return iter(())

    def close(self) -> None:
        return


class Endpoint:
    """The statements of an endpoint, and a session."""

    def __init__(self, directory: Path) -> None:
        self.executions: list[FakeExecution] = []
        processes: Any = SimpleNamespace(execution=self._execution)
        self.statements = Statements(Limits(queries_max=1), processes, True, directory, ManualClock(), SeededIds(1))
        self.session: Any = SimpleNamespace(owner="u", namespace=(None, None), database=None)

    def _execution(self, *_: object) -> FakeExecution:
        self.executions.append(FakeExecution())
        return self.executions[-1]

    def kept(self) -> str:
        return self.statements.keep(StoredStatement("u", "SELECT 1", NOTHING, 0.0))

    def run(self, handle: str, run: Callable[[Any], Any] = lambda _: FakeResult()) -> Any:
        return self.statements.run(self.session, handle, run)

    def before_its_turn(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[object]:
        """Have something happen while the next statement waits for its turn; return what came of it."""
        wait_for, answers = self.statements._turn.wait_for, list[object]()

        def waiting(*given: Any) -> bool:
            answers.append(act())
            return wait_for(*given)

        monkeypatch.setattr(self.statements._turn, "wait_for", waiting)
        return answers


@pytest.fixture
def endpoint(tmp_path: Path) -> Endpoint:
    return Endpoint(tmp_path)


def test_a_statement_that_is_cancelled_while_it_waits_for_its_turn_never_runs(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = endpoint.kept()
    answers = endpoint.before_its_turn(monkeypatch, lambda: endpoint.statements.cancel(endpoint.session, handle))
    with pytest.raises(Conflict, match="the statement was cancelled"):
        endpoint.run(handle)
    assert (answers, endpoint.executions, endpoint.statements.running) == ([True], [], 0)


def test_an_insert_that_waits_for_its_turn_can_be_cancelled_although_its_handle_is_used_up(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = endpoint.kept()
    endpoint.statements.statement(endpoint.session, handle, once=True)
    answers = endpoint.before_its_turn(monkeypatch, lambda: endpoint.statements.cancel(endpoint.session, handle))
    with pytest.raises(Conflict, match="the statement was cancelled"):
        endpoint.run(handle)
    assert answers == [True]


def test_a_statement_that_is_cancelled_before_duckdb_begins_is_interrupted_again(endpoint: Endpoint) -> None:
    handle = endpoint.kept()

    def run(execution: FakeExecution) -> Any:
        assert endpoint.statements.cancel(endpoint.session, handle)  # nothing computes yet
        endpoint.statements.stop_expired()
        raise RuntimeError("interrupted")

    with pytest.raises(Conflict, match="the statement was cancelled"):
        endpoint.run(handle, run)
    (execution,) = endpoint.executions
    assert (execution.cancelled, execution.is_closed) == (2, True)
    assert endpoint.statements.running == 0


def test_a_statement_that_waits_for_its_turn_does_not_begin_when_the_endpoint_stops(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.before_its_turn(monkeypatch, endpoint.statements.stop_all)
    with pytest.raises(Unavailable, match="the endpoint is stopping"):
        endpoint.run(endpoint.kept())
    assert endpoint.executions == []


def test_a_statement_that_waits_is_told_at_once_that_the_endpoint_stops(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()
    wait_for = endpoint.statements._turn.wait_for

    def waiting(*given: Any) -> bool:
        waits.set()
        return wait_for(*given)

    def run_another(_: FakeExecution) -> FakeResult:
        monkeypatch.setattr(endpoint.statements._turn, "wait_for", waiting)
        monkeypatch.setattr(endpoint.statements, "_limits", Limits(queries_max=1, wait_seconds=3600))
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(endpoint.run, endpoint.kept())
            assert waits.wait(PATIENCE)
            with endpoint.statements._turn:  # it waits: its lock is free
                pass
            endpoint.statements.stop_all()
            with pytest.raises(Unavailable, match="the endpoint is stopping"):
                other.result(PATIENCE)
        return FakeResult()

    endpoint.run(endpoint.kept(), run_another)


def test_a_statement_is_closed_by_its_owner_alone_and_an_unknown_one_by_nobody(endpoint: Endpoint) -> None:
    handle = endpoint.kept()
    stranger: Any = SimpleNamespace(owner="stranger")
    endpoint.statements.forget(stranger, handle)
    assert endpoint.statements.statement(endpoint.session, handle).owner == "u"
    endpoint.statements.forget(endpoint.session, handle)
    with pytest.raises(NotFound, match="this statement is unknown"):
        endpoint.statements.statement(endpoint.session, handle)
    endpoint.statements.forget(endpoint.session, handle)


# ---- sessions -------------------------------------------------------------------------------------------------------


def sessions(connect: Callable[[str, str], Any] | None = None) -> Sessions:
    database: Any = SimpleNamespace()
    kept = Expiring[ClientSession](ManualClock(), 60, 10, "sessions", "--sessions-max")
    return Sessions(database if connect is None else None, {}, connect, kept, SeededIds(1))


def test_a_full_store_refuses_new_keys_and_takes_new_values_of_its_own() -> None:
    kept = Expiring[int](ManualClock(), 60, 2, "statements", "--statements-max")
    for key, value in (("a", 1), ("b", 2), ("a", 3)):
        kept.put(key, value)
    with pytest.raises(LimitExceeded, match=r"there are 2 statements, the maximum.*higher --statements-max"):
        kept.put("c", 4)
    assert [kept.get(key) for key in "abc"] == [3, 2, None]


def test_what_is_kept_expires_after_its_time_and_not_at_it() -> None:
    clock = ManualClock()
    kept = Expiring[int](clock, 60, 2, "statements", "--statements-max")
    kept.put("a", 1)
    clock.advance(60)
    assert (kept.expired(), kept.get("a")) == ([], 1)
    clock.advance(60.001)
    assert (kept.get("a"), kept.expired(), len(kept)) == (None, [1], 0)


def test_options_of_two_calls_at_once_with_a_new_cookie_are_both_kept() -> None:
    of = sessions()
    _, answer = of.of_headers({})
    cookie = {"cookie": [answer["set-cookie"]]}
    (first, _), (second, _) = of.of_headers(cookie), of.of_headers(cookie)
    of.change_options(first, lambda options: {**options, "catalog": "lake"})
    of.change_options(second, lambda options: {**options, "schema": "shop"})
    assert of.of_headers(cookie)[0].options == {"catalog": "lake", "schema": "shop"}
    assert len(of) == 1


def test_a_login_that_ends_after_the_endpoint_has_stopped_leaves_no_connection_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[str] = []

    def connect(user: str, password: str) -> Any:
        of.close_all()
        return SimpleNamespace(close=lambda: closed.append(user))

    monkeypatch.setattr("forebay.flight.sessions.SqlDatabase", lambda *_: None)
    of = sessions(connect)
    with pytest.raises(Unavailable, match="the endpoint is stopping"):
        of.of_headers({"authorization": ["Basic YW5uOnB3"]})
    assert closed == ["ann"]
    assert len(of) == 0
