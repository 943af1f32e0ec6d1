"""Conflicts between a statement that changes rows of a primary-key table, and rows that others committed meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from forebay.base.errors import Conflict, NotFound
from forebay.codec.rows.keys import KeyEncoder
from forebay.metadata.table import Column
from forebay.paimon.files.reader import DataFileReader
from forebay.paimon.format.commit_message import CommitMessage
from forebay.paimon.format.file_meta import DataFileMeta, FileKind, ManifestEntry
from forebay.paimon.format.snapshot import CommitKind, Snapshot
from forebay.paimon.store.context import TableContext

Bucket = tuple[bytes, int]

_SAME_ROWS = (CommitKind.COMPACT, CommitKind.ANALYZE)
"""Kinds of commits that do not change rows."""

_KEYS_SHOWN = 3


class RowConflicts:
    """Whether a commit may follow a snapshot: not if rows that it changes were changed after snapshot `base`.

    `base` is the snapshot that the statement has read; None: the table was empty. For `FileStoreCommit.commit_if`. Keys
    are read only of buckets that others have also written to: from their new files and from the new files of this
    commit.
    """

    def __init__(
        self, table: TableContext, base: Snapshot | None, messages: Iterable[CommitMessage], what: str
    ) -> None:
        """`messages` are what is to be committed, and `what` is the statement, for errors."""
        self._table, self._what = table, what
        self._seen = 0 if base is None else base.id
        self._files: dict[Bucket, list[DataFileMeta]] = defaultdict(list)
        for m in messages:
            self._files[m.partition, m.bucket] += m.data.new_files
        self._keys: dict[Bucket, pa.ChunkedArray] = {}
        fields = table.schema.fields_named(table.schema.trimmed_primary_keys)
        self._encoder = KeyEncoder(tuple(Column(f.name, f.type) for f in fields), None)
        self._reader = DataFileReader(table.io, table.schemas.schema, fields, schema_id=table.schema.id)

    def __call__(self, latest: Snapshot | None) -> None:
        """Raise `Conflict` if the commit must not follow `latest`."""
        last = 0 if latest is None else latest.id
        for number in range(self._seen + 1, last + 1):
            try:
                snapshot = self._table.snapshots.snapshot(number)
                if snapshot.commit_kind not in _SAME_ROWS:
                    self._check(snapshot)
            except NotFound as e:
                raise Conflict(
                    f"{self._what} was not carried out: snapshot {number}, which came since it began, has expired, so "
                    "it cannot be checked what it changed; run it again"
                ) from e
        self._seen = max(self._seen, last)

    def _check(self, snapshot: Snapshot) -> None:
        manifests = self._table.manifests
        theirs: dict[Bucket, list[ManifestEntry]] = defaultdict(list)
        for entry in manifests.entries(manifests.delta_manifests(snapshot)):
            if (entry.partition, entry.bucket) in self._files:
                theirs[entry.partition, entry.bucket].append(entry)
        for bucket, entries in theirs.items():
            if any(entry.kind is FileKind.DELETE for entry in entries):
                raise Conflict(
                    f"{self._what} was not carried out: snapshot {snapshot.id} of user {snapshot.commit_user} has "
                    "replaced files that have rows of its buckets; run it again"
                )
            keys = self._read(bucket, [entry.file for entry in entries])
            if bucket not in self._keys:
                self._keys[bucket] = self._read(bucket, self._files[bucket])
            both = pc.unique(keys.filter(pc.is_in(keys, value_set=self._keys[bucket])))
            if len(both):
                raise Conflict(
                    f"{self._what} was not carried out: snapshot {snapshot.id} of user {snapshot.commit_user} has "
                    f"changed {len(both)} of its rows, such as {self._shown(both)}; run it again"
                )

    def _read(self, bucket: Bucket, files: Sequence[DataFileMeta]) -> pa.ChunkedArray:
        paths = self._table.paths
        batches = (batch for f in files for batch in self._reader.read(f, paths.data_file(*bucket, f)))
        return pa.chunked_array([self._encoder.encode(batch) for batch in batches], pa.binary())

    def _shown(self, keys: pa.Array) -> str:
        rows = self._encoder.decode(keys.slice(0, _KEYS_SHOWN).to_pylist()).to_pylist()
        return " and ".join(", ".join(f"{name} = {value!r}" for name, value in row.items()) for row in rows)
