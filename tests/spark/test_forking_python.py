"""The `python` of Spark's tests runs programs as an interpreter of their own would."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tests.spark.forking_python import ForkingPython

PROGRAM = """
import os, sys

if sys.argv[1] == "wait":
    print(os.getpid(), flush=True)
    sys.stdin.read()
print(sys.argv[1:], os.environ["GREETING"], os.getcwd(), sys.stdin.read())
print("told", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    forking = ForkingPython(tmp_path_factory.mktemp("python"))
    yield forking.executable
    forking.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "program_of_a_test.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.spark
@pytest.mark.parametrize("code", [0, 3])
def test_a_module_has_its_arguments_environment_folder_and_streams(python: Path, folder: Path, code: int) -> None:
    done = subprocess.run(
        [python, "-m", "program_of_a_test", str(code), "x"], input="given", capture_output=True, text=True,
        env={"PYTHONPATH": str(folder), "GREETING": "hello"}, cwd=folder, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (code, "told\n")
    assert done.stdout == f"['{code}', 'x'] hello {folder} given\n"


@pytest.mark.spark
def test_a_program_that_is_no_module_is_started(python: Path) -> None:
    done = subprocess.run([python, "-c", "import sys; sys.exit(sys.argv[1])", "wrong"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "wrong\n")


@pytest.mark.spark
def test_who_kills_it_kills_the_program(python: Path, folder: Path) -> None:
    pipe, environment = subprocess.PIPE, {"PYTHONPATH": str(folder), "GREETING": ""}
    with subprocess.Popen(
        [python, "-m", "program_of_a_test", "wait"], stdin=pipe, stdout=pipe, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        process.kill()
        assert process.wait() == -signal.SIGKILL
        until(lambda: not os.path.exists(f"/proc/{number}"), "the end of the program")
