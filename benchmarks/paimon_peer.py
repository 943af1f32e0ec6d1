"""pypaimon, and its Rust engine, in a separate process that lives through the whole run.

Their work is timed inside that process: neither its start nor our communication with it counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from benchmarks.paimon_turns import Cost
from tests.paimon.oracle import PACKAGES, find_python

PYTHON, RUST = "pypaimon (Python)", "pypaimon + Rust"
_PROGRAM = Path(__file__).with_name("paimon_peer_program.py")


class PeerFailure(Exception):
    """The peer failed; the message is its own."""


class Peer:
    """Sends work to the peer's process, and returns what it cost there."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[bytes], folder: Path) -> None:
        self._process, self._errors, self._folder = process, errors, folder

    def load(self, name: str, parts: Sequence[pa.Table]) -> None:
        """Give the peer rows, one table per commit, to use under `name`."""
        paths = []
        for i, part in enumerate(parts):
            paths.append(str(self._folder / f"{name}-{i}.arrow"))
            with pa.OSFile(paths[-1], "wb") as sink, pa.ipc.new_file(sink, part.schema) as writer:
                writer.write_table(part)
        self.ask("load", name=name, paths=paths)

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


@contextmanager
def peer(folder: Path) -> Iterator[tuple[Peer | None, str]]:
    """The peer, or None and the reason why there is none. Ends its process afterwards."""
    python, reason = find_python()
    if python is None:
        yield None, reason
        return
    # Without our settings of Arrow's allocator, which the peer does not have elsewhere either.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MIMALLOC_")}
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [python, str(_PROGRAM)], stdin=pipe, stdout=pipe, stderr=errors, text=True, cwd=folder, env=variables
        )
        try:
            made = Peer(process, errors, folder)
            made._answer()  # it is ready
            yield made, ""
        finally:
            process.terminate()
            process.communicate()


def versions() -> str:
    """The peers and their versions, for the report."""
    return ", ".join(package.replace("==", " ") for package in PACKAGES)
