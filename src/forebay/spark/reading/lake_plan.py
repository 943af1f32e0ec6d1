"""Planning scans of Paimon tables: a snapshot, or what changed between two, as tasks. Needs no JVM.

The filter prunes partitions, buckets and files (forebay.paimon.read.snapshot_planner). The remaining splits are
distributed to few tasks (forebay.spark.reading.plan). A split is cut into its files if these can be read separately,
and the files of a task are joined again; a split that needs merging stays whole. If Spark's own Parquet reader can read
all files of a scan, or files with many rows, the plan lists these beside the tasks (`NativeFiles`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pyspark.sql.types import ArrayType, StringType, StructField, StructType

from forebay.base.errors import ErrorCode, NotFound
from forebay.metadata.table import Column
from forebay.metadata.types import DataType, TypeRoot
from forebay.paimon.format.split import DataSplit
from forebay.paimon.read.batch_modes import BatchScan, chooses_snapshot
from forebay.paimon.read.change_planner import ChangePlanner, ChangeSplit, file_names
from forebay.paimon.read.expired import expiry_errors
from forebay.paimon.read.facade import travelled
from forebay.paimon.read.pieces import by_file, joined
from forebay.paimon.read.plain_files import plain_files
from forebay.paimon.read.predicates import ScanFilter
from forebay.paimon.read.snapshot_planner import SnapshotPlanner
from forebay.paimon.store.context import TableContext
from forebay.paimon.table import Table
from forebay.spark.read_modes import DEFAULT_MODES, ReadMode
from forebay.spark.reading.lake_metadata import NOT_READ, OLD_PREFIX, is_metadata
from forebay.spark.reading.lake_read import AUDIT_LOG, BINLOG, CHANGES, KIND_COLUMNS, ROWS, PaimonRead
from forebay.spark.reading.native_files import ROWS_MIN, spark_path, spark_paths
from forebay.spark.reading.plan import (
    LIMIT_ONE_TASK_MAX,
    NativeFiles,
    OpenedScan,
    Pushdown,
    ScanPlan,
    Serves,
    SplitsPartition,
    deal_out,
    keeping_limit,
    only_local,
)
from forebay.spark.schemas import columns_of, spark_arrow_schema, to_spark_schema
from forebay.spark.workers import short_errors

READ_OPTIMIZED = "ro"

SYSTEM_TABLES = (AUDIT_LOG, BINLOG, READ_OPTIMIZED, "changelog")
"""The system tables that return rows of the table (`t$audit_log`), and so are read by tasks. All are Paimon's, except
`changelog`, which has the columns of a live table's changelog."""


@dataclass(frozen=True)
class Group:
    """Splits that one task reads, one after the other."""

    splits: tuple[ChangeSplit, ...]

    @property
    def rows(self) -> int:
        return sum(split.row_count for split in self.splits)


@dataclass(frozen=True)
class DealtTasks:
    """All splits as tasks; also the files that Spark can read directly, and the tasks for the other rows."""

    tasks: Sequence[tuple[ChangeSplit, ...]]
    rows: int
    native: NativeFiles | None
    beside_native: Sequence[tuple[ChangeSplit, ...]]
    files: int

    def __len__(self) -> int:
        return self.files


