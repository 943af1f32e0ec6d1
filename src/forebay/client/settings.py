"""The options of a connection: Fluss's `client.*` names, their types and defaults.

Nouns: an *option* has a name (`client.writer.batch-size`), a parser and a default; `Settings` are the values of
all options of one connection, and pickle as the values that the user set, so that a Spark worker can open the same
connection.

Rule: names may be written with or without `client.`, and with dots, dashes or underscores (`writer_batch_size`), so
that they can also be Python keywords. An unknown name is rejected with suggestions.

Names, meanings and defaults are those of Apache Fluss (`ConfigOptions`), so that its documentation applies. The few
that Forebay adds are marked with "(Forebay)". Options that tune internals of Fluss's own client are accepted without
effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.base.errors import ErrorCode, InvalidRequest
from forebay.base.options import Option, between, boolean, by_name, one_of, seconds, size
from forebay.metadata.table import TableInfo

_PREFIX = "client."
LAKE_OPTIONS = "lake_options"
"""The name of the parameter for options of the lake: these are not `client.*` options, and are not sent to the server.
"""

_BOOTSTRAP = "bootstrap.servers"
READ_STANDBY = "client.read.standby"
_STANDBY_SECONDS = 5.0
_TIMEOUTS = ("client.connect-timeout", "client.request-timeout", "client.retry-timeout")
_IDEMPOTENCE = "client.writer.enable-idempotence"
_SCAN_STRATEGY = "client.scanner.kv.batch-strategy"
_SCANS_ON_SERVERS = "client.scanner.kv.server-side.enabled"
DEFAULT_PORT = 9123

IDEMPOTENT_IN_FLIGHT_MAX = 5
"""The number of batches of a writer that a server remembers per bucket."""


def _acks(value: Any) -> int:
    text = str(value).strip().lower()
    if text not in _ACKS:
        raise InvalidRequest(f"{value!r} is not one of all, 1 and 0")
    return _ACKS[text]


_ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}

_WITHOUT_EFFECT = "part of Fluss's own client; accepted, without effect"


@dataclass(frozen=True, slots=True)
class Address:
    """`host:port` of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """The servers in "host:port,host:port". A host without a port means port 9123.

    Raises `InvalidRequest` for anything else.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"{text!r} is not the address of a server: write 'host:port'")
    addresses = []
    for part in text.split(","):
        if not part.strip():
            continue
        scheme, slashes, rest = part.strip().rpartition("://")
        place = rest.partition("/")[0]
        if slashes or place != rest:
            raise InvalidRequest(
                f"{part.strip()!r} is not a server address: write {place or 'host:port'!r}, without "
                f"{scheme + slashes if slashes else rest[len(place) :]!r}"
            )
        host, colon, port = part.strip().rpartition(":")
        if not colon or port.endswith("]"):
            host, port = part.strip(), str(DEFAULT_PORT)
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise InvalidRequest(f"{part.strip()!r} is not a server address: write 'host:port'")
        addresses.append(Address(host.removeprefix("[").removesuffix("]"), int(port)))
    if not addresses:
        raise InvalidRequest("no bootstrap server was given: write 'host:port', for instance '127.0.0.1:9123'")
    return tuple(addresses)


OPTIONS: dict[str, Option] = by_name(
    (
        Option(
            "client.id", str, "", "a name for this client; it is not sent, because the protocol has no field for it"
        ),
        Option("client.connect-timeout", seconds, 120.0, "time limit for opening a connection to a server"),
        Option("client.request-timeout", seconds, 30.0, "time limit for one request"),
        Option(
            "client.request.slow-log-threshold",
            seconds,
            None,
            "(Forebay) requests that take longer are logged, but for fetches, which wait for records",
        ),
        Option(
            "client.retry-timeout",
            seconds,
            60.0,
            "(Forebay) how long operations that are safe to repeat are retried while servers are unavailable",
        ),
        Option(
            "client.read.standby",
            parse_addresses,
            None,
            "(Forebay) where a standby serves reads: scans and lookups go there while it answers",
        ),
        Option(
            "client.tracing.enabled",
            boolean,
            False,
            "(Forebay) whether there are OpenTelemetry spans of requests, writes and scans (extra otel)",
        ),
        Option("client.security.protocol", one_of("plaintext", "sasl"), None, "plaintext, or sasl"),
        Option("client.security.sasl.mechanism", one_of("plain"), "plain", "the only supported mechanism"),
        Option("client.security.sasl.username", str, None, "user name for SASL"),
        Option("client.security.sasl.password", str, None, "password for SASL"),
        # writing
        Option(
            "client.writer.acks", _acks, -1, "replicas that must have a batch before it is acknowledged: all, 1 or 0"
        ),
        Option("client.writer.batch-size", size, 2 << 20, "maximum size of a batch"),
        Option("client.writer.batch-timeout", seconds, 0.1, "how long a buffered row waits for more rows (linger)"),
        Option("client.writer.buffer.memory-size", size, 64 << 20, "maximum size of all unacknowledged batches"),
        Option(
            "client.writer.buffer.wait-timeout", seconds, float("inf"), "how long a writer waits for free buffer memory"
        ),
        Option("client.writer.bucket.no-key-assigner", one_of("sticky", "round_robin"), "sticky", "for log tables"),
        Option("client.writer.request-max-size", size, 10 << 20, "maximum size of a write request"),
        Option("client.writer.retries", between(0), (1 << 31) - 1, "maximum number of retries of a batch"),
        Option(
            "client.writer.delivery-timeout",
            seconds,
            300.0,
            "(Forebay) time limit for the acknowledgement of a batch, including all retries",
        ),
        Option("client.writer.enable-idempotence", boolean, True, "whether retries cannot duplicate rows"),
        Option("client.writer.max-inflight-requests-per-bucket", between(1), 5, "in-flight batches per bucket"),
        Option(
            "client.writer.dynamic-create-partition.enabled", boolean, True, "whether writers create missing partitions"
        ),
        Option(
            "client.writer.kv-backpressure.max-throttle",
            seconds,
            3.0,
            "longest pause when the server applies back-pressure",
        ),
        # reading logs
        Option("client.scanner.log.check-crc", boolean, True, "whether checksums of log batches are verified"),
        Option("client.scanner.log.max-poll-records", between(1), 500, "no effect: batches are returned whole"),
        Option("client.scanner.log.fetch.max-bytes", size, 16 << 20, "maximum size of a fetch response"),
        Option("client.scanner.log.fetch.max-bytes-for-bucket", size, 4 << 20, "the same per bucket"),
        Option("client.scanner.log.fetch.wait-max-time", seconds, 0.5, "how long the server waits for new records"),
        Option("client.scanner.log.fetch.min-bytes", size, 1, "bytes of new records that end that wait"),
        Option(
            "client.scanner.log.read-preference",
            one_of("local_first", "remote_first"),
            "local_first",
            "which copy to read if records are both on the server and in remote storage",
        ),
        # scans of the current state
        Option("client.scanner.kv.fetch.max-bytes", size, 4 << 20, "size of one page of a live scan"),
        Option(
            "client.scanner.kv.max-sessions",
            between(1),
            4,
            "(Forebay) buckets that a live scan reads concurrently",
        ),
        Option(
            "client.scanner.kv.compression",
            one_of("none", "lz4", "zstd"),
            "none",
            "(Forebay) how pages in Arrow are compressed on their way",
        ),
        Option(
            "client.scanner.kv.open-timeout",
            seconds,
            30.0,
            "(Forebay) how long a live scan waits while the server has too many scans open",
        ),
        Option(
            "client.scanner.kv.batch-strategy",
            one_of("snapshot_merge", "server_scan"),
            "server_scan",
            "server_scan lets the server scan; snapshot_merge rebuilds the rows here, from the changelog",
        ),
        Option("client.scanner.kv.server-side.enabled", boolean, True, "older name of that choice"),
        # lookups
        Option("client.lookup.max-batch-size", between(1), 256, "maximum number of keys per bucket in one request"),
        Option("client.lookup.max-inflight-requests", between(1), 128, "in-flight lookup requests per call"),
        Option("client.lookup.max-retries", between(0), (1 << 31) - 1, "maximum number of retries of a lookup"),
        # the rest of Fluss's list
        *(
            Option(name, about=_WITHOUT_EFFECT)
            for name in (
                "client.lookup.queue-size",
                "client.lookup.batch-timeout",
                "client.writer.buffer.page-size",
                "client.writer.buffer.per-request-memory-size",
                "client.writer.dynamic-batch-size.enabled",
                "client.writer.dynamic-batch-size.min",
                "client.scanner.remote-log.prefetch-num",
                "client.scanner.remote-log.read-concurrency",
                "client.scanner.io.tmpdir",
                "client.remote-file.download-thread-num",
                "client.filesystem.security.token.renewal.backoff",
                "client.filesystem.security.token.renewal.time-ratio",
                "client.metrics.enabled",
                "client.security.enable-plugin-discovery",
            )
        ),
    )
)


def _plain(name: str) -> str:
    """A name without its prefix and with uniform separators, for comparison."""
    return name.strip().lower().replace("_", ".").replace("-", ".").removeprefix(_PREFIX)


_BY_PLAIN_NAME = {_plain(name): name for name in OPTIONS}


def option_name(name: str) -> str:
    """The full name of an option in any accepted spelling. Raises `InvalidRequest` with near matches."""
    full = _BY_PLAIN_NAME.get(_plain(name))
    if full is not None:
        return full
    from forebay.base.arguments import did_you_mean

    hint = did_you_mean(name.replace("_", "."), OPTIONS, 0.5) or "; see docs/client.md for the options"
    raise InvalidRequest(f"there is no client option '{name}'{hint}", ErrorCode.CONFIG_EXCEPTION)


@dataclass(frozen=True)
class Settings:
    """Bootstrap servers and options of a connection. Hashable and picklable; passwords and lake options are not shown.

    `user_options` are the values that the user set, by full option name; all others have their defaults. `lake_options`
    are the user's options of the lake, which override those that the server sends.
    """

    bootstrap_servers: tuple[Address, ...]
    user_options: tuple[tuple[str, Any], ...] = ()
    lake_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    _values: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = {name: option.default_value for name, option in OPTIONS.items()}
        values.update(self.user_options)
        object.__setattr__(self, "_values", values)

    def __getitem__(self, name: str) -> Any:
        """The parsed value of the option with this full name. Durations are in seconds."""
        return self._values[name]

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User and password, or None for a connection without authentication."""
        user, password = self["client.security.sasl.username"], self["client.security.sasl.password"]
        protocol = self["client.security.protocol"]
        if protocol == "plaintext" or (protocol is None and user is None):
            return None
        if not user or not password:
            raise InvalidRequest(
                "SASL needs a user and a password: connect(..., user=..., password=...), or on the command line --user "
                "and --password-file (or $FOREBAY_PASSWORD)",
                ErrorCode.CONFIG_EXCEPTION,
            )
        return user, password

    def lake_options_of(self, info: TableInfo) -> dict[str, str]:
        """Return the options of a table's lake: those that the server publishes, overridden by the user's."""
        return {**info.lake_options(), **dict(self.lake_options)}

    @property
    def of_standby(self) -> Settings:
        """Those of a connection to the standby of `client.read.standby`, which gives up early."""
        kept = {name: value for name, value in self.user_options if name != READ_STANDBY}
        hasty = dict.fromkeys(_TIMEOUTS, _STANDBY_SECONDS)
        return Settings(self[READ_STANDBY], tuple(sorted({**kept, **hasty}.items())), self.lake_options)

    @property
    def idempotent(self) -> bool:
        """Whether writes are idempotent: enabled (the default), and possible with the configured acks and retries."""
        certain = self["client.writer.acks"] == -1 and self["client.writer.retries"] > 0
        return bool(self[_IDEMPOTENCE]) and certain

    @property
    def scans_on_servers(self) -> bool:
        """Whether the servers run live scans (`client.scanner.kv.batch-strategy`, or its older name)."""
        return bool(self[_SCAN_STRATEGY] == "server_scan" and self[_SCANS_ON_SERVERS])

    def __reduce__(self) -> tuple[Any, ...]:
        return Settings, (self.bootstrap_servers, self.user_options, self.lake_options)

    def __repr__(self) -> str:
        options = {name: "******" if name.endswith("password") else value for name, value in self.user_options}
        servers = ",".join(str(address) for address in self.bootstrap_servers)
        lake = f", {LAKE_OPTIONS} for {', '.join(key for key, _ in self.lake_options)}" if self.lake_options else ""
        return f"Settings({servers}{''.join(f', {name}={value!r}' for name, value in options.items())}{lake})"


