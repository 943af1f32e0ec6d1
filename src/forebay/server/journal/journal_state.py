"""Where a server's journal is, as its data directory remembers it: the file `journal-state`.

With it a server goes on after a stop or a crash, and finds out whether another one has taken over meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.base.errors import CorruptData
from forebay.codec.crc import crc32c
from forebay.fs import names
from forebay.fs.interface import FileMissing, FileSystem
from forebay.metadata.table import TableBucket

_STATE_FILE = "journal-state"


@dataclass
class JournalState:
    """The state, as of the object `number` of the journal."""

    store: str
    number: int = 0
    seal: int = 0
    epoch: int = 0
    writers: list[str] = field(default_factory=list)
    """The writers that this directory has been since `number`, each of which may have written behind it: a creation
    that failed may happen later, until its number is taken."""
    ends: dict[TableBucket, int] = field(default_factory=dict)
    needed_from: int = 1
    """What a checkpoint says (`forebay.store.journal_format.JournalCheckpoint`)."""
    deleted_until: int = 1


def has_journal_state(fs: FileSystem, data_dir: str) -> bool:
    """Whether the data directory is that of a server with a store."""
    return fs.exists(names.join(data_dir, _STATE_FILE))


def write_journal_state(fs: FileSystem, data_dir: str, state: JournalState) -> None:
    """Replace the state, durably."""
    document: dict[str, Any] = {
        "store": state.store, "number": state.number, "seal": state.seal, "epoch": state.epoch,
        "writers": state.writers, "needed_from": state.needed_from, "deleted_until": state.deleted_until,
        "ends": [[b.table_id, b.partition_id, b.bucket, end] for b, end in state.ends.items()],
    }  # fmt: skip
    body = json.dumps(document).encode() + b"\n"
    fs.write_atomic(names.join(data_dir, _STATE_FILE), body + b"crc32c %08x\n" % crc32c(body))


def read_journal_state(fs: FileSystem, data_dir: str) -> JournalState | None:
    """The state; None if the directory has none. Raises `CorruptData`."""
    path = names.join(data_dir, _STATE_FILE)
    try:
        data = fs.read_bytes(path)
    except FileMissing:
        return None
    body, _, checksum = data.rpartition(b"crc32c ")
    if checksum != b"%08x\n" % crc32c(body):
        raise CorruptData(f"{path} is damaged: start with a new data directory, which is made from the store")
    document: Mapping[str, Any] = json.loads(body)
    ends = {TableBucket(table, bucket, partition): end for table, partition, bucket, end in document["ends"]}
    return JournalState(
        document["store"], document["number"], document["seal"], document["epoch"], document["writers"], ends,
        document["needed_from"], document["deleted_until"],
    )  # fmt: skip
