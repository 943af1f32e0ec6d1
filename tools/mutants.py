"""`make mutants`: mutation testing. Random small faults in our modules, each judged by the tests of its package.

    python -m tools.mutants --count 60 --seed 1
    python -m tools.mutants --package paimon/read --count 20
    python -m tools.mutants --package kv --count 10000 --once    # all of a package, without repeating failures
    python -m tools.mutants --list                         # shows the mutants and runs nothing

A mutant reverses one comparison (`<` to `<=`, `==` to `!=`, `in` to `not in`, ...), negates one condition, exchanges
one `and` with `or`, or removes one call statement. It is caught if a test fails or hangs: takes more than ten times as
long as without the mutant. It is judged by the tests of its package (the directory of the same name below tests/) that
run its line, which is measured before; what these let pass, by the tests of other packages that were measured. Log
statements, and conditions on which nothing else depends, are not mutated. A test that fails must fail again, and pass
without the mutant. Tests that need Spark, and those marked slow, are left out.

A sample has the mutants whose names and seed have the lowest digests. So it changes only where the code does: tests
that are written for its survivors count in the next run, too. What another seed gives is what to expect elsewhere.

Survivors are named, and the exit code is 1 if less than 95 % of the mutants are caught. Survivors that change no
guaranteed behaviour are listed in tools/mutants_equivalent.txt, each with its reason, and do not count.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import queue
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import coverage

from tests import results

ROOT = Path(__file__).parents[1]
SOURCE, TESTS = ROOT / "src", ROOT / "tests"
EQUIVALENT = ROOT / "tools" / "mutants_equivalent.txt"
MEASURED = ROOT / "build" / "mutants"
TARGET = 0.95
TESTS_MAX = 500
"""The maximum number of tests that judge a mutant."""
AGAIN_SECONDS = 150.0
"""The time limit of one test when it is repeated."""

TEST_SECONDS_MAX = 60.0
"""The maximum time limit of a test; half as much more if its duration was not measured."""


def limit_seconds(measured: float) -> float:
    """The seconds after which a test counts as hung, if it took `measured` seconds when its lines were measured."""
    return min(5 + 10 * measured, TEST_SECONDS_MAX)


JUDGES = {
    "base": ("base", "client", "log", "server", "tiering"),
    "metadata": ("metadata", "codec", "server", "client"),
    "lakes": ("lake", "unionread", "console"),
    "inprocess": ("cli", "client"),
    "server": ("server", "client"),
    "cli": ("cli", "paimon/cli", "tiering", "verify", "moving", "flight"),
    "debezium": ("ingest",),
    "fs": ("fs", "log", "kv", "server"),
    "hive": ("paimon/catalog",),
}
"""The test directories of packages that are tested by using them elsewhere, or have no directory of their name."""

LEFT_OUT = ("testing", "spark", "cli/quickstart", "protocol/fluss_pb2")
"""Not mutated: test helpers, code that only runs in Spark, a demonstration, generated code."""

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
    """One change of one module: the bytes from `start` to `end` are replaced with `text`."""

    module: str
    line: int
    function: str
    kind: str
    before: str
    text: str
    start: int
    end: int
    last_line: int

    @property
    def name(self) -> str:
        """The name in the list of equivalent mutants; without the line number, which changes too often."""
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
        return Mutant(
            str(path.relative_to(ROOT)), node.lineno, function, kind, before, text, start, end, node.end_lineno
        )

    def walk(node: ast.AST, function: str) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            function = node.name if function == "module" else f"{function}.{node.name}"
        if isinstance(node, ast.If) and (ast.unparse(node.test) == "TYPE_CHECKING" or _only_tells(node)):
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
        # Code inside f-strings has no position before Python 3.12; annotations have no effect.
        for name, field in ast.iter_fields(node):
            if isinstance(node, ast.JoinedStr) or name in ("annotation", "returns", "decorator_list"):
                continue
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    yield from walk(child, function)

    yield from walk(ast.parse(source), "module")


def _calls(value: ast.expr) -> bool:
    """Whether a statement is a call with an effect other than logging."""
    if isinstance(value, ast.Await):
        value = value.value
    return isinstance(value, ast.Call) and not _tells(value)


def _tells(call: ast.Call) -> bool:
    return ast.unparse(call.func).lower().startswith(("_log.", "log.", "logger.", "_logger.", "warnings."))


def _only_tells(node: ast.If) -> bool:
    """Whether nothing but a log statement depends on a condition."""
    return not node.orelse and all(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and _tells(each.value) for each in node.body
    )


# ---- which tests judge ----------------------------------------------------------------------------------------------


def folders_of(module: str) -> tuple[str, ...]:
    """The test directories that judge mutants of a module."""
    package = (ROOT / module).relative_to(SOURCE / "forebay").parts[0].removesuffix(".py")
    return JUDGES.get(package, (package,))


class Coverage:
    """Which tests run which line. Measured once for all tests of a directory and again for changed test files.

    Measurements are kept until a line of the sources changes: their digest is the name of the directory.
    """

    def __init__(self) -> None:
        self._data: dict[str, list[tuple[coverage.CoverageData, set[str]]]] = {}
        """The measurements of each test directory, each with the test files for which it is the newest."""
        self.limits: dict[str, float] = {}
        """The seconds after which a test counts as hung."""
        self._sizes: dict[str, int] = {}
        self._kept = MEASURED / digest_of(sorted(SOURCE.rglob("*.py")))

    def measure(self, folder: str, source: Path) -> None:
        """Run the tests of a directory that have not been measured as they are now, and record their lines."""
        label = folder.replace("/", ".")
        index = self._kept / f"{label}.json"
        measured: dict[str, list[str]] = json.loads(index.read_text()) if index.exists() else {}
        files = sorted((TESTS / folder).rglob("test_*.py"))
        helpers = digest_of(sorted({*TESTS.glob("*.py"), *(TESTS / folder).rglob("*.py")} - set(files)))
        wanted = {str(path.relative_to(ROOT)): f"{helpers} {digest_of([path])}" for path in files}
        changed = [name for name, digest in wanted.items() if measured.get(name, [""])[0] != digest]
        if changed:
            print(f"measuring which lines {len(changed)} files in tests/{folder} run", flush=True)
            self._kept.mkdir(parents=True, exist_ok=True)
            run = f"{label}.{time.time_ns()}"
            with closing(Runner(source)) as runner:
                variables = {
                    "MUTANTS_COVERAGE": str(self._kept / f"{run}.coverage"),
                    "MUTANTS_DURATIONS": str(self._kept / f"{run}.durations"),
                }
                outcome, failed = runner.run(changed, 7200, stop=False, **variables)
            if outcome != "passed":
                print(f"  without any mutant: {outcome} {', '.join(failed)}")
            measured = {name: each for name, each in measured.items() if name in wanted}
            measured |= {name: [wanted[name], run] for name in changed}
            index.write_text(json.dumps(measured))
        self._data[folder] = []
        for run in sorted({run for _, run in measured.values()}):
            data = coverage.CoverageData(str(self._kept / f"{run}.coverage"))
            data.read()
            newest = {name for name, (_, last) in measured.items() if last == run}
            self._data[folder].append((data, newest))
            durations = json.loads((self._kept / f"{run}.durations").read_text())
            self.limits |= {test: limit_seconds(s) for test, s in durations.items() if _file_of(test) in newest}
            with closing(sqlite3.connect(self._kept / f"{run}.coverage")) as database:
                rows = database.execute(
                    "SELECT context, count(*) FROM line_bits JOIN context ON context.id = context_id GROUP BY context"
                )
                self._sizes |= {test: count for test, count in rows if _file_of(test) in newest}

    def tests_of(self, mutant: Mutant) -> list[str]:
        """The tests that run the lines of a mutant, those that run the fewest other lines first.

        For a line that runs when the module is imported, or only in threads and processes that are not measured (those
        of gRPC, a command line): the tests that run anything of the module, or all tests of its package.
        """
        found, users = self._tests_in(folders_of(mutant.module), mutant)
        # Module-level lines have no tests either, if the module was imported before the measurement.
        if found <= {""}:
            found = users
        if found <= {""}:
            measured = (each for folder in folders_of(mutant.module) for each in self._data[folder])
            of_package = set[str]().union(*(files for _, files in measured))
            found = {test for test in self._sizes if _file_of(test) in of_package}
        return self._in_order(found)

    def tests_elsewhere(self, mutant: Mutant) -> list[str]:
        """The tests of other packages that run the lines of a mutant, in the order of `tests_of`."""
        own = folders_of(mutant.module)
        found, _ = self._tests_in([folder for folder in self._data if folder not in own], mutant)
        return self._in_order(found)

    def _tests_in(self, folders: Iterable[str], mutant: Mutant) -> tuple[set[str], set[str]]:
        """The tests of some directories that run the lines of a mutant, and those that run anything of its module."""
        found: set[str] = set()
        users: set[str] = set()
        for data, files in (each for folder in folders for each in self._data[folder]):
            for line, contexts in data.contexts_by_lineno(mutant.module).items():
                tests = {test for test in contexts if not test or _file_of(test) in files}
                users |= tests
                if mutant.line <= line <= mutant.last_line:
                    found |= tests
        return found, users

    def _in_order(self, tests: set[str]) -> list[str]:
        return sorted(tests - {""}, key=lambda test: (self._sizes[test], test))[:TESTS_MAX]


def digest_of(paths: list[Path]) -> str:
    """A short digest of the contents of some files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(ROOT)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _file_of(test: str) -> str:
    return test.partition("::")[0]


