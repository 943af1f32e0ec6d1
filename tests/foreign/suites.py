"""Third-party test programs, run unmodified against a running server.

Terms: a *suite* is the test programs of one client: `pyfluss` (pytest) and `rust` (the crate `fluss-rs`). Both come
from one source distribution, `pyfluss` on PyPI, which contains the tests of the Python binding and of the Rust crate
that it is based on, at exactly the version of the wheel. Nothing of them is kept in this repository.

Flow: fetch and unpack into the cache -> create the tools (a virtual environment; a cargo workspace in which the crate
`fluss-test-cluster` is ours, because theirs starts containers) -> run -> read the results -> print passed, failed and
skipped with their names, and compare the failures with a file of known ones if given.

As a program: `suites.py pyfluss|rust ADDRESS SASL_ADDRESS [--known-failures FILE] [--only TEXT]`. Exit code 0 if all
passed, or exactly the known ones failed; 1 otherwise; 2 if the suite cannot be run here.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from exams_cache import HERE, ExamUnavailable, cache_root, digest_of, entry, run, tool
from raw_wire import RawConnection, api_versions, server_nodes

PYFLUSS_VERSION = "1.0.0"
KNOWN_FAILURES = HERE / "golden" / "known_failures_0_9_1.json"
KNOWN_FAILURES_OF_OURS = HERE / "golden" / "known_failures_of_ours.json"
# The longest suite takes 40 s. A client that waits without end, which all of them can, must not hold up everything.
SUITE_SECONDS_MAX = 400.0
_SUITE_PACKAGES = [f"pyfluss=={PYFLUSS_VERSION}", "pytest", "pytest-asyncio", "pytest-timeout", "filelock"]
# The one place that says how their pytest is configured is a pyproject.toml that would also build the wheel.
_PYTEST_OPTIONS = ["asyncio_mode=auto", "asyncio_default_fixture_loop_scope=session", "timeout=60"]
_LIBTEST_LINE = re.compile(r"^test (?P<name>\S+)(?: - should panic)? \.\.\. (?P<result>ok|FAILED|ignored)", re.M)
_RUST_PANIC = re.compile(r"^---- (?P<name>\S+) stdout ----\n(?P<text>.*?)(?=^---- |\nfailures:\n|\Z)", re.M | re.S)


class SuiteResult(NamedTuple):
    """Names by outcome; `reasons` has one line for each failure where the suite gave one."""

    passed: list[str]
    failed: list[str]
    skipped: list[str]
    reasons: dict[str, str]
    seconds: float


def source_distribution() -> Path:
    """The unpacked source distribution of pyfluss, with the tests of both clients."""

    def download(scratch: Path) -> None:
        only_source = ["--no-deps", "--no-binary", "pyfluss"]
        package = f"pyfluss=={PYFLUSS_VERSION}"
        run(
            [sys.executable, "-m", "pip", "download", "-q", *only_source, "-d", scratch, package],
            "download pyfluss's source distribution from PyPI",
        )
        (archive,) = scratch.glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        archive.unlink()

    return entry("pyfluss-source", PYFLUSS_VERSION, download) / f"pyfluss-{PYFLUSS_VERSION}"


def suite_python() -> Path:
    """A Python with pyfluss and what its tests import, apart from the project's own environment."""
    python = tool("python3.12", "run pyfluss's tests") if sys.version_info >= (3, 13) else sys.executable

    def create(scratch: Path) -> None:
        run([python, "-m", "venv", scratch / "venv"], "make a virtual environment")
        run(
            [scratch / "venv" / "bin" / "python", "-m", "pip", "install", "-q", *_SUITE_PACKAGES],
            "install pyfluss and pytest from PyPI",
        )

    return entry("suite-venv", digest_of(str(python), *_SUITE_PACKAGES), create) / "venv" / "bin" / "python"


def rust_workspace() -> Path:
    """The crate `fluss-rs` with its tests, beside our `fluss-test-cluster`, as one cargo workspace."""
    source = source_distribution()
    shim = HERE / "rust" / "fluss-test-cluster"
    shim_files = sorted(path for path in shim.rglob("*") if path.is_file())

    def assemble(scratch: Path) -> None:
        manifest = (source / "Cargo.toml").read_text()
        members, count = re.subn(r'"bindings/python"', "", manifest)
        if count != 1:
            raise ExamUnavailable("the workspace of pyfluss's source distribution has another shape than expected")
        # No debug information: the build is five times smaller.
        (scratch / "Cargo.toml").write_text(members + "\n[profile.dev]\ndebug = 0\nincremental = false\n")
        shutil.copy(source / "Cargo.lock", scratch)
        shutil.copytree(source / "crates" / "fluss", scratch / "crates" / "fluss")
        shutil.copytree(shim, scratch / "crates" / "fluss-test-cluster")

    return entry("rust-suite", digest_of(PYFLUSS_VERSION, *shim_files), assemble)


def environment(address: str, sasl_address: str) -> dict[str, str]:
    """The variables by which both suites find the server under test."""
    with RawConnection(address) as connection:
        api_versions(connection)
        tablet_servers = server_nodes(connection).tablet_servers
    return {
        **os.environ,
        "FLUSS_BOOTSTRAP_SERVERS": address,
        "FLUSS_SASL_BOOTSTRAP_SERVERS": sasl_address,
        "FLUSS_TABLET_SERVERS": ",".join(tablet_servers[server] for server in sorted(tablet_servers)),
    }


