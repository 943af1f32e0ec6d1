"""pypaimon, its Rust engine, and Java Paimon, in processes of their own that live through the whole run.

Their work is timed inside these processes: neither their start nor our communication with them counts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from benchmarks.paimon_turns import Cost
from benchmarks.paimon_work import Lake
from tests.java_programs import ExamUnavailable, class_path, compiled, maven_jars, spark_jars
from tests.java_programs import java_tool as tool_of_java
from tests.paimon.foreign import java_paimon
from tests.paimon.oracle import PACKAGES, find_python

PYTHON, RUST, JAVA = "pypaimon (Python)", "pypaimon + Rust", "Java Paimon"
_HERE = Path(__file__).parent
_JVM = ("-Xmx4g", "-XX:+UseG1GC", "-Duser.timezone=UTC", "-Dlog4j2.level=ERROR")
"""As a user runs it, unlike the JVMs of the tests, which start quickly and compile little."""


class PeerFailure(Exception):
    """The peer failed; the message is its own."""


class Peer:
    """Sends work to the peer's process, and returns what it cost there."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[bytes], folder: Path) -> None:
        self._process, self._errors, self._folder = process, errors, folder

    def load(self, name: str, parts: Sequence[pa.Table], alone: bool = True) -> None:
        """Give the peer rows, one table per commit, to use under `name`; instead of all earlier ones, if `alone`."""
        paths = []
        for i, part in enumerate(parts):
            paths.append(str(self._folder / f"{name}-{i}.arrow"))
            with pa.OSFile(paths[-1], "wb") as sink, pa.ipc.new_file(sink, part.schema) as writer:
                writer.write_table(part)
        self.ask("load", name=name, paths=paths, alone=alone)

    def ask(self, do: str, rows: int | None = None, **arguments: Any) -> Cost:
        """Run work; `rows` is the expected number of rows. Raises `PeerFailure`."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as e:
            raise PeerFailure(self._last_words()) from e
        answer = self._answer()
        if rows is not None and answer["rows"] != rows:
            raise PeerFailure(f"{do} gave {answer['rows']} rows where there are {rows}")
        return Cost(answer["wall"], answer["cpu"], answer["kernel"])

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("@"):
            raise PeerFailure(self._last_words())
        answer: dict[str, Any] = {} if line.startswith("@ready") else json.loads(line[1:])
        if "error" in answer:
            raise PeerFailure(answer["error"])
        return answer

    def _last_words(self) -> str:
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"its process ended: {lines[-1] if lines else 'it said nothing'}"


class JavaPeer(Peer):
    """Java Paimon, which is given rows as tables of ours."""

    def load(self, name: str, parts: Sequence[pa.Table], alone: bool = True) -> None:
        lake = Lake(self._folder / "rows-for-java", sync=False)
        tables = [f"{name}_{i}" for i in range(len(parts))]
        for table, part in zip(tables, parts, strict=True):
            lake.filled(table, {}, [part])
        where = {"warehouse": str(lake.folder), "tables": [f"db.{table}" for table in tables]}
        self.ask("load", name=name, alone=alone, **where)
        for table in tables:
            lake.drop(table)


@contextmanager
def peers(folder: Path) -> Iterator[tuple[dict[str, Peer], list[str]]]:
    """The peers that there are, by name, and the reasons why others are missing. Ends their processes afterwards."""
    found: dict[str, Peer] = {}
    reasons = []
    with ExitStack() as stack:
        python, reason = find_python()
        if python is None:
            reasons.append(reason)
        else:
            command = [python, str(_HERE / "paimon_peer_program.py")]
            found[PYTHON] = found[RUST] = stack.enter_context(_started(Peer, command, _variables(), folder))
        try:
            found[JAVA] = stack.enter_context(java_peer(folder))
        except ExamUnavailable as e:
            reasons.append(f"{JAVA}: {e}")
        yield found, reasons


@contextmanager
def java_peer(folder: Path) -> Iterator[Peer]:
    """Java Paimon, with `folder` for its files. Raises `ExamUnavailable` where that is impossible."""
    with _started(JavaPeer, java_command(folder), _variables(), folder) as peer:
        yield peer


def _variables() -> dict[str, str]:
    """Our environment without our settings of Arrow's allocator, which the peer does not have elsewhere either."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MIMALLOC_")}


def java_command(folder: Path) -> list[str]:
    """How to start Java Paimon's side. Raises `ExamUnavailable` where that is impossible."""
    own = maven_jars(java_paimon.HERE / "java" / "pom.xml", ["paimon-bundle"], "paimon-jars", "Apache Paimon")
    jars = class_path([*own, *spark_jars(java_paimon.HADOOP)])
    classes = compiled([_HERE / "java" / "PaimonBench.java"], jars, "paimon-bench")
    spill = folder / "java-spill"
    spill.mkdir(exist_ok=True)
    return [str(tool_of_java("java")), *_JVM, "-cp", class_path([classes, Path(jars)]), "PaimonBench", str(spill)]


@contextmanager
def _started(kind: type[Peer], command: Sequence[str], variables: dict[str, str], folder: Path) -> Iterator[Peer]:
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=errors, text=True, cwd=folder, env=variables
        )
        try:
            made = kind(process, errors, folder)
            made._answer()  # it is ready
            yield made
        finally:
            process.terminate()
            process.communicate()


def versions() -> str:
    """The peers and their versions, for the report."""
    return f"{named(RUST)}, {named(JAVA)}"


def named(who: str) -> str:
    """A peer with its version."""
    if who == JAVA:
        pom = (java_paimon.HERE / "java" / "pom.xml").read_text()
        found = re.search(r"<artifactId>paimon-bundle</artifactId>\s*<version>([^<]*)", pom)
        return f"{JAVA} {found[1]}" if found else JAVA
    python, rust = (package.partition("==")[2] for package in PACKAGES)
    return f"pypaimon {python} + Rust {rust}" if who == RUST else f"pypaimon {python}"
