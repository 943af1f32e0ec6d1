"""Server settings by name (Fluss's own names where it has them), checked and typed.

Settings come from a file, from `-D key=value` and from the command line's own options, later ones winning. A Fluss
setting that is meaningless for a single process (`zookeeper.*`, thread pools, RocksDB tuning) is accepted and ignored,
with a line in the log; one for a feature that Forebay does not serve is refused by name; an unknown one is refused with
the nearest names.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.base.arguments import did_you_mean
from forebay.base.errors import ErrorCode, ForebayError, InvalidRequest, UnsupportedOperation
from forebay.base.host import open_files_max
from forebay.base.indirect import is_marker, resolved, settings_of
from forebay.base.quantity import parse_bool, parse_duration_ms, parse_memory_bytes
from forebay.kv.scanner import ScannerLimits
from forebay.kv.table_snapshots import TableSnapshotLimits
from forebay.lake.options import HIDDEN
from forebay.lake.storage import datalake_options
from forebay.log.config import LogConfig
from forebay.metadata.table import lake_format_name
from forebay.server.catalog import CatalogLimits
from forebay.server.lake_tables import LakeSettings
from forebay.server.memory_budget import default_budget

_LOG = logging.getLogger(__name__)

DESCRIPTORS_PER_BUCKET = 6
"""Descriptors of an open bucket that is written and read: its log, its key-value state, an older segment."""
_OPEN_BUCKETS_MIN, _OPEN_BUCKETS_MAX = 64, 4096


def _positive(text: str) -> int:
    value = int(text) if re.fullmatch(r"\s*-?\d+\s*", text) else 0
    if value < 1:
        raise InvalidRequest(f"{text!r} is not a positive whole number")
    return value


def _up_to(most: int) -> Callable[[str], int]:
    """A positive whole number with an upper bound."""

    def parse(text: str) -> int:
        value = _positive(text)
        if value > most:
            raise InvalidRequest(f"{value} is more than {most}")
        return value

    return parse


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise InvalidRequest(f"{text!r} is not a share: choose more than 0 and at most 1")
    return value


def _engine(text: str) -> str:
    name = text.strip().lower()
    if name not in ("lmdb", "rocksdb"):
        raise InvalidRequest(f"{text!r} is not a key-value engine: choose 'lmdb' or 'rocksdb'")
    return name


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _or_unset(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A setting that may be left out: its text is then empty, and its value None."""
    return lambda text: parse(text) if text.strip() else None


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: how its text is read, its default, and what it does."""

    parse: Callable[[str], Any]
    default: str
    help: str


SETTINGS: dict[str, Setting] = {
    "default.bucket.number": Setting(_positive, "1", "number of buckets of tables that do not set it"),
    "default.replication.factor": Setting(_positive, "1", "accepted for compatibility; there is one server"),
    "max.bucket.num": Setting(_positive, "4096", "maximum number of buckets of a table, over all partitions"),
    "max.partition.num": Setting(_positive, "1000", "maximum number of partitions of a table"),
    "allow.create.log.tables": Setting(parse_bool, "true", "whether clients may create log tables"),
    "allow.create.kv.tables": Setting(parse_bool, "true", "whether clients may create primary-key tables"),
    "auto-partition.check.interval": Setting(
        parse_duration_ms, "10 min", "how often automatic partitions are created and dropped"
    ),
    "kv.scanner.ttl": Setting(parse_duration_ms, "10 min", "how long a full scan may be idle"),
    "kv.scanner.expiration-interval": Setting(parse_duration_ms, "30 s", "how often idle scans are expired"),
    "kv.scanner.max-per-bucket": Setting(_positive, "8", "maximum concurrent full scans of one bucket"),
    "kv.scanner.max-per-server": Setting(_positive, "200", "maximum concurrent full scans"),
    "kv.scanner.max-batch-size": Setting(parse_memory_bytes, "10mb", "largest page of a full scan"),
    "kv.snapshot-handle.max-count": Setting(_up_to(512), "256", "maximum number of open table snapshots (at most 512)"),
    "kv.snapshot-handle.default-lease": Setting(
        parse_duration_ms, "10 min", "how long a table snapshot may be idle, unless its client says otherwise"
    ),
    "kv.snapshot-handle.max-lease": Setting(
        parse_duration_ms, "1 d", "the longest idle time that a client can ask for"
    ),
    "kv.snapshot-handle.max-age": Setting(
        parse_duration_ms, "1 d", "how long a table snapshot may live; the state that it pins takes space"
    ),
    "kv.snapshot.interval": Setting(parse_duration_ms, "10 min", "how often grown key-value state is checkpointed"),
    "kv.engine": Setting(_engine, "lmdb", "engine of new primary-key tables: lmdb or rocksdb"),
    "kv.checkpoint.records": Setting(_positive, "1000000", "changelog records that trigger a checkpoint"),
    "log.segment.file-size": Setting(parse_memory_bytes, "1024m", "size at which a log segment is closed"),
    "log.index.interval-size": Setting(parse_memory_bytes, "4k", "bytes of log between two index entries"),
    "log.replica.high-watermark.checkpoint-interval": Setting(parse_duration_ms, "5 s", "how often offsets are saved"),
    "server.writer-id.expiration-time": Setting(parse_duration_ms, "7 d", "how long an idle writer is remembered"),
    "server.writer-id.max-per-bucket": Setting(
        _positive, "10000", "writers that a bucket remembers, in addition to those of the last 15 minutes"
    ),
    "server.writer-id.expiration-check-interval": Setting(parse_duration_ms, "10 min", "how often that is checked"),
    "server.data-disk.reserve": Setting(
        parse_memory_bytes, "64mb", "space that writes leave free on the data disk, at most a twentieth of it"
    ),
    "server.data-disk.write-limit-ratio": Setting(
        _share, "1.0", "share of the data disk that may be in use before writes stop"
    ),
    "server.open-buckets.max": Setting(
        _or_unset(_positive),
        "",
        "buckets that stay open while unused; if not set, as many as the limit of open files allows",
    ),
    "server.worker-threads": Setting(_positive, "4", "threads that write buckets"),
    "server.io-pool.size": Setting(_positive, "4", "threads that read logs and serve scans"),
    "netty.server.max-request-size": Setting(parse_memory_bytes, "100mb", "largest request"),
    "netty.connection.max-idle-time": Setting(parse_duration_ms, "10 min", "how long a connection may be idle"),
    "netty.server.max-queued-requests": Setting(
        _positive, "500", "unanswered requests of one connection before it waits"
    ),
    "server.connections.memory": Setting(
        _or_unset(parse_memory_bytes),
        "",
        "memory for requests and answers of all connections; if not set, an eighth of the machine's, 128 mb to 1 gb",
    ),
    "server.connections.memory-wait": Setting(
        parse_duration_ms, "5 s", "how long requests wait for memory before the largest consumer loses it"
    ),
    "server.connections.max": Setting(_positive, "4096", "maximum number of connections"),
    "server.connections.max-per-address": Setting(_positive, "2048", "maximum number of connections from one address"),
    "server.connections.login-timeout": Setting(
        parse_duration_ms, "30 s", "how long a client may take to log in or, without SASL, to send its first request"
    ),
    "server.request.max-items": Setting(
        _positive, "100000", "maximum number of tables, partitions, buckets or keys in one request"
    ),
    "server.request.max-control-size": Setting(parse_memory_bytes, "4mb", "largest request without records"),
    "server.request.max-answer-size": Setting(
        parse_memory_bytes, "64mb", "largest answer to a lookup, a limit scan or a fetch"
    ),
    "coordinator.producer-offsets.ttl": Setting(parse_duration_ms, "24 h", "how long producer offsets are kept"),
    "remote.log.task-interval-duration": Setting(
        parse_duration_ms, "1 min", "how often log segments older than 'table.log.ttl' are deleted"
    ),
    "datalake.enabled": Setting(
        _or_unset(parse_bool), "", "whether tables may be tiered; if not set, they may if there is a format"
    ),
    "datalake.format": Setting(_or_unset(lake_format_name), "", "the lake's format, such as paimon"),
    "datalake.public-options": Setting(
        _names, "", "further lake options, separated by commas, that clients may see (docs/server.md)"
    ),
    "tablet-server.id": Setting(int, "0", "the number of this server"),
}
"""Settings that have an effect, besides those of the lake (`datalake.<format>.*`).