def run_pyfluss_suite(address: str, sasl_address: str, only: str = "") -> SuiteResult:
    """pytest over `bindings/python/test`, which also runs every program of `bindings/python/example`."""
    binding = source_distribution() / "bindings" / "python"
    results = cache_root() / "results"
    results.mkdir(exist_ok=True)
    report = results / f"pyfluss-{os.getpid()}.xml"
    command = [
        str(suite_python()),
        "-m",
        "pytest",
        "-q",
        "--no-header",
        "-p",
        "no:cacheprovider",
        "--tb=no",
        "--no-summary",
    ]
    command += ["--rootdir", str(binding / "test"), "-c", os.devnull, f"--junit-xml={report}"]
    command += [part for option in _PYTEST_OPTIONS for part in ("-o", option)]
    command += ["-k", only] if only else []
    # Their package folder `fluss` lies beside the tests without its compiled part and would hide the wheel's.
    seconds, _ = _watched(
        [*command, str(binding / "test")],
        env={**environment(address, sasl_address), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"},
        cwd=results,
    )
    if seconds is None:
        return _unfinished()
    if not report.exists():
        raise ExamUnavailable("pytest wrote no report")
    try:
        return read_junit(report, seconds)
    finally:
        report.unlink()


def read_junit(report: Path, seconds: float) -> SuiteResult:
    """The results in a JUnit report of pytest."""
    result = SuiteResult([], [], [], {}, seconds)
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        if problem is not None:
            result.failed.append(name)
            result.reasons[name] = (problem.get("message") or "").splitlines()[0][:300]
        elif case.find("skipped") is not None:
            result.skipped.append(name)
        else:
            result.passed.append(name)
    return result


def run_rust_suite(address: str, sasl_address: str, only: str = "") -> SuiteResult:
    """The integration tests of the crate `fluss-rs`, built once and run one after another."""
    cargo = tool("cargo", "build the Rust client's tests (install Rust 1.85 or newer)")
    workspace = rust_workspace()
    build = [cargo, "test", "--quiet", "-p", "fluss-rs", "--features", "integration_tests", "--test", "test_fluss"]
    build += ["--target-dir", str(cache_root() / "cargo-target"), "--no-run", "--message-format=json"]
    lines = [
        json.loads(line)
        for line in run(build, "build the Rust client's tests", cwd=workspace).splitlines()
        if line.startswith("{")
    ]
    (binary,) = {line["executable"] for line in lines if line.get("executable")}
    seconds, output = _watched(
        [binary, "--test-threads=2", *([only] if only else [])],
        env=environment(address, sasl_address),
        cwd=workspace / "crates" / "fluss",
    )
    return _unfinished() if seconds is None else read_libtest(output, seconds)


def _watched(command: Sequence[str], env: dict[str, str], cwd: Path) -> tuple[float | None, str]:
    """How long a command took (None if it was ended for taking too long) and what it said."""
    began = time.monotonic()
    try:
        done = subprocess.run(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SUITE_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, ""
    return time.monotonic() - began, done.stdout


def _unfinished() -> SuiteResult:
    name = "(the whole suite)"
    reason = f"not finished after {SUITE_SECONDS_MAX:.0f} s, so it was ended"
    return SuiteResult([], [name], [], {name: reason}, SUITE_SECONDS_MAX)


def read_libtest(output: str, seconds: float) -> SuiteResult:
    """The results that Rust's test runner printed."""
    result = SuiteResult([], [], [], {}, seconds)
    by_outcome = {"ok": result.passed, "FAILED": result.failed, "ignored": result.skipped}
    for match in _LIBTEST_LINE.finditer(output):
        by_outcome[match["result"]].append(match["name"])
    for match in _RUST_PANIC.finditer(output):
        lines = [line for line in match["text"].splitlines() if line.strip() and "RUST_BACKTRACE" not in line]
        result.reasons[match["name"]] = " ".join(lines)[:400]
    return result


def known_failures(file: Path, suite: str) -> dict[str, str]:
    """Test name -> why it fails there, from a JSON file {suite: {name: reason}}."""
    known: dict[str, str] = json.loads(file.read_text())[suite]
    return known


def report(suite: str, result: SuiteResult, known: dict[str, str] | None) -> bool:
    """Print the summary; True if nothing failed but exactly what is known to fail."""
    expected = known or {}
    for name in result.skipped:
        print(f"skipped  {name}")
    for name in sorted(result.failed):
        note = f"known: {expected[name]}" if name in expected else result.reasons.get(name, "")
        print(f"FAILED   {name}   {note}")
    cured = sorted(set(expected) & set(result.passed))
    for name in cured:
        print(f"PASSED, though known to fail: {name}   (known: {expected[name]})")
    counts = f"{len(result.passed)} passed, {len(result.failed)} failed, {len(result.skipped)} skipped"
    print(f"{suite}: {counts} in {result.seconds:.0f} s")
    return bool(result.passed) and not cured and set(result.failed) <= set(expected)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run another client's own tests against a server.")
    parser.add_argument("suite", choices=["pyfluss", "rust"])
    parser.add_argument("address")
    parser.add_argument("sasl_address")
    parser.add_argument("--known-failures", type=Path, metavar="FILE")
    parser.add_argument("--only", default="", metavar="TEXT", help="run only the tests whose names contain this")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the result there")
    options = parser.parse_args(arguments)
    runner = {"pyfluss": run_pyfluss_suite, "rust": run_rust_suite}[options.suite]
    try:
        result = runner(options.address, options.sasl_address, options.only)
    except (ExamUnavailable, OSError) as reason:
        print(f"the {options.suite} suite cannot run here: {reason}", file=sys.stderr)
        return 2
    if options.json:
        options.json.write_text(json.dumps(result._asdict(), indent=1))
    known = known_failures(options.known_failures, options.suite) if options.known_failures else None
    return 0 if report(options.suite, result, known) else 1


if __name__ == "__main__":
    sys.exit(main())
