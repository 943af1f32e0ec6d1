"""Options of streaming reads: where a stream begins, and how much it takes at a time. Names are Fluss's and Spark's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.client.settings import Settings
from forebay.metadata.table import TableDescriptor
from forebay.spark.options import (
    END,
    READ_OPTIMIZED,
    RECORDS_PER_PARTITION,
    START,
    STARTUP_MODE,
    STARTUP_TIMESTAMP,
    GivenOptions,
    ReadOptions,
    instant,
    positive_integer,
    positive_seconds,
    read_options,
)

MAX_ROWS = "maxRowsPerTrigger"
DISCOVERY = "scan.partition.discovery.interval"

FULL, EARLIEST, LATEST, TIMESTAMP = "full", "earliest", "latest", "timestamp"
MODES = (FULL, EARLIEST, LATEST, TIMESTAMP)

DEFAULT_DISCOVERY_SECONDS = 60.0

_OF_BATCHES = (READ_OPTIMIZED, START, END, RECORDS_PER_PARTITION)


@dataclass(frozen=True)
class StreamOptions:
    """How a stream reads. `timestamp_ms` (since the epoch) is where the mode "timestamp" begins."""

    read: ReadOptions
    mode: str
    timestamp_ms: int | None = None
    max_rows: int | None = None
    discovery_seconds: float = DEFAULT_DISCOVERY_SECONDS


def is_for_streams(options: Mapping[str, str]) -> bool:
    """Whether there are options that no batch has, right or wrong ones."""
    given = {name.lower(): value for name, value in options.items()}
    mode = given.get(STARTUP_MODE, FULL).strip().lower()
    return mode not in (FULL, EARLIEST) or any(
        name.lower() in given for name in (MAX_ROWS, DISCOVERY, STARTUP_TIMESTAMP)
    )


def stream_options(
    settings: Settings,
    descriptor: TableDescriptor | None,
    options: Mapping[str, str],
    *,
    is_changelog: bool = False,
    zone: str | None = None,
) -> StreamOptions:
    """The options of a stream. Raises `InvalidRequest` for what cannot be, and `UnsupportedOperation`.

    A changelog is what the log holds, so its mode is "earliest" where no other is given.
    """
    given = GivenOptions.of("stream", options, ())
    for name in _OF_BATCHES:
        if name.lower() in given.values:
            raise UnsupportedOperation(f"read option '{name}' is for batch reads; a stream has '{MAX_ROWS}'")
    mode = (given.take(STARTUP_MODE) or (EARLIEST if is_changelog else FULL)).strip().lower()
    if mode not in MODES:
        raise InvalidRequest(
            f"read option '{STARTUP_MODE}' is '{mode}'; it can be {', '.join(MODES)}", ErrorCode.CONFIG_EXCEPTION
        )
    timestamp = given.take(STARTUP_TIMESTAMP)
    if (timestamp is None) == (mode == TIMESTAMP):
        raise InvalidRequest(
            f"read options '{STARTUP_MODE}' = '{TIMESTAMP}' and '{STARTUP_TIMESTAMP}' belong together",
            ErrorCode.CONFIG_EXCEPTION,
        )
    rows, interval = given.take(MAX_ROWS), given.take(DISCOVERY)
    return StreamOptions(
        read_options(settings, descriptor, given.values),
        mode,
        None if timestamp is None else instant(STARTUP_TIMESTAMP, timestamp, zone),
        None if rows is None else positive_integer(MAX_ROWS, rows),
        DEFAULT_DISCOVERY_SECONDS if interval is None else positive_seconds(DISCOVERY, interval),
    )
