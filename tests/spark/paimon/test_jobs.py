"""Tasks of the engine on Spark's workers: results in order, errors, cancelling."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from forebay.base.errors import Conflict, InternalError
from forebay.spark.jvm.spark_jobs import run_job
from forebay.spark.lake_jobs import SparkTasks

pytestmark = pytest.mark.spark


def _square(task: int) -> tuple[int, int]:
    return task * task, os.getpid()


def _touchy(task: tuple[str, int]) -> str:
    folder, number = task
    if number == 0:
        raise Conflict("task 0 has lost")
    if number == 1:
        raise ValueError("task 1 is wrong")
    Path(folder, str(number)).touch()
    return str(number)


def _endless(task: str) -> None:
    Path(task).touch()
    threading.Event().wait(60)


def _endless_attempt(task: str, _attempt: int) -> None:
    _endless(task)


def test_results_come_in_the_order_of_the_tasks_whichever_worker_did_them(spark: Any) -> None:
    told: list[tuple[int, int]] = []
    runner = SparkTasks(spark.sparkContext, "squares")
    found = runner.run(
        _square, range(20), rows=[i * 10 for i in range(20)], progress=lambda done, total: told.append((done, total))
    )
    assert [square for square, _ in found] == [i * i for i in range(20)]
    assert os.getpid() not in {pid for _, pid in found}
    assert told == sorted(told)
    assert (told[0], told[-1]) == ((0, 1900), (1900, 1900))
    assert runner.run(_square, [], rows=[]) == []


def test_if_a_task_fails_the_others_are_finished_and_given_up(spark: Any, tmp_path: Path) -> None:
    runner, discarded = SparkTasks(spark.sparkContext, "touching"), []
    assert runner.parallelism == 2
    with pytest.raises(Conflict, match="task 0 has lost"):
        runner.run(_touchy, [(str(tmp_path), i) for i in (0, 2, 3)], rows=[1, 1, 1], discard=discarded.append)
    assert sorted(discarded[0]) == sorted(p.name for p in tmp_path.iterdir()) == ["2", "3"]
    with pytest.raises(InternalError, match="ValueError: task 1 is wrong"):
        runner.run(_touchy, [(str(tmp_path), 1)], rows=[1])


def test_a_caller_who_has_enough_ends_the_job_at_once(spark: Any, tmp_path: Path) -> None:
    def enough(_done: int, _total: int) -> None:
        if (tmp_path / "began").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        SparkTasks(spark.sparkContext, "endless").run(_endless, [str(tmp_path / "began")], rows=[1], progress=enough)


def test_a_job_is_cancelled_from_elsewhere(spark: Any, tmp_path: Path) -> None:
    cancelled = threading.Event()

    def on_progress(_done: float) -> None:
        if (tmp_path / "began").exists():
            cancelled.set()

    with pytest.raises(Exception, match="cancelled"):
        run_job(
            spark.sparkContext, _endless_attempt, [str(tmp_path / "began")], "endless", cancelled=cancelled,
            on_progress=on_progress,
        )  # fmt: skip
