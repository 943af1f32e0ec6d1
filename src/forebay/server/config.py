"""Server settings by name (Fluss's own names where it has them), checked and typed.

Settings come from a file, from `-D key=value` and from the command line's own options, later ones winning. A Fluss
setting that is meaningless for a single process (`zookeeper.*`, thread pools, RocksDB tuning) is accepted and ignored,
with a line in the log; one for a feature that Forebay does not serve is refused by name; an unknown one is refused with
the nearest names.
"""

from __future__ import annotations

import difflib
import logging
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.base.arguments import did_you_mean
from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.base.host import machine_memory, open_files_max
from forebay.base.indirect import is_marker, resolved, settings_of
from forebay.base.locations import local_folder, located
from forebay.base.options import (
    Option,
    boolean,
    by_name,
    integer,
    milliseconds,
    names,
    networks,
    one_of,
    or_unset,
    ports,
    positive,
    share,
    size,
    up_to,
)
from forebay.kv.engines import AUTO, parse_engine
from forebay.kv.scanner import ScannerLimits
from forebay.kv.table_snapshots import TableSnapshotLimits
from forebay.lake.formats import datalake_options, needs_warehouse
from forebay.lake.public_options import HIDDEN
from forebay.log.config import LogConfig
from forebay.metadata.table_options import lake_format_name
from forebay.protocol.credentials import CREDENTIALS, JAAS_CONFIG, jaas_listener
from forebay.protocol.listeners import (
    ADVERTISED_LISTENERS,
    BIND_LISTENERS,
    INTERNAL_LISTENER_NAME,
    PROTOCOL_MAP,
    SASL_MECHANISMS,
)
from forebay.server.fluss_settings import NO_EFFECT, UNSERVED
from forebay.server.metadata.catalog import CatalogLimits
from forebay.server.metadata.lake_tables import LakeSettings
from forebay.server.transactions.transaction import TransactionLimits
from forebay.store.journal_format import EpochBegan

_LOGGER = logging.getLogger(__name__)

DESCRIPTORS_PER_BUCKET = 6
"""Descriptors of an open bucket that is written and read: its log, its key-value state, an older segment."""
_CONNECTION_MEMORY_MIN, _CONNECTION_MEMORY_MAX = 128 << 20, 1 << 30
_OPEN_BUCKETS_MIN, _OPEN_BUCKETS_MAX = 64, 4096


def _reporters(text: str) -> bool:
    """Whether 'prometheus' is named, the only one there is."""
    reporters = [name.strip() for name in text.split(",") if name.strip()]
    for name in reporters:
        if name != "prometheus":
            raise UnsupportedOperation(
                f"there is no metrics reporter '{name}' here, only 'prometheus' (docs/limits.md)",
                ErrorCode.CONFIG_EXCEPTION,
            )
    return bool(reporters)


def durability(text: str) -> str:
    """'local' or 'store'."""
    if text not in ("local", "store"):
        raise InvalidRequest(f"it is 'local' or 'store', and not '{text}'", ErrorCode.CONFIG_EXCEPTION)
    return text


TRUSTED_PROXIES = "server.proxy-protocol.trusted-addresses"

