"""A real Apache Fluss cluster on this machine, from Maven Central, for the duration of a `with` block.

Terms: one JVM (`java/cluster/RealFlussCluster.java`) holds ZooKeeper, the coordinator and the tablet servers, which may
also be JVMs of their own, to be killed; a *plain* and a *SASL* listener per server, every port picked by the system,
everything on 127.0.0.1.

Only processes that were started are ended, and they end automatically when we die: each halts as soon as its standard
input closes.

As a program: `python tests/foreign/fluss_cluster.py [-D key=value]...` starts a cluster, prints its addresses as one
JSON line and runs until standard input closes or it is interrupted. `--ready-file FILE` writes the same JSON to a file
once the cluster is ready.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from exams_cache import ExamUnavailable, fluss_lake_class_path, jar_path, java_classes, java_tool
from raw_wire import RawConnection, Unanswered, api_versions, server_nodes

FLUSS_VERSION = "0.9.1-incubating"
SASL_USERS = {"admin": "admin-secret", "alice": "alice-secret"}

# Small, and quick to start. Tests of others expect the remote log tier to exist, so it stays on.
_SETTINGS = {
    "netty.server.num-network-threads": "1",
    "netty.server.num-worker-threads": "3",
    "server.io-pool.size": "3",
    "log.segment.file-size": "16mb",
    "kv.rocksdb.writebuffer.size": "8mb",
    "kv.rocksdb.block.cache-size": "4mb",
    "security.protocol.map": "CLIENT:sasl",
    "security.sasl.enabled.mechanisms": "plain",
    "security.sasl.plain.jaas.config": "org.apache.fluss.security.auth.sasl.plain.PlainLoginModule required "
    + " ".join(f'user_{name}="{password}"' for name, password in SASL_USERS.items())
    + ";",
}
# `--add-opens`: Arrow's memory module reads the addresses of NIO buffers.
_JVM = ["--add-opens=java.base/java.nio=ALL-UNNAMED"]
_QUICK_TO_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# No fsync in ZooKeeper: its folder is thrown away.
_ZOOKEEPER = ["-Dzookeeper.forceSync=no", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]


def paimon_lake(warehouse: Path | str, **catalog: str) -> dict[str, str]:
    """The settings of a lake of Paimon; `catalog` are more options of its catalog."""
    options = {"metastore": "filesystem", "warehouse": str(warehouse), **catalog}
    return {"format": "paimon"} | {f"paimon.{name}": value for name, value in options.items()}


class RealFluss:
    """A running cluster. Use it as a context manager; `start` and `stop` are what that calls.

    `bootstrap_servers` and `sasl_bootstrap_servers` are `host:port` of the coordinator's plain and SASL listener,
    `tablet_servers` and `sasl_tablet_servers` the same of each tablet server. `log_file` has all that the JVM said.
    """

    def __init__(
        self,
        *,
        tablet_servers: int = 1,
        settings: Mapping[str, str] | None = None,
        heap_mib: int = 512,
        start_seconds: float = 60.0,
        lake: Mapping[str, str] | None = None,
        is_apart: bool = False,
        jvm: Sequence[str] = _QUICK_TO_START,
        parent: Path | None = None,
    ) -> None:
        """`lake` are the settings of the cluster's lake, without `datalake.`: `format`, `paimon.warehouse`...

        With `is_apart`, each tablet server is a process, which `kill_tablet_server` kills. `jvm`: options of Java,
        which by default starts quickly and compiles little. `parent`: the folder for its files.
        """
        self._jvm = jvm
        self._parent = parent
        self._tablet_server_count = tablet_servers
        self._is_apart = is_apart
        self._apart: dict[int, subprocess.Popen[str]] = {}
        self._lake_format = lake["format"] if lake else None
        self._settings = {**_SETTINGS, **(settings or {})}
        self._settings |= {f"datalake.{name}": value for name, value in (lake or {}).items()}
        self._heap_mib = heap_mib
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[str] | None = None
        self.folder: Path | None = None
        self.bootstrap_servers = self.sasl_bootstrap_servers = ""
        self.tablet_servers: list[str] = []
        self.sasl_tablet_servers: list[str] = []
        self.users = dict(SASL_USERS)

    @property
    def log_file(self) -> Path:
        if self.folder is None:
            raise ValueError("the cluster has not been started")
        return self.folder / "cluster.log"

    def pid_of_tablet_server(self, number: int) -> int:
        """The process of a tablet server that is one of its own."""
        return self._apart[number].pid

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ValueError("the cluster is not running")
        return self._process.pid

    def start(self) -> RealFluss:
        """Start all roles and wait until they serve; raises `ExamUnavailable` where that is impossible."""
        class_path = jar_path("fluss-server-", "slf4j-", "jsr305-")
        classes = java_classes("cluster", class_path)
        if self._lake_format is not None:
            class_path += os.pathsep + fluss_lake_class_path(self._lake_format)
        java = java_tool("java")
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-real-fluss-", dir=self._parent))
        self._java = [java, f"-Xmx{self._heap_mib}m", *self._jvm, *_JVM, *_ZOOKEEPER, "-cp", f"{classes}:{class_path}"]
        self._java += ["RealFlussCluster", str(self.folder / "data")]
        try:
            self._process = self._run(str(0 if self._is_apart else self._tablet_server_count))
            listeners = json.loads(self._first_line(self._process))
            self._zookeeper = listeners["zookeeper"]
            if self._is_apart:
                listeners["tablet_servers"] = [self._start_apart(number) for number in range(self._tablet_server_count)]
            self._take_addresses(listeners)
            self._wait_until_it_serves()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the JVM and delete its folder. Safe to call twice."""
        processes = [*self._apart.values(), *([self._process] if self._process else [])]
        self._process = None
        self._apart.clear()
        for process in processes:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill_tablet_server(self, number: int) -> None:
        """Kill a tablet server that is a process, with SIGKILL, and start it again on other ports."""
        process = self._apart.pop(number)
        process.kill()
        process.communicate()
        self.start_tablet_server(number)

    def stop_tablet_server(self, number: int) -> None:
        """Shut a tablet server that is a process down gracefully."""
        self._apart.pop(number).communicate("stop\n", timeout=self._start_seconds)

    def start_tablet_server(self, number: int) -> None:
        """Start a tablet server again, which was stopped, on other ports."""
        listeners = self._start_apart(number)
        self.tablet_servers[number] = listeners["PLAIN_CLIENT"]
        self.sasl_tablet_servers[number] = listeners.get("CLIENT", "")
        self._wait_until_it_serves()

    def addresses(self) -> dict[str, Any]:
        """The addresses in the form of `forebay server --ready-file`, plus the tablet servers'."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "sasl.bootstrap.servers": self.sasl_bootstrap_servers,
            "tablet.servers": self.tablet_servers,
            "pid": self.pid,
        }

    def __enter__(self) -> RealFluss:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self, roles: str) -> subprocess.Popen[str]:
        settings = [f"{key}={value}" for key, value in self._settings.items()]
        with self.log_file.open("a") as log:
            return subprocess.Popen(
                [*self._java, roles, *settings],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=self.folder, text=True,
            )  # fmt: skip

    def _start_apart(self, number: int) -> dict[str, str]:
        """Start a tablet server in a process; returns its listeners."""
        process = self._apart[number] = self._run(f"server:{number}@{self._zookeeper}")
        listeners: dict[str, str] = json.loads(self._first_line(process))
        return listeners

    def _first_line(self, process: subprocess.Popen[str]) -> str:
        if process.stdout is None:
            raise ValueError("the output of the process is not a pipe")
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=lambda out: lines.put(out.readline()), args=(process.stdout,), daemon=True).start()
        try:
            line = lines.get(timeout=self._start_seconds)
        except queue.Empty:
            raise ExamUnavailable(f"no cluster after {self._start_seconds:.0f} s:\n{self._log_tail()}") from None
        if not line:
            raise ExamUnavailable(f"the cluster ended while it started:\n{self._log_tail()}")
        return line

    def _take_addresses(self, listeners: dict[str, Any]) -> None:
        self.bootstrap_servers = listeners["coordinator"]["PLAIN_CLIENT"]
        self.sasl_bootstrap_servers = listeners["coordinator"].get("CLIENT", "")
        self.tablet_servers = [server["PLAIN_CLIENT"] for server in listeners["tablet_servers"]]
        self.sasl_tablet_servers = [server.get("CLIENT", "") for server in listeners["tablet_servers"]]

    def _wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + self._start_seconds
        wanted = set(self.tablet_servers)
        while True:
            # The roles learn of each other through ZooKeeper, so each is asked whom it knows.
            try:
                if all(self._knows(address, wanted) for address in [self.bootstrap_servers, *self.tablet_servers]):
                    return
            except (OSError, Unanswered) as not_yet:
                last: Exception = not_yet
            else:
                last = Unanswered("the servers do not know each other yet")
            if time.monotonic() > deadline:
                raise ExamUnavailable(f"{last}\n{self._log_tail()}")
            time.sleep(0.1)

    @staticmethod
    def _knows(address: str, tablet_servers: set[str]) -> bool:
        with RawConnection(address) as connection:
            api_versions(connection)
            nodes = server_nodes(connection)
        return nodes.coordinator is not None and set(nodes.tablet_servers.values()) == tablet_servers

    def _log_tail(self) -> str:
        return self.log_file.read_text(errors="replace")[-3000:]


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a real Apache Fluss cluster until standard input closes.")
    parser.add_argument("-D", dest="settings", action="append", default=[], metavar="key=value")
    parser.add_argument("--tablet-servers", type=int, default=1)
    parser.add_argument("--ready-file", type=Path)
    arguments = parser.parse_args()
    settings = dict(setting.split("=", 1) for setting in arguments.settings)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with RealFluss(tablet_servers=arguments.tablet_servers, settings=settings) as cluster:
            line = json.dumps({**cluster.addresses(), "started_in_seconds": round(time.monotonic() - began, 2)})
            print(line, flush=True)
            if arguments.ready_file:
                arguments.ready_file.write_text(line)
            sys.stdin.read()
    except ExamUnavailable as reason:
        sys.exit(f"no real Fluss cluster here: {reason}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
