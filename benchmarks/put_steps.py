"""The time of a put by step: the real `KvTablet` in this process, with a stopwatch around each of its steps.

The stopwatch measures CPU time of the whole process (all threads, kernel included), which is that of this one thread:
nothing else runs here. Only the sync is also measured in wall time, because there the process waits for the disk. The
bytes are those that our client sends; the server groups them, while here each is a separate group.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from forebay.client.writing.encode import KvEncoder, seal
from forebay.codec.casting.batches import iter_record_batches
from forebay.codec.kv.kv_batch import kv_batch_header, parse_kv_batch
from forebay.codec.log.log_batch import build_arrow_batch
from forebay.codec.rows.keys import KeyEncoder
from forebay.codec.rows.row_codec import DecodedRows, RowCodec
from forebay.fs.local import LocalFileSystem
from forebay.kv import merge_plans
from forebay.kv import tablet as tablet_module
from forebay.kv._merge import MergePlan
from forebay.kv.engine import EngineFactory, KvEngine
from forebay.kv.hlog.hlog_engine import HlogEngine, HlogWrites
from forebay.kv.tablet import ChangelogCodec, KvTablet, PutRequest
from forebay.log.tablet import LogTablet
from forebay.metadata.table import Schema, TableInfo

CHECK, PIECE, PARSE, FETCH, MERGE, DECODE, PROVE, ENCODE, APPEND, SYNC, APPLY = STEPS = (
    "checksum of the KV batch",
    "parse, find and write the rows in one piece",
    "parse the KV batch",
    "fetch old values",
    "merge",
    "decode the changelog's rows",
    "prove rows and keys",
    "encode the changelog",
    "append to the log",
    "sync the log",
    "apply to the engine",
)
IN_THE_ENGINE = PIECE, PARSE, FETCH, MERGE, APPLY
"""The steps that depend on the engine: those of a put in one piece, and those of a put in steps."""


class FixedTable:
    """A `TableView` of a table that does not change."""

    def __init__(self, info: TableInfo) -> None:
        self.info = info

    def schema_by_id(self, schema_id: int) -> Schema:
        return self.info.schema


@dataclass
class LocalBucket:
    """A bucket of a primary-key table in this process: log, engine, tablet."""

    info: TableInfo
    folder: Path
    factory: EngineFactory
    log: LogTablet = field(init=False)
    engine: KvEngine = field(init=False)
    tablet: KvTablet = field(init=False)

    def __post_init__(self) -> None:
        self.log = LogTablet.open(LocalFileSystem(), str(self.folder / "log"))
        self.open_engine("db")

    def open_engine(self, name: str) -> None:
        """Start with the engine files in directory `name`, which may be empty; the tablet is not caught up yet."""
        self.engine = self.factory(self.folder / name)
        self.tablet = KvTablet(FixedTable(self.info), self.log, self.engine, _no_ids)

    def put(self, records: bytes, target_columns: tuple[int, ...] = ()) -> None:
        result = self.tablet.put_group([PutRequest(records, target_columns)])[0]
        if result.error is not None:
            raise result.error

    def close(self) -> None:
        self.engine.close()
        self.log.close()


def _no_ids(count: int) -> int:
    raise AssertionError("a table without an auto-increment column asked for ids")


def encoded(info: TableInfo, batches: Sequence[pa.RecordBatch], batch_bytes: int = 2 << 20) -> list[tuple[bytes, int]]:
    """The KV batches that our client sends for these rows, and the number of rows in each."""
    encoder = KvEncoder(info, batch_bytes)
    made = []
    for given in batches:
        for batch in iter_record_batches(given, info.schema):
            for piece in encoder.pieces([encoder.upserts(batch)]):
                seal(piece.data, True, -1, -1)
                made.append((bytes(piece.data), piece.rows))
    return made


class Stopwatch:
    """CPU and wall seconds of each step."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = defaultdict(float)
        self.wall: dict[str, float] = defaultdict(float)

    def timed(self, step: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                return work(*arguments, **named)
            finally:
                self.cpu[step] += time.process_time() - cpu
                self.wall[step] += time.perf_counter() - wall

        return call


@contextmanager
def watched(bucket: LocalBucket) -> Iterator[Stopwatch]:
    """A stopwatch on the steps of `bucket`'s puts."""
    watch = Stopwatch()

    class TimedPlan(MergePlan):  # which is compiled and cannot be patched
        merge = watch.timed(MERGE, MergePlan.merge)

    taking = "commit" if isinstance(bucket.engine, HlogEngine) else "apply"
    with (
        mock.patch.object(tablet_module, "kv_batch_header", watch.timed(CHECK, kv_batch_header)),
        mock.patch.object(HlogWrites, "put_records", watch.timed(PIECE, HlogWrites.put_records)),
        mock.patch.object(tablet_module, "parse_kv_batch", watch.timed(PARSE, parse_kv_batch)),
        mock.patch.object(merge_plans, "MergePlan", TimedPlan),
        mock.patch.object(RowCodec, "decode_rows", watch.timed(DECODE, RowCodec.decode_rows)),
        mock.patch.object(DecodedRows, "is_plainly_sound", watch.timed(PROVE, DecodedRows.is_plainly_sound)),
        mock.patch.object(KeyEncoder, "match", watch.timed(PROVE, KeyEncoder.match)),
        mock.patch.object(ChangelogCodec, "_check", watch.timed(PROVE, ChangelogCodec._check)),
        mock.patch.object(tablet_module, "build_arrow_batch", watch.timed(ENCODE, build_arrow_batch)),
        mock.patch.object(bucket.engine, "multi_get", watch.timed(FETCH, bucket.engine.multi_get)),
        mock.patch.object(bucket.engine, taking, watch.timed(APPLY, getattr(bucket.engine, taking))),
        mock.patch.object(bucket.log, "append_as_leader", watch.timed(APPEND, bucket.log.append_as_leader)),
        mock.patch.object(bucket.log, "sync", watch.timed(SYNC, bucket.log.sync)),
    ):
        bucket.tablet._plans.clear()
        try:
            yield watch
        finally:
            bucket.tablet._plans.clear()


@dataclass(frozen=True)
class StepTimes:
    """CPU nanoseconds per row of each step and of the whole put, and the wall time of the sync."""

    steps: dict[str, float]
    total: float
    sync_wall: float


def measure(
    bucket: LocalBucket, records: Sequence[tuple[bytes, int]], target_columns: tuple[int, ...] = ()
) -> StepTimes:
    """Put the records, which write all columns or those at `target_columns`; see the module's docstring."""
    rows = sum(count for _, count in records)
    with watched(bucket) as watch:
        before = time.process_time()
        for data, _ in records:
            bucket.put(data, target_columns)
        total = time.process_time() - before
    scale = 1e9 / rows
    steps = {step: watch.cpu[step] * scale for step in STEPS}
    return StepTimes(steps, total * scale, watch.wall[SYNC] * scale)