SETTINGS: dict[str, Option] = by_name(
    (
        Option("default.bucket.number", positive, "1", "number of buckets of tables that do not set it"),
        Option("default.replication.factor", positive, "1", "accepted for compatibility; there is one server"),
        Option("max.bucket.num", positive, "4096", "maximum number of buckets of a table, over all partitions"),
        Option("max.partition.num", positive, "1000", "maximum number of partitions of a table"),
        Option("allow.create.log.tables", boolean, "true", "whether clients may create log tables"),
        Option("allow.create.kv.tables", boolean, "true", "whether clients may create primary-key tables"),
        Option(
            "auto-partition.check.interval",
            milliseconds,
            "10 min",
            "how often automatic partitions are created and dropped",
        ),
        Option("kv.scanner.ttl", milliseconds, "10 min", "how long a full scan may be idle"),
        Option("kv.scanner.expiration-interval", milliseconds, "30 s", "how often idle scans are expired"),
        Option("kv.scanner.max-per-bucket", positive, "8", "maximum concurrent full scans of one bucket"),
        Option("kv.scanner.max-per-server", positive, "200", "maximum concurrent full scans"),
        Option("kv.scanner.max-batch-size", size, "10mb", "largest page of a full scan"),
        Option(
            "kv.snapshot-handle.max-count", up_to(512), "256", "maximum number of open table snapshots (at most 512)"
        ),
        Option(
            "kv.snapshot-handle.default-lease",
            milliseconds,
            "10 min",
            "how long a table snapshot may be idle, unless its client says otherwise",
        ),
        Option("kv.snapshot-handle.max-lease", milliseconds, "1 d", "the longest idle time that a client can ask for"),
        Option(
            "kv.snapshot-handle.max-age",
            milliseconds,
            "1 d",
            "how long a table snapshot may live; the state that it pins takes space",
        ),
        Option("transaction.max-open", positive, "1000", "maximum number of transactions that are not committed"),
        Option(
            "transaction.max-staged-size", size, "16g", "bytes that transactions can stage before they are committed"
        ),
        Option(
            "transaction.idle-timeout", milliseconds, "1 h", "how long a transaction may be idle before it is aborted"
        ),
        Option(
            "transaction.ledger-retention",
            milliseconds,
            "30 d",
            "how long the last committed version of an application is remembered",
        ),
        Option("kv.snapshot.interval", milliseconds, "10 min", "how often grown key-value state is checkpointed"),
        Option(
            "kv.engine",
            parse_engine,
            AUTO,
            "engine of new primary-key tables: hlog or lmdb; auto: hlog, but lmdb for tables with prefix lookups",
        ),
        Option("kv.checkpoint.records", positive, "1000000", "changelog records that trigger a checkpoint"),
        Option("log.segment.file-size", size, "1024m", "size at which a log segment is closed"),
        Option("log.index.interval-size", size, "4k", "bytes of log between two index entries"),
        Option("log.replica.high-watermark.checkpoint-interval", milliseconds, "5 s", "how often offsets are saved"),
        Option("server.writer-id.expiration-time", milliseconds, "7 d", "how long an idle writer is remembered"),
        Option(
            "server.writer-id.max-per-bucket",
            positive,
            "10000",
            "writers that a bucket remembers, in addition to those of the last 15 minutes",
        ),
        Option("server.writer-id.expiration-check-interval", milliseconds, "10 min", "how often that is checked"),
        Option(
            "server.data-disk.reserve",
            size,
            "64mb",
            "space that writes leave free on the data disk, at most a twentieth of it",
        ),
        Option(
            "server.data-disk.write-limit-ratio",
            share,
            "1.0",
            "share of the data disk that may be in use before writes stop",
        ),
        Option(
            "server.open-buckets.max",
            or_unset(positive),
            "",
            "buckets that stay open while unused; if not set, as many as the limit of open files allows",
        ),
        Option("server.worker-threads", positive, "4", "threads that write buckets"),
        Option("server.io-pool.size", positive, "4", "threads that read logs and serve scans"),
        Option(
            TRUSTED_PROXIES,
            networks,
            "",
            "addresses or networks of proxies, separated by commas, whose connections begin with a header of the PROXY "
            "protocol",
        ),
        Option("netty.server.max-request-size", size, "100mb", "largest request"),
        Option("netty.connection.max-idle-time", milliseconds, "10 min", "how long a connection may be idle"),
        Option(
            "netty.server.max-queued-requests", positive, "500", "unanswered requests of one connection before it waits"
        ),
        Option(
            "server.connections.memory",
            or_unset(size),
            "",
            "memory for requests and answers; if not set, an eighth of the machine's, 128 mb to 1 gb",
        ),
        Option(
            "server.connections.memory-wait",
            milliseconds,
            "5 s",
            "how long requests wait for memory before the largest consumer loses it",
        ),
        Option("server.connections.max", positive, "4096", "maximum number of connections"),
        Option(
            "server.connections.max-per-address", positive, "2048", "maximum number of connections from one address"
        ),
        Option(
            "server.connections.login-timeout",
            milliseconds,
            "30 s",
            "how long a client may take to log in or, without SASL, to send its first request",
        ),
        Option(
            "server.request.max-items",
            positive,
            "100000",
            "maximum number of tables, partitions, buckets or keys in one request",
        ),
        Option("tracing.enabled", boolean, "false", "whether there are OpenTelemetry spans of requests (extra otel)"),
        Option(
            "server.request.slow-log-threshold",
            or_unset(milliseconds),
            "10 s",
            "requests that take longer are logged, but for fetches, which wait for records; empty: none are",
        ),
        Option("server.request.max-control-size", size, "4mb", "largest request without records"),
        Option("server.request.max-answer-size", size, "64mb", "largest answer to a lookup, a limit scan or a fetch"),
        Option("coordinator.producer-offsets.ttl", milliseconds, "24 h", "how long producer offsets are kept"),
        Option(
            "remote.log.task-interval-duration",
            milliseconds,
            "1 min",
            "how often log segments are copied to the store, and those older than 'table.log.ttl' deleted",
        ),
        Option(
            "remote.log.task-max-upload-segments",
            positive,
            "5",
            "maximum number of segments of a bucket that are copied to the store each time",
        ),
        Option(
            "remote.log.index-file-cache-size",
            size,
            "64mb",
            "maximum memory for indexes of log segments that are only in the store",
        ),
        Option(
            "datalake.enabled",
            or_unset(boolean),
            "",
            "whether tables may be tiered; if not set, they may if there is a format",
        ),
        Option("datalake.format", or_unset(lake_format_name), "", "the lake's format, such as paimon"),
        Option(
            "datalake.public-options",
            names,
            "",
            "further lake options, separated by commas, that clients may see (docs/server.md)",
        ),
        Option(
            "store",
            or_unset(str),
            "",
            "the home of the data: a directory, or s3://bucket/folder; if not set, there is no second copy",
        ),
        Option(
            "store.client-access",
            one_of("server", "direct"),
            "server",
            "server: the server reads log segments of the store for its clients; direct: they read them themselves",
        ),
        Option(
            "store.durability",
            durability,
            "local",
            "when a write is acknowledged: local: when it is synced on this machine, store: when it is in the store",
        ),
        Option(
            "store.lease",
            or_unset(milliseconds),
            "",
            "how long the store may get nothing before a standby takes over; after nine tenths of it a server answers "
            "nothing, because one may have; 0: neither. By default 10 s if store.durability is store, else 0",
        ),
        Option(
            "standby.max-staleness",
            milliseconds,
            "10 s",
            "a standby refuses reads if it has not seen the end of the journal for so long",
        ),
        Option(
            "store.retention",
            milliseconds,
            "1 h",
            "how long the store keeps what is not needed any more: for readers, and for a standby that was suspended",
        ),
        Option(
            "store.segment-age",
            milliseconds,
            "1 h",
            "log segments with an older record are closed, and copied to the store, even if they are not full",
        ),
        Option("store.interval", milliseconds, "1 s", "how far the store may be behind the data directory"),
        Option(
            "store.put-interval",
            milliseconds,
            "0 ms",
            "the shortest time between two objects if store.durability is store; more means fewer requests to pay for, "
            "and answers that wait longer",
        ),
        Option("tablet-server.id", integer, "0", "the number of this server"),
        Option("metrics.reporters", _reporters, "", "'prometheus' serves /metrics, /healthz and /readyz by HTTP"),
        Option(
            "metrics.reporter.prometheus.port",
            ports,
            "9249",
            "their port, or a range such as 9250-9260 of which the first free one is taken; 0 lets the system choose",
        ),
        Option("metrics.reporter.prometheus.host", or_unset(str), "", "their address; if not set, that of the server"),
        Option(
            "metrics.reporter.prometheus.allowed-hosts",
            names,
            "",
            "further host names, separated by commas, by which they may be asked for, such as that of a service",
        ),
    )
)
"""Settings that have an effect, besides those of the lake (`datalake.<format>.*`).

Listener and security settings are read by forebay.protocol.
"""