Listener and security settings are read by forebay.protocol.
"""

_LAKE_SETTING = re.compile(r"datalake\.([a-z]+)\.(.+)")
_SHOWN = frozenset(
    {"bind.listeners", "advertised.listeners", "security.protocol.map", "security.sasl.enabled.mechanisms"}
)
"""Settings that clients may see in addition to `SETTINGS`, also per role. All others may hold secrets."""

_SECURITY_PREFIXES = ("security.", "bind.listeners", "advertised.listeners", "internal.listener.name")
_ROLE_PREFIXES = ("coordinator.", "tablet-server.")
_IGNORED_PREFIXES = (
    "zookeeper.", "netty.", "kv.rocksdb.", "kv.recover.", "kv.flush.", "kv.snapshot.", "kv.backpressure.",
    "kv.leader-replica.", "log.", "server.", "coordinator.", "tablet-server.", "plugin.", "client.",
    "config.providers", "acl.", "data.dir", "default.", "remote.log", "remote.fs", "lake.",
)  # fmt: skip
_UNSERVED = {
    "authorizer.": "access control lists",
    "super.users": "access control lists",
    "remote.data.dir": "remote log storage",
    "kafka.": "the Kafka protocol",
    "metrics.": "metrics reporters",
}


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
        setting = SETTINGS[key]
        return setting.parse(self.settings.get(key, setting.default))

    def seconds(self, key: str) -> float:
        """The value of a duration setting in seconds."""
        return float(self.value(key)) / 1000

    @property
    def catalog_limits(self) -> CatalogLimits:
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
        given: int | None = self.value("server.open-buckets.max")
        if given is not None:
            return given
        by_descriptors = open_files_max() // 2 // DESCRIPTORS_PER_BUCKET
        return max(min(by_descriptors, _OPEN_BUCKETS_MAX), _OPEN_BUCKETS_MIN)

    @property
    def connection_memory(self) -> int:
        """The memory for requests and answers of all connections."""
        given: int | None = self.value("server.connections.memory")
        return default_budget() if given is None else given

    @property
    def answer_bytes_max(self) -> int:
        """The largest answer: at most a quarter of the memory for all connections, which leaves room for others."""
        wanted: int = self.value("server.request.max-answer-size")
        return min(wanted, self.connection_memory // 4)

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

        Of the lake's options only the public ones are shown (`forebay.lake.options`).
        """
        lake = self.lake
        told = {f"datalake.{lake.format}.{key}": value for key, value in lake.public_options.items()}
        found = {key: setting.default for key, setting in SETTINGS.items() if setting.default}
        for key, text in self.settings.items():
            public = key in SETTINGS or _without_role(key) in _SHOWN
            found[key] = text if public else told.get(key, HIDDEN)
        return found

    @property
    def scanner_limits(self) -> ScannerLimits:
        return ScannerLimits(
            self.seconds("kv.scanner.ttl"),
            self.value("kv.scanner.max-per-bucket"),
            self.value("kv.scanner.max-per-server"),
            self.value("kv.scanner.max-batch-size"),
        )

    @property
    def table_snapshot_limits(self) -> TableSnapshotLimits:
        return TableSnapshotLimits(
            self.value("kv.snapshot-handle.max-count"),
            self.seconds("kv.snapshot-handle.default-lease"),
            self.seconds("kv.snapshot-handle.max-lease"),
            self.seconds("kv.snapshot-handle.max-age"),
            self.value("kv.scanner.max-batch-size"),
        )

    @property
    def log_config(self) -> LogConfig:
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
    given = dict(settings or {})
    for key, text in given.items():
        _check(key, text)
    if plain and not sasl:
        raise InvalidRequest(
            "plain=True (--plain) keeps the plain listeners beside SASL's; without sasl=True (--sasl) there are no "
            "others: leave it out",
            ErrorCode.CONFIG_EXCEPTION,
        )
    config = ServerConfig(Path(data_dir), host, coordinator_port, tablet_port, sasl, plain, given)
    _check_lake(config)
    return config


