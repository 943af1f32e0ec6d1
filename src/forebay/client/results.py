"""Small values that calls return besides Arrow data."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import pyarrow as pa

from forebay.metadata.table import TableBucket
from forebay.protocol import fluss_pb2 as pb


class HealthStatus(IntEnum):
    """The health of a cluster; the numbers are those of the protocol."""

    GREEN = 0
    YELLOW = 1
    RED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """Counts of bucket replicas, and the status derived from them."""

    status: HealthStatus
    replicas: int
    in_sync_replicas: int
    leader_replicas: int
    active_leader_replicas: int


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting of the cluster and the source of its value (`INITIAL_SERVER_CONFIG`, `DYNAMIC_SERVER_CONFIG`)."""

    key: str
    value: str | None
    source: str


class AclResourceType(IntEnum):
    """The kind of resource of an access rule; ANY is for filters only."""

    ANY = 1
    CLUSTER = 2
    DATABASE = 3
    TABLE = 4


class AclOperation(IntEnum):
    """The operation that a rule allows; ANY is for filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DROP = 6
    ALTER = 7
    DESCRIBE = 8


@dataclass(frozen=True, slots=True)
class AccessRule:
    """An access control entry: `principal` may do `operation` on a resource. Fluss has no deny rules."""

    resource_type: AclResourceType
    resource_name: str
    principal: str
    operation: AclOperation
    principal_type: str = "User"
    host: str = "*"


@dataclass(frozen=True, slots=True)
class KvSnapshotInfo:
    """The newest KV snapshot of a bucket: its id, and the log offset up to which it includes the changes."""

    snapshot_id: int
    log_offset: int


@dataclass(frozen=True, slots=True)
class KvSnapshotFiles:
    """The files of a KV snapshot: (remote path, local name), and the log offset up to which it includes the changes."""

    log_offset: int
    files: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class LakeSnapshot:
    """A snapshot of the lake side of a table: for each bucket, the first log offset that is not in it.

    `offsets_name` is the name of the file of its offsets, which the snapshot in the lake records: after a rollback of a
    lake table, its ids are used again. None from a Fluss cluster.
    """

    table_id: int
    snapshot_id: int
    log_offsets: Mapping[TableBucket, int]
    partition_names: Mapping[int, str] = field(default_factory=dict)
    offsets_name: str | None = None

    def is_same(self, other: LakeSnapshot) -> bool:
        """Whether both are the same snapshot."""
        return (self.snapshot_id, self.offsets_name) == (other.snapshot_id, other.offsets_name)


@dataclass(frozen=True)
class ProducerOffsets:
    """Bucket offsets that were registered under a producer id, until they expire."""

    producer_id: str
    expires: dt.datetime
    offsets: Mapping[TableBucket, int]


@dataclass(frozen=True, slots=True)
class TableSnapshotInfo:
    """An open table snapshot as reported by its server: its name, its age, how long it stays open unused, and what has
    been read of it.
    """

    snapshot_id: str
    table_id: int
    name: str
    age: dt.timedelta
    lease_left: dt.timedelta
    bucket_count: int
    pages: int
    read_bytes: int


@dataclass(frozen=True, slots=True)
class TransactionInfo:
    """A transaction of an application: "open", "decided" (its rows are being written) or "committed", since when.

    `stages` are the attempts that have staged rows, `staged_bytes` what these take on the server's disk.
    """

    application: str
    version: int
    state: str
    since: dt.datetime
    stages: int
    staged_bytes: int
    transaction_id: int


_TRANSACTION_STATES = ("open", "decided", "committed")


def transaction_from_pb(message: pb.PbTransactionInfo) -> TransactionInfo:
    """The transaction that a server describes."""
    return TransactionInfo(
        message.application,
        message.version,
        _TRANSACTION_STATES[message.state],
        dt.datetime.fromtimestamp(message.changed_ms / 1000, dt.UTC),
        message.stages,
        message.staged_bytes,
        message.transaction_id,
    )


HISTORY_SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64(), nullable=False),
        pa.field("committed_at", pa.timestamp("ms", "UTC"), nullable=False),
        pa.field("user", pa.string()),
        pa.field("operation", pa.string()),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("transaction_id", pa.int64(), nullable=False),
        pa.field("application", pa.string()),
        pa.field("version", pa.int64()),
    ]
)
"""The columns of a table's history: one row for each transaction that has written to it."""


def history_from_pb(commits: Iterable[pb.PbTableCommit]) -> pa.Table:
    """The history that a server describes, with `HISTORY_SCHEMA`."""
    rows = [
        (
            each.number, each.committed_ms, each.user or None, each.operation or None, each.rows, each.transaction_id,
            each.application or None, each.version if each.application else None,
        )
        for each in commits
    ]  # fmt: skip
    columns = list(zip(*rows, strict=True)) or [()] * len(HISTORY_SCHEMA)
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, HISTORY_SCHEMA, strict=True)], schema=HISTORY_SCHEMA)


@dataclass(frozen=True)
class TableStats:
    """Row counts of a table. The count is None for a bucket whose server does not count rows.

    `log_sizes` are the bytes of each bucket's log on its server, `last_writes` when its last record was written (None:
    it has none); only Forebay's servers report these.
    """

    row_counts: Mapping[TableBucket, int | None]
    log_sizes: Mapping[TableBucket, int] = field(default_factory=dict)
    last_writes: Mapping[TableBucket, dt.datetime | None] = field(default_factory=dict)

    @property
    def row_count(self) -> int | None:
        """The number of rows of the table; None if it is unknown for any bucket."""
        counts = list(self.row_counts.values())
        return None if None in counts else sum(count for count in counts if count is not None)