_LAKE_SETTING = re.compile(r"datalake\.([a-z]+)\.(.+)")
_WITH_SECRETS = ("datalake.", "security.", "store.")
"""How the names of settings begin that may hold secrets."""
_LEASE_SECONDS = 10.0
"""`store.lease` where answers wait for the store."""

_STORE_SETTING = re.compile(r"store\.(s3\..+)")
_CLIENT_KEY_SETTING = re.compile(r"store\.client\.(s3\.(?:access-key|secret-key|session-token))")
_SHOWN = frozenset({BIND_LISTENERS, ADVERTISED_LISTENERS, PROTOCOL_MAP, SASL_MECHANISMS})
"""Settings that clients may see in addition to `SETTINGS`, also per role. All others may hold secrets."""

_ROLE_SETTINGS = frozenset(
    role + key for role in ("coordinator.", "tablet-server.") for key in (BIND_LISTENERS, ADVERTISED_LISTENERS)
)
_LISTENER_SETTINGS = frozenset({*_SHOWN, *_ROLE_SETTINGS, INTERNAL_LISTENER_NAME, CREDENTIALS, JAAS_CONFIG})
"""Settings of listeners and passwords, in addition to those that name a listener (`jaas_listener`)."""


@dataclass(frozen=True, slots=True)
class MonitoringSettings:
    """Where metrics and health are served: the first free one of `ports`."""

    host: str
    ports: range
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerConfig:
    """Everything a server needs to know before it starts. Create one with `server_config`."""

    data_dir: Path
    host: str = "127.0.0.1"
    coordinator_port: int = 9123
    tablet_port: int = 9124
    sasl: bool = False
    plain: bool = False
    """Whether clients may connect without a password beside `sasl`; without `sasl` they always may."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    def value(self, key: str) -> Any:
        """The typed value of a setting of `SETTINGS`."""
        text = self.settings.get(key)
        return SETTINGS[key].default_value if text is None else SETTINGS[key].read(text, "setting")

    def seconds(self, key: str) -> float:
        """The value of a duration setting in seconds."""
        return float(self.value(key)) / 1000

    @property
    def catalog_limits(self) -> CatalogLimits:
        """Return the limits and defaults for new tables, from `default.*`, `max.*` and `allow.create.*`."""
        return CatalogLimits(
            self.value("default.bucket.number"),
            self.value("max.bucket.num"),
            self.value("max.partition.num"),
            self.value("default.replication.factor"),
            self.value("allow.create.log.tables"),
            self.value("allow.create.kv.tables"),
        )

    @property
    def open_buckets_max(self) -> int:
        """Return how many buckets stay open while unused."""
        configured: int | None = self.value("server.open-buckets.max")
        if configured is not None:
            return configured
        by_descriptors = open_files_max() // 2 // DESCRIPTORS_PER_BUCKET
        return max(min(by_descriptors, _OPEN_BUCKETS_MAX), _OPEN_BUCKETS_MIN)

    @property
    def connection_memory(self) -> int:
        """The memory for requests and answers of all connections: by default an eighth of what this process may use."""
        configured: int | None = self.value("server.connections.memory")
        if configured is not None:
            return configured
        return min(max(machine_memory() // 8, _CONNECTION_MEMORY_MIN), _CONNECTION_MEMORY_MAX)

    @property
    def answer_bytes_max(self) -> int:
        """The largest answer: at most a quarter of the memory for all connections, which leaves room for others."""
        configured: int = self.value("server.request.max-answer-size")
        return min(configured, self.connection_memory // 4)

    @property
    def lake(self) -> LakeSettings:
        """The lake that tables are tiered into."""
        name, enabled = self.value("datalake.format"), self.value("datalake.enabled")
        return LakeSettings(
            name,
            name is not None if enabled is None else enabled,
            datalake_options(self.settings, name or ""),
            self.value("datalake.public-options"),
        )

    def shown(self) -> dict[str, str]:
        """Return all settings that are set or have a default, as clients may see them: possible secrets are hidden.

        Of the lake's options only the public ones are shown (`forebay.lake.public_options`).
        """
        lake = self.lake
        lake_options = {f"datalake.{lake.format}.{key}": value for key, value in lake.public_options.items()}
        settings = {key: str(setting.default) for key, setting in SETTINGS.items() if setting.default}
        for key, text in self.settings.items():
            public = key in SETTINGS or key in _SHOWN or key in _ROLE_SETTINGS
            settings[key] = text if public else lake_options.get(key, HIDDEN)
        return settings

    @property
    def monitoring(self) -> MonitoringSettings | None:
        """Where metrics are served; None if they are not."""
        if not self.value("metrics.reporters"):
            return None
        host = self.value("metrics.reporter.prometheus.host") or self.host
        return MonitoringSettings(
            host,
            self.value("metrics.reporter.prometheus.port"),
            self.value("metrics.reporter.prometheus.allowed-hosts"),
        )

    @property
    def scanner_limits(self) -> ScannerLimits:
        """Return the limits of scan sessions, from `kv.scanner.*`."""
        return ScannerLimits(
            self.seconds("kv.scanner.ttl"),
            self.value("kv.scanner.max-per-bucket"),
            self.value("kv.scanner.max-per-server"),
            self.value("kv.scanner.max-batch-size"),
        )

    @property
    def table_snapshot_limits(self) -> TableSnapshotLimits:
        """Return the limits of table snapshots, from `kv.snapshot-handle.*`; a page is limited as in a scan."""
        return TableSnapshotLimits(
            self.value("kv.snapshot-handle.max-count"),
            self.seconds("kv.snapshot-handle.default-lease"),
            self.seconds("kv.snapshot-handle.max-lease"),
            self.seconds("kv.snapshot-handle.max-age"),
            self.value("kv.scanner.max-batch-size"),
        )

    @property
    def transaction_limits(self) -> TransactionLimits:
        """Return the limits of transactions, from `transaction.*`."""
        return TransactionLimits(
            self.value("transaction.max-open"),
            self.value("transaction.max-staged-size"),
            self.seconds("transaction.idle-timeout"),
            self.value("transaction.ledger-retention"),
        )

    @property
    def store_options(self) -> dict[str, str]:
        """The options of the store, such as `s3.endpoint`."""
        return self._matching(_STORE_SETTING)

    @property
    def store_client_keys(self) -> dict[str, str]:
        """The keys with which clients may read the store, such as `s3.access-key`."""
        return self._matching(_CLIENT_KEY_SETTING)

    def _matching(self, pattern: re.Pattern[str]) -> dict[str, str]:
        """Settings, by the first group of their names."""
        matches = {key: pattern.fullmatch(key) for key in self.settings}
        return {match[1]: self.settings[key] for key, match in matches.items() if match is not None}

    @property
    def lease_seconds(self) -> float:
        """`store.lease`; 0 for none, which is the default where answers do not wait for the store."""
        if self.value("store.lease") is not None:
            return self.seconds("store.lease")
        return _LEASE_SECONDS if self.value("store.durability") == "store" else 0.0

    def epoch_began(self, reason: str) -> EpochBegan:
        """What the journal says when this server begins to write to its store."""
        holder, is_awaited = f"{self.data_dir} on {socket.gethostname()}", self.value("store.durability") == "store"
        return EpochBegan(holder, reason, round(self.lease_seconds * 1000), is_awaited)

    @property
    def log_config(self) -> LogConfig:
        """Return the settings of each bucket's log, from `log.*` and `server.writer-id.*`."""
        return LogConfig(
            segment_bytes=self.value("log.segment.file-size"),
            index_interval_bytes=self.value("log.index.interval-size"),
            writer_expiry_ms=self.value("server.writer-id.expiration-time"),
            writers_max=self.value("server.writer-id.max-per-bucket"),
        )


