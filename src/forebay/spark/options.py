"""Options of Spark users, for a catalog, a read, a write or a session.

Options are set in three places, of which a later one overrides the earlier ones: the arguments of `attach`; the
session's configuration (`spark.sql.fluss.<option>`, as in Fluss's own connector) and, for the scan strategy, the
table's properties; the options of the read or write (`spark.read.option(...)`, `SELECT ... FROM t WITH (...)`). Unknown
options raise an error with near matches.

Names are Fluss's. `client.*` options are those of forebay.client.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from forebay.base import options as parsers
from forebay.base.arguments import did_you_mean
from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.base.options import Option, by_name
from forebay.base.quantity import moment_ms
from forebay.client.settings import READ_STANDBY, Settings, make_settings
from forebay.metadata.table import TableDescriptor
from forebay.spark.read_modes import DEFAULT_MODES, SWITCHES, ReadMode, allowed_modes

FORMAT_NAME = "forebay"
"""The format for tables of a cluster."""

STRATEGY = "client.scanner.kv.batch-strategy"
SERVER_SIDE = "client.scanner.kv.server-side.enabled"
SESSION_PREFIX = "spark.sql.fluss."
"""The prefix of scan options in the session's configuration."""

OWN_SESSION_PREFIX = "spark.sql.forebay."
"""A second prefix, which overrides the first."""

SERVER_SCAN, SNAPSHOT_MERGE = "server_scan", "snapshot_merge"

LEASE_ID = "scan.kv.snapshot.lease.id"
LEASE_DURATION = "scan.kv.snapshot.lease.duration"
"""Id and duration of the lease on the table snapshot that a read of a primary-key table pins."""

RECORDS_PER_PARTITION = "scan.maxRecordsPerPartition"
STARTUP_MODE = "scan.startup.mode"
STARTUP_TIMESTAMP = "scan.startup.timestamp"
READ_OPTIMIZED = "read.optimized"
"""Read only the rows in the lake, without newer changes."""

WRITE_COLUMNS = "columns"

START, END = "scan.incremental.start.timestamp", "scan.incremental.end.timestamp"
"""Read the rows that were written between two times, from the log. For reads only, not for sessions."""

FULL, EARLIEST, LATEST, TIMESTAMP = "full", "earliest", "latest", "timestamp"
MODES = (FULL, EARLIEST, LATEST, TIMESTAMP)
"""The startup modes of reads."""

SESSION_ZONE = "spark.sql.session.timeZone"

MAX_ROWS, MIN_ROWS, MAX_DELAY = "maxRowsPerTrigger", "minRowsPerTrigger", "maxTriggerDelayMs"
MAX_OFFSETS = "maxOffsetsPerTrigger"
"""Limits of a micro-batch, with Paimon's names. `MAX_OFFSETS` is the name of `MAX_ROWS` in Spark's Kafka source."""

LIMIT_PREFIX = "read.stream."
"""An optional prefix of limits of micro-batches, as in Paimon."""

DELETE_BEHAVIOR = "scan.delete.behavior"
IGNORE, FAIL, INCLUDE = "ignore", "fail", "include"
"""The handling of deleted keys in a stream of a primary-key table."""

DISCOVERY = "scan.partition.discovery.interval"
DEFAULT_DISCOVERY_SECONDS = 60.0


def _positive_seconds(value: str) -> float:
    """Seconds above 0, of text such as "30 s"."""
    seconds: float = parsers.seconds(value)
    if seconds <= 0:
        raise InvalidRequest(f"'{value}' is not a span of time above 0")
    return seconds


_READ = by_name(
    [
        Option(RECORDS_PER_PARTITION, parsers.positive),
        Option(STARTUP_MODE),
        Option(LEASE_ID),
        Option(LEASE_DURATION, _positive_seconds),
        Option(READ_OPTIMIZED, parsers.boolean, False),
        Option(START),
        Option(END),
        *(Option(name, parsers.boolean) for name in SWITCHES),
    ]
)
TRANSACTION_OPTIONS = (Option("txnAppId"), Option("txnVersion", parsers.integer))
"""Options that make a repeated batch have no effect, with Delta's names."""

ATOMIC = "write.atomic"
"""Whether a statement is a transaction: all of its rows or none (default: true)."""

