"""PySpark's daemon, which starts the Python workers, with faster tasks and without tracebacks of idle workers.

Spark closes a worker's socket when it has enough rows (LIMIT), when the worker has been idle for a minute, and when the
session stops. PySpark's worker then cannot report its end and prints a traceback with BrokenPipeError, although nothing
failed. `forebay.spark.session` replaces PySpark's daemon with this module (Spark's setting
`spark.python.daemon.module`), in which such a worker ends silently.

PySpark also collects garbage after each task. The collector visits all modules of the worker, which takes 40 ms of a
task of 60 ms. Modules are never garbage, so the worker freezes them after a task that imported modules.
"""

from __future__ import annotations

import gc
import socket
import sys

from pyspark import daemon

_start_worker = daemon.worker
_frozen_modules = 0


def quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    """Run a worker on `sock`; return 0 if the daemon may reuse the process."""
    try:
        code = int(_start_worker(sock, authenticated))
    except (BrokenPipeError, ConnectionResetError):
        return 1
    if code == 0:
        _freeze_modules()
    return code


def _freeze_modules() -> None:
    """Exempt what is alive from garbage collection, if modules were imported since the last time."""
    global _frozen_modules
    if len(sys.modules) != _frozen_modules:
        _frozen_modules = len(sys.modules)
        gc.collect()
        gc.freeze()


def main() -> None:
    """The entry point of `python -m forebay.spark.daemon`."""
    daemon.worker = quiet_worker
    daemon.manager()


if __name__ == "__main__":
    main()
