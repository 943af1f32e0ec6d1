"""Apache Hive's Metastore, real but small: the one in PySpark's jars, with its embedded database, in a JVM of its own.

`MetastoreServer` is the process: on 127.0.0.1, at a port that the system picks, until `close`. A `Cutter` stands
between a client and a server, and cuts connections.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HERE = Path(__file__).resolve().parent
if (_exams := str(HERE.parents[1] / "foreign")) not in sys.path:
    sys.path.append(_exams)

from exams_cache import ExamUnavailable, cache_root, digest_of, entry, java_tool, run, tool  # noqa: E402

__all__ = ["ExamUnavailable", "cache_root", "digest_of", "entry", "java_tool", "run", "tool"]

JVM = ["-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ActiveProcessorCount=2"]
_START_SECONDS = 60.0


def spark_jars() -> list[Path]:
    """The jars that PySpark brings, among them all of Hive's. Raises `ExamUnavailable` where there is no PySpark."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ExamUnavailable("PySpark, whose jars hold the Hive Metastore, is not installed")
    return sorted((Path(spec.origin).parent / "jars").glob("*.jar"))


class MetastoreServer:
    """A running metastore. Raises `ExamUnavailable` where there can be none."""

    def __init__(self) -> None:
        jars = os.pathsep.join(map(str, spark_jars()))
        classes = compile_java("MetastoreServer", jars)
        self._scratch = tempfile.TemporaryDirectory(prefix="forebay-metastore-")
        folder = self._scratch.name
        self._log = (Path(folder) / "log").open("w+")
        command = [
            java_tool("java"), *JVM, f"-Dderby.stream.error.file={folder}/derby.log", "-cp",
            f"{classes}{os.pathsep}{jars}", "MetastoreServer", folder,
        ]  # fmt: skip
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, cwd=folder
        )
        assert self._process.stdout is not None
        watch = threading.Timer(_START_SECONDS, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            self._log.seek(0)
            said = self._log.read()[-3000:]
            self.close()
            raise RuntimeError(f"the metastore did not start:\n{said}")
        self.port = int(line)
        self.uri = f"thrift://127.0.0.1:{self.port}"

    def close(self) -> None:
        """End the JVM that this object started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
        self._scratch.cleanup()


def compile_java(program: str, class_path: str) -> Path:
    """The folder with the classes of our `java/<program>.java`, compiled once."""
    source = HERE / "java" / f"{program}.java"

    def build(scratch: Path) -> None:
        command = [java_tool("javac"), "-nowarn", "-proc:none", "-cp", class_path, "-d", scratch, source]
        run(command, f"compile {source.name}")

    return entry("catalog-classes", digest_of(source, class_path), build)


class Cutter:
    """A server that passes everything on to another, until it cuts: idle connections, or those that ask something."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut_requests = 0
        """How many of the next requests are to be passed on, and their connections cut before the answer."""
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut_all(self) -> None:
        """Cut all connections that are there."""
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut_all()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server, contextlib.suppress(OSError):
            self._open.append(client)
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    if source is client and self.cut_requests:
                        self.cut_requests -= 1
                        server.sendall(data)
                        server.recv(65536)
                        return
                    (server if source is client else client).sendall(data)
