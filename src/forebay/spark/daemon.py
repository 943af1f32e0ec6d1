"""PySpark's daemon, which starts the Python workers, with cheaper tasks, and without tracebacks of idle workers.

Spark closes the socket of a worker when it has enough rows (LIMIT), when a worker has been idle for a minute, and when
the session stops. PySpark's worker then cannot report its end, and prints a traceback with BrokenPipeError
on the terminal, although nothing went wrong. `forebay.spark.session` starts this module in its place (Spark's setting
`spark.python.daemon.module`), which lets such a worker end quietly.

PySpark also collects garbage after each task. That walks over all modules of the worker, and takes 40 ms of a task of
60 ms. Modules are never garbage, so the worker freezes them when a task has imported some. All else is PySpark's own.
"""

from __future__ import annotations

import gc
import socket
import sys

from pyspark import daemon

_start_worker = daemon.worker
_frozen_modules = 0


def quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    """Run a worker on `sock`; a code other than 0 tells the daemon that its process is of no more use."""
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
    """What `python -m forebay.spark.daemon` runs."""
    daemon.worker = quiet_worker
    daemon.manager()


if __name__ == "__main__":
    main()
