"""UPDATE, MERGE and DELETE on append tables of a lake: files with changed rows are rewritten (copy on write).

Spark first queries the paths of files that have such rows (`CopyOnWriteScan.filter`). It then reads all rows of these
files, and writes the unchanged rows and the new ones. One commit removes the files that were read and adds the new
files. If another commit has removed or replaced one of them since the statement began, nothing is committed
(`Conflict`). Rows that other commits append are not changed.

A table may have deletion vectors, which other software has written. Rewritten files lack the rows that these mark. An
index file has the vectors of several files, so all of these are rewritten together, and the commit removes the index
file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, ClassVar

from forebay.base.errors import Conflict
from forebay.metadata.predicate import Predicate, all_of
from forebay.paimon.commit.file_changes import DELETION_VECTORS
from forebay.paimon.format.commit_message import CommitMessage, DataIncrement
from forebay.paimon.format.file_meta import IndexFileMeta, IndexManifestEntry
from forebay.paimon.format.snapshot import Snapshot
from forebay.paimon.format.split import DataSplit
from forebay.paimon.read.pieces import by_file
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.snapshot_planner import SnapshotPlanner
from forebay.paimon.table import Table
from forebay.spark.context import LakeContext
from forebay.spark.jvm.gateway import CONNECTOR, JavaObject, Jvm
from forebay.spark.jvm.proxy import JavaProxy
from forebay.spark.jvm.python_tasks import python_metrics
from forebay.spark.jvm.spark_values import column_reference, python_options
from forebay.spark.lake_jobs import SparkTasks
from forebay.spark.reading.lake_metadata import FILE_PATH
from forebay.spark.reading.lake_plan import PaimonScan, deal, open_tasks
from forebay.spark.reading.plan import Pushdown, ScanPlan
from forebay.spark.reading.relation import Relation
from forebay.spark.reading.scan import ScanProxy
from forebay.spark.reading.scan_builder import ScanBuilder
from forebay.spark.schemas import columns_of, to_spark_schema
from forebay.spark.writing.committing import InlineCompaction, with_precommit_compaction
from forebay.spark.writing.lake_write import LakeWriteFunction, messages_of
from forebay.spark.writing.lake_write_builder import RowDistribution, row_distribution
from forebay.spark.writing.row_level import DeltaRows, OpenRelation, RowLevelOperation, row_writer_factory
from forebay.spark.writing.write_builder import WRITE, BatchTasks, WriteProxy


class LakeRewrite(RowLevelOperation):
    """A statement on one append table."""

    _context: LakeContext

    def __init__(
        self,
        context: LakeContext,
        name: str,
        table: Table,
        base: Snapshot | None,
        command: JavaObject,
        open_relation: OpenRelation,
    ) -> None:
        """`open_relation` reads snapshot `base` of the table."""
        super().__init__(context, name, command, open_relation)
        self.table, self.base = table, base
        self.scan: CopyOnWriteScan | None = None

    def requiredMetadataAttributes(self) -> JavaObject:
        return self._references([FILE_PATH])

    def newScanBuilder(self, options: JavaObject) -> JavaProxy:
        return CopyOnWriteScanBuilder(self, self._target(python_options(options)))

    def newWriteBuilder(self, info: JavaObject) -> JavaProxy:
        return RewriteBuilder(self)


class CopyOnWriteScanBuilder(ScanBuilder):
    """Builds the scan of the files that a statement may change. Filters select files, whose rows are all read."""

    def __init__(self, operation: LakeRewrite, relation: Relation) -> None:
        super().__init__(operation._context, relation)
        self._operation = operation

    def pushLimit(self, limit: int) -> bool:
        return False

    def build(self) -> JavaObject:
        filters = [*self._partition_filters, *self._row_filters]
        self._operation.scan = CopyOnWriteScan(self._operation, self._relation, filters, self._schema)
        return self._operation.scan


class CopyOnWriteScan(ScanProxy):
    """The scan of whole files. It is planned once; Spark may then leave out files without changed rows."""

    interfaces: ClassVar[tuple[str, ...]] = (CONNECTOR + "read.SupportsRuntimeV2Filtering",)

    def __init__(
        self, operation: LakeRewrite, relation: Relation, filters: Sequence[Predicate], schema: JavaObject
    ) -> None:
        pushdown = Pushdown(tuple(schema.fieldNames()))
        super().__init__(operation._context, relation, pushdown, schema)
        self._table, self._base = operation.table, operation.base
        self._selected_paths: frozenset[str] | None = None
        self._filters = filters

    def _splits(self) -> list[DataSplit]:
        return self._once("splits", self._all_splits)  # type: ignore[no-any-return]

    def _all_splits(self) -> list[DataSplit]:
        context = self._table.context
        if self._base is None:
            return []
        # Filters would leave out unchanged files whose vectors are in the index file of a changed file.
        filters = [] if self._vectors else self._filters
        scan_filter = ScanFilter.of(context.schema, all_of(filters))
        pieces = by_file(SnapshotPlanner(context).plan(self._base, scan_filter, None).splits)
        return [piece for piece in pieces if isinstance(piece, DataSplit)]

    @cached_property
    def _vectors(self) -> list[IndexManifestEntry]:
        """The index files of the snapshot that have deletion vectors."""
        manifest = None if self._base is None else self._base.index_manifest
        entries = self._table.context.manifests.read_index(manifest)
        return [e for e in entries if e.index_file.index_type == DELETION_VECTORS]

    def path(self, split: DataSplit) -> str:
        return self._table.context.paths.data_file(split.partition, split.bucket, split.files[0])

    def read_splits(self) -> list[DataSplit]:
        """The files that are read, and that the commit removes, each as one split."""
        together = {file for entry in self._removed_vectors() for file in _marked(entry)}
        return [s for s in self._splits() if self._is_selected(s) or _file_of(s) in together]

    def _removed_vectors(self) -> list[IndexManifestEntry]:
        """The index files that mark rows of files that change."""
        changed = {_file_of(split) for split in self._splits() if self._is_selected(split)}
        return [entry for entry in self._vectors if not changed.isdisjoint(_marked(entry))]

    def removed(self) -> list[CommitMessage]:
        """The messages that remove the files that were read, and the index files that mark rows of them."""
        vectors: dict[tuple[bytes, int], list[IndexFileMeta]] = {}
        for entry in self._removed_vectors():
            vectors.setdefault((entry.partition, entry.bucket), []).append(entry.index_file)
        messages = []
        for s in self.read_splits():
            removed = tuple(vectors.pop((s.partition, s.bucket), ()))
            increment = DataIncrement((), s.files, deleted_index_files=removed)
            messages.append(CommitMessage(s.partition, s.bucket, s.total_buckets, increment))
        return messages

    def _is_selected(self, split: DataSplit) -> bool:
        return self._selected_paths is None or self.path(split) in self._selected_paths

    def _plan(self) -> ScanPlan:
        splits = self.read_splits()
        read = PaimonScan.of(self._table, self._relation.name).read_function(self._pushdown, self._schema)
        rows = sum(split.row_count for split in splits)
        return ScanPlan(read, deal(splits, self._context.cores), rows, open_tasks)

    def planInputPartitions(self) -> JavaObject:
        # Not cached: Spark asks again after it has left out files.
        return self._partitions(self._plan())

    # ---- SupportsRuntimeV2Filtering ----------------------------------------------------------------------------------

    def filterAttributes(self) -> JavaObject:
        return self.jvm.array(CONNECTOR + "expressions.NamedReference", [column_reference(self.jvm, FILE_PATH)])

    def filter(self, predicates: JavaObject) -> None:
        """Leave out the files that are not among the paths that Spark has selected."""
        for predicate in predicates:
            if str(predicate.name()) != "IN":
                continue
            _, *paths = predicate.children()
            selected = frozenset(str(path.value().toString()) for path in paths)
            if not selected <= {self.path(split) for split in self._splits()}:
                raise Conflict(
                    f"{self._relation.name} has rows to change in files that are not in snapshot "
                    f"{self._base and self._base.id}, which the statement reads; run it again, without options that "
                    "choose what is read"
                )
            self._selected_paths = selected if self._selected_paths is None else self._selected_paths & selected


_File = tuple[bytes, int, str]
"""Partition, bucket and name."""


def _file_of(split: DataSplit) -> _File:
    return split.partition, split.bucket, split.files[0].file_name


def _marked(entry: IndexManifestEntry) -> list[_File]:
    """The files of which an index file marks rows."""
    return [(entry.partition, entry.bucket, vector.data_file_name) for vector in entry.index_file.dv_ranges or ()]


class RewriteBuilder(JavaProxy):
    """Builds the write of one statement."""

    interfaces = (WRITE + "WriteBuilder",)

    def __init__(self, operation: LakeRewrite) -> None:
        super().__init__(operation.jvm)
        self._operation = operation

    def build(self) -> JavaProxy:
        return RewriteWrite(self._operation)


class RewriteWrite(WriteProxy, BatchTasks):
    """The write of the rows that stay and that are new, and the commit that removes the files that were read."""

    interfaces: ClassVar[tuple[str, ...]] = (WRITE + "RequiresDistributionAndOrdering",)

    def __init__(self, operation: LakeRewrite) -> None:
        super().__init__(operation.jvm)
        self._operation = operation
        self._name, self._table = operation._name, operation.table
        self._distribution: RowDistribution = row_distribution(operation.table, operation._context)
        self._is_settled = False

    def description(self) -> str:
        return f"{self._operation.description()}, files with such rows written again"

    def toBatch(self) -> JavaProxy:
        return self

    def requiredDistribution(self) -> JavaObject:
        return self._distribution.to_java(self.jvm)

    def requiredNumPartitions(self) -> int:
        return self._distribution.tasks

    def requiredOrdering(self) -> JavaObject:
        return self.jvm.array(CONNECTOR + "expressions.SortOrder", [])

    def supportedCustomMetrics(self) -> JavaObject:
        return python_metrics(self.jvm)

    def _task(self, physical: JavaObject) -> LakeWriteFunction:
        return LakeWriteFunction(self._table.context, self._name, tasks=max(int(physical.numPartitions()), 1))

    def createBatchWriterFactory(self, physical: JavaObject) -> JavaObject:
        return rewriting_factory(self.jvm, self._command(physical), self._table)

    def commit(self, messages: JavaObject, *summary: Any) -> None:
        """Replace the files that were read by those of the tasks. Raises `Conflict` if other writers did."""
        self._is_settled = True
        table, runner = self._table, partial(SparkTasks, self.jvm.context)
        new = with_precommit_compaction(table, messages_of(self._written(messages)), runner)
        scan = self._operation.scan
        removed = [] if scan is None else scan.removed()
        if not (new or removed):
            return
        committer = table.new_commit()
        try:
            committer.commit([*removed, *new], check_conflicts=True)
        except Conflict as e:
            committer.abort(new)
            raise Conflict(
                f"{self._operation.statement} {self._name} was not carried out: other writers have replaced files that "
                f"it read; run it again ({e.message})"
            ) from e
        InlineCompaction(table, runner).run({m.partition for m in new})
        table.maintenance().after_commit(batch=True)

    def abort(self, messages: JavaObject) -> None:
        if not self._is_settled:
            self._table.new_commit().abort(messages_of(self._written(messages)))


def rewriting_factory(jvm: Jvm, command: bytes, table: Table) -> JavaObject:
    """A DataWriterFactory for whole rows of an append table, which come one by one."""
    return row_writer_factory(jvm, command, DeltaRows(to_spark_schema(columns_of(table.schema)), (), has_kinds=False))
