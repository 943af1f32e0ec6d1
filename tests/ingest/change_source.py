"""PostgreSQL, Debezium in Kafka Connect, and a Kafka broker, for the duration of a `with` block.

PostgreSQL is Debian's; Kafka, Connect and Debezium come from Maven Central (java/pom.xml). All of them listen on
127.0.0.1 or on a socket in their folder, and only processes that were started here are ended.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

from tests.java_programs import (
    ExamUnavailable,
    all_maven_jars,
    class_path,
    java_tool,
    run,
    spark_jars,
)

_JVM = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
_START_SECONDS = 180.0


def kafka_class_path() -> str:
    """The class path of the broker, Connect and Debezium. Raises `ExamUnavailable`."""
    return class_path(_jars("kafka-jars", "pom.xml"))


def spark_kafka_jars() -> list[Path]:
    """The jars of Spark's Kafka source that PySpark does not bring. Raises `ExamUnavailable`."""
    theirs = {re.sub(r"-[0-9].*", "", jar.name) for jar in spark_jars()}
    found = _jars("spark-kafka-jars", "spark-pom.xml")
    return [jar for jar in found if re.sub(r"-[0-9].*", "", jar.name) not in theirs]


def _jars(name: str, pom: str) -> list[Path]:
    return all_maven_jars(Path(__file__).with_name("java") / pom, name, "Kafka and Debezium")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Program:
    """A process of ours that can be killed and started again; its output is in a file."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name, self._command, self._folder = name, list(command), folder
        self._process: subprocess.Popen[bytes] | None = None
        self.log = folder / f"{name}.log"

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, cwd=self._folder)
        return self

    def wait_until(self, ready: Any, what: str) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                if ready():
                    return
            except OSError:
                pass
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                raise ExamUnavailable(f"{self.name}: {what} did not happen:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.2)

    def end(self, number: int = signal.SIGKILL) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            process.wait(60)


def _properties(file: Path, settings: Mapping[str, Any]) -> str:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return str(file)


class Broker:
    """A Kafka broker, which is its own controller (KRaft). Use it in a `with` block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        jars, java = kafka_class_path(), java_tool("java")
        port, controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{port}"
        settings = _properties(
            self.folder / "server.properties",
            {
                "process.roles": "broker,controller", "node.id": 1, "log.dirs": self.folder / "log",
                "controller.quorum.voters": f"1@127.0.0.1:{controller}",
                "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://127.0.0.1:{controller}",
                "advertised.listeners": f"PLAINTEXT://{self.servers}", "controller.listener.names": "CONTROLLER",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "offsets.topic.replication.factor": 1, "offsets.topic.num.partitions": 1,
                "transaction.state.log.replication.factor": 1, "transaction.state.log.min.isr": 1,
                "transaction.state.log.num.partitions": 1, "group.initial.rebalance.delay.ms": 0,
                "log.retention.check.interval.ms": 500,
            },
        )  # fmt: skip
        command = [str(java), "-Xmx384m", *_JVM, "-cp", jars]
        form = ["kafka.tools.StorageTool", "format", "-t", "Zm9yZWJheS1mb3JlYmF5LQ", "-c", settings]
        run([*command, *form], "format the broker's storage")
        self.program = Program("kafka", [*command, "kafka.Kafka", settings], self.folder)
        self.start()
        return self

    def start(self) -> None:
        self.program.start()
        host, _, port = self.servers.partition(":")

        def answers() -> bool:
            socket.create_connection((host, int(port)), timeout=1).close()
            return True

        self.program.wait_until(answers, "listening")

    def __exit__(self, *_: object) -> None:
        self.program.end()


class Debezium:
    """Kafka Connect with Debezium's connector for PostgreSQL, which sends the tables' changes to topics."""

    def __init__(self, folder: Path, broker: str, database: Mapping[str, Any], settings: Mapping[str, str]) -> None:
        self._folder = folder
        folder.mkdir()
        rest = free_port()
        worker = _properties(
            folder / "worker.properties",
            {
                "bootstrap.servers": broker, "listeners": f"http://127.0.0.1:{rest}", "plugin.discovery": "only_scan",
                "key.converter": "org.apache.kafka.connect.json.JsonConverter",
                "value.converter": "org.apache.kafka.connect.json.JsonConverter",
                "offset.storage.file.filename": folder / "offsets", "offset.flush.interval.ms": 500,
            },
        )  # fmt: skip
        connector = _properties(
            folder / "connector.properties",
            {
                "name": "shop", "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
                "plugin.name": "pgoutput", "topic.prefix": "shop", "tasks.max": 1, **database, **settings,
            },
        )  # fmt: skip
        command = [str(java_tool("java")), "-Xmx512m", *_JVM, "-cp", kafka_class_path()]
        self._status = f"http://127.0.0.1:{rest}/connectors/shop/status"
        main = "org.apache.kafka.connect.cli.ConnectStandalone"
        self.program = Program("connect", [*command, main, worker, connector], folder)

    def start(self) -> None:
        self.program.start()
        self.program.wait_until(self._runs, "running")

    def _runs(self) -> bool:
        with urllib.request.urlopen(self._status, timeout=10) as answer:
            state = json.loads(answer.read())
        return [task["state"] for task in state["tasks"]] == ["RUNNING"]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.program.end()


@contextmanager
def postgresql() -> Iterator[dict[str, Any]]:
    """A PostgreSQL server with logical decoding; yields Debezium's settings of the connection.

    Raises `ExamUnavailable` where there is none.
    """
    found = shutil.which("initdb") or next((str(p) for p in Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if found is None:
        raise ExamUnavailable("no PostgreSQL is installed here")
    user = None
    if os.getuid() == 0:  # the server refuses to run as root
        try:
            user = pwd.getpwnam("postgres").pw_name
        except KeyError:
            raise ExamUnavailable("running as root, and there is no user postgres to run the server") from None
    folder = tempfile.mkdtemp(prefix="forebay-postgresql-")  # pytest's folders are closed to other users
    if user is not None:
        shutil.chown(folder, user)
    port = free_port()

    def program(name: str, *arguments: str) -> None:
        command = [str(Path(found).with_name(name)), *arguments]
        subprocess.run(command, check=True, user=user, capture_output=True, timeout=120, cwd=folder)

    data = f"{folder}/data"
    program("initdb", "-D", data, "-U", "shop", "-A", "trust", "--no-sync")
    settings = f"-h 127.0.0.1 -p {port} -k {folder} -c wal_level=logical -c fsync=off"
    try:
        program("pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", settings, "start")
        yield {
            "database.hostname": "127.0.0.1", "database.port": port, "database.user": "shop",
            "database.password": "none", "database.dbname": "postgres",
        }  # fmt: skip
    finally:
        program("pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)