def server_config(
    data_dir: str | Path,
    *,
    host: str = "127.0.0.1",
    coordinator_port: int = 9123,
    tablet_port: int = 9124,
    sasl: bool = False,
    plain: bool = False,
    settings: Mapping[str, str] | None = None,
) -> ServerConfig:
    """A checked configuration. Raises `InvalidRequest` or `UnsupportedOperation` naming the setting at fault."""
    texts = dict(settings or {})
    for key, text in texts.items():
        _check(key, text)
    for name in {lake[1] for key in texts if (lake := _LAKE_SETTING.fullmatch(key)) is not None}:
        # Clients and workers get these options, and have other working directories.
        for option, value in located(datalake_options(texts, name)).items():
            texts[f"datalake.{name}.{option}"] = value
    if plain and not sasl:
        raise InvalidRequest(
            "plain=True (--plain) keeps the plain listeners beside SASL's; without sasl=True (--sasl) there are no "
            "others: leave it out",
            ErrorCode.CONFIG_EXCEPTION,
        )
    folder = Path(local_folder(data_dir, "the data directory"))
    config = ServerConfig(folder, host, coordinator_port, tablet_port, sasl, plain, texts)
    _check_lake(config)
    _check_client_keys(config)
    return config


def _check_lake(config: ServerConfig) -> None:
    name = config.value("datalake.format")
    if name is None and config.value("datalake.enabled"):
        raise InvalidRequest(
            "setting 'datalake.enabled' is true, so 'datalake.format' must be set", ErrorCode.CONFIG_EXCEPTION
        )
    for key in config.settings:
        lake = _LAKE_SETTING.fullmatch(key)
        if lake is not None and name is None:
            raise InvalidRequest(
                f"setting '{key}' has no effect without 'datalake.format': set that to '{lake[1]}', too (with "
                "'datalake.enabled' = 'false', to have no lake for now)",
                ErrorCode.CONFIG_EXCEPTION,
            )
        if lake is not None and lake[1] != name:
            raise InvalidRequest(
                f"setting '{key}' is not one of lake format '{name}', which 'datalake.format' chooses",
                ErrorCode.CONFIG_EXCEPTION,
            )


