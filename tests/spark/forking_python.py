"""A `python` for Spark's tests that is forked, and not started: with the modules loaded that its programs import.

Spark starts an interpreter for each source and sink of a stream, for each lookup of a format and for each kind of
worker. Each would import PySpark, PyArrow, pandas and Forebay, which takes a CPU second or two, and Spark waits for at
most 10 s until a new worker calls back, whatever else the machine does. `ForkingPython` is a process that has them all
and forks, and `executable` a program that has it run what `python` would: arguments, environment, working directory,
standard streams and exit code are those of the program. All that Spark runs is its own and ours.
"""

from __future__ import annotations

import array
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.patience import until

MODULES = (
    "pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.plan_data_source_read", "pyspark.sql.streaming",
    "pyspark.sql.worker.create_data_source", "pyspark.sql.worker.write_into_data_source", "pyarrow.parquet", "pandas",
    "forebay.spark.datasource", "forebay.spark.daemon", "forebay.paimon.table",
)  # fmt: skip
CLIENT = """\
#!{python} -ISE
import array, json, os, signal, socket, sys

there = socket.socket(socket.AF_UNIX)
there.connect({address!r})
asked = json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}}).encode()
there.sendmsg([b"%10d" % len(asked)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
there.sendall(asked)
for stream in (0, 1, 2):
    os.close(stream)
code = there.recv(10)
if not code or int(code) < 0:
    os.kill(os.getpid(), -int(code or b"-9"))
sys.exit(int(code))
"""


class ForkingPython:
    """The process that forks, until `close`."""

    def __init__(self, folder: Path) -> None:
        self._address = str(folder / "python.sock")
        self.executable = folder / "python"
        self.executable.write_text(CLIENT.format(python=sys.executable, address=self._address))
        self.executable.chmod(0o755)
        environment = {**os.environ, "PYTHONHASHSEED": "0"}  # as Spark sets it for its workers
        self._process = subprocess.Popen([sys.executable, "-m", __name__, self._address], env=environment)
        until(lambda: os.path.exists(self._address) or self._process.poll() is not None, "the Python that forks")
        assert self._process.returncode is None, "the Python that forks has ended"

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def serve(address: str) -> None:
    """Load the modules, then fork for each program until the end."""
    for name in MODULES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # who waits for the programs is forked, too
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen(100)
        os.rename(f"{address}.new", address)
        while True:
            there, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _run_and_tell(there)
            there.close()


def _run_and_tell(there: socket.socket) -> None:
    """Run the program of a client in a process of its own, and tell the client how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    streams, asked = _asked(there)
    program = os.fork()
    if program == 0:
        there.close()
        _become(streams, asked)
    for stream in streams:
        os.close(stream)
    watcher = os.fork()
    if watcher == 0:  # the client ends early if it is killed, which is meant for the program
        there.recv(1)
        os.kill(program, signal.SIGKILL)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
    os.kill(watcher, signal.SIGKILL)
    try:
        there.sendall(str(code).encode())
    finally:
        os._exit(0)


def _asked(there: socket.socket) -> tuple[Sequence[int], dict[str, Any]]:
    streams = array.array("i")
    size, ancillary, _, _ = there.recvmsg(10, socket.CMSG_SPACE(3 * streams.itemsize), socket.MSG_WAITALL)
    streams.frombytes(ancillary[0][2])
    data = b""
    while len(data) < int(size):
        data += there.recv(1 << 16)
    return list(streams), json.loads(data)


def _become(streams: Sequence[int], asked: dict[str, Any]) -> None:
    """Be `python` with these arguments."""
    for number, given in enumerate(streams):
        os.dup2(given, number)
        os.close(given)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = ["", *(path for path in paths if path), *sys.path[1:]]
    flag, name, *rest = asked["arguments"]
    if flag != "-m":
        os.execv(sys.executable, [sys.executable, *asked["arguments"]])
    sys.argv = [name, *rest]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
    sys.exit()  # as any program ends: what is registered for the end of a process happens


if __name__ == "__main__":
    serve(sys.argv[1])
