"""Jobs, transactions, scans, snapshots and clients of a console; tasks in the background."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from forebay.base.ambient import SYSTEM_CLOCK, ManualClock
from forebay.base.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, UnsupportedOperation
from forebay.client.admin.admin import ClusterAdmin
from forebay.console import work
from forebay.console.background import Tasks
from forebay.console.session import Console
from tests.patience import PATIENCE, until


def test_what_is_under_way_is_listed_and_ended(console: Console) -> None:
    conn = console.conn
    table = conn.create_table("fluss.orders", {"id": "BIGINT"}, primary_key="id", buckets=1)
    table.upsert([{"id": 1}])
    with conn.transaction("nightly", 6) as done:
        done.upsert(table, [{"id": 2}])
    under_way = conn.transaction("nightly", 7).begin()
    under_way.upsert(table, [{"id": 3}])
    snapshot = table.snapshot(name="<b>report</b>")
    found = work.jobs(console)
    assert (found["rounds"], found["tasks"], found["transactions_open"]) == ([], [], 1)
    assert found["missing"] == [work.ELSEWHERE]
    [shown] = found["transactions"]
    assert (shown["application"], shown["version"], shown["state"]) == ("nightly", 7, "open")
    assert [(a["version"], a["state"]) for a in work.applications(console)["items"]] == [(7, "open"), (6, "committed")]
    [held] = work.snapshots(console)["items"]
    assert (held["database"], held["table"], held["name"], held["buckets"]) == ("fluss", "orders", "<b>report</b>", 1)
    assert held["lease_left_seconds"] > 0
    counts = work.work(console)
    assert (counts["snapshots"], counts["scans"], counts["transactions"]) == (1, 0, 1)
    clients = work.connections(console, limit=1)
    assert (clients["items"][0]["client"], clients["items"][0]["address"]) == ("forebay", "127.0.0.1")
    assert clients["next"] == "1"
    assert clients["total"] == counts["connections"] >= 2
    assert work.scans(console) == {"items": [], "next": None, "total": 0, "missing": []}

    assert work.abort_transaction(console, transaction_id=shown["transaction_id"])
    assert work.release_snapshot(console, snapshot_id=held["snapshot_id"])
    console._answers.clear()
    assert (work.work(console)["snapshots"], work.work(console)["transactions"]) == (0, 0)
    with pytest.raises(Conflict):
        under_way.commit()
    with pytest.raises(NotFound):
        snapshot.scan().to_arrow()
    with pytest.raises(InvalidRequest, match="is not the id of a transaction"):
        work.abort_transaction(console, transaction_id=1 << 70)
    with pytest.raises(InvalidRequest, match="page_token 'x'"):
        work.connections(console, page_token="x")


def test_a_cluster_that_tells_nothing_says_what_is_missing(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_named: Any) -> Any:
        raise UnsupportedOperation("DESCRIBE_SERVER is not possible here: the server does not offer it")

    monkeypatch.setattr(ClusterAdmin, "describe_server", refuse)
    assert work.work(console) == {"missing": [work.NOT_DESCRIBED]}
    for each in (work.connections, work.scans, work.snapshots, work.applications):
        assert each(console) == {"items": [], "next": None, "total": None, "missing": [work.NOT_DESCRIBED]}
    found = work.jobs(console)
    assert (found["rounds"], found["transactions"]) == (None, None)
    assert found["missing"] == [work.NOT_DESCRIBED, work.ELSEWHERE]


# ---- tasks ----------------------------------------------------------------------------------------------------------


class _Steps:
    """Work that goes on when the test says so."""

    def __init__(self) -> None:
        self.go, self.began = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, progress: Any) -> dict[str, Any]:
        for i in range(3):
            progress(i, 3)
            self.began.release()
            assert self.go.acquire(timeout=PATIENCE)
        return {"found": 3}


def _over(tasks: Tasks, task_id: str) -> Any:
    def over() -> Any:
        [task] = [task for task in tasks.all() if task.task_id == task_id]
        return task if task.is_over else None

    return until(over, "the end of the task")


def test_tasks_tell_their_progress_and_are_not_started_twice() -> None:
    tasks, steps = Tasks(SYSTEM_CLOCK), _Steps()
    task = tasks.start("search", {"table": "a"}, steps)
    assert steps.began.acquire(timeout=PATIENCE)
    assert tasks.start("search", {"table": "a"}, steps) is task
    steps.go.release()
    assert steps.began.acquire(timeout=PATIENCE)
    assert (task.state, task.done, task.total) == ("running", 1, 3)
    steps.go.release(2)
    ended = _over(tasks, task.task_id)
    assert (ended.state, ended.result, ended.error) == ("done", {"found": 3}, None)
    assert tasks.latest("search", {"table": "a"}) is task
    assert tasks.latest("search", {"table": "b"}) is None
    assert tasks.start("search", {"table": "a"}, lambda _: {}) is not task
    with pytest.raises(Conflict, match="it is done"):
        tasks.cancel(task.task_id)
    with pytest.raises(NotFound, match="no task 17"):
        tasks.cancel("17")
    tasks.close()


def test_a_task_is_cancelled_where_it_tells_its_progress_and_a_failing_one_says_why() -> None:
    tasks, steps = Tasks(SYSTEM_CLOCK), _Steps()
    task = tasks.start("search", {}, steps)
    assert steps.began.acquire(timeout=PATIENCE)
    tasks.cancel(task.task_id)
    steps.go.release()
    assert _over(tasks, task.task_id).state == "cancelled"

    def fail(_progress: Any) -> dict[str, Any]:
        raise NotFound("table a.b was dropped")

    def break_down(_progress: Any) -> dict[str, Any]:
        raise ZeroDivisionError("a bug")

    failed, broken = tasks.start("x", {}, fail), tasks.start("y", {}, break_down)
    assert (_over(tasks, failed.task_id).state, failed.error) == ("failed", "table a.b was dropped")
    assert (_over(tasks, broken.task_id).state, broken.error) == ("failed", "ZeroDivisionError: a bug")
    tasks.close()


def test_tasks_are_bounded() -> None:
    tasks, steps = Tasks(SYSTEM_CLOCK), _Steps()
    for i in range(20):
        tasks.start("search", {"table": i}, steps)
    with pytest.raises(LimitExceeded, match="20 tasks already wait"):
        tasks.start("search", {"table": "more"}, steps)
    tasks.close()
    steps.go.release(1000)
    for _ in range(100):
        each = tasks.start("quick", {}, lambda _: {}) if not tasks._threads._shutdown else None
        if each is None:
            break
    assert len(tasks.all()) <= 50


def test_what_many_ask_for_at_the_same_time_is_read_once_and_a_failure_is_not_kept(console: Console) -> None:
    began, go, reads = threading.Event(), threading.Event(), list[int]()

    def read() -> int:
        reads.append(1)
        began.set()
        assert go.wait(PATIENCE)
        return 7

    futures = [console.submit(console.read_once, "files", read) for _ in range(5)]
    assert began.wait(PATIENCE)
    go.set()
    assert [future.result(PATIENCE) for future in futures] == [7] * 5
    assert reads == [1]

    def fail() -> int:
        raise NotFound("it was dropped")

    with pytest.raises(NotFound):
        console.read_once("other", fail)
    assert console.read_once("other", lambda: 8) == 8


def test_an_answer_that_was_on_its_way_when_something_was_changed_is_not_remembered(console: Console) -> None:
    def made_before_the_change() -> str:
        console.forget("lake")  # by another visitor, who has compacted it meanwhile
        return "before"

    assert console.remembered("lake", 60.0, made_before_the_change) == "before"
    token = console.new_cursor("place")
    assert console.remembered("lake", 60.0, lambda: "after") == "after"
    assert console.remembered("lake", 60.0, lambda: "later") == "after"
    assert console.cursor(token) == "place"


def test_an_answer_does_not_take_the_place_of_a_newer_one(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(console, "clock", clock)

    def slow() -> str:
        clock.advance(5)
        assert console.remembered("lag", 0.0, lambda: "newer") == "newer"
        return "older"

    assert console.remembered("lag", 60.0, slow) == "older"
    assert console.remembered("lag", 60.0, lambda: "newest") == "newer"
