"""Options that Spark users give: of a catalog, a read, a write, a session.

Three places, the later one wins: what `attach` was given; the session's configuration (`spark.sql.fluss.<option>`, as
in Fluss's own connector) and the table's properties, for the scan strategy; the options of the read or write itself
(`spark.read.option(...)`, `SELECT ... FROM t WITH (...)`). An option that nobody knows is refused, with near matches.

Names are Fluss's. `client.*` options are those of forebay.client.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.base.quantity import parse_bool
from forebay.client.options import Settings, make_settings
from forebay.metadata.table import TableDescriptor

STRATEGY = "client.scanner.kv.batch-strategy"
SERVER_SIDE = "client.scanner.kv.server-side.enabled"
SESSION_PREFIX = "spark.sql.fluss."
"""Where the session's configuration has scan options."""

SERVER_SCAN, SNAPSHOT_MERGE = "server_scan", "snapshot_merge"

RECORDS_PER_PARTITION = "scan.maxRecordsPerPartition"
STARTUP_MODE = "scan.startup.mode"
WRITE_COLUMNS = "columns"

_READ = (RECORDS_PER_PARTITION, STARTUP_MODE)
_WRITE = (WRITE_COLUMNS,)
_LATER = (
    "scan.startup.timestamp",
    "scan.incremental.start.timestamp",
    "scan.incremental.end.timestamp",
    "read.optimized",
)


@dataclass(frozen=True)
class ReadOptions:
    """How one scan reads. `strategy` is how the rows of primary-key tables are found."""

    settings: Settings
    strategy: str = SERVER_SCAN
    records_per_partition: int | None = None


@dataclass(frozen=True)
class WriteOptions:
    """How one statement writes. `columns` makes it a partial update of these; None writes whole rows."""

    settings: Settings
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class GivenOptions:
    """Options by lower-case name, taken one after the other; what is left is refused."""

    what: str
    values: dict[str, str]
    known: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, what: str, options: Mapping[str, str], known: Iterable[str]) -> GivenOptions:
        return cls(what, {key.lower(): value for key, value in options.items()}, tuple(known))

    def take(self, name: str) -> str | None:
        return self.values.pop(name.lower(), None)

    def refuse_rest(self) -> None:
        """Raise `InvalidRequest` for the first option that is left."""
        for name in self.values:
            if name in _LATER:
                raise UnsupportedOperation(f"{self.what} option '{name}' is not served yet (docs/limits.md)")
            lowered = {known.lower(): known for known in self.known}
            near = [repr(lowered[n]) for n in difflib.get_close_matches(name, list(lowered), 3, 0.5)]
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.known)} and client.*"
            raise InvalidRequest(f"there is no {self.what} option '{name}'; {hint}", ErrorCode.CONFIG_EXCEPTION)


def with_client_options(settings: Settings, given: GivenOptions) -> Settings:
    """`settings` with the `client.*` options among `given`, which are taken."""
    chosen = {name: value for name, value in given.values.items() if name.startswith("client.")}
    for name in chosen:
        del given.values[name]
    if not chosen:
        return settings
    parsed = dict(make_settings(str(settings.bootstrap_servers[0]), None, None, chosen).given)
    return replace(settings, given=tuple(sorted({**dict(settings.given), **parsed}.items())))


def read_options(
    settings: Settings,
    descriptor: TableDescriptor | None,
    options: Mapping[str, str],
    session: Mapping[str, str] | None = None,
) -> ReadOptions:
    """The options of a scan: `options` of the read, over `session` configuration, over the table's properties."""
    given = GivenOptions.of("read", options, _READ)
    strategy = strategy_of({} if descriptor is None else descriptor.custom_properties, "table property")
    strategy = strategy_of(session or {}, "session configuration", SESSION_PREFIX) or strategy
    asked = {name: given.values.pop(name) for name in (STRATEGY, SERVER_SIDE) if name in given.values}
    strategy = strategy_of(asked, "read option") or strategy
    mode = (given.take(STARTUP_MODE) or "full").lower()
    if mode not in ("full", "earliest"):
        raise UnsupportedOperation(
            f"read option '{STARTUP_MODE}' = '{mode}': batch reads begin at the beginning (full)"
        )
    records = given.take(RECORDS_PER_PARTITION)
    settings = with_client_options(settings, given)
    given.refuse_rest()
    return ReadOptions(
        settings,
        strategy or settings_strategy(settings),
        None if records is None else positive_integer(RECORDS_PER_PARTITION, records),
    )


def settings_strategy(settings: Settings) -> str:
    """What the options of the connection say about the scan strategy."""
    return SERVER_SCAN if settings[SERVER_SIDE] and settings[STRATEGY] == SERVER_SCAN else SNAPSHOT_MERGE


def strategy_of(values: Mapping[str, str], where: str, prefix: str = "") -> str | None:
    """The scan strategy that options ask for under either of its names; None if they are silent.

    Raises `InvalidRequest` for values that are none.
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
    try:
        return SERVER_SCAN if parse_bool(enabled) else SNAPSHOT_MERGE
    except InvalidRequest as e:
        raise InvalidRequest(f"{where} '{prefix + SERVER_SIDE}': {e.message}", ErrorCode.CONFIG_EXCEPTION) from e


def write_options(settings: Settings, options: Mapping[str, str]) -> WriteOptions:
    """The options of a write. `columns` is a list with commas."""
    given = GivenOptions.of("write", options, _WRITE)
    columns = given.take(WRITE_COLUMNS)
    settings = with_client_options(settings, given)
    given.refuse_rest()
    return WriteOptions(settings, None if columns is None else split_names(columns))


def split_names(text: str) -> tuple[str, ...]:
    """Names in "a, b"."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def positive_integer(name: str, text: str) -> int:
    """Raises `InvalidRequest` naming the option."""
    try:
        value = int(text)
    except ValueError as e:
        raise InvalidRequest(f"option '{name}' is '{text}', which is not an integer", ErrorCode.CONFIG_EXCEPTION) from e
    if value < 1:
        raise InvalidRequest(f"option '{name}' is {value}; it must be at least 1", ErrorCode.CONFIG_EXCEPTION)
    return value
