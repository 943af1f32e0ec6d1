"""`make mutants`: a trial of the tests. Random small faults in our modules, each judged by the tests of its package.

    python -m tools.mutants --count 60 --seed 1
    python -m tools.mutants --package client --count 20
    python -m tools.mutants --list                         # shows the mutants and runs nothing

A mutant turns one comparison (`<` to `<=`, `==` to `!=`, `in` to `not in`, ...), negates one condition, exchanges one
`and` with `or`, or leaves out one call that stands alone. It is caught if a test fails or hangs. The tests of a package
are those in the folder of its name below tests/, and all files that import the module; files near to the module run
first. A test that fails must fail again, and pass without the mutant. Tests that need Spark, and those marked slow, are
left out.

Survivors are named, and the exit code is 1 if less than 95 % of the mutants are caught. Those that change no behaviour
that is promised stand in tools/mutants_equivalent.txt, each with its reason, and do not count.
"""

from __future__ import annotations

import argparse
import ast
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests import results

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src", ROOT / "tests"
EQUIVALENT = ROOT / "tools" / "mutants_equivalent.txt"
TARGET = 0.95

WITHOUT_A_FOLDER = {
    "base": ("client", "log", "server", "codec"),
    "metadata": ("codec", "server", "client"),
    "lakes": ("lake", "unionread"),
    "inprocess": ("cli", "client"),
}
"""Where the tests of packages are that have no folder of their name."""

LEFT_OUT = ("testing", "spark", "cli/quickstart", "protocol/fluss_pb2")
"""No mutants here: helpers of tests, what only runs in Spark, a demonstration, generated code."""

TURNED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one module: the bytes from `start` to `end` become `text`."""

    module: str
    line: int
    function: str
    kind: str
    before: str
    text: str
    start: int
    end: int

    @property
    def name(self) -> str:
        """What the list of equivalent mutants calls it; without the line's number, which changes too often."""
        return f"{self.module} {self.function} {self.kind}: {self.before}"

    def __str__(self) -> str:
        return f"{self.module}:{self.line} in {self.function}: {self.kind}: {self.before}  ->  {self.text}"


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of a module."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def mutant(kind: str, node: ast.expr | ast.stmt, text: str, function: str) -> Mutant:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        before = " ".join(source[start:end].decode().split())
        return Mutant(str(path.relative_to(ROOT)), node.lineno, function, kind, before, text, start, end)

    def walk(node: ast.AST, function: str) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = node.name if function == "module" else f"{function}.{node.name}"
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Constant):
            yield mutant("condition negated", node.test, f"(not ({ast.unparse(node.test)}))", function)
        if isinstance(node, ast.Compare) and type(node.ops[0]) in TURNED:
            turned = ast.Compare(node.left, [TURNED[type(node.ops[0])](), *node.ops[1:]], node.comparators)
            yield mutant("comparison turned", node, f"({ast.unparse(turned)})", function)
        if isinstance(node, ast.BoolOp):
            other = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            yield mutant("and/or exchanged", node, f"({ast.unparse(other)})", function)
        if isinstance(node, ast.Expr) and function != "module" and _calls(node.value):
            yield mutant("call left out", node, "pass", function)
        # What stands inside f-strings has no position of its own before Python 3.12; annotations do nothing.
        for name, field in ast.iter_fields(node):
            if isinstance(node, ast.JoinedStr) or name in ("annotation", "returns", "decorator_list"):
                continue
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    yield from walk(child, function)

    yield from walk(ast.parse(source), "module")


def _calls(value: ast.expr) -> bool:
    """Whether a statement is a call that does something; what goes to a log is for people."""
    if isinstance(value, ast.Await):
        value = value.value
    if not isinstance(value, ast.Call):
        return False
    return not ast.unparse(value.func).startswith(("_log.", "log.", "logger.", "_logger.", "LOG.", "warnings."))


# ---- which tests judge ----------------------------------------------------------------------------------------------


@cache
def imports_of(path: Path) -> frozenset[str]:
    """The modules of Forebay and of its tests that a file imports, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return frozenset(name for name in found if name.startswith(("forebay", "tests")))


@cache
def importers() -> dict[str, list[Path]]:
    """Who imports a module, by the module's dotted name."""
    found: dict[str, list[Path]] = {}
    for path in [*SOURCE.rglob("*.py"), *TESTS.rglob("*.py")]:
        for name in imports_of(path):
            found.setdefault(name, []).append(path)
    return found


def dotted(path: Path) -> str:
    base = SOURCE if path.is_relative_to(SOURCE) else ROOT
    return ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


def tests_of(module: str) -> list[str]:
    """The test files that judge mutants of a module, nearest by imports first."""
    start = ROOT / module
    distance: dict[Path, int] = {start: 0}
    waiting = deque([start])
    while waiting:
        path = waiting.popleft()
        for importer in importers().get(dotted(path), []):
            if importer not in distance:
                distance[importer] = distance[path] + 1
                waiting.append(importer)
    package = start.relative_to(SOURCE / "forebay").parts[0].removesuffix(".py")
    folders = [TESTS / name for name in WITHOUT_A_FOLDER.get(package, (package,))]
    judges = {path for folder in folders for path in folder.rglob("test_*.py")}
    judges |= {path for path, steps in distance.items() if steps == 1 and path.name.startswith("test_")}
    stem = start.stem.strip("_")
    ranked = sorted(judges, key=lambda p: (stem not in p.name, distance.get(p, 99), p))
    return [str(path.relative_to(ROOT)) for path in ranked if "spark" not in path.parts]