# ---- running --------------------------------------------------------------------------------------------------------


class Runner:
    """Runs tests with the sources in `source`, in a process of tools/mutants_worker.py."""

    def __init__(self, source: Path) -> None:
        self.limits: dict[str, float] = {}
        """The seconds after which a test counts as hung; the same for all that are not listed."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.mutants_worker"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "HYPOTHESIS_PROFILE": "mutants"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, tests: list[str], seconds: float, *, stop: bool = True, **variables: str) -> tuple[str, list[str]]:
        """Run tests, until the first failure if `stop`.

        Returns "passed", "failed" or "unfinished", and the names of the failed tests. `variables` are added to the
        environment.
        """
        arguments = ["-q", "-p", "no:cacheprovider", "-p", "tools.mutants_plugin", "-m", "not spark and not slow"]
        arguments += ["--timeout", f"{1.5 * TEST_SECONDS_MAX:g}", *(["-x"] if stop else []), *tests]
        with tempfile.TemporaryDirectory() as folder:
            failures, limits = Path(folder) / "failed", Path(folder) / "limits"
            limits.write_text(json.dumps({test: self.limits[test] for test in tests if test in self.limits}))
            environment = {"MUTANTS_FAILED": str(failures), "MUTANTS_LIMITS": str(limits), **variables}
            request = {"arguments": arguments, "environment": environment, "seconds": seconds}
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            code = json.loads(self._process.stdout.readline())
            failed = sorted(set(failures.read_text().splitlines())) if failures.exists() else []
        no_tests = 5
        if code is None and not failed:
            return "unfinished", []
        # A run that hangs after a failure, for example because a connection cannot be closed, has failed.
        return ("passed" if code in (0, no_tests) else "failed"), failed

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Workshop:
    """A copy of the sources in which one module at a time is a mutant."""

    def __init__(self, folder: Path) -> None:
        self.source = folder / "src"
        shutil.copytree(SOURCE, self.source, ignore=shutil.ignore_patterns("*.c", "*.pyx", "*.egg-info"))
        self._runner = Runner(self.source)

    def close(self) -> None:
        self._runner.close()

    def limit(self, limits: dict[str, float]) -> None:
        """Set the seconds after which tests count as hung."""
        self._runner.limits = limits

    def judge(self, mutant: Mutant, tests: list[str], seconds: float, *, once: bool = False) -> str:
        """Run the tests of a mutant. Returns "caught by" a test, or why it survived.

        With `once`, a failing test need not fail again, nor pass without the mutant.
        """
        if not tests:
            return "no test runs it"
        path = self.source.parent / mutant.module
        again = min(seconds, AGAIN_SECONDS)
        original = path.read_bytes()
        mutated = original[: mutant.start] + mutant.text.encode() + original[mutant.end :]
        while tests:
            try:
                self._write(path, mutated)
                outcome, failed = self._runner.run(tests, seconds)
                if outcome == "passed":
                    return outcome
                if once and failed:
                    return f"caught by {', '.join(failed)}"
                fails_again = not failed or self._runner.run(failed, again)[0] == "failed"
            finally:
                self._write(path, original)
            if outcome == "unfinished":
                ends = self._runner.run(tests, seconds)[0] != "unfinished"
                return "caught by its tests, which do not end" if ends else outcome
            if fails_again and (not failed or self._runner.run(failed, again)[0] == "passed"):
                return f"caught by {', '.join(failed) or 'a process that died'}"
            print(f"  {failed[0]} fails only sometimes, or without a mutant, too, and is left out")
            tests = [test for test in tests if test not in failed]
        return "passed"

    @staticmethod
    def _write(path: Path, content: bytes) -> None:
        path.write_bytes(content)
        # Python matches a cached module by the second of its source and its size, which a mutant may share.
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            cached.unlink()


def equivalent() -> set[str]:
    """The names of mutants that change no guaranteed behaviour. Lines that begin with # give the reason."""
    lines = EQUIVALENT.read_text().splitlines() if EQUIVALENT.exists() else []
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def choose(count: int, seed: int, package: str | None) -> list[Mutant]:
    """A random sample of all mutants, without those known to be equivalent."""
    modules = [
        path
        for path in sorted((SOURCE / "forebay").rglob("*.py"))
        if not str(path.relative_to(SOURCE / "forebay")).startswith(LEFT_OUT)
        and (package is None or f"{path.relative_to(SOURCE / 'forebay')}".startswith((f"{package}/", f"{package}.py")))
    ]
    known = equivalent()
    mutants = [mutant for path in modules for mutant in mutants_of(path) if mutant.name not in known]
    print(f"{len(mutants)} mutants of {len(modules)} modules; a sample of {min(count, len(mutants))}, seed {seed}")
    return sorted(mutants, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest())[:count]


def judge_all(
    mutants: list[Mutant], workshops: list[Workshop], measured: Coverage, seconds: float, *, once: bool
) -> list[Mutant]:
    """The mutants that survive. Reports each as it is judged."""
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
            verdict = workshop.judge(mutant, measured.tests_of(mutant), seconds, once=once)
            if not verdict.startswith("caught") and (elsewhere := measured.tests_elsewhere(mutant)):
                verdict = workshop.judge(mutant, elsewhere, seconds, once=once)
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
    parser.add_argument("--package", help="only modules whose path begins so, such as `client` or `paimon/io`")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=900.0, help="after which the tests of a mutant count as hung")
    parser.add_argument("--once", action="store_true", help="faster: do not repeat failures to confirm them")
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
        measured = Coverage()
        folders = sorted({name for mutant in mutants for name in folders_of(mutant.module)})
        with ThreadPoolExecutor(options.workers) as pool:
            list(pool.map(lambda name: measured.measure(name, SOURCE), folders))
        for workshop in workshops:
            workshop.limit(measured.limits)
        survivors = judge_all(mutants, workshops, measured, options.seconds, once=options.once)
        for workshop in workshops:
            workshop.close()
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
