"""Spark on our tables against Spark on Parquet files of the same rows."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from benchmarks import data, limits
from benchmarks.report import Figure, FigureTable, Kind, Section
from benchmarks.running import BUCKETS, Bench, Run, bench, in_turns, scratch, seconds_of

SCAN_ROWS, INSERT_ROWS = 5_000_000, 1_000_000
LOG_RATIO_MIN, KV_RATIO_MIN, NARROW_RATIO_MIN = 1.3, 1.0, 1.0
CORES = 2

_LOG, _KV = "fluss.log_rows", "fluss.kv_rows"
_FILE_ROWS = 1_000_000
"""Rows of one Parquet file."""

_PARTS = ("server", "Python workers", "JVM")
"""The processes that use CPU time in a scan of ours; Parquet files are read by the JVM alone."""

_CPU = "CPU time of {}, {}"
_OURS, _THEIRS, _NARROW = "catalog, all columns", "parquet, all columns", ", 2 of 8 columns"
_FORMAT = 'spark.read.format("forebay")'

PEER = f"Spark {importlib.metadata.version('pyspark')}, Parquet files"
"""How the first page calls Spark's own readers and writers of Parquet files."""

_SETTINGS = {"by columns from Python workers": "read.direct", "by rows": "read.columnar"}
"""Slower ways of the same scan, and the options that are false for them."""

_FIRST_SESSIONS = 3
_FIRST_ROWS = 20_000


def run(options: Run) -> Section:
    sizes = {_LOG: options.rows_or(SCAN_ROWS), _KV: options.rows_or(SCAN_ROWS)}
    inserted = options.rows_or(INSERT_ROWS)
    with bench(options, "spark") as server, scratch(options, "spark-files") as folder:
        for name, rows in sizes.items():
            _load(server, folder, name, rows)
        session = session_of(server, folder)
        try:
            scans = {name: _scans(options, server, session, folder, name) for name in sizes}
            writes = _writes(options, server, session, folder, inserted)
            reads = {name: limits.parquet_read(folder / name, rows, options) for name, rows in sizes.items()}
            written = limits.parquet_write(folder / "source", folder / "written", options)
            changes = _changes(options, server, session, inserted)
        finally:
            session.stop()
        first = _first_queries(options, server)
    log = _scan_table("Scan of a log table", sizes[_LOG], scans[_LOG], LOG_RATIO_MIN)
    keyed = _scan_table("Scan of a primary-key table", sizes[_KV], scans[_KV], KV_RATIO_MIN)
    inserts = _write_table(inserted, writes)
    kinds = []
    for what, table, name in (("log table", log, _LOG), ("primary-key table", keyed, _KV)):
        ours = f"catalog: SELECT * FROM forebay.{name}"
        kinds.append(Kind.of(f"Spark: read a {what}", table, ours, {"spark.read.parquet": PEER}, reads[name]))
        narrow = {f"parquet{_NARROW}": PEER}
        kinds.append(Kind.of(f"Spark: read a {what}{_NARROW}", table, f"catalog{_NARROW}", narrow))
    for what in ("log table", "primary-key table"):
        row = f"INSERT INTO a {what}"
        kinds.append(Kind.of(f"Spark: {row}", inserts, row, {"df.write.parquet": PEER}, written))
    return Section("spark", "Spark", [log, keyed, first, inserts, changes], kinds=kinds)


def _load(server: Bench, folder: Path, name: str, rows: int) -> None:
    """Write the same rows into our table and into Parquet files (Spark's default compression, snappy)."""
    table = server.create(name.partition(".")[2], primary_key=name == _KV)
    files = folder / name
    files.mkdir()
    for number, start in enumerate(range(0, rows, _FILE_ROWS)):
        part = data.table(min(_FILE_ROWS, rows - start), first=start, seed=1 + start)
        pq.write_table(part, files / f"{number}.parquet", compression="snappy")
        (table.upsert if table.has_primary_key else table.append)(part)


def session_of(server: Bench, folder: Path) -> Any:
    """A Spark session on `CORES` cores of this machine, with the server's tables as the catalog `forebay`."""
    return session_with(folder, catalog="forebay", bootstrap_servers=server.bootstrap)


def session_with(folder: Path, **catalog: Any) -> Any:
    """A Spark session on `CORES` cores of this machine, with a catalog created by `forebay.spark.session`."""
    from forebay.spark import session

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    conf = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.driver.memory": "2g",
        "spark.log.level": "OFF",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    return session("benchmarks", f"local[{CORES}]", conf, **catalog)


