"""Apache Hive's Metastore, real but small: the one in PySpark's jars, with its embedded database, in a separate JVM.

`MetastoreServer` is the process: on 127.0.0.1, at a port that the system picks, until `close`. A `Cutter` is a proxy
between a client and a server that cuts connections.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path

from tests.java_programs import ExamUnavailable, JavaProgram, class_path, compiled, java_command, spark_jars
from tests.patience import PATIENCE

__all__ = ["HERE", "Cutter", "ExamUnavailable", "MetastoreServer"]

HERE = Path(__file__).resolve().parent
_HEAP_MB = 400
_START_SECONDS = PATIENCE


class MetastoreServer:
    """A running metastore. Raises `ExamUnavailable` where there can be none."""

    def __init__(self) -> None:
        jars = class_path(spark_jars())
        classes = compiled([HERE / "java" / "MetastoreServer.java"], jars, "catalog-classes")
        derby = "-Dderby.stream.error.file={scratch}/derby.log"
        command = java_command(classes, jars, "MetastoreServer", _HEAP_MB, [derby])
        self._program = JavaProgram("metastore", [*command, "{scratch}"], _START_SECONDS)
        try:
            self.port = int(self._program.answer())
        except RuntimeError:
            self.close()
            raise
        self.uri = f"thrift://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._program.close()


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