def _check_client_keys(config: ServerConfig) -> None:
    keys = config.store_client_keys
    if not keys:
        return
    if config.value("store.client-access") != "direct":
        raise InvalidRequest(
            "the settings 'store.client.s3.*' are keys for clients, which get none unless 'store.client-access' is "
            "'direct'",
            ErrorCode.CONFIG_EXCEPTION,
        )
    for name in ("s3.access-key", "s3.secret-key"):
        if name not in keys:
            raise InvalidRequest(
                f"of the keys for clients 'store.client.{name}' is missing", ErrorCode.CONFIG_EXCEPTION
            )


def check_warehouse(config: ServerConfig) -> None:
    """Raise `InvalidRequest` if the lake needs a warehouse and has none. Its other options are those of its format."""
    name = config.value("datalake.format")
    options = datalake_options(config.settings, name or "")
    if name is None or options.get("warehouse") or not needs_warehouse(name, options):
        return
    close = difflib.get_close_matches("warehouse", list(options), n=1)
    hint = f"; 'datalake.{name}.{close[0]}' is set, which may be a misspelling of it" if close else ""
    raise InvalidRequest(
        f"setting 'datalake.{name}.warehouse' is missing: the lake's directory or URI{hint}",
        ErrorCode.CONFIG_EXCEPTION,
    )


