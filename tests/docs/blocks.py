"""The code blocks of README.md and docs, and a runner that executes them in Python, a shell and Spark.

Every block of Python, SQL and shell is run, except those with an invisible comment in the line above:

    <!-- not run: WHY -->         it cannot run here: it needs another cluster, or is an excerpt of a program
    <!-- needs: MODULE -->        it runs if this module is installed

A page whose examples continue those of other pages names these pages in its first lines: their blocks run first.

    <!-- after: docs/client.md -->

Blocks are run verbatim, with two exceptions: `127.0.0.1:9123` is replaced by the server that the page has started, on a
free port, and /tmp by a directory of the test.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

from forebay.cli.main import main
from forebay.client.connection import Connection
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]
TYPED = ("python", "sql", "console", "sh")
SHOWN = ("", "hex", "json", "toml")
"""Languages of blocks that are typed, and of those that only show something: a picture, output, bytes, a file."""

_BLOCK = re.compile(
    r"(?:^ *<!-- (?P<kind>[a-z ]+): (?P<what>[^\n]+) -->\n)?^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A block of code: where its text begins, what it is, and the comment above it."""

    page: str
    line: int
    language: str
    text: str
    comment: tuple[str, str] | None

    @property
    def is_typed(self) -> bool:
        if self.comment is not None:
            kind, what = self.comment
            if kind == "not run" or importlib.util.find_spec(what) is None:
                return False
        return self.language in TYPED


def blocks(page: str) -> list[Block]:
    """All blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        lines = match["text"].splitlines(keepends=True)
        code = "".join(line.removeprefix(match["indent"]) for line in lines)
        comment = (match["kind"], match["what"]) if match["kind"] in ("not run", "needs") else None
        found.append(Block(page, text[: match.start("text")].count("\n"), match["language"], code, comment))
    return found


def pages_before(page: str) -> list[str]:
    """The pages whose blocks have to run before those of `page`, in order."""
    match = re.search(r"^<!-- after: (?P<pages>[^\n]+) -->$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    return match["pages"].split(", ") if match else []


class Reader:
    """A user at a terminal in one folder, for one page: what a block defines or starts is there for the next ones."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed = io.StringIO()
        self.names: dict[str, Any] = {}
        self.address = "127.0.0.1:9123"
        self._server: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(contextlib.chdir(self.folder))
        patched = self._stack.enter_context(pytest.MonkeyPatch.context())
        patched.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        patched.delenv("FOREBAY_BOOTSTRAP_SERVERS", raising=False)
        self._environment = patched
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:  # the tests after this one are in their own folder, whatever fails here
            for query in self.names["spark"].streams.active if "spark" in self.names else []:
                query.stop()
            for value in self.names.values():
                if isinstance(value, Connection):
                    value.close()
            self.names.clear()
            gc.collect()
            self._stop_server()

    def type(self, block: Block) -> None:
        """Run a block. A failure is an exception whose traceback names the line of the page."""
        text = block.text.replace("127.0.0.1:9123", self.address).replace("/tmp/", f"{self.folder}/")
        with contextlib.redirect_stdout(self.printed):
            if block.language == "python":
                exec(compile("\n" * block.line + text, block.page, "exec"), self.names)
            elif block.language == "sql":
                for statement in statements(text):
                    self._told(block, statement, lambda statement=statement: self._query(statement))
            else:
                for command in commands(text, prompt="$ " if block.language == "console" else ""):
                    self._told(block, command, lambda command=command: self._command(command))

    def _told(self, block: Block, what: str, run: Any) -> None:
        try:
            run()
        except BaseException as error:
            error.add_note(f"{block.page}, in the block at line {block.line}: {what}")
            raise

    def _query(self, statement: str) -> None:
        for row in self.names["spark"].sql(statement).collect():
            print(tuple(row))

    def _command(self, line: str) -> None:
        typed, _, comment = line.partition(" # ")
        words = shlex.split(typed)
        if words[:2] == ["forebay", "server"]:
            self._serve(typed)
        elif "until Ctrl-C" in comment:
            self._interrupt(typed)
        elif words[0] == "export":
            name, _, value = words[1].partition("=")
            self._environment.setenv(name, value)
        elif words[0] == "forebay" and "$" not in typed:
            assert main(words[1:]) == 0, f"{typed} failed"
        else:
            done = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, timeout=PATIENCE)
            assert done.returncode == 0, done.stderr
            print(done.stdout, end="")

    def _serve(self, typed: str) -> None:
        """Start a server in place of the one before, and wait until it serves."""
        self._stop_server()
        ready = self.folder / "ready-for-the-test.json"
        ready.unlink(missing_ok=True)
        ports = f"--coordinator-port 0 --tablet-port 0 --ready-file {shlex.quote(str(ready))}"
        self._server = subprocess.Popen(["bash", "-c", f"exec {typed} {ports} 2>server.log"], stdout=subprocess.DEVNULL)
        while not ready.exists():
            assert self._server.poll() is None, (self.folder / "server.log").read_text()
            time.sleep(0.02)
        addresses = json.loads(ready.read_text())
        self.address = addresses["bootstrap.servers"] or addresses["sasl.bootstrap.servers"]
        self._environment.setenv("FOREBAY_BOOTSTRAP_SERVERS", self.address)

    def _stop_server(self) -> None:
        if self._server is not None:
            self._server.send_signal(signal.SIGINT)
            assert self._server.wait(PATIENCE) == 0, (self.folder / "server.log").read_text()
            self._server = None

    def _interrupt(self, typed: str) -> None:
        """Run a command that does not end, until it prints something; then press Ctrl-C."""
        running = subprocess.Popen(["bash", "-c", f"exec {typed}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert running.stdout is not None
        with running.stdout:
            first = running.stdout.readline()
            running.send_signal(signal.SIGINT)
            rest = running.stdout.read()
        code = running.wait(PATIENCE)
        assert code in (0, 130), (first + rest).decode()
        print((first + rest).decode(), end="")


def statements(text: str) -> Iterator[str]:
    """The statements of a block of SQL, without their semicolons."""
    for statement in re.split(r";(?:[ ]*--[^\n]*)?(?:\n|$)", text):
        if statement.strip():
            yield statement.strip()


def commands(text: str, prompt: str) -> Iterator[str]:
    """The commands of a block: lines with the prompt, and where one ends in a backslash the next line as well."""
    lines = iter(text.splitlines())
    for line in lines:
        if not line.startswith(prompt) or not line.strip() or line.startswith("#"):
            continue
        command = line.removeprefix(prompt)
        while command.endswith("\\"):
            command = command[:-1] + next(lines).strip()
        yield command


def typed(page: str, folder: Path, times: int) -> list[str]:
    """What a page's blocks print, typed in order, and then all of them again in the same folder, as on the next day.

    The blocks of the pages that it continues are typed before them.
    """
    printed = []
    for _ in range(times):
        with Reader(folder) as reader:
            for part in (*pages_before(page), page):
                for block in blocks(part):
                    if block.is_typed:
                        reader.type(block)
        printed.append(reader.printed.getvalue())
    return printed