PARTIAL_UPDATE = "write.partial-update"
"""Whether INSERT with a list of columns keeps the other columns of an existing row (default: true)."""

SEQUENCE_FIELD = "write.sequence.field"
"""The column by which the rows of each key are ordered before they are written."""

CHANGES = "write.changes"
"""Whether the data of a batch write has a column with change types (default: false). Streams need not say so."""

SINK_OPTIONS = (Option("checkpointLocation"), Option("queryName"))
"""Spark's own options, which it passes to the sink of a stream."""

_WRITE = by_name(
    [
        Option(WRITE_COLUMNS, parsers.names),
        *TRANSACTION_OPTIONS,
        Option(ATOMIC, parsers.boolean, True),
        Option(PARTIAL_UPDATE, parsers.boolean, True),
        Option(SEQUENCE_FIELD),
        Option(CHANGES, parsers.boolean, False),
        *SINK_OPTIONS,
    ]
)
_STREAM = by_name(
    [
        Option(STARTUP_MODE),
        Option(STARTUP_TIMESTAMP),
        Option(MAX_ROWS, parsers.positive),
        Option(MAX_OFFSETS, parsers.positive),
        Option(MIN_ROWS, parsers.positive),
        Option(MAX_DELAY, parsers.positive),
        Option(DELETE_BEHAVIOR, parsers.one_of(IGNORE, FAIL, INCLUDE), IGNORE),
        Option(DISCOVERY, _positive_seconds, DEFAULT_DISCOVERY_SECONDS),
    ]
)
OF_FORMATS = by_name(
    [
        Option("columns", parsers.names),
        Option("filter"),
        Option("limit", parsers.positive),
        Option("cores", parsers.positive),
    ]
)
"""Options of formats, which have no pushdown of columns, filters and limits."""


@dataclass(frozen=True)
class SnapshotLease:
    """The options `scan.kv.snapshot.lease.id` and `.duration`; None if they are not set."""

    lease_id: str | None = None
    seconds: float | None = None

    @property
    def is_requested(self) -> bool:
        return self.lease_id is not None or self.seconds is not None


@dataclass(frozen=True)
class ReadOptions:
    """How one scan reads. `strategy` is how the rows of primary-key tables are found.

    For tables with a lake: `from_the_lake_on`: the scan includes the lake's rows; `read_optimized`: it has no others.
    `window` restricts the scan to rows that were written between two times (milliseconds since the epoch; None: now).
    `modes` are the ways in which rows may reach Spark.
    """

    settings: Settings
    strategy: str = SERVER_SCAN
    records_per_partition: int | None = None
    lease: SnapshotLease = field(default_factory=SnapshotLease)
    from_the_lake_on: bool = True
    read_optimized: bool = False
    window: tuple[int, int | None] | None = None
    modes: ReadMode = DEFAULT_MODES


@dataclass(frozen=True)
class WriteOptions:
    """How one statement writes. `columns` makes it a partial update of those columns; None writes whole rows."""

    settings: Settings
    columns: tuple[str, ...] | None = None
    transaction: tuple[str, int] | None = None
    """The application and version of the transaction, which is committed once."""
    is_atomic: bool = True
    is_partial: bool = True
    sequence_field: str | None = None
    has_changes: bool = False


LAKE_PREFIX = "lake."
"""The prefix of the lake's options among those of the format "forebay"."""


@dataclass(frozen=True)
class OptionReader:
    """Options by lower-case name. Those with `definitions` are taken one by one; all others are refused."""

    what: str
    values: dict[str, str]
    definitions: Mapping[str, Option]

    @classmethod
    def of(cls, what: str, options: Mapping[str, str], definitions: Mapping[str, Option]) -> OptionReader:
        return cls(what, {key.lower(): value for key, value in options.items()}, definitions)

    def take(self, name: str, session: Mapping[str, str] | None = None) -> Any:
        """Remove and return the value of an option; else that of the `session` configuration, else the default."""
        option, text = self.definitions[name], self.values.pop(name.lower(), None)
        if text is None and session is not None:
            text = session.get(OWN_SESSION_PREFIX + name, session.get(SESSION_PREFIX + name))
        return option.default if text is None else option.read(text)

    def take_all(self, prefix: str) -> dict[str, str]:
        """Remove and return the options that begin with `prefix`."""
        return {name: self.values.pop(name) for name in list(self.values) if name.startswith(prefix)}

    def take_rest(self, settings: Settings) -> Settings:
        """`settings` under the `client.*` options. Raises `InvalidRequest` for any other option that was not taken."""
        client = self.take_all("client.")
        for name in self.values:
            if name in map(str.lower, _OF_STREAMS):
                raise UnsupportedOperation(f"{self.what} option '{name}' is for streams (spark.readStream)")
            hint = (
                did_you_mean(name, self.definitions, 0.5) or f"; there are {', '.join(self.definitions)} and client.*"
            )
            raise InvalidRequest(f"there is no {self.what} option '{name}'{hint}", ErrorCode.CONFIG_EXCEPTION)
        if not client:
            return settings
        parsed = dict(cluster_settings(str(settings.bootstrap_servers[0]), None, None, client).user_options)
        return replace(settings, user_options=tuple(sorted({**dict(settings.user_options), **parsed}.items())))


