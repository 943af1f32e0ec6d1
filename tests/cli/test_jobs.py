"""How commands that run long are told to end."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from forebay.cli.jobs import ended_by_signals

PATIENCE_SECONDS = 30
NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_asks_for_the_end_and_the_second_one_interrupts(number: signal.Signals) -> None:
    def told_twice() -> None:
        with ended_by_signals() as ending:
            assert not ending.is_set()
            signal.raise_signal(number)
            assert ending.wait(PATIENCE_SECONDS)
            signal.raise_signal(number)
            time.sleep(PATIENCE_SECONDS)

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        told_twice()
    assert signal.getsignal(number) == before


@pytest.mark.timeout(PATIENCE_SECONDS)
def test_a_signal_may_come_while_the_main_thread_is_just_about_to_wait() -> None:
    """It holds the event's lock then, which a handler that sets the event would wait for, in the same thread."""
    with ended_by_signals() as ending:
        with ending._cond:  # type: ignore[attr-defined]
            signal.raise_signal(signal.SIGTERM)
        assert ending.wait(PATIENCE_SECONDS)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.timeout(PATIENCE_SECONDS)
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


def test_without_a_signal_nothing_is_asked_for() -> None:
    with ended_by_signals() as ending:
        pass
    assert not ending.is_set()
