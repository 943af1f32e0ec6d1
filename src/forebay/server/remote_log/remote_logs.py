"""All remote logs of a server: their lists in the metadata, their objects in the store.

An object is on the list of doomed objects from before it is created until a transaction of the metadata names it, and
from the transaction that no longer does. The journal has that list before the object is created. So every object is
named somewhere at any time, whatever crashes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from forebay.base import threads
from forebay.base.ambient import Clock, IdSource
from forebay.log.remote import RemoteLogSegment
from forebay.log.segment import SegmentPart
from forebay.metadata.table import PhysicalTablePath, TableBucket
from forebay.server.metadata_store import MetadataStore
from forebay.server.remote_log.manifest import (
    encode_manifest,
    manifest_name,
    new_id,
    tablet_name,
    tablet_of_manifest,
)
from forebay.server.remote_log.planned_objects import PlannedObjects
from forebay.server.remote_log.remote_log import RemoteLogTablet, SegmentReaders, read_writers

if TYPE_CHECKING:
    from typing_extensions import Buffer

_DELETED_AT_ONCE = 1000


class SegmentUpload(NamedTuple):
    """A segment to copy."""

    part: SegmentPart
    batches: Iterable[Buffer]
    writers: bytes | None
    """The writer snapshot at its end, if there is one."""


class RemoteLogs:
    """The remote logs of a server. `log` may be called in any thread, the rest in one."""

    def __init__(
        self,
        metadata: MetadataStore,
        readers: SegmentReaders,
        planned: PlannedObjects,
        clock: Clock,
        ids: IdSource,
        retention_ms: int,
    ) -> None:
        """`retention_ms`: how long an object stays that is not needed any more."""
        self._metadata, self._readers, self._store = metadata, readers, readers.store
        self._planned, self._clock, self._ids, self._retention_ms = planned, clock, ids, retention_ms
        self._lock = threads.lock()
        self._lists = metadata.remote_logs()
        """Of buckets of which segments were ever copied: up to which offset, and the name of the manifest."""
        self._logs: dict[TableBucket, RemoteLogTablet] = {}
        """Of buckets that were asked for."""

    @property
    def location(self) -> str:
        """The path or URI of the store."""
        return self._store.location

    def log(self, bucket: TableBucket, table: PhysicalTablePath) -> RemoteLogTablet:
        """The remote log of a bucket, which may have no segment yet. Any thread."""
        with self._lock:
            log = self._logs.get(bucket)
            if log is None:
                segments = self._metadata.remote_segments(bucket) if bucket in self._lists else []
                log = self._logs[bucket] = RemoteLogTablet(tablet_name(table, bucket), segments, self._readers)
            return log

    def writers_at_end(self, bucket: TableBucket, table: PhysicalTablePath) -> bytes | None:
        """The writer snapshot where the remote log of a bucket ends; None if there is none. Any thread."""
        segments = self.log(bucket, table).segments
        return read_writers(self._store, tablet_name(table, bucket), segments[-1]) if segments else None

    def known(self) -> dict[TableBucket, str]:
        """The buckets of which segments were ever copied, each with the name of its manifest; empty if all have
        expired. Any thread."""
        with self._lock:
            return {bucket: manifest for bucket, (_, manifest) in self._lists.items()}

    def ends(self) -> dict[TableBucket, int]:
        """Up to which offsets logs were copied. Any thread."""
        with self._lock:
            return {bucket: end for bucket, (end, _) in self._lists.items()}

    def end(self, bucket: TableBucket) -> int:
        """Up to which offset the log of a bucket was copied. Any thread."""
        with self._lock:
            return self._lists.get(bucket, (0, ""))[0]

    def reload(self, gone: Collection[TableBucket] = ()) -> None:
        """Show what the metadata have, whose content was replaced, and forget buckets that were dropped."""
        lists = self._metadata.remote_logs()
        with self._lock:
            for bucket in gone:
                self._logs.pop(bucket, None)
            changed = {bucket for bucket in self._logs if self._lists.get(bucket) != lists.get(bucket)}
            for bucket in changed:
                self._logs[bucket].segments = tuple(self._metadata.remote_segments(bucket))
            self._lists = lists

    # ---- changes ----------------------------------------------------------------------------------------------------

    def add(self, bucket: TableBucket, table: PhysicalTablePath, uploads: Sequence[SegmentUpload]) -> None:
        """Create the objects of segments that continue the remote log of a bucket, and list them.

        Earlier segments leave the list if these do not continue them. Raises `StorageFailure`, with nothing listed.
        """
        log = self.log(bucket, table)
        new = [_new_segment(upload.part, new_id(self._ids)) for upload in uploads]
        kept = log.segments if not log.segments or log.segments[-1].end_offset == new[0].start_offset else ()
        manifest = manifest_name(log.tablet, new_id(self._ids))
        created = [manifest, *(name for segment in new for name in segment.objects(log.tablet))]
        self._planned.plan(created)
        for upload, segment in zip(uploads, new, strict=True):
            for name, content in _contents(upload, segment.objects(log.tablet)):
                self._store.upload(name, content)
        self._store.upload(manifest, [encode_manifest(table, bucket, [*kept, *new])])
        self._change(bucket, log, manifest, added=new, kept=kept, created=created)

    def remove_until(self, bucket: TableBucket, table: PhysicalTablePath, offset: int) -> int:
        """Let the segments that end at or before `offset` leave the list; return how many. Raises `StorageFailure`."""
        log = self.log(bucket, table)
        kept = tuple(each for each in log.segments if each.end_offset > offset)
        removed = len(log.segments) - len(kept)
        if removed and kept:
            manifest = manifest_name(log.tablet, new_id(self._ids))
            self._planned.plan([manifest])
            self._store.upload(manifest, [encode_manifest(table, bucket, kept)])
            self._change(bucket, log, manifest, added=(), kept=kept, created=[manifest])
        elif removed:
            self._change(bucket, log, "", added=(), kept=(), created=())
        return removed

    def skip_to(self, bucket: TableBucket, table: PhysicalTablePath, offset: int) -> None:
        """Note that the log was copied as far as there was something to copy: records below `offset` have expired."""
        self._change(bucket, self.log(bucket, table), "", added=(), kept=(), created=(), end=offset)

    def forget(self, bucket: TableBucket) -> None:
        """Doom the objects of a bucket that was dropped."""
        manifest = self._lists[bucket][1]
        doomed = [manifest] if manifest else []
        for stored in self._metadata.remote_segments(bucket):
            doomed += stored.objects(tablet_of_manifest(manifest))
        self._metadata.forget_remote_log(bucket, dict.fromkeys(doomed, self._clock.now_ms() + self._retention_ms))
        with self._lock:
            self._logs.pop(bucket, None)
            del self._lists[bucket]

    def _change(
        self,
        bucket: TableBucket,
        log: RemoteLogTablet,
        manifest: str,
        *,
        added: Sequence[RemoteLogSegment],
        kept: Sequence[RemoteLogSegment],
        created: Iterable[str],
        end: int | None = None,
    ) -> None:
        removed = log.segments[: len(log.segments) - len(kept)]
        due_ms = self._clock.now_ms() + self._retention_ms
        doomed = dict.fromkeys((name for each in removed for name in each.objects(log.tablet)), due_ms)
        end_before, before = self._lists.get(bucket, (0, ""))
        if before:
            doomed[before] = due_ms
        if end is None:
            end = added[-1].end_offset if added else end_before
        self._metadata.change_remote_log(
            bucket,
            end,
            manifest,
            added=added,
            removed_until=removed[-1].end_offset if removed else 0,
            doomed=doomed,
            kept=created,
        )
        log.segments = (*kept, *added)
        with self._lock:
            self._lists[bucket] = end, manifest

    # ---- deleting ---------------------------------------------------------------------------------------------------

    def doomed(self) -> list[str]:
        """Names of objects that may be deleted once the metadata that says so is in the journal; some of them."""
        return self._metadata.doomed_objects(self._clock.now_ms(), _DELETED_AT_ONCE)

    def delete(self, doomed: Sequence[str]) -> None:
        """Delete objects. Raises `StorageFailure`."""
        self._store.delete(doomed)
        self._metadata.objects_deleted(doomed)


def _new_segment(part: SegmentPart, segment_id: str) -> RemoteLogSegment:
    return RemoteLogSegment(segment_id, part.start_offset, part.end_offset, part.last_timestamp_ms, part.size_bytes)


def _contents(upload: SegmentUpload, names: tuple[str, str, str, str]) -> Iterator[tuple[str, Iterable[Buffer]]]:
    log, offset_index, time_index, writers = names
    yield offset_index, [upload.part.offset_index]
    yield time_index, [upload.part.time_index]
    if upload.writers is not None:
        yield writers, [upload.writers]
    yield log, upload.batches