def _scans(options: Run, server: Bench, session: Any, folder: Path, name: str) -> dict[str, float]:
    def consume(make: Callable[[], Any], narrow: bool, off: str | None = None) -> None:
        if off is not None:
            session.conf.set(f"spark.sql.forebay.{off}", "false")
        try:
            frame = make()
            (frame.select("id", "price") if narrow else frame).write.format("noop").mode("overwrite").save()
        finally:
            if off is not None:
                session.conf.unset(f"spark.sql.forebay.{off}")

    files, table = partial(session.read.parquet, str(folder / name)), partial(session.table, f"forebay.{name}")
    by_format = session.read.format("forebay").option("bootstrap.servers", server.bootstrap)
    ours = f"catalog: SELECT * FROM forebay.{name}"
    work: dict[str, Callable[[], None]] = {
        "spark.read.parquet": partial(consume, files, False),
        ours: partial(consume, table, False),
        **{f"catalog, {way}": partial(consume, table, False, off) for way, off in _SETTINGS.items()},
        _FORMAT: partial(consume, partial(by_format.load, name), False),
        f"parquet{_NARROW}": partial(consume, files, True),
        f"catalog{_NARROW}": partial(consume, table, True),
    }
    if table().count() != files().count():
        raise AssertionError(f"{name} and its Parquet files differ in their number of rows")
    contenders = {name: partial(seconds_of, one) for name, one in work.items()}
    in_turns(contenders, 1, lambda _: None)  # warm up
    seconds = in_turns(contenders, options.repeat, options.say)
    measured = {_OURS: ours, _THEIRS: "spark.read.parquet"}
    measured |= {f"{who}{_NARROW}": f"{who}{_NARROW}" for who in ("catalog", "parquet")}
    for what, query in measured.items():
        turns = [cpu_by_part(server, work[query]) for _ in range(options.repeat)]
        seconds |= {_CPU.format(part, what): statistics.median(turn[part] for turn in turns) for part in _PARTS}
    return seconds


def _first_queries(options: Run, server: Bench) -> FigureTable:
    """The first query of sessions, each in a JVM of its own, in turns."""
    server.create("small", primary_key=False).append(data.table(_FIRST_ROWS))
    found: dict[str, list[float]] = {"by columns": [], "by rows": []}
    for _ in range(_FIRST_SESSIONS):
        for way, seconds in found.items():
            options.say(f"the first query of a session, {way}")
            command = [sys.executable, "-c", _FIRST_QUERY, server.bootstrap, str(way == "by columns").lower()]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds.append(float(done.stdout.splitlines()[-1]))
    table = FigureTable(
        "First query of a session",
        f"SELECT * of a log table of {_FIRST_ROWS:,} rows, collected, local[{CORES}]; the median of "
        f"{_FIRST_SESSIONS} sessions, each in a JVM of its own. Ratios are times against reading rows.",
    )
    base = statistics.median(found["by rows"])
    for way, seconds in found.items():
        taken = statistics.median(seconds)
        most = 1.0 if way == "by columns" else None
        table.add(Figure(way, taken * 1000, "ms", ratio=taken / base, ratio_max=most))
    return table


_FIRST_QUERY = f"""
import sys, time
from forebay.spark import session

conf = {{"spark.ui.enabled": False, "spark.log.level": "OFF", "spark.sql.forebay.read.columnar": sys.argv[2]}}
spark = session("first", "local[{CORES}]", conf, catalog="forebay", bootstrap_servers=sys.argv[1])
began = time.perf_counter()
spark.sql("SELECT * FROM forebay.fluss.small").collect()
print(time.perf_counter() - began)
spark.stop()
"""


def cpu_by_part(server: Bench, work: Callable[[], Any]) -> dict[str, float]:
    """CPU seconds of the server, the Python workers and the JVM while `work` runs."""
    before = cpu_now(server)
    work()
    after = cpu_now(server)
    return {part: after[part] - before.get(part, 0.0) for part in _PARTS}


def cpu_now(server: Bench | None = None) -> dict[str, float]:
    """CPU seconds so far. Workers are processes below the JVM, which is below this process like the server.

    Workers that have ended count with the daemon that started them. Other children of this process count as JVM.
    """
    totals = dict.fromkeys(_PARTS, 0.0) | {"server": 0.0 if server is None else server.cpu_seconds()}
    for child in psutil.Process().children():
        if server is not None and child.pid == server.process.pid:
            continue
        totals["JVM"] += _cpu_of(child)
        # Spark starts its JVM by a shell script: anything below it that is not Java is Python.
        for process in child.children(recursive=True):
            is_java = "java" in _name_of(process)
            totals["JVM" if is_java else "Python workers"] += _cpu_of(process, with_ended=not is_java)
    return totals


