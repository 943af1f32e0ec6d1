"""The facts about the machine and the software in the report, without names of hosts and paths."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]

_PACKAGES = ("forebay", "pyfluss", "pyarrow", "numpy", "lmdb", "protobuf", "pyspark")


def facts(folder: Path) -> list[tuple[str, str]]:
    """(name, value) pairs; `folder` is the directory of the benchmarks' files."""
    return [
        ("date", dt.datetime.now(dt.UTC).strftime("%Y-%m-%d")),
        ("processor", f"{_processor()}, {os.cpu_count()} cores"),
        ("memory", f"{psutil.virtual_memory().total / (1 << 30):.0f} GiB"),
        ("kernel", f"{platform.system()} {platform.release()}"),
        ("file system", _file_system(folder)),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("packages", ", ".join(f"{name} {version}" for name in _PACKAGES if (version := _version(name)))),
        ("load before", f"{os.getloadavg()[0]:.1f} (processes that wanted to run, on average of the last minute)"),
    ]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the file system that holds `folder`: that of the longest matching mount point."""
    place = str(folder.resolve())
    fitting = [p for p in psutil.disk_partitions(all=True) if place == p.mountpoint or place.startswith(_slashed(p))]
    return max(fitting, key=lambda p: len(p.mountpoint)).fstype if fitting else "unknown"


def _slashed(partition: Any) -> str:
    mount: str = partition.mountpoint
    return mount if mount.endswith("/") else mount + "/"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""
