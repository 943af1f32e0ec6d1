"""Shared parts of long-running commands: signal handling and Spark."""

from __future__ import annotations

import argparse
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.base.options import ports

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from forebay.base.monitoring import Monitoring
    from forebay.client.connection import Connection

_LOGGER = logging.getLogger(__name__)

_INTERRUPT_PAUSE_SECONDS = 0.05
_ANSWER_SECONDS = 1.0


@contextmanager
def ended_by_signals() -> Iterator[threading.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; the second raises KeyboardInterrupt. For the main thread.

    Python runs signal handlers in the main thread, but not while it waits for a lock, if the system delivers the signal
    to another thread or just before the wait begins. So another thread waits for the byte that Python writes
    immediately for each signal (`signal.set_wakeup_fd`), and wakes the main thread.
    """
    signals = _Signals()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, signals.handle) for number in numbers}
    descriptor = signal.set_wakeup_fd(signals.wakeup_descriptor)
    try:
        yield signals.ending
    finally:
        signals.is_over = True
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler)
        signals.close()


@contextmanager
def waiting_for_no_server(
    connection: Connection, ending: threading.Event, give_up: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Close `connection` once `ending` is set and its server does not answer, so that no thread of the block waits for
    that server any longer; then call `give_up`.

    A server that answers is waited for, so that the block can end gracefully.
    """
    over = threading.Event()

    def watch() -> None:
        while not ending.wait(_ANSWER_SECONDS):
            if over.is_set():
                return
        while not over.is_set() and connection.cluster.is_answered(_ANSWER_SECONDS):
            over.wait(_ANSWER_SECONDS)
        if not over.is_set():
            print("the server does not answer: stopping without it", file=sys.stderr, flush=True)
            connection.cluster.close()
            give_up()

    threading.Thread(target=watch, name="forebay-ending", daemon=True).start()
    try:
        yield
    finally:
        over.set()


class _Signals:
    """Signals on their way to the main thread; see `ended_by_signals`. Nothing is raised once `is_over`."""

    def __init__(self) -> None:
        self.ending = threading.Event()
        self.is_over = self._interrupting = False
        self._read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="forebay-signals", daemon=True)
        self._thread.start()

    @property
    def wakeup_descriptor(self) -> int:
        return self._write_end.fileno()

    def handle(self, *_: object) -> None:
        """Handle a signal in the main thread. That may hold any lock, so this method takes none."""
        if self._interrupting and not self.is_over:
            self.is_over = True
            raise KeyboardInterrupt

    def close(self) -> None:
        self._write_end.close()
        self._thread.join()
        self._read_end.close()

    def _watch(self) -> None:
        if self._read_end.recv(1):
            self.ending.set()
        if self._read_end.recv(1):
            self._interrupting = True
        main = threading.main_thread().ident
        while main is not None and not self.is_over:
            signal.pthread_kill(main, signal.SIGINT)
            SYSTEM_CLOCK.sleep(_INTERRUPT_PAUSE_SECONDS)


def definitions(texts: Sequence[str]) -> dict[str, str]:
    """The options given as key=value."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest(f"'{key}' does not define an option: write key=value")
        options[key] = value
    return options


@contextmanager
def spark_context(name: str, master: str | None, settings: Mapping[str, str], instead: str) -> Iterator[Any]:
    """The context of a Spark application with little logging; `instead` says what works without Spark."""
    try:
        from forebay.spark import session
    except ImportError as e:
        raise UnsupportedOperation(f"{e}; or {instead}") from e
    # Spark's log lines would be mixed with our output.
    quiet = Path(__file__).with_name("log4j2-quiet.properties").as_uri()
    spark_settings = {
        "spark.scheduler.mode": "FAIR",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j.configurationFile={quiet}",
        **settings,
    }
    handler = signal.getsignal(signal.SIGINT)
    spark: Any = session(name, master, spark_settings)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)  # PySpark's handler cancels all running jobs
    try:
        yield spark.sparkContext
    finally:
        spark.stop()


def add_metrics_arguments(parser: argparse.ArgumentParser) -> None:
    """Where a job that runs until it is stopped serves metrics and health."""
    parser.add_argument(
        "--metrics-allow-host", action="append", default=[], metavar="NAME",
        help="a further host name by which metrics may be asked for; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--metrics-port",
        type=_ports,
        metavar="PORT",
        help="serve metrics and health by HTTP on this port, or the first free one of a range such as 9250-9260",
    )
    parser.add_argument(
        "--metrics-host", default="127.0.0.1", metavar="HOST", help="the address to listen on (default: %(default)s)"
    )


def _ports(text: str) -> range:
    try:
        return ports(text)
    except InvalidRequest as e:
        raise argparse.ArgumentTypeError(e.message) from e


def monitored(
    options: argparse.Namespace,
    metrics: Sequence[Collector],
    faults: Callable[[], list[str]],
    problems: Callable[[], list[str]],
) -> Monitoring:
    """Return the server of these metrics, as the arguments of `add_metrics_arguments` say; see `Monitoring`."""
    from forebay.base.monitoring import Monitoring

    monitoring = Monitoring(metrics, faults, problems)
    host, port = monitoring.start(options.metrics_host, options.metrics_port, options.metrics_allow_host)
    where = f"metrics on http://{host}:{port}/metrics, /healthz, /readyz"
    if getattr(options, "log_format", None) == "json":  # stderr is then one object a line, whatever the level
        _LOGGER.handle(_LOGGER.makeRecord(_LOGGER.name, logging.INFO, __file__, 0, where, (), None))
    else:
        print(where, file=sys.stderr, flush=True)
    return monitoring
