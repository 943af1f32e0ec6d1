"""Selects the part of a union read that Spark's own Parquet reader reads. Needs no JVM.

- Spark reads a split of the lake without newer changes if its files are plain (`LakeSide.plain_files`).
- Spark also reads a bucket of a primary-key table with newer changes in the log, if its files are plain. Python tasks
  determine the overridden rows (`forebay.unionread.overridden`), Spark skips these by their row numbers, and other
  Python tasks read the rows from the log.
- Python tasks read everything else: merges within the lake, deletes, other file formats, and stores for which Spark's
  class path has no file system (`spark_path`).

Planning files beside Python tasks takes 0.03 s longer, so small reads (`ROWS_MIN`) and reads with a limit are not
mixed. Determining overridden rows takes an extra round of tasks, which pays off only for many rows (`MARKED_ROWS_MIN`)
with few changes. A read of files alone is always worthwhile.

Seconds on two idle cores for 0.5, 1 and 2 M rows (8 columns) of a Paimon lake with 1, 10 and 25 % of the keys changed,
medians of nine runs. Files and marks: 0.82, 0.56, 0.70; 0.56, 0.76, 0.82; 0.62, 0.82, 1.23 (measured with an earlier
implementation, 0.1 to 0.2 s slower). Python tasks: 0.78, 0.56, 0.66; 0.74, 0.84, 0.86; 0.99, 1.17, 1.31. Iceberg lakes
differ by less than a tenth. A broadcast anti join with the changed keys is slower than skipping rows by number.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from forebay.metadata.table import TableBucket
from forebay.spark.reading.plan import NativeFiles, Serves, only_local
from forebay.unionread.overridden import MarkBucket, local_path
from forebay.unionread.plan import UnionPlan
from forebay.unionread.splits import LakeSnapshotAndLogSplit, LakeSnapshotSplit, UnionSplit

ROWS_MIN = 400_000
"""The minimum number of rows in files for a mixed read."""

MARKED_ROWS_MIN, MARKED_SHARE_MAX = 1_000_000, 0.5
"""The minimum number of rows in files, and the maximum number of log records per row, for which Spark skips overridden
rows. An update is two records, so this is up to 25 % of the keys."""

_S3_NAMES, _S3_SCHEMES = ("s3", "s3a", "s3n"), ("s3a", "s3")
"""URI schemes of S3 in lakes, and the schemes of Hadoop's file systems for it, the usual one first."""

MARKED_ROWS_MAX = 400_000_000
"""Maximum number of rows of files with overridden rows. One bit per row takes 50 MB on the driver."""


@dataclass(frozen=True)
class NativeShare:
    """Paths of files without overridden rows, and `marking`, the tasks that find the overridden rows of other files.

    `rest` is the plan of the rows that Python tasks read.
    """

    files: tuple[str, ...]
    marking: tuple[MarkBucket, ...]
    rest: UnionPlan

    def native_files(self) -> NativeFiles:
        lake = self.rest.reader.lake
        options = None if lake is None else lake.source.store_options()
        return NativeFiles(self.files, self.marking, not self.rest.splits, tuple((options or {}).items()))


def spark_path(path: str, serves: Serves) -> str | None:
    """The path or URI by which Spark reads a file of a lake; None if it cannot.

    It reads local files, and those for whose scheme its class path has a Hadoop file system (`serves`).
    """
    local = local_path(path)
    if local is not None:
        return local
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return None
    names = (*_S3_SCHEMES, scheme) if scheme in _S3_NAMES else (scheme,)
    served = next((name for name in names if serves(name)), None)
    return None if served is None else f"{served}://{rest}"


def spark_paths(paths: Sequence[str], serves: Serves) -> list[str] | None:
    """The paths or URIs of several files; None unless Spark can read all of them."""
    mapped = [spark_path(path, serves) for path in paths]
    return None if None in mapped else [path for path in mapped if path is not None]


def native_share(
    plan: UnionPlan, covered: Collection[TableBucket], limit: int | None, serves: Serves = only_local
) -> NativeShare | None:
    """The part for Spark's own reader; None if Python tasks read everything. `covered`: buckets that filters select."""
    lake = plan.reader.lake
    serves = only_local if lake is None or lake.source.store_options() is None else serves
    files: list[str] = []
    marking: list[MarkBucket] = []
    whole: list[UnionSplit] = []  # for Python tasks, without and with marking
    tails: list[UnionSplit] = []
    rows = marked_rows = 0
    for split in plan.splits:
        tail: UnionSplit = split
        match split:
            case LakeSnapshotSplit():
                plain = _plain_files(plan, [split], serves)
                if plain is not None:
                    files += plain
                    rows += split.rows or 0
                    continue
            case LakeSnapshotAndLogSplit(bucket, lakes, start, stop) if lakes and bucket in covered:
                alone = [LakeSnapshotSplit(lake) for lake in lakes]
                plain = _plain_files(plan, alone, only_local)  # tasks that mark rows read local files
                if plain is not None:
                    marking.append(MarkBucket(plan.reader, bucket, start, stop, tuple(plain)))
                    marked_rows += sum(one.rows or 0 for one in alone)
                    tail = replace(split, lake=())
        whole.append(split)
        tails.append(tail)
    changes = sum(task.stop - task.start for task in marking)
    is_worth_it = marked_rows >= MARKED_ROWS_MIN and changes <= marked_rows * MARKED_SHARE_MAX
    if not is_worth_it or marked_rows > MARKED_ROWS_MAX:
        marking, marked_rows, tails = [], 0, whole
    if not files and not marking:
        return None
    if tails and (limit is not None or rows + marked_rows < ROWS_MIN):
        return None
    return NativeShare(tuple(files), tuple(marking), replace(plan, splits=tuple(tails)))


def _plain_files(plan: UnionPlan, splits: list[LakeSnapshotSplit], serves: Serves) -> list[str] | None:
    """The files of `splits` by their Spark paths; None unless all are plain and in stores that Spark can read."""
    side = plan.reader.lake
    all_paths: list[str] = []
    for split in splits:
        files = None if side is None else side.plain_files(split.lake)
        paths = None if files is None else spark_paths(files, serves)
        if paths is None:
            return None
        all_paths += paths
    return all_paths


def is_local(path: str) -> bool:
    """Whether a path is on the local file system, which Spark reads without additional libraries and secrets."""
    return local_path(path) is not None
