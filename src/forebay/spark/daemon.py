"""PySpark's daemon, which starts the Python workers, without tracebacks for workers that Spark no longer needs.

Spark closes the socket of a worker when it has enough rows (LIMIT), when a worker has been idle for a minute, and when
the session stops. PySpark's worker then cannot report its end, and prints a traceback with BrokenPipeError
on the terminal, although nothing went wrong. `forebay.spark.session` starts this module in its place (Spark's setting
`spark.python.daemon.module`), which lets such a worker end quietly. All else is PySpark's own.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_start_worker = daemon.worker


def quiet_worker(sock: socket.socket, authenticated: bool) -> int:
    """Run a worker on `sock`; a code other than 0 tells the daemon that its process is of no more use."""
    try:
        return int(_start_worker(sock, authenticated))
    except (BrokenPipeError, ConnectionResetError):
        return 1


def main() -> None:
    """What `python -m forebay.spark.daemon` runs."""
    daemon.worker = quiet_worker
    daemon.manager()


if __name__ == "__main__":
    main()
