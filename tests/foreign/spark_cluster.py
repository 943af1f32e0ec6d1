"""Spark standalone on this machine, a master and workers as processes, for the duration of a `with` block."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import TracebackType

import pyspark

from forebay.spark.jvm.java_home import ensure_java
from tests.process_groups import ProcessGroup

START_SECONDS = 120


class SparkCluster:
    """`master` is its URL; `workers` are the processes whose descendants run tasks."""

    def __init__(self, folder: Path, *, workers: int = 2, cores: int = 2, memory: str = "1g") -> None:
        self._folder, self._number = folder, workers
        self._resources = ["--cores", str(cores), "--memory", memory]
        self.master = ""
        self.workers: list[ProcessGroup] = []
        self._master: ProcessGroup | None = None

    def __enter__(self) -> SparkCluster:
        ensure_java()
        self._folder.mkdir()
        try:
            self._master = self._start("master", "master.Master", "--port", "0")
            self.master = self._told(self._master, r"Starting Spark master at (spark://\S+)")
            for number in range(self._number):
                folder = ["--work-dir", str(self._folder / f"worker-{number}")]
                worker = self._start(f"worker-{number}", "worker.Worker", *self._resources, *folder, self.master)
                self.workers.append(worker)
            for worker in self.workers:
                self._told(worker, "(Successfully registered with master)")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        for process in (*self.workers, *filter(None, [self._master])):
            process.kill()

    def _start(self, name: str, program: str, *arguments: str) -> ProcessGroup:
        spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = [str(spark_class), f"org.apache.spark.deploy.{program}"]
        return ProcessGroup(
            [*command, "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            self._folder / f"{name}.log",
            {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(spark_class.parents[1])},
        )

    def _told(self, process: ProcessGroup, pattern: str) -> str:
        deadline = time.monotonic() + START_SECONDS
        while not (found := re.search(pattern, process.said())):
            assert process.is_alive, process.said()[-3000:]
            assert time.monotonic() < deadline, f"no '{pattern}' in {process.said()[-3000:]}"
            time.sleep(0.1)
        return found[1]