def cluster_settings(
    bootstrap_servers: str | None,
    user: str | None = None,
    password: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of a connection of Spark; arguments and errors are those of `make_settings`.

    Raises `UnsupportedOperation` for a standby beside the server: UPDATE, DELETE and MERGE write what they have read.
    """
    settings = make_settings(bootstrap_servers, user, password, options)
    if standby := settings[READ_STANDBY]:
        raise UnsupportedOperation(
            f"'{READ_STANDBY}' = '{standby}' has no effect in Spark: attach a second catalog of the standby "
            f"(bootstrap_servers='{standby}'), and read from that one (docs/store.md)"
        )
    return settings


def read_options(
    settings: Settings,
    descriptor: TableDescriptor | None,
    options: Mapping[str, str],
    session: Mapping[str, str] | None = None,
) -> ReadOptions:
    """The options of a scan. `options` override the `session` configuration, and that the table's properties."""
    session = session or {}
    reader = OptionReader.of("read", options, _READ)
    strategy_options = {name: reader.values.pop(name) for name in (STRATEGY, SERVER_SIDE) if name in reader.values}
    strategies = [
        strategy_of(strategy_options, "read option"),
        strategy_of(session, "session configuration", SESSION_PREFIX),
        strategy_of({} if descriptor is None else descriptor.custom_properties, "table property"),
    ]
    mode = (reader.take(STARTUP_MODE) or FULL).lower()
    if mode not in (FULL, EARLIEST):
        raise UnsupportedOperation(
            f"read option '{STARTUP_MODE}' = '{mode}': batch reads begin at the beginning (full), or read "
            f"what was written from an instant on ('{START}')"
        )
    records = reader.take(RECORDS_PER_PARTITION)
    lease = SnapshotLease(reader.take(LEASE_ID, session), reader.take(LEASE_DURATION, session))
    is_optimized = reader.take(READ_OPTIMIZED, session)
    window = _window(reader.take(START), reader.take(END), session.get(SESSION_ZONE))
    if window is not None and is_optimized:
        raise InvalidRequest(
            f"'{READ_OPTIMIZED}' reads the lake alone, and '{START}' the log alone: give one of them",
            ErrorCode.CONFIG_EXCEPTION,
        )
    modes = allowed_modes({name: reader.take(name, session) for name in SWITCHES})
    settings = reader.take_rest(settings)
    of_connection = SERVER_SCAN if settings[SERVER_SIDE] and settings[STRATEGY] == SERVER_SCAN else SNAPSHOT_MERGE
    strategy = next(filter(None, strategies), of_connection)
    from_lake = mode == FULL
    return ReadOptions(settings, strategy, records, lease, from_lake, is_optimized, window, modes)


def _window(start: str | None, end: str | None, zone: str | None) -> tuple[int, int | None] | None:
    """The window of a time-range read, if any. Raises `InvalidRequest` for a window without a start or an empty one."""
    if start is None:
        if end is not None:
            raise InvalidRequest(f"'{END}' needs '{START}' beside it", ErrorCode.CONFIG_EXCEPTION)
        return None
    first, last = instant(START, start, zone), None if end is None else instant(END, end, zone)
    if last is not None and last <= first:
        raise InvalidRequest(f"'{END}' ({end}) must be after '{START}' ({start})", ErrorCode.CONFIG_EXCEPTION)
    return first, last


def instant(name: str, text: str, zone: str | None) -> int:
    """Milliseconds since the epoch, from a number or a time such as 2026-01-31 12:00:00 in the session's time zone."""
    plain = text.strip()
    if plain.isdigit():
        return int(plain)
    try:
        moment = dt.datetime.fromisoformat(plain)
        if moment.tzinfo is None:
            if zone is None:
                raise ValueError("without a session the time needs its zone, as in 2026-01-31T12:00:00+00:00")
            moment = moment.replace(tzinfo=zoneinfo.ZoneInfo(zone))
    except (ValueError, zoneinfo.ZoneInfoNotFoundError) as e:
        raise InvalidRequest(
            f"option '{name}' is '{text}', which is neither milliseconds since the epoch nor a time like "
            f"2026-01-31 12:00:00: {e}",
            ErrorCode.CONFIG_EXCEPTION,
        ) from e
    return moment_ms(moment, name)


def strategy_of(values: Mapping[str, str], where: str, prefix: str = "") -> str | None:
    """The scan strategy of the options, under either of its names; None if it is not set.

    Raises `InvalidRequest` for invalid values.
    """
    strategy = values.get(prefix + STRATEGY)
    if strategy is not None:
        plain = strategy.strip().lower().replace("-", "_")
        if plain not in (SERVER_SCAN, SNAPSHOT_MERGE):
            raise InvalidRequest(
                f"{where} '{prefix + STRATEGY}' is '{strategy}'; it can be server-scan or snapshot-merge",
                ErrorCode.CONFIG_EXCEPTION,
            )
        return plain
    enabled = values.get(prefix + SERVER_SIDE)
    if enabled is None:
        return None
    is_on = Option(prefix + SERVER_SIDE, parsers.boolean).read(enabled, where)
    return SERVER_SCAN if is_on else SNAPSHOT_MERGE


def write_options(settings: Settings, options: Mapping[str, str]) -> WriteOptions:
    """The options of a write. `columns` is a comma-separated list."""
    reader = OptionReader.of("write", options, _WRITE)
    columns = reader.take(WRITE_COLUMNS)
    transaction = transaction_option(reader)
    is_atomic, is_partial = reader.take(ATOMIC), reader.take(PARTIAL_UPDATE)
    sequence, has_changes = reader.take(SEQUENCE_FIELD), reader.take(CHANGES)
    for own in SINK_OPTIONS:
        reader.take(own.name)
    return WriteOptions(reader.take_rest(settings), columns, transaction, is_atomic, is_partial, sequence, has_changes)


def changes_option(options: Mapping[str, str]) -> bool:
    """Whether `options` of a write say that its data has change types. Raises `InvalidRequest` for another value."""
    text = next((value for name, value in options.items() if name.lower() == CHANGES), None)
    return text is not None and bool(_WRITE[CHANGES].read(text, "write option"))


def transaction_option(reader: OptionReader) -> tuple[str, int] | None:
    """The application and version of `txnAppId` and `txnVersion`. Raises `InvalidRequest` for one without the other."""
    application, version = (reader.take(option.name) for option in TRANSACTION_OPTIONS)
    if (application is None) != (version is None):
        raise InvalidRequest(
            "the write options 'txnAppId' and 'txnVersion' go together: the name of a job, and the number of its run",
            ErrorCode.CONFIG_EXCEPTION,
        )
    return None if application is None else (application, version)


_OF_STREAMS = (STARTUP_TIMESTAMP, MAX_ROWS, MAX_OFFSETS, MIN_ROWS, MAX_DELAY, DELETE_BEHAVIOR, DISCOVERY)
_OF_BATCHES = (READ_OPTIMIZED, START, END, RECORDS_PER_PARTITION)


@dataclass(frozen=True)
class StreamLimits:
    """The limits of a micro-batch: maximum numbers of files, rows and bytes (in whole files, at least one).

    With `min_rows` a batch waits for that many rows, but at most `max_delay_ms` after the previous one.
    """

    files: int | None = None
    rows: int | None = None
    bytes: int | None = None
    min_rows: int | None = None
    max_delay_ms: int | None = None

    @property
    def are_set(self) -> bool:
        return self != StreamLimits()

    def may_wait(self, rows: int, waited_ms: int) -> bool:
        """Whether a micro-batch of `rows` rows may still wait, `waited_ms` after the previous one."""
        if self.min_rows is None or self.max_delay_ms is None:
            return False
        return rows < self.min_rows and waited_ms <= self.max_delay_ms


def check_delay(min_rows: int | None, max_delay_ms: int | None) -> None:
    """Raise `InvalidRequest` unless both the minimum number of rows and the maximum delay are set, or neither."""
    if (min_rows is None) != (max_delay_ms is None):
        raise InvalidRequest(
            f"options '{MIN_ROWS}' and '{MAX_DELAY}' belong together: how many rows a micro-batch waits for, and for "
            "how long",
            ErrorCode.CONFIG_EXCEPTION,
        )


@dataclass(frozen=True)
class StreamOptions:
    """How a stream reads. `timestamp_ms` (since the epoch) is the start of mode "timestamp".

    `deletes` is the handling of deleted keys.
    """

    read: ReadOptions
    mode: str
    timestamp_ms: int | None = None
    limits: StreamLimits = StreamLimits()
    deletes: str = IGNORE
    discovery_seconds: float = DEFAULT_DISCOVERY_SECONDS


def deletes_option(options: Mapping[str, str]) -> str:
    """The handling of deleted keys that `options` set. Raises `InvalidRequest` for an invalid value."""
    text = next((value for name, value in options.items() if name.lower() == DELETE_BEHAVIOR), None)
    return IGNORE if text is None else str(_STREAM[DELETE_BEHAVIOR].read(text, "read option"))


def _without_prefix(options: Mapping[str, str]) -> dict[str, str]:
    """Options by lower-case names without `LIMIT_PREFIX`."""
    return {name.lower().removeprefix(LIMIT_PREFIX): value for name, value in options.items()}


def is_for_streams(options: Mapping[str, str]) -> bool:
    """Whether any option is only for streams, even with an invalid value."""
    by_name = _without_prefix(options)
    mode = by_name.get(STARTUP_MODE, FULL).strip().lower()
    return mode not in (FULL, EARLIEST) or any(name.lower() in by_name for name in _OF_STREAMS)


def stream_options(
    settings: Settings,
    descriptor: TableDescriptor | None,
    options: Mapping[str, str],
    *,
    is_changelog: bool = False,
    zone: str | None = None,
) -> StreamOptions:
    """The options of a stream. Raises `InvalidRequest` for invalid combinations, and `UnsupportedOperation`.

    The default mode of a changelog is "earliest".
    """
    reader = OptionReader.of("stream", _without_prefix(options), _STREAM)
    for name in _OF_BATCHES:
        if name.lower() in reader.values:
            raise UnsupportedOperation(f"read option '{name}' is for batch reads; a stream has '{MAX_ROWS}'")
    mode = (reader.take(STARTUP_MODE) or (EARLIEST if is_changelog else FULL)).strip().lower()
    if mode not in MODES:
        raise InvalidRequest(
            f"read option '{STARTUP_MODE}' is '{mode}'; it can be {', '.join(MODES)}", ErrorCode.CONFIG_EXCEPTION
        )
    timestamp = reader.take(STARTUP_TIMESTAMP)
    if (timestamp is None) == (mode == TIMESTAMP):
        raise InvalidRequest(
            f"read options '{STARTUP_MODE}' = '{TIMESTAMP}' and '{STARTUP_TIMESTAMP}' belong together",
            ErrorCode.CONFIG_EXCEPTION,
        )
    started_ms = None if timestamp is None else instant(STARTUP_TIMESTAMP, timestamp, zone)
    rows, offsets, min_rows, delay = (reader.take(name) for name in (MAX_ROWS, MAX_OFFSETS, MIN_ROWS, MAX_DELAY))
    if rows is not None and offsets is not None:
        raise InvalidRequest(
            f"'{MAX_ROWS}' and '{MAX_OFFSETS}' are the same limit: give one of them", ErrorCode.CONFIG_EXCEPTION
        )
    check_delay(min_rows, delay)
    limits = StreamLimits(rows=rows or offsets, min_rows=min_rows, max_delay_ms=delay)
    deletes, interval = reader.take(DELETE_BEHAVIOR), reader.take(DISCOVERY)
    return StreamOptions(read_options(settings, descriptor, reader.values), mode, started_ms, limits, deletes, interval)
