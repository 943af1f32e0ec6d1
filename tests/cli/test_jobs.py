"""How long-running commands are stopped."""

from __future__ import annotations

import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from forebay.base.errors import InvalidRequest, StorageFailure, UnsupportedOperation
from forebay.cli import jobs
from forebay.cli.jobs import definitions, ended_by_signals, spark_context, waiting_for_no_server
from tests.patience import PATIENCE

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_asks_for_the_end_and_the_second_one_interrupts(number: signal.Signals) -> None:
    def told_twice() -> None:
        with ended_by_signals() as ending:
            assert not ending.is_set()
            signal.raise_signal(number)
            assert ending.wait(PATIENCE)
            signal.raise_signal(number)
            time.sleep(PATIENCE)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        told_twice()
    assert signal.getsignal(number) == before


@pytest.mark.timeout(PATIENCE)
def test_a_signal_may_come_while_the_main_thread_is_just_about_to_wait() -> None:
    """It holds the event's lock then, which a handler that sets the event would wait for, in the same thread."""
    with ended_by_signals() as ending:
        with ending._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)
        assert ending.wait(PATIENCE)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.timeout(PATIENCE)
def test_a_signal_that_another_thread_gets_wakes_the_main_thread(number: signal.Signals) -> None:
    """The system may give a process's signal to any of its threads; the main thread waits without a time limit."""

    def signal_from(thread: threading.Thread) -> None:
        time.sleep(0.1)
        assert thread.ident is not None
        signal.pthread_kill(thread.ident, number)

    idle = threading.Event()
    other = threading.Thread(target=idle.wait)
    other.start()
    with ended_by_signals() as ending:
        threading.Thread(target=signal_from, args=(other,)).start()
        ending.wait()
        threading.Thread(target=signal_from, args=(other,)).start()
        with pytest.raises(KeyboardInterrupt):
            other.join()
    idle.set()
    other.join()


def test_an_option_has_a_name_and_a_value() -> None:
    assert definitions(["a=b=c", "empty="]) == {"a": "b=c", "empty": ""}
    for wrong in ("a", "=b"):
        with pytest.raises(InvalidRequest, match="write key=value"):
            definitions([wrong])


class _Spark:
    """In place of a Spark session: PySpark takes the signal, too."""

    sparkContext = "the context"

    def __init__(self, *words: object) -> None:
        self.words = words
        self.is_stopped = False
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def stop(self) -> None:
        self.is_stopped = True


def test_sparks_context_leaves_ctrl_c_to_the_command_and_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[_Spark] = []

    def session(*words: object) -> _Spark:
        made.append(_Spark(*words))
        return made[-1]

    def use() -> None:
        with spark_context("a job", "local[1]", {"spark.scheduler.mode": "FIFO"}, "do without") as context:
            assert context == "the context"
            assert not made[-1].is_stopped
            inside.append(signal.getsignal(signal.SIGINT))
            raise StorageFailure("no space")

    monkeypatch.setitem(sys.modules, "forebay.spark", SimpleNamespace(session=session))
    before, inside = signal.getsignal(signal.SIGINT), []
    try:
        with pytest.raises(StorageFailure):
            use()
    finally:
        signal.signal(signal.SIGINT, before)
    assert inside == [before]
    name, master, settings = made[0].words
    assert (name, master, made[0].is_stopped) == ("a job", "local[1]", True)
    assert isinstance(settings, dict)
    assert (settings["spark.scheduler.mode"], settings["spark.ui.showConsoleProgress"]) == ("FIFO", "false")
    with ThreadPoolExecutor(1) as pool, pytest.raises(StorageFailure):
        pool.submit(use).result()  # signals are those of the main thread
    assert made[1].is_stopped


def test_a_command_that_needs_spark_says_what_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "forebay.spark", None)
    context = spark_context("a job", None, {}, "give --without-spark")
    with pytest.raises(UnsupportedOperation, match="; or give --without-spark"), context:
        pytest.fail("there is no Spark")


def test_without_a_signal_nothing_is_requested() -> None:
    with ended_by_signals() as ending:
        pass
    assert not ending.is_set()


class Silent:
    """A connection whose server answers so many times, and then no more."""

    def __init__(self, answers: int) -> None:
        self.answers, self.asked, self.closed = answers, 0, threading.Event()
        self.cluster = self

    def is_answered(self, seconds: float) -> bool:
        self.asked += 1
        return self.asked <= self.answers

    def close(self) -> None:
        self.closed.set()


def test_a_job_that_ends_waits_for_a_server_as_long_as_it_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(jobs, "_ANSWER_SECONDS", 0.01)
    connection, ending, given_up = Silent(3), threading.Event(), threading.Event()
    with waiting_for_no_server(cast(Any, connection), ending, given_up.set):
        assert connection.asked == 0
        ending.set()
        assert given_up.wait(PATIENCE)
    assert connection.closed.is_set()
    assert connection.asked == 4
    assert "the server does not answer" in capsys.readouterr().err


def test_a_job_that_ends_otherwise_asks_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_ANSWER_SECONDS", 0.01)
    connection = Silent(0)
    with waiting_for_no_server(cast(Any, connection), threading.Event()):
        pass
    assert connection.asked == 0