# ---- running --------------------------------------------------------------------------------------------------------


def run_tests(tests: list[str], source: Path, seconds: float) -> tuple[str, list[str]]:
    """Run tests with the sources in `source`. Returns "passed", "failed" or "unfinished", and the tests that failed."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not spark and not slow"]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*command, "-rfE", "--timeout", "60", *tests],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return "unfinished", []
        finally:
            # Also the servers that a test which was cut off has left behind.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        output.seek(0)
        failed = re.findall(r"^(?:FAILED|ERROR) (tests/\S+?\.py(?:::.*?)?)(?: - .*)?$", output.read(), re.MULTILINE)
    no_tests = 5
    return ("passed" if code in (0, no_tests) else "failed"), failed


class Workshop:
    """A copy of the sources in which one module at a time is a mutant."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        shutil.copytree(SOURCE, self.source, ignore=shutil.ignore_patterns("*.c", "*.pyx", "*.egg-info"))

    def judge(self, mutant: Mutant, seconds: float) -> str:
        """Run the tests of a mutant. Returns "caught by" a test, or what makes it a survivor."""
        path = self.source.parent / mutant.module
        original = path.read_bytes()
        tests = tests_of(mutant.module)
        mutated = original[: mutant.start] + mutant.text.encode() + original[mutant.end :]
        while tests:
            try:
                self._write(path, mutated)
                outcome, failed = run_tests(tests, self.source, seconds)
                if outcome != "failed":
                    return outcome
                fails_again = not failed or run_tests(failed, self.source, seconds)[0] == "failed"
            finally:
                self._write(path, original)
            if fails_again and (not failed or run_tests(failed, self.source, seconds)[0] == "passed"):
                return f"caught by {', '.join(failed) or 'a process that died'}"
            print(f"  {failed[0]} fails only sometimes, or without a mutant, too: its file is left out")
            files = {test.split("::")[0] for test in failed}
            tests = [test for test in tests if test not in files]
        return "passed"

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        # Python takes a cached module by the second of its source and its size, which a mutant may share.
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            cached.unlink()


def equivalent() -> set[str]:
    """Names of mutants that change nothing that is promised. Lines that begin with # say why."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def choose(count: int, seed: int, package: str | None) -> list[Mutant]:
    """A random sample of all mutants but those that are known to be equivalent."""
    modules = [
        path
        for path in sorted((SOURCE / "forebay").rglob("*.py"))
        if not str(path.relative_to(SOURCE / "forebay")).startswith(LEFT_OUT)
        and (package is None or path.relative_to(SOURCE / "forebay").parts[0].removesuffix(".py") == package)
    ]
    known = equivalent()
    mutants = [mutant for path in modules for mutant in mutants_of(path) if mutant.name not in known]
    print(f"{len(mutants)} mutants of {len(modules)} modules; a sample of {min(count, len(mutants))}, seed {seed}")
    return random.Random(seed).sample(mutants, min(count, len(mutants)))


def judge_all(mutants: list[Mutant], workshops: list[Workshop], seconds: float) -> list[Mutant]:
    """The mutants that survive. Tells about each as it is judged."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    survivors: list[Mutant] = []
    judged = 0
    telling = threading.Lock()

    def work(workshop: Workshop) -> None:
        nonlocal judged
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            began = time.monotonic()
            verdict = workshop.judge(mutant, seconds)
            with telling:
                judged += 1
                if not verdict.startswith("caught"):
                    survivors.append(mutant)
                    verdict = f"SURVIVED ({verdict})"
                print(
                    f"{judged:>4}/{len(mutants)} {time.monotonic() - began:5.0f} s  {mutant}\n          {verdict}",
                    flush=True,
                )

    threads = [threading.Thread(target=work, args=(workshop,)) for workshop in workshops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return survivors


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=int(os.environ.get("MUTANTS", "60")))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("MUTANTS_SEED", "1")))
    parser.add_argument("--package", help="only modules of this package, as in `client`")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=900.0, help="after which the tests of a mutant count as hung")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    parser.add_argument("--write", action="store_true", help="write the figures to docs/results")
    options = parser.parse_args()
    mutants = choose(options.count, options.seed, options.package)
    if options.list:
        print("\n".join(map(str, mutants)))
        return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        workshops = [Workshop(Path(folder) / str(number)) for number in range(options.workers)]
        survivors = judge_all(mutants, workshops, options.seconds)
    caught = len(mutants) - len(survivors)
    share = caught / max(len(mutants), 1)
    print(f"\n{caught} of {len(mutants)} mutants were caught ({share:.1%}; the target is {TARGET:.0%})")
    for mutant in survivors:
        print(f"survived: {mutant}")
    if options.write:
        figures = {
            "mutants": len(mutants),
            "caught": caught,
            "caught_percent": round(100 * share, 1),
            "seed": options.seed,
            "minutes": round((time.monotonic() - began) / 60),
            "survivors": [str(mutant) for mutant in survivors],
        }
        results.write("mutants", figures)
    return 0 if share >= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