@dataclass(frozen=True)
class PaimonScan:
    """A table to scan, or one of its `SYSTEM_TABLES`, with the schema and options of `table`.

    Picklable.
    """

    table: TableContext
    name: str
    system: str | None = None

    @classmethod
    def of(cls, table: Table, name: str, system: str | None = None) -> PaimonScan:
        """The scan that the table's options select; under time travel, with the columns of that snapshot.

        Raises `NotFound` for other system tables, and for missing snapshots.
        """
        if system is not None and system not in SYSTEM_TABLES:
            raise NotFound(
                f"table {name} has no '${system}'; there are {', '.join(SYSTEM_TABLES)}", ErrorCode.CLIENT_ERROR
            )
        context = travelled(table.context)
        return cls(context, name, system)

    def with_options(self, options: Mapping[str, str]) -> PaimonScan:
        """The same scan under other `options`."""
        if not options:
            return self
        schema = self.table.schema
        return replace(self, table=self.table.with_schema(schema.with_options({**schema.options, **options})))

    # ---- what Spark sees --------------------------------------------------------------------------------------------

    @property
    def form(self) -> str:
        if self.system == "changelog":
            return CHANGES
        return self.system if self.system in (AUDIT_LOG, BINLOG) else ROWS

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns that filters can use. None in a binlog, where columns are lists."""
        return () if self.form == BINLOG else columns_of(self.table.schema)

    @property
    def partition_keys(self) -> tuple[str, ...]:
        return tuple(self.table.schema.partition_keys)

    @property
    def schema(self) -> StructType:
        """The schema that Spark sees, with the row kind as the first column."""
        fields = to_spark_schema(columns_of(self.table.schema)).fields
        if self.form == ROWS:
            return StructType(fields)
        if self.form == BINLOG:
            fields = [StructField(f.name, ArrayType(f.dataType, True), f.nullable, f.metadata) for f in fields]
        return StructType([StructField(KIND_COLUMNS[self.form], StringType(), False), *fields])

    # ---- planning ---------------------------------------------------------------------------------------------------

    def read_function(self, pushdown: Pushdown, schema: StructType) -> PaimonRead:
        """The function that reads each task; `schema` is Spark's of the requested columns."""
        kind = None if self.form == ROWS else KIND_COLUMNS[self.form]
        return PaimonRead(
            self.table,
            self.name,
            tuple(dict.fromkeys(path for field in schema if field.name != kind for path in self._paths(field))),
            spark_arrow_schema(schema),
            pushdown.filter,
            pushdown.limit,
            self.form,
        )

    def _paths(self, field: StructField) -> list[str]:
        """`field` as columns of a reader: its name, or the paths of the parts that Spark wants of it."""
        if is_metadata(self.table.schema, field.name):
            return [] if field.name in NOT_READ else [field.name.removeprefix(OLD_PREFIX)]
        column = next((c for c in self.columns if c.name == field.name), None)
        if column is None or "." in field.name:
            return [field.name]
        return [field.name + tail for tail in _tails(column.data_type, field.dataType)]

    def _selected_splits(self, pushdown: Pushdown) -> list[ChangeSplit]:
        """The splits of a system table, or those that the table's scan options select, in order."""
        table = self.table
        scan_filter = ScanFilter.of(table.schema, pushdown.filter)
        with expiry_errors(table.snapshots, None):
            if self.system == READ_OPTIMIZED:
                top = table.options.num_levels - 1
                keep = (lambda entry: entry.file.level == top) if table.schema.has_primary_key else None
                scan = BatchScan(table)
                planner = ChangePlanner(table, keep)
                return list(planner.plan(scan.snapshot(), scan_filter, pushdown.limit).splits)
            scan = BatchScan(table)
            return list(scan.plan(scan_filter).splits)

    def partitions(self, cores: int, pushdown: Pushdown, schema: StructType) -> list[SplitsPartition]:
        """The input partitions of a batch of the format: a single one with a limit, which holds per task."""
        with short_errors(f"planning a read of table {self.name}"):
            tasks = self.plan(cores, pushdown, schema, modes=ReadMode.ROWS).tasks
        return [SplitsPartition(task) for task in keeping_limit(tasks, pushdown.limit)]

    def plan(
        self,
        cores: int,
        pushdown: Pushdown,
        schema: StructType,
        *,
        modes: ReadMode = DEFAULT_MODES,
        serves: Serves = only_local,
    ) -> ScanPlan:
        """The tasks. In mode `FILES` Spark may read files directly, which it does where it `serves` their store.

        Raises `NotFound` for missing snapshots.
        """
        work = self._work(cores, pushdown, serves if ReadMode.FILES in modes else None)
        # Nothing is pinned: the files of a snapshot stay as long as the snapshot.
        read = self.read_function(pushdown, schema)
        return ScanPlan(read, work.tasks, work.rows, open_tasks, work.native, work.beside_native)

    def _work(self, cores: int, pushdown: Pushdown, serves: Serves | None) -> DealtTasks:
        """The tasks of the latest snapshot, which are cached, or those that the system table and options select."""
        table = self.table
        if self.system is not None or chooses_snapshot(table.options):
            return self._dealt(self._selected_splits(pushdown), cores, pushdown, serves)
        with expiry_errors(table.snapshots, None):
            latest = table.snapshots.latest()

            def work() -> DealtTasks:
                scan_filter = ScanFilter.of(table.schema, pushdown.filter)
                splits = SnapshotPlanner(table).plan(latest, scan_filter, pushdown.limit).splits
                return self._dealt(splits, cores, pushdown, serves)

            if latest is None:
                return work()
            spark = None if serves is None else spark_path(f"{table.paths.root}/", serves)
            request = "tasks", cores, serves is None, spark, pushdown.columns, repr(pushdown.filter), pushdown.limit
            return table.manifests.planned(latest, table.schema, request, work)

    def _dealt(
        self, splits: Sequence[ChangeSplit], cores: int, pushdown: Pushdown, serves: Serves | None
    ) -> DealtTasks:
        total = sum(split.row_count for split in splits)
        rows = total if pushdown.limit is None else min(total, pushdown.limit)
        one_task = pushdown.limit is not None and pushdown.limit <= LIMIT_ONE_TASK_MAX
        if one_task and splits:
            tasks = [tuple(splits)]
        elif self.form == ROWS:
            tasks = deal(splits, cores)
        else:
            tasks = deal_groups(in_order(self.table, splits), cores)
        files, rest = (None, []) if serves is None else self._native_share(splits, pushdown, serves)
        options = tuple(self.table.store_options.items())
        native = None if files is None else NativeFiles(files, is_all=not rest, options=options)
        return DealtTasks(tasks, rows, native, deal(rest, cores), sum(len(file_names(split)) for split in splits))

    def _native_share(
        self, splits: Sequence[ChangeSplit], pushdown: Pushdown, serves: Serves
    ) -> tuple[tuple[str, ...] | None, list[ChangeSplit]]:
        """Return the files that Spark can read directly (None: it reads none), and the other splits."""
        if (
            self.form != ROWS
            or not pushdown.columns
            or any(is_metadata(self.table.schema, name) for name in pushdown.columns)
        ):
            return None, []  # rows are counted by metadata, which is faster
        fields = self.table.schema.fields_named(pushdown.columns)
        files: list[str] = []
        rest: list[ChangeSplit] = []
        rows = 0
        for piece in by_file(splits):
            plain = plain_files(self.table, piece, fields) if isinstance(piece, DataSplit) else None
            paths = None if plain is None else spark_paths(plain, serves)
            if paths is not None:
                files += paths
                rows += piece.row_count
            else:
                rest.append(piece)
        if not files or (rest and (pushdown.limit is not None or rows < ROWS_MIN)):
            return None, []
        return tuple(files), rest


