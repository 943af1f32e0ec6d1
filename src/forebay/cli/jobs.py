"""What commands share that run long: how they end, and how they use Spark."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.base.errors import InvalidRequest, UnsupportedOperation


@contextmanager
def ended_by_signals() -> Iterator[threading.Event]:
    """Set by the first SIGINT or SIGTERM; the second one is a KeyboardInterrupt."""
    ending = threading.Event()

    def end(*_: object) -> None:
        if ending.is_set():
            raise KeyboardInterrupt
        ending.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ending
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def definitions(texts: Sequence[str]) -> dict[str, str]:
    """Options given as key=value."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest(f"'{key}' does not define an option: write key=value")
        found[key] = value
    return found


@contextmanager
def spark_context(name: str, master: str | None, settings: Mapping[str, str], instead: str) -> Iterator[Any]:
    """The context of a Spark application of our own, which keeps quiet; `instead` says what does without Spark."""
    try:
        from forebay.spark import session
    except ImportError as e:
        raise UnsupportedOperation(f"{e}; or {instead}") from e
    # Spark's own words would run through ours.
    quiet = Path(__file__).with_name("log4j2-quiet.properties").as_uri()
    chosen = {
        "spark.scheduler.mode": "FAIR",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j.configurationFile={quiet}",
        **settings,
    }
    spark: Any = session(name, master, chosen)
    try:
        yield spark.sparkContext
    finally:
        spark.stop()
