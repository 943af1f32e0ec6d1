"""How the costs of lake tables in Spark grow with files and buckets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import data
from benchmarks.paimon_turns import Contender, Turns, take_turns
from benchmarks.paimon_work import Lake, put
from benchmarks.pipelines_hour import NONE, definition, live_files
from benchmarks.pipelines_work import Pipelines
from benchmarks.report import Figure, FigureTable, Grid, Kind, number
from benchmarks.running import Run
from benchmarks.spark import PEER
from benchmarks.union_work import check

FILE_COUNTS = (10, 100, 1_000, 10_000)
BUCKET_COUNTS = (1, 4, 16)

SELECT_MAX = 1.2
"""The maximum time of a SELECT, relative to Spark's read of the same files by their paths."""

_SELECTS = "SELECT over many small files, in Spark"
_FILES, _SELECT, _ADD, _COMPACT = (
    "spark.read.parquet of the same files",
    "SELECT",
    "INSERT of 100 rows",
    "CALL sys.compact, once",
)


def tables(options: Run, pipelines: Pipelines, rows: int) -> list[FigureTable | Grid]:
    """Tables of `rows` rows."""
    return [*_by_files(options, pipelines, rows), _by_buckets(options, pipelines, rows)]


def kinds(tables: Sequence[FigureTable | Grid]) -> list[Kind]:
    """The lines of the first page."""
    selects = [figure for table in tables if table.title == _SELECTS for figure in table.figures]
    return [
        Kind(
            f"Spark: SELECT over {figure.what} of a lake",
            figure.unit,
            figure.value,
            {PEER: figure.value / figure.ratio},
        )
        for figure in selects
        if figure.ratio
    ]


def _by_files(options: Run, pipelines: Pipelines, rows: int) -> list[FigureTable | Grid]:
    counts = [files for files in FILE_COUNTS if files <= rows]
    names = [_of_files(pipelines, rows, files) for files in counts]
    labels = [f"{files:,} files" for files in counts]
    _small_view(pipelines)
    acts: Mapping[str, Callable[[str], Contender]] = {
        _FILES: lambda name: lambda: pipelines.select_files(pipelines.data_files(name)),
        _SELECT: lambda name: lambda: pipelines.select(name),
        _ADD: lambda name: lambda: _add(pipelines, name),
    }
    found = _compared(options, {what: [act(name) for name in names] for what, act in acts.items()}, labels)
    compact = "CALL lake.sys.compact(table => 'db.{}')"
    found[_COMPACT] = [
        Turns([pipelines.cost(lambda n=name: pipelines.session.sql(compact.format(n)).collect())])  # type: ignore[misc]
        for name in names
    ]
    for name in names:
        check(live_files(pipelines.lake.open(name)) < counts[names.index(name)] / 20 + 14, f"{name} was not compacted")
    found[f"{_SELECT} after that"] = _turns(options, [acts[_SELECT](name) for name in names], labels)
    explanation = f"Append tables of {rows:,} rows in so many files, compacted only at the end."
    selects = FigureTable(
        _SELECTS,
        f"{explanation} Ratios are times against spark.read.parquet of the same files; below 1 is faster.",
    )
    for label, ours, theirs in zip(labels, found[_SELECT], found[_FILES], strict=True):
        reason = f"of CPU time it uses {ours.cpu:.2f} s and spark.read.parquet {theirs.cpu:.2f} s"
        ratio = ours.wall / theirs.wall
        selects.add(Figure(label, ours.wall * 1000, "ms", ratio=ratio, ratio_max=SELECT_MAX, reason=reason))
    return [selects, _grid("Growth with files, in Spark", explanation, labels, found)]


