"""Options of reads and writes of Paimon tables: Paimon's options, and the options of this package.

Names are Paimon's (`scan.mode`, `scan.snapshot-id`, `incremental-between`, `consumer-id`), for limits on micro-batches
also Spark's (`maxFilesPerTrigger`). Options of a read override the session's configuration (`spark.paimon.<option>` as
in Paimon's own connector, `spark.sql.forebay.paimon.<option>`). Spark does not preserve capital letters, so names are
case-insensitive. A read rejects unknown options, options without effect, and options that contradict how files were
written. The session's configuration may be for writes as well, so other options are ignored there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from forebay.base.arguments import did_you_mean
from forebay.base.errors import ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.base.options import Option, boolean, by_name, positive, positive_size
from forebay.paimon.format.snapshot import BATCH_COMMIT_IDENTIFIER
from forebay.paimon.option_names import KNOWN
from forebay.paimon.table import Table
from forebay.spark.options import (
    CHANGES,
    LIMIT_PREFIX,
    MAX_DELAY,
    MAX_ROWS,
    MIN_ROWS,
    TRANSACTION_OPTIONS,
    OptionReader,
    StreamLimits,
    check_delay,
    transaction_option,
)
from forebay.spark.read_modes import (
    DEFAULT_MODES,
    READ_BY_BUCKET,
    READ_COLUMNAR,
    READ_NATIVE,
    ReadMode,
    allowed_modes,
)

FORMAT_NAME = "forebay-paimon"
"""The format for tables of a lake."""

CATALOG_PREFIX = "catalog."
"""The prefix of options of a table's catalog, among the options of the format."""

SESSION_PREFIXES = ("spark.paimon.", "spark.sql.forebay.paimon.")
"""The prefixes of options of reads in the session's configuration; the later one wins."""

READ_CHANGELOG = "read.changelog"
READ_MODES = (READ_NATIVE, READ_BY_BUCKET, READ_COLUMNAR)
"""The switches of modes that scans of lake tables have."""

_FLAGS = by_name([Option(name, boolean) for name in (READ_CHANGELOG, *READ_MODES)])

MAX_BYTES = "maxBytesPerTrigger"
_LIMITS = by_name(
    [
        Option("maxFilesPerTrigger", positive),
        Option(MAX_ROWS, positive),
        Option(MAX_BYTES, positive_size),
        Option(MIN_ROWS, positive),
        Option(MAX_DELAY, positive),
    ]
)
"""In the order of `StreamLimits`."""

READ = (
    "scan.mode", "log.scan", "scan.snapshot-id", "scan.tag-name", "scan.version", "scan.timestamp",
    "scan.timestamp-millis", "scan.watermark", "scan.file-creation-time-millis", "scan.creation-time-millis",
    "scan.bounded.watermark", "scan.bucket", "scan.plan-sort-partition", "incremental-between",
    "incremental-between-timestamp", "incremental-between-scan-mode", "incremental-between-tag-to-snapshot",
    "incremental-to-auto-tag", "streaming-read-overwrite", "streaming-read-append-overwrite",
    "streaming.read.snapshot.delay", "consumer-id", "consumer.expiration-time", "consumer.ignore-progress",
    "consumer.mode", "source.split.target-size", "source.split.open-file-cost", "sort-spill-buffer-size",
    "sort-spill-threshold",
)  # fmt: skip
"""Paimon's options that change what is read here, or how."""

_OF_STREAMS = ("consumer-id", "consumer.ignore-progress", "consumer.mode", "scan.bounded.watermark")


@dataclass(frozen=True)
class LakeReadOptions:
    """`table`: Paimon's options by name. `own`: the values of `OF_FORMATS` options that are set.

    `modes` are the ways in which rows may reach Spark.
    """

    table: Mapping[str, str] = field(default_factory=dict)
    own: Mapping[str, Any] = field(default_factory=dict)
    limits: StreamLimits = field(default_factory=StreamLimits)
    changelog: bool = False
    modes: ReadMode = DEFAULT_MODES

    def refuse_for_batches(self) -> None:
        """Raise `UnsupportedOperation` for options that only streams support."""
        stream_options = [MAX_ROWS] if self.limits.are_set else [name for name in _OF_STREAMS if name in self.table]
        if stream_options:
            raise UnsupportedOperation(f"read option '{stream_options[0]}' is for streams (spark.readStream)")


def lake_read_options(
    options: Mapping[str, str],
    session: Mapping[str, str] | None = None,
    own: Mapping[str, Option] = MappingProxyType({}),
) -> LakeReadOptions:
    """`options` of a read, which override those of the `session`. Raises `InvalidRequest` for unknown or bad ones.

    `own` are the further options that this read accepts.
    """
    table: dict[str, str] = {}
    mine: dict[str, Any] = {}
    limits: dict[str, str] = {}
    flags: dict[str, str] = {}
    of_session = {name: value for name, value in (session or {}).items() if _is_read_option(name)}
    for name, value in [*of_session.items(), *options.items()]:
        lowered = name.lower()
        limit = next(
            (candidate for candidate in _LIMITS if lowered.removeprefix(LIMIT_PREFIX) == candidate.lower()), None
        )
        if limit is not None:
            limits[limit] = value
        elif lowered in own:
            mine[lowered] = own[lowered].read(value)
        elif lowered in _FLAGS:
            flags[lowered] = value
        else:
            _check(name, own)
            table[lowered] = value
    admitted = StreamLimits(*(value_in(limits, option) for option in _LIMITS.values()))
    check_delay(admitted.min_rows, admitted.max_delay_ms)
    values = {name: value_in(flags, flag) for name, flag in _FLAGS.items()}
    changelog = bool(values.pop(READ_CHANGELOG))
    return LakeReadOptions(table, mine, admitted, changelog, allowed_modes(values))