def _check_lake(config: ServerConfig) -> None:
    name = config.value("datalake.format")
    if name is None:
        if config.value("datalake.enabled"):
            raise InvalidRequest(
                "setting 'datalake.enabled' is true, so 'datalake.format' must be set", ErrorCode.CONFIG_EXCEPTION
            )
        return
    for key in config.settings:
        lake = _LAKE_SETTING.fullmatch(key)
        if lake is not None and lake[1] != name:
            raise InvalidRequest(
                f"setting '{key}' is not one of lake format '{name}', which 'datalake.format' chooses",
                ErrorCode.CONFIG_EXCEPTION,
            )


def _without_role(key: str) -> str:
    for prefix in _ROLE_PREFIXES:
        key = key.removeprefix(prefix)
    return key


def _check(key: str, text: str) -> None:
    if key in SETTINGS:
        try:
            SETTINGS[key].parse(text)
        except (ForebayError, ValueError) as e:
            reason = e.message if isinstance(e, ForebayError) else str(e)
            raise InvalidRequest(f"setting '{key}': {reason}", ErrorCode.CONFIG_EXCEPTION) from e
        return
    if _without_role(key).startswith(_SECURITY_PREFIXES) or _LAKE_SETTING.fullmatch(key):
        return
    for prefix, what in _UNSERVED.items():
        if key.startswith(prefix) and text.strip().lower() not in ("", "false"):
            raise UnsupportedOperation(
                f"Forebay does not serve {what} yet, which setting '{key}' = '{text}' asks for (docs/limits.md)",
                ErrorCode.CONFIG_EXCEPTION,
            )
    if key.startswith((*_IGNORED_PREFIXES, *_UNSERVED)):
        _LOG.info("setting '%s' has no effect on a single-process server", key)
        return
    hint = did_you_mean(key, SETTINGS) or "; see docs/server.md for all of them"
    raise InvalidRequest(f"there is no setting '{key}'{hint}", ErrorCode.CONFIG_EXCEPTION)


def read_settings_file(path: str | Path) -> dict[str, str]:
    """Settings from a file of `key: value` (Fluss's server.yaml) or `key = value` lines; '#' begins a comment.

    Values may be indirect (`forebay.base.indirect`). Raises `InvalidRequest` naming the line that cannot be read.
    """
    try:
        found = settings_of(path)
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidRequest(f"cannot read the settings file {path}: {e}", ErrorCode.CONFIG_EXCEPTION) from e
    return {key: resolved(key, text) for key, text in found.items()}


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
    given = dict(_split_definition(text) for text in definitions)
    return sorted(
        key
        for key, text in given.items()
        if key.startswith(("datalake.", "security.")) and not is_marker(text) and shown[key] != config.settings[key]
    )
