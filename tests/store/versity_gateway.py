"""The S3 gateway of Versity on a directory: an S3 service that is neither ours nor moto's, built from its Go module."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.java_programs import entry, run, tool
from tests.patience import until

_MODULE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
KEYS = {"s3.access-key": "root", "s3.secret-key": "not a secret", "s3.region": "us-east-1"}


def _program() -> Path:
    """The program, built once. Raises `ExamUnavailable` without Go or its proxy."""

    def build(scratch: Path) -> None:
        go = tool("go", "build Versity's S3 gateway")
        run(["env", f"GOBIN={scratch}", go, "install", _MODULE], "build Versity's S3 gateway")

    folder: Path = entry("versitygw", _MODULE.rpartition("@")[2], build)
    return folder / "versitygw"


@contextmanager
def running_gateway(folder: Path) -> Iterator[str]:
    """The endpoint of a gateway whose buckets are the directories in `folder`."""
    program = _program()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {
        **os.environ, "ROOT_ACCESS_KEY": KEYS["s3.access-key"], "ROOT_SECRET_KEY": KEYS["s3.secret-key"],
        "VGW_REGION": KEYS["s3.region"],
    }  # fmt: skip
    command: list[str | Path] = [program, "--quiet", "--port", f"127.0.0.1:{port}", "posix", folder]
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as process:
        try:
            until(lambda: process.poll() is not None or _answers(port), "the gateway listens")
            assert process.poll() is None, "the gateway has ended"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