def _cpu_of(process: psutil.Process, *, with_ended: bool = False) -> float:
    """The CPU seconds of `process` itself, or including its children that have ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    ended = times.children_user + times.children_system if with_ended else 0.0
    return float(times.user + times.system + ended)


def _name_of(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""


def _writes(options: Run, server: Bench, session: Any, folder: Path, rows: int) -> dict[str, float]:
    """Seconds of INSERT of rows that Spark reads from Parquet, into new tables and into new Parquet files."""
    source = folder / "source"
    source.mkdir()
    for number in range(CORES):
        share = rows * (number + 1) // CORES - rows * number // CORES
        part = data.table(share, first=rows * number // CORES, seed=5 + number)
        pq.write_table(part, source / f"{number}.parquet", compression="snappy")
    session.read.parquet(str(source)).createOrReplaceTempView("source")
    turn = 0

    def into_table(primary_key: bool) -> float:
        nonlocal turn
        turn += 1
        table = server.create(f"inserted_{turn}", primary_key=primary_key)
        seconds = seconds_of(lambda: session.sql(f"INSERT INTO forebay.{table.path} SELECT * FROM source"))
        found = session.table(f"forebay.{table.path}").count()
        if found != rows:
            raise AssertionError(f"INSERT of {rows} rows wrote {found}")
        server.connection.drop_table(table.path)
        return seconds

    def into_parquet() -> float:
        target = folder / "target"
        seconds = seconds_of(lambda: session.table("source").write.mode("overwrite").parquet(str(target)))
        shutil.rmtree(target)
        return seconds

    contenders = {
        "df.write.parquet": into_parquet,
        "INSERT INTO a log table": lambda: into_table(False),
        "INSERT INTO a primary-key table": lambda: into_table(True),
    }
    in_turns(contenders, 1, lambda _: None)
    return in_turns(contenders, options.repeat, options.say)


def _changes(options: Run, server: Bench, session: Any, rows: int) -> FigureTable:
    """UPDATE, MERGE and INSERT OVERWRITE of a tenth of a primary-key table, which has `source` before."""
    changed = rows // 10
    name = str(server.create("changed", primary_key=True).path)
    session.sql(f"INSERT INTO forebay.{name} SELECT * FROM source")
    statements = {
        "UPDATE": f"UPDATE forebay.{name} SET price = price + 1 WHERE id < {changed}",
        "MERGE": f"MERGE INTO forebay.{name} t USING (SELECT * FROM source WHERE id < {changed}) s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET price = s.price WHEN NOT MATCHED THEN INSERT *",
        "INSERT ... REPLACE WHERE": f"INSERT INTO forebay.{name} REPLACE WHERE id < {changed} "
        f"SELECT * FROM source WHERE id < {changed}",
    }
    seconds = {text: partial(seconds_of, partial(session.sql, text)) for text in statements.values()}
    in_turns(seconds, 1, lambda _: None)
    found = in_turns(seconds, options.repeat, options.say)
    table = FigureTable(
        "Changing rows",
        f"{changed:,} rows of a primary-key table of {rows:,}, in {BUCKETS} buckets, by one statement, local[{CORES}]: "
        "one transaction, refused if another writer has changed one of the rows meanwhile.",
    )
    for kind, text in statements.items():
        table.add(Figure(kind, changed / found[text]))
    return table


def _scan_table(title: str, rows: int, seconds: dict[str, float], ratio_min: float) -> FigureTable:
    table = FigureTable(
        title,
        f"{rows:,} rows in {BUCKETS} buckets, all columns, into Spark's noop sink, local[{CORES}]; each query ran once "
        "before. Ratios are against Spark's own reader on Parquet files (snappy) of the same rows and columns.",
    )
    cpu = {name: taken for name, taken in seconds.items() if name.startswith("CPU")}
    for name, taken in seconds.items():
        if name in cpu:
            continue
        is_narrow = name.endswith(_NARROW)
        base = f"parquet{_NARROW}" if is_narrow else "spark.read.parquet"
        least = NARROW_RATIO_MIN if is_narrow else ratio_min
        has_target = name.startswith("catalog:") or name == f"catalog{_NARROW}"
        ours, theirs = (f"catalog{_NARROW}", base) if is_narrow else (_OURS, _THEIRS)
        table.add(
            Figure(
                name,
                rows / taken,
                ratio=seconds[base] / taken,
                ratio_min=least if has_target else None,
                reason=_why(cpu, ours, theirs),
            )
        )
    for name, taken in cpu.items():
        table.add(Figure(name, 1e9 * taken / rows, "ns/row"))
    return table


def _why(cpu: dict[str, float], ours: str, theirs: str) -> str:
    """Where the time of a scan goes, in this run's own figures."""
    parts = {part: cpu[_CPU.format(part, ours)] for part in _PARTS}
    other = sum(cpu[_CPU.format(part, theirs)] for part in _PARTS)
    spent = ", ".join(f"{seconds:.2f} s in the {part}" for part, seconds in parts.items())
    return f"a scan costs {sum(parts.values()):.2f} s of CPU time, {spent}, and Parquet {other:.2f} s"


def _write_table(rows: int, seconds: dict[str, float]) -> FigureTable:
    table = FigureTable(
        "INSERT",
        f"{rows:,} rows that Spark reads from Parquet files, local[{CORES}]; tables have {BUCKETS} buckets and every "
        "row is acknowledged as durable (acks=all); Parquet files are not synced. Ratios are against writing Parquet.",
    )
    for name, taken in seconds.items():
        table.add(Figure(name, rows / taken, ratio=seconds["df.write.parquet"] / taken))
    return table