def _check(key: str, text: str) -> None:
    if key in SETTINGS:
        SETTINGS[key].read(text, "setting")
    elif (
        key in _LISTENER_SETTINGS
        or jaas_listener(key) is not None
        or _LAKE_SETTING.fullmatch(key)
        or _STORE_SETTING.fullmatch(key)
        or _CLIENT_KEY_SETTING.fullmatch(key)
    ):
        return
    elif key in UNSERVED and text.strip().lower() not in ("", "false"):
        raise UnsupportedOperation(
            f"Forebay does not serve {UNSERVED[key]} yet, which setting '{key}' = '{text}' asks for (docs/limits.md)",
            ErrorCode.CONFIG_EXCEPTION,
        )
    elif key in NO_EFFECT or key in UNSERVED:
        _LOGGER.info("setting '%s' has no effect on a single-process server", key)
    else:
        names = (*SETTINGS, *_LISTENER_SETTINGS, *NO_EFFECT, *UNSERVED)
        hint = did_you_mean(key, names) or "; see docs/server.md for all of them"
        raise InvalidRequest(f"there is no setting '{key}'{hint}", ErrorCode.CONFIG_EXCEPTION)


def read_settings_file(path: str | Path) -> dict[str, str]:
    """Settings from a file of `key: value` (Fluss's server.yaml) or `key = value` lines; '#' begins a comment.

    Values may be indirect (`forebay.base.indirect`). Raises `InvalidRequest` naming the line that cannot be read.
    """
    try:
        texts = settings_of(path, unique=True)
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidRequest(f"cannot read the settings file {path}: {e}", ErrorCode.CONFIG_EXCEPTION) from e
    return {key: resolved(key, text) for key, text in texts.items()}


def parse_definition(text: str) -> tuple[str, str]:
    """(key, value) of a command-line definition 'key=value'; the value may be indirect.

    Raises `InvalidRequest`.
    """
    key, value = _split_definition(text)
    return key, resolved(key, value)


def _split_definition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        shown = re.split(r"[:=\s]", text, maxsplit=1)[0]  # what follows may be a secret
        raise InvalidRequest(f"'{shown}...' is not a setting: write -D key=value", ErrorCode.CONFIG_EXCEPTION)
    return key.strip(), value.strip()


def exposed_settings(config: ServerConfig, definitions: Sequence[str]) -> list[str]:
    """Return the keys of command-line definitions whose values are secrets, which every user of the machine can see."""
    shown = config.shown()
    texts = dict(_split_definition(text) for text in definitions)
    return sorted(
        key
        for key, text in texts.items()
        if key.startswith(("datalake.", "security.", "store."))
        and not is_marker(text)
        and shown[key] != config.settings[key]
    )