def _is_read_option(name: str) -> bool:
    lowered = name.lower()
    return lowered in READ or lowered in _FLAGS or lowered.removeprefix(LIMIT_PREFIX) in map(str.lower, _LIMITS)


def _check(name: str, own: Iterable[str]) -> None:
    """Raise `InvalidRequest` unless `name` is a read option."""
    if _is_read_option(name):
        return
    if name.lower() in map(str.lower, KNOWN):
        raise InvalidRequest(
            f"option '{name}' of Paimon belongs to tables or to writes, or does nothing here: it is no option of reads",
            ErrorCode.CONFIG_EXCEPTION,
        )
    hint = did_you_mean(name.lower(), [*READ, *_FLAGS, *own, *_LIMITS])
    raise InvalidRequest(f"there is no read option '{name}'{hint}", ErrorCode.CONFIG_EXCEPTION)


SINK_PARALLELISM = Option("sink.parallelism", positive)
PROGRESS = Option("sink.progress", boolean)
DYNAMIC_OVERWRITE = Option("dynamic-partition-overwrite", boolean)
SINK_STRATEGY = "partition.sink-strategy"
COMPACTION_PARALLELISM = Option("unaware-bucket.compaction.parallelism", positive)

_PASSED = ("checkpointlocation", "path", "queryname", "outputmode", "provider", "table", "mergeschema", CHANGES)
"""Options in lower case that Spark passes to tables, and `write.changes`, which the catalog has evaluated."""
_FIXED = (
    "bucket", "bucket-key", "primary-key", "partition", "merge-engine", "sequence.field", "rowkind.field", "type",
)  # fmt: skip
"""Options that are the same for all writers and readers of a table, so that only ALTER TABLE can change them."""


@dataclass(frozen=True)
class LakeWriteOptions:
    """The options of a write; `paimon` holds those of Paimon."""

    paimon: Mapping[str, str]
    shows_progress: bool = False
    transaction: tuple[str, int] | None = None
    """The application and the version of a batch that is committed once (`txnAppId`, `txnVersion`)."""


def value_in(options: Mapping[str, str], option: Option) -> Any:
    """The value of `option` in `options`; None if it is not set."""
    text = options.get(option.name)
    return None if text is None else option.read(text)


def write_options(name: str, table: Table, options: Mapping[str, str]) -> LakeWriteOptions:
    """The options of a write to `name`. Raises `InvalidRequest` for unknown ones, and for those that need ALTER TABLE.

    Options with the table's own values are accepted: CREATE TABLE AS SELECT passes the new table's properties.
    """
    own = {
        **table.schema.options,
        "primary-key": ",".join(table.schema.primary_keys),
        "partition": ",".join(table.schema.partition_keys),
    }
    once = {option.name.lower(): option.name for option in TRANSACTION_OPTIONS}
    by_case = {option.lower(): option for option in (*KNOWN, PROGRESS.name, *once.values())}
    paimon: dict[str, str] = {}
    for key, value in options.items():
        if key.lower() in _PASSED or key.lower() in once or own.get(key) == value:
            continue
        known_as = by_case.get(key.lower(), key if key.startswith("fields.") else None)
        if known_as is None:
            raise InvalidRequest(
                f"writing to {name}: there is no write option '{key}'{did_you_mean(key, by_case.values())}"
            )
        if known_as in _FIXED:
            raise InvalidRequest(
                f"writing to {name}: '{known_as}' is a property of the table, which one write cannot have of its own; "
                "change it with ALTER TABLE ... SET TBLPROPERTIES"
            )
        paimon[known_as] = value
    named = {once[key.lower()]: value for key, value in options.items() if key.lower() in once}
    transaction = transaction_option(OptionReader.of("write", named, by_name(TRANSACTION_OPTIONS)))
    if transaction is not None and not 0 <= transaction[1] < BATCH_COMMIT_IDENTIFIER:
        raise InvalidRequest(
            f"writing to {name}: 'txnVersion' is {transaction[1]}, and can be from 0 to {BATCH_COMMIT_IDENTIFIER - 1}"
        )
    return LakeWriteOptions(paimon, PROGRESS.read(paimon.pop(PROGRESS.name, "false")), transaction)


_derived: weakref.WeakKeyDictionary[Table, dict[tuple[tuple[str, str], ...], Table]] = weakref.WeakKeyDictionary()


def with_write_options(table: Table, options: LakeWriteOptions) -> Table:
    """`table` with the options of a write; the same object for the same table and options.

    A streaming query calls this for each micro-batch, and must use the schema with which it began.
    """
    if not options.paimon:
        return table
    derived = _derived.setdefault(table, {})
    key = tuple(sorted(options.paimon.items()))
    if key not in derived:
        derived[key] = table.with_options(options.paimon)
    return derived[key]


def dynamic_overwrite(options: LakeWriteOptions, table: Table) -> bool:
    """Whether `INSERT OVERWRITE` without a partition replaces only partitions that it writes to.

    Only if an option of the write or the table enables it; Spark's own switch
    (spark.sql.sources.partitionOverwriteMode) is static by default.
    """
    is_dynamic = value_in({**table.schema.options, **options.paimon}, DYNAMIC_OVERWRITE)
    return bool(is_dynamic and table.schema.partition_keys)