def make_settings(
    bootstrap_servers: str | None,
    user: str | None = None,
    password: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings for what a user specified. `options` may contain `bootstrap.servers` too, and a mapping
    `lake_options`.

    Raises `InvalidRequest` for unknown options, values that cannot be parsed, and contradictions.
    """
    values: dict[str, Any] = {}
    lake: tuple[tuple[str, str], ...] = ()
    for name, value in (options or {}).items():
        if name == LAKE_OPTIONS:
            lake = _lake_options(value)
            continue
        if _plain(name) == _BOOTSTRAP:
            if bootstrap_servers is not None and bootstrap_servers != value:
                raise InvalidRequest(f"two lists of bootstrap servers were given: {bootstrap_servers!r} and {value!r}")
            bootstrap_servers = value
            continue
        full = option_name(name)
        if full in values:
            raise InvalidRequest(f"client option '{full}' was given twice", ErrorCode.CONFIG_EXCEPTION)
        values[full] = OPTIONS[full].read(value, "client option")
    for name, credential in (("username", user), ("password", password)):
        if credential is not None:
            values[f"client.security.sasl.{name}"] = str(credential)
    settings = Settings(parse_addresses(bootstrap_servers or ""), tuple(sorted(values.items())), lake)
    _check_consistent(settings)
    return settings


def _lake_options(options: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise InvalidRequest(
            f"{LAKE_OPTIONS} is a {type(options).__name__}; give a mapping, such as {{'s3.access-key': '...'}}",
            ErrorCode.CONFIG_EXCEPTION,
        )
    return tuple(sorted((key, str(value)) for key, value in options.items()))


def _check_consistent(settings: Settings) -> None:
    _ = settings.credentials
    values = dict(settings.user_options)
    both = _SCAN_STRATEGY in values and _SCANS_ON_SERVERS in values
    if both and values[_SCANS_ON_SERVERS] != (values[_SCAN_STRATEGY] == "server_scan"):
        raise InvalidRequest(
            f"{_SCAN_STRATEGY}={values[_SCAN_STRATEGY]} contradicts {_SCANS_ON_SERVERS}="
            f"{str(values[_SCANS_ON_SERVERS]).lower()}, which is its older name: give one of them",
            ErrorCode.CONFIG_EXCEPTION,
        )
    is_requested = values.get(_IDEMPOTENCE, False)
    if is_requested and not settings.idempotent:
        raise InvalidRequest(
            f"{_IDEMPOTENCE}=true needs client.writer.acks=all and client.writer.retries of at least 1",
            ErrorCode.CONFIG_EXCEPTION,
        )
    in_flight = settings["client.writer.max-inflight-requests-per-bucket"]
    if settings.idempotent and in_flight > IDEMPOTENT_IN_FLIGHT_MAX:
        raise InvalidRequest(
            f"client.writer.max-inflight-requests-per-bucket is {in_flight}; with {_IDEMPOTENCE}=true it can be "
            f"{IDEMPOTENT_IN_FLIGHT_MAX} at most, because servers remember no more batches of a writer",
            ErrorCode.CONFIG_EXCEPTION,
        )