def open_tasks(tasks: Sequence[tuple[ChangeSplit, ...]]) -> OpenedScan:
    """The input partitions of tasks."""
    return OpenedScan([SplitsPartition(task) for task in tasks])


def deal(splits: Iterable[ChangeSplit], cores: int) -> list[tuple[ChangeSplit, ...]]:
    """`splits` as tasks of about the same number of rows, in any order."""
    return deal_groups([Group((split,)) for split in by_file(splits)], cores)


def in_order(table: TableContext, splits: Iterable[ChangeSplit]) -> list[Group]:
    """`splits` in groups whose order must be kept: the changes of a bucket, and the rows of an ordered bucket.

    The rows of a snapshot of a primary-key table have different keys, so their order does not matter.
    """
    keyed = table.schema.has_primary_key
    ordered = keyed or (table.options.bucket > 0 and table.options.bucket_append_ordered)
    groups: dict[object, list[ChangeSplit]] = {}
    for place, split in enumerate(splits):
        is_free = not ordered or (keyed and isinstance(split, DataSplit) and not split.is_streaming)
        groups.setdefault(place if is_free else (split.partition, split.bucket), []).append(split)
    return [Group(tuple(group)) for group in groups.values()]


def deal_groups(groups: Sequence[Group], cores: int) -> list[tuple[ChangeSplit, ...]]:
    """The splits of each task: a group goes to one task, whole and in its order."""
    return [tuple(joined(split for group in task for split in group.splits)) for task in deal_out(groups, cores)]


def _tails(row_type: DataType, requested: object) -> list[str]:
    """The fields of `row_type` that Spark type `requested` has, as path suffixes; [""] if it has all of them."""
    if row_type.root is not TypeRoot.ROW or not isinstance(requested, StructType):
        return [""]
    names = {f.name: f.data_type for f in row_type.fields}
    if any("." in name for name in names) or not requested.fields or not names.keys() >= set(requested.names):
        return [""]
    tails = [(f.name, _tails(names[f.name], f.dataType)) for f in requested.fields]
    if len(tails) == len(names) and all(inner == [""] for _, inner in tails):
        return [""]
    return [f".{name}{end}" for name, inner in tails for end in inner]
