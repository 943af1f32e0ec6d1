"""What a machine that was lost may have acknowledged, and its store lacks: the file `store-loss` of the next machine.

With `store.durability` = `local` the store is behind the server. Where the journal does not say that the server was
stopped, the logs end where the store's do, and what was written after the time of the last object is missing. How much
that is, only the lost machine knew.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.metadata.table import TableBucket
from forebay.store.journal import JournalObject
from forebay.store.journal_format import EpochBegan, EpochEnded
from forebay.store.objects import ObjectStore

LOSS_FILE = "store-loss"


@dataclass(frozen=True, slots=True)
class StoreLoss:
    """The loss of a machine whose server was not stopped."""

    holder: str
    """The server, as it called itself."""
    since_ms: int
    """What was written from this time on may be missing, in ms since 1970 by the clock of that server."""
    ends: Mapping[TableBucket, int]
    """The end of each log: what was written behind it is missing."""

    @property
    def since(self) -> str:
        """`since_ms` in UTC, for people."""
        return datetime.fromtimestamp(self.since_ms / 1000, UTC).isoformat(" ", "milliseconds")


def loss_before(
    store: ObjectStore, fence: int, fences: Collection[int], ends: Mapping[TableBucket, int]
) -> StoreLoss | None:
    """The loss of the server that wrote to the journal before the object `fence`, with which the next epoch begins.

    None if it was stopped, or has acknowledged nothing that the store lacks. `fences`: the numbers of all fences;
    `ends`: of each log there.
    """
    number = fence - 1
    while number in fences:
        number -= 1  # a server that has not got beyond its fence has served nothing
    if number == 0:
        return None
    began, last = JournalObject(store, max(each for each in fences if each < number)), JournalObject(store, number)
    epoch = next(each.entry for each in began.index.entries if isinstance(each.entry, EpochBegan))
    if epoch.is_awaited or any(isinstance(each.entry, EpochEnded) for each in last.index.entries):
        return None
    return StoreLoss(epoch.holder, last.index.first_ms, dict(ends))


def write_loss(fs: FileSystem, data_dir: str, loss: StoreLoss) -> None:
    """Write the loss to the data directory of the next server, durably."""
    document = {
        "holder": loss.holder, "since_ms": loss.since_ms,
        "ends": [[b.table_id, b.partition_id, b.bucket, end] for b, end in loss.ends.items()],
    }  # fmt: skip
    fs.write_atomic(names.join(data_dir, LOSS_FILE), json.dumps(document).encode())


def read_loss(fs: FileSystem, data_dir: str) -> StoreLoss | None:
    """The loss with which a data directory began; None if it began without."""
    try:
        document = json.loads(fs.read_bytes(names.join(data_dir, LOSS_FILE)))
    except FileMissing:
        return None
    ends = {TableBucket(table, bucket, partition): end for table, partition, bucket, end in document["ends"]}
    return StoreLoss(document["holder"], document["since_ms"], ends)
