"""Snapshots of an Iceberg table: manifests, the manifest list, and the one step that makes them visible.

pyiceberg commits appends and overwrites, but no position delete files, and it decides when to retry. A tiering round
needs control of both. So snapshots are created here, with pyiceberg's own manifest writers, and become visible through
a catalog's `commit_table`, with the requirement that the table's head has not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector, Summary, update_snapshot_summaries
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from forebay.base.ambient import SYSTEM_CLOCK, SYSTEM_IDS, Clock, IdSource
from forebay.base.errors import Conflict, OutcomeUnknown
from forebay.base.lake_events import LakeCommit, is_heard, tell
from forebay.lakes.iceberg_errors import NO_ANSWER
from forebay.lakes.iceberg_files import remove_files

ATTEMPTS_MAX = 20
_WAIT_MAX_SECONDS = 2.0
_MERGE_COUNT, _MERGE_COUNT_DEFAULT = "commit.manifest.min-count-to-merge", 100
_MERGE_BYTES, _MERGE_BYTES_DEFAULT = "commit.manifest.target-size-bytes", 8 << 20


@dataclass(frozen=True)
class Change:
    """The changes of a snapshot. `added` are data files and delete files; `removed` are paths of such files."""

    operation: Operation
    added: Sequence[DataFile] = ()
    removed: frozenset[str] = frozenset()
    properties: Mapping[str, str] = field(default_factory=dict)
    tag: str | None = None
    """A tag to set on the snapshot in the same step."""


def commit(
    load: Callable[[], Table],
    prepare: Callable[[Table], Change],
    clock: Clock = SYSTEM_CLOCK,
    ids: IdSource = SYSTEM_IDS,
) -> tuple[Table, Snapshot]:
    """Create a snapshot from `prepare(table)` on the table's head, retrying if another commit is faster; return both.

    `prepare` may raise to give up: no commit can come between the state it saw and the snapshot. Raises `Conflict`
    after many attempts, and `OutcomeUnknown` if the catalog's response was lost and the table does not show the
    snapshot: its files are then kept, because the request may still arrive.
    """
    attempts = _CommitTries(load, prepare, clock, ids)
    began, outcome = clock.monotonic(), "committed"
    try:
        return attempts.run()
    except BaseException as e:
        outcome = type(e).__name__
        raise
    finally:
        attempts.report(outcome, clock.monotonic() - began)


class _CommitTries:
    """The state of one `commit`."""

    def __init__(
        self, load: Callable[[], Table], prepare: Callable[[Table], Change], clock: Clock, ids: IdSource
    ) -> None:
        self._load, self._prepare, self._clock, self._ids = load, prepare, clock, ids
        self._retries = 0
        self._producer: _Producer | None = None

    def run(self) -> tuple[Table, Snapshot]:
        clock, ids = self._clock, self._ids
        for attempt in range(ATTEMPTS_MAX):
            self._retries = attempt
            table = self._load()
            producer = self._producer = _Producer(table, self._prepare(table), clock, ids)
            try:
                updates, requirements = producer.updates()
            except BaseException:
                producer.clean_up()
                raise
            try:
                table.catalog.commit_table(table, requirements, updates)
            except CommitFailedException:
                producer.clean_up()
                clock.sleep(ids.uniform(0, min(_WAIT_MAX_SECONDS, 0.01 * (1 << min(attempt, 10)))))
                continue
            except NO_ANSWER as e:
                if not _is_visible(self._load, producer.snapshot):
                    raise OutcomeUnknown(
                        f"the outcome of committing snapshot {producer.snapshot.snapshot_id} to "
                        f"{'.'.join(table.name())} is unknown: {type(e).__name__}: {e}; look at the table's snapshots "
                        "before you delete or repeat anything"
                    ) from e
            return table, producer.snapshot
        raise Conflict(f"table {'.'.join(table.name())}: {ATTEMPTS_MAX} commit attempts lost against other commits")

    def report(self, outcome: str, seconds: float) -> None:
        """Tell what has happened to those who count it."""
        if self._producer is not None and is_heard():
            tell(self._producer.event(outcome, self._retries, seconds))


def _is_visible(load: Callable[[], Table], snapshot: Snapshot) -> bool:
    """Whether the table has `snapshot`; False if the catalog does not answer this request, either."""
    try:
        return load().snapshot_by_id(snapshot.snapshot_id) is not None
    except NO_ANSWER:
        return False


class _Producer:
    """Writes the metadata of one snapshot."""

    def __init__(self, table: Table, change: Change, clock: Clock, ids: IdSource) -> None:
        self._table, self._change, self._metadata, self._io = table, change, table.metadata, table.io
        self._token = ids.token_hex()
        self._clock = clock
        self._id = self._metadata.new_snapshot_id()
        self._parent = table.current_snapshot()
        self._written: list[str] = []
        self._codec: AvroCompressionCodec = table.properties.get("write.avro.compression-codec", "gzip")  # type: ignore[assignment]
        self._removed_files: list[DataFile] = []

    def updates(self) -> tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]:
        """Write all files; return the updates for the catalog, and their requirements."""
        manifests = [*self._new_manifests(), *self._parent_manifests()]
        self.snapshot = self._snapshot(manifests)
        refs = [(MAIN_BRANCH, SnapshotRefType.BRANCH)]
        if self._change.tag is not None:
            refs.append((self._change.tag, SnapshotRefType.TAG))
        updates = [AddSnapshotUpdate(snapshot=self.snapshot)]
        ref_updates = [
            SetSnapshotRefUpdate.model_validate({"ref-name": name, "type": kind, "snapshot-id": self._id})
            for name, kind in refs
        ]
        head = self._parent.snapshot_id if self._parent is not None else None
        requirements = (
            AssertTableUUID(uuid=self._metadata.table_uuid),
            AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": head}),
        )
        return (*updates, *ref_updates), requirements

    def event(self, outcome: str, retries: int, seconds: float) -> LakeCommit:
        """The end of the commit."""
        operation, added = self._change.operation, self._change.added
        kind = "compact" if operation is Operation.REPLACE else operation.value
        table = ".".join(self._table.name())
        if outcome != "committed":
            return LakeCommit(table, kind, outcome, retries, seconds)
        properties = {} if self.snapshot.summary is None else self.snapshot.summary.additional_properties
        totals = [properties.get(name) for name in ("total-data-files", "total-delete-files")]
        return LakeCommit(
            table,
            kind,
            outcome,
            retries,
            seconds,
            len(added),
            sum(f.file_size_in_bytes for f in added),
            len(self._removed_files),
            sum(f.file_size_in_bytes for f in self._removed_files),
            None if totals[0] is None else sum(int(total or 0) for total in totals),
        )

    def clean_up(self) -> None:
        """Delete the files of a snapshot that was not committed."""
        remove_files(self._io, self._written)

    # -- manifests ----------------------------------------------------------------------------------------------------

    def _new_manifests(self) -> list[ManifestFile]:
        manifests = []
        groups: dict[tuple[ManifestContent, int], list[DataFile]] = {}
        for file in self._change.added:
            is_data = file.content is DataFileContent.DATA
            content = ManifestContent.DATA if is_data else ManifestContent.DELETES
            groups.setdefault((content, file.spec_id), []).append(file)
        for (content, spec_id), files in groups.items():
            with self._writer(content, spec_id) as writer:
                for file in files:
                    writer.add(
                        ManifestEntry.from_args(
                            status=ManifestEntryStatus.ADDED,
                            snapshot_id=self._id,
                            sequence_number=None,
                            file_sequence_number=None,
                            data_file=file,
                        )
                    )
            manifests.append(writer.to_manifest_file())
        return manifests

    def _parent_manifests(self) -> list[ManifestFile]:
        """The parent's manifests, without the removed files, and with small ones merged."""
        if self._parent is None:
            return []
        manifests = []
        for manifest in self._parent.manifests(self._io):
            if manifest.has_added_files() or manifest.has_existing_files():
                rewritten = self._without_removed(manifest) if self._change.removed else manifest
                manifests.append(rewritten)
        return self._merged(manifests)

    def _without_removed(self, manifest: ManifestFile) -> ManifestFile:
        entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
        if not any(e.data_file.file_path in self._change.removed for e in entries):
            return manifest
        with self._writer(manifest.content, manifest.partition_spec_id) as writer:
            for entry in entries:
                if entry.data_file.file_path in self._change.removed:
                    writer.delete(entry)
                    self._removed_files.append(entry.data_file)
                else:
                    writer.existing(entry)
        return writer.to_manifest_file()

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Many small manifests of a kind, merged into one, so that their number does not grow with every round."""
        properties = self._table.properties
        count_min = int(properties.get(_MERGE_COUNT, _MERGE_COUNT_DEFAULT))
        bytes_max = int(properties.get(_MERGE_BYTES, _MERGE_BYTES_DEFAULT))
        groups: dict[tuple[ManifestContent, int], list[ManifestFile]] = {}
        merged = []
        for manifest in manifests:
            if manifest.manifest_length < bytes_max and manifest.added_snapshot_id != self._id:
                groups.setdefault((manifest.content, manifest.partition_spec_id), []).append(manifest)
            else:
                merged.append(manifest)
        for (content, spec_id), group in groups.items():
            merged += group if len(group) < max(2, count_min) else [self._one_of(content, spec_id, group)]
        return merged

    def _one_of(self, content: ManifestContent, spec_id: int, group: Iterable[ManifestFile]) -> ManifestFile:
        # Read before the writer is there: at its end pyiceberg would complain of an empty file, in place of the error.
        entries = [entry for each in group for entry in each.fetch_manifest_entry(self._io, discard_deleted=True)]
        with self._writer(content, spec_id) as writer:
            for entry in entries:
                writer.existing(entry)
        return writer.to_manifest_file()

    def _writer(self, content: ManifestContent, spec_id: int) -> ManifestWriter:
        path = self._location(f"{self._token}-m{len(self._written)}.avro")
        spec, schema, output = self._metadata.specs()[spec_id], self._metadata.schema(), self._io.new_output(path)
        if content is ManifestContent.DELETES:
            return _DeleteManifestWriter(spec, schema, output, self._id, self._codec)
        return write_manifest(self._metadata.format_version, spec, schema, output, self._id, self._codec)

    def _location(self, name: str) -> str:
        path = self._table.location_provider().new_metadata_location(name)
        self._written.append(path)
        return path

    # -- the snapshot -------------------------------------------------------------------------------------------------

    def _snapshot(self, manifests: list[ManifestFile]) -> Snapshot:
        path = self._location(f"snap-{self._id}-0-{self._token}.avro")
        sequence = self._metadata.next_sequence_number()
        parent_id = self._parent.snapshot_id if self._parent is not None else None
        with write_manifest_list(
            self._metadata.format_version, self._io.new_output(path), self._id, parent_id, sequence, self._codec
        ) as writer:
            writer.add_manifests(manifests)
        return Snapshot.model_validate(
            {
                "snapshot-id": self._id,
                "parent-snapshot-id": parent_id,
                "sequence-number": sequence,
                "timestamp-ms": max(self._clock.now_ms(), self._metadata.last_updated_ms),
                "manifest-list": path,
                "summary": self._summary(),
                "schema-id": self._metadata.current_schema_id,
            }
        )

    def _summary(self) -> Summary:
        collector = SnapshotSummaryCollector()
        specs, schema = self._metadata.specs(), self._metadata.schema()
        for file in self._change.added:
            collector.add_file(file, schema, specs[file.spec_id])
        for file in self._removed_files:
            collector.remove_file(file, schema, specs[file.spec_id])
        counted = Summary(operation=Operation.OVERWRITE, **collector.build(), **self._change.properties)
        before = self._parent.summary if self._parent is not None else None
        whole = update_snapshot_summaries(counted, before.additional_properties if before is not None else None)
        return Summary(operation=self._change.operation, **whole.additional_properties)


class _DeleteManifestWriter(ManifestWriterV2):
    """A manifest of delete files; pyiceberg only writes those of data files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}