def _by_buckets(options: Run, pipelines: Pipelines, rows: int) -> Grid:
    view = "growing"
    files = pipelines.folder / "growing"
    pipelines.session.createDataFrame(data.table(rows)).write.parquet(str(files))
    pipelines.session.read.parquet(str(files)).createOrReplaceTempView(view)
    labels = [f"{buckets} buckets" for buckets in BUCKET_COUNTS]
    found = {}
    for kind, keyed in (("primary-key table", True), ("bucketed append table", False)):
        inserts = [_insert(pipelines, view, rows, keyed, buckets) for buckets in BUCKET_COUNTS]
        found[f"{kind}: INSERT"] = _turns(options, inserts, labels)
        names = [_of_buckets(pipelines, rows, keyed, buckets) for buckets in BUCKET_COUNTS]
        found[f"{kind}: {_SELECT}, compacted"] = _turns(
            options,
            [lambda n=name: pipelines.select(n) for name in names],  # type: ignore[misc]
            labels,
        )
    return _grid("Growth with buckets, in Spark", f"Tables of {rows:,} rows in so many buckets.", labels, found)


def _options(keyed: bool, buckets: int) -> dict[str, Any]:
    made = definition(keyed, NONE, buckets)
    if not keyed:
        made["options"] |= {"bucket": str(buckets), "bucket-key": data.KEY}
    return made


def _insert(pipelines: Pipelines, view: str, rows: int, keyed: bool, buckets: int) -> Contender:
    def insert() -> Any:
        name = pipelines.new_name()
        pipelines.lake.create(name, _options(keyed, buckets))
        statement = f"INSERT INTO {pipelines.spark_name(name)} SELECT * FROM {view}"
        cost = pipelines.cost(lambda: pipelines.session.sql(statement))
        pipelines.check_count(name, rows)
        pipelines.lake.drop(name)
        return cost

    return insert


def _of_buckets(pipelines: Pipelines, rows: int, keyed: bool, buckets: int) -> str:
    name = pipelines.new_name()
    table = pipelines.lake.create(name, _options(keyed, buckets))
    put(table, data.table(rows))
    table.compact(full=True)
    return name


def _of_files(pipelines: Pipelines, rows: int, files: int) -> str:
    """One commit of so many files."""
    name = pipelines.new_name()
    table = Lake(pipelines.lake.folder, sync=False).create(name, definition(False, NONE, 1))
    messages = []
    for batch in data.batches(rows, batch_rows=-(-rows // files)):
        with table.new_write() as write:
            write.write(batch)
            messages += write.prepare_commit()
    table.new_commit().commit(messages)
    check(live_files(table) >= files * 0.9, f"{name} has {live_files(table)} files, not {files}")
    return name


def _small_view(pipelines: Pipelines) -> None:
    files = pipelines.folder / "small"
    pipelines.session.createDataFrame(data.table(100)).coalesce(1).write.parquet(str(files))
    pipelines.session.read.parquet(str(files)).createOrReplaceTempView("small")


def _add(pipelines: Pipelines, name: str) -> Any:
    return pipelines.cost(
        lambda: pipelines.session.sql(f"INSERT INTO {pipelines.spark_name(name)} SELECT * FROM small")
    )


def _turns(options: Run, acts: Sequence[Contender], labels: Sequence[str]) -> list[Turns]:
    """The turns of all sizes, which alternate, so that a busy machine is not mistaken for growth."""
    return list(take_turns(dict(zip(labels, acts, strict=True)), options.repeat, options.say).values())


def _compared(options: Run, acts: Mapping[str, Sequence[Contender]], labels: Sequence[str]) -> dict[str, list[Turns]]:
    """The turns of several acts at all sizes; those of one size follow each other, to be compared."""
    contenders = {f"{what}, {label}": acts[what][i] for i, label in enumerate(labels) for what in acts}
    found = take_turns(contenders, options.repeat, options.say)
    return {what: [found[f"{what}, {label}"] for label in labels] for what in acts}


def _grid(title: str, explanation: str, sizes: list[str], found: Mapping[str, Sequence[Turns]]) -> Grid:
    rows = [
        [
            name,
            *(f"{number(t.wall * 1000)} ms, CPU {number(t.cpu * 1000)} ms" for t in turns),
            f"{turns[-1].wall / turns[0].wall:.2f} x",
        ]
        for name, turns in found.items()
    ]
    explanation += (
        " SELECT of all columns and rows into Spark's noop sink. Time by the clock, and CPU time of all processes. The "
        "last column says how many times as long the last column of sizes takes as the first."
    )
    return Grid(title, explanation, ["what", *sizes, "growth"], rows)
