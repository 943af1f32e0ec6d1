"""`forebay server`: run a server until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from forebay.base.errors import ForebayError, InvalidRequest
from forebay.base.garbage import GcFreezer
from forebay.base.host import raise_open_files_max
from forebay.cli import console
from forebay.cli.logs import add_log_arguments, configure_logs
from forebay.server.config import (
    SETTINGS,
    ServerConfig,
    exposed_settings,
    parse_definition,
    read_settings_file,
    server_config,
)
from forebay.server.server import Addresses, ForebayServer, event_loop
from forebay.server.standby.reads import serve_reads
from forebay.server.standby.standby import Standby

_LOGGER = logging.getLogger(__name__)

_OPEN_FILES = 65_536
"""The number of open files to request: the usual limit of 1,024 is too low for many buckets and clients."""

_SWITCH_SECONDS = 0.001
"""The maximum time that a thread computes while another one waits for the GIL.

A put takes the GIL many times, and waited up to 0.7 s beside four threads with long requests, with Python's default of
5 ms.
"""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    """Declare the options of `forebay server`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    settings = "\n".join(
        f"  {key} ({f'default {setting.default}' if setting.default else 'not set'}): {setting.about}"
        for key, setting in sorted(SETTINGS.items())
    )
    parser.epilog = f"settings for -D and --config:\n{settings}\n\nListener and security settings are Fluss's own."
    parser.add_argument(
        "--data-dir", default="forebay-data", metavar="DIR", help="directory of the tables (default: %(default)s)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--coordinator-port", type=int, default=9123, metavar="PORT", help="clients connect here (default: %(default)s)"
    )
    parser.add_argument(
        "--tablet-port", type=int, default=9124, metavar="PORT", help="data is served here (default: %(default)s)"
    )
    parser.add_argument("--sasl", action="store_true", help="require user and password on all ports")
    parser.add_argument(
        "--plain",
        action="store_true",
        help="with --sasl: also serve clients without a password; SASL then uses separate ports, which are printed",
    )
    parser.add_argument(
        "-D",
        dest="definitions",
        action="append",
        default=[],
        metavar="key=value",
        help="a setting; may be repeated. Secrets are better given as '${env:NAME}' or '${directory:path:file}'",
    )
    parser.add_argument("--config", metavar="FILE", help="settings as 'key: value' lines (Fluss's server.yaml)")
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        help="serve metrics and health by HTTP on this port, or the first free one of a range such as 9250-9260",
    )
    parser.add_argument(
        "--console", nargs="?", type=int, const=console.PORT, metavar="PORT",
        help=f"show the server in the browser, on this machine, by `forebay console` as a process beside it (default "
        f"port: {console.PORT}; 0: a free port)",
    )  # fmt: skip
    parser.add_argument(
        "--standby",
        action="store_true",
        help="follow the server that writes to the store (setting 'store'), and serve when its lease ends",
    )
    parser.add_argument(
        "--read-port",
        type=int,
        metavar="PORT",
        help="with --standby: serve reads of what was repeated on this port and the next one; 0: on two free ports",
    )
    parser.add_argument(
        "--ready-file", metavar="FILE", help="write the addresses to this file, as JSON, once the server is ready"
    )
    add_log_arguments(parser, "INFO")


def run(options: argparse.Namespace) -> int:
    """Serve a data directory until stopped; return the exit code."""
    configure_logs(options, limits_lines=True)
    if options.console is not None:
        console.check_packages()
    settings = read_settings_file(options.config) if options.config else {}
    settings |= dict(parse_definition(text) for text in options.definitions)
    if options.metrics_port is not None:
        settings |= {"metrics.reporters": "prometheus", "metrics.reporter.prometheus.port": options.metrics_port}
    if options.read_port is not None and not options.standby:
        raise InvalidRequest("--read-port is for a standby: give --standby, too")
    config = server_config(
        options.data_dir,
        host=options.host,
        coordinator_port=options.coordinator_port,
        tablet_port=options.tablet_port,
        sasl=options.sasl,
        plain=options.plain,
        settings=settings,
    )
    for key in exposed_settings(config, options.definitions):
        _LOGGER.warning(
            "the value of '%s' stands on the command line, where every user of this machine sees it: give it by "
            "--config, or as -D '%s=${env:NAME}' (docs/server.md)",
            key,
            key,
        )
    _warn_of_others(Path(options.data_dir))
    raise_open_files_max(_OPEN_FILES)
    if options.standby and not _stand_by(config, options.read_port):
        return 0
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(_serve(config, options.ready_file, options.console))
    return 0


def _stand_by(config: ServerConfig, read_port: int | None) -> bool:
    """Follow the journal of the store until it has no writer any more; return whether to serve, or to end."""
    standby = Standby.of(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: standby.stop())
    print(f"Forebay stands by in {config.data_dir} for the server that writes to {config.value('store')}.", flush=True)
    if read_port is not None:
        reads = serve_reads(standby, config, read_port)
        if reads is not None:
            print(f"It serves reads of what it has repeated: {reads.addresses.bootstrap_servers}", flush=True)
    with _standby_metrics(standby, config):
        return standby.wait()


@contextmanager
def _standby_metrics(standby: Standby, config: ServerConfig) -> Iterator[None]:
    if config.monitoring is None:
        yield
        return
    from forebay.server.standby.standby_metrics import monitored

    with monitored(standby, config, config.monitoring) as address:
        print(f"  metrics  http://{address}/metrics, /healthz, /readyz", flush=True)
        yield


def _warn_of_others(data_dir: Path) -> None:
    """Warn about a directory, of an earlier release or created by hand, that other users of the machine may enter."""
    if data_dir.is_dir() and data_dir.stat().st_mode & 0o077:
        _LOGGER.warning(
            "other users of this machine may enter the data directory %s; shut them out with: chmod -R go= %s",
            data_dir,
            data_dir,
        )


def when_told_to_stop(call: Callable[[], object]) -> None:
    """Have the running event loop make a call, once or more, at SIGTERM and SIGINT. Only in the main thread.

    The loop's own mechanism sends the signal number through the pipe that other threads use to wake the loop, and loses
    it if that pipe is full, as with a thousand concurrent clients. But then the loop is awake, so that a Python signal
    handler runs. If the loop sleeps and another thread gets the signal, the pipe is empty, and wakes the loop.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, call)
        signal.signal(number, lambda number, frame: loop.call_soon_threadsafe(call))


async def _serve(config: ServerConfig, ready_file: str | None, console_port: int | None) -> None:
    stopping = asyncio.Event()
    when_told_to_stop(stopping.set)
    server = ForebayServer(config)
    addresses = await server.start()
    GcFreezer().install()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        print(_welcome(addresses, config), flush=True)
        if ready_file is not None:
            _write_ready_file(Path(ready_file), addresses)
        async with _console(addresses, console_port):
            lost = await _stopped_or_lost(server, stopping)
        _LOGGER.info("stopping")
    finally:
        await server.stop()
    _LOGGER.info("stopped")
    if lost is not None:
        raise lost


async def _stopped_or_lost(server: ForebayServer, stopping: asyncio.Event) -> ForebayError | None:
    """Wait until the server has to stop, or cannot serve any more; return why it cannot."""
    lost, stopped = asyncio.create_task(server.wait_until_lost()), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait([lost, stopped], return_when=asyncio.FIRST_COMPLETED)
        return lost.result() if lost.done() else None
    finally:
        lost.cancel()
        stopped.cancel()


@asynccontextmanager
async def _console(addresses: Addresses, port: int | None) -> AsyncIterator[None]:
    """A console beside the server, if there is a port for it.

    It is a process of its own, so that its work is not the server's. It ends when its input does, however the server
    ends, and has none of the environment that may hold secrets of the server.
    """
    if port is None:
        yield
        return
    command = ("-m", "forebay", "console", "-b", addresses.bootstrap_servers, "--port", str(port), "--until-stdin-ends")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _CONSOLE_ENVIRONMENT or name.startswith(("PYTHON", "FOREBAY_CONSOLE_"))
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=asyncio.subprocess.PIPE, env=environment
    )  # fmt: skip
    watching = asyncio.create_task(_watch(child))
    try:
        yield
    finally:
        watching.cancel()
        assert child.stdin is not None
        child.stdin.close()
        try:
            await asyncio.wait_for(child.wait(), _CONSOLE_STOP_SECONDS)
        except TimeoutError:
            child.kill()
            await child.wait()


async def _watch(child: asyncio.subprocess.Process) -> None:
    code = await child.wait()
    if code:  # Ctrl-C ends both
        _LOGGER.warning("the console has ended with exit code %s; the server goes on", code)


_CONSOLE_STOP_SECONDS = 10.0


_CONSOLE_ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV", "XDG_CONFIG_HOME")


def _welcome(addresses: Addresses, config: ServerConfig) -> str:
    lines = [
        f"Forebay serves {Path(config.data_dir).absolute()}",
        f"  Python   forebay.connect('{addresses.bootstrap_servers}')",
        f"  pyfluss  fluss.Config({{'bootstrap.servers': '{addresses.bootstrap_servers}'}})",
        f"  Spark    forebay.spark.attach(spark, bootstrap_servers='{addresses.bootstrap_servers}')",
    ]
    if addresses.sasl_bootstrap_servers:
        lines.append(f"  SASL     {addresses.sasl_bootstrap_servers}, with user= and password=")
    if addresses.monitoring:
        lines.append(f"  metrics  http://{addresses.monitoring}/metrics, /healthz, /readyz")
    return "\n".join([*lines, "Stop it with Ctrl-C or SIGTERM."])


def _write_ready_file(path: Path, addresses: Addresses) -> None:
    """Write the file atomically: a process that waits for it must not read half of it."""
    content = {
        "bootstrap.servers": addresses.bootstrap_servers,
        "sasl.bootstrap.servers": addresses.sasl_bootstrap_servers,
        "tablet.servers": addresses.tablet_servers,
        "monitoring": addresses.monitoring,
        "pid": os.getpid(),
    }
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(json.dumps(content))
        temporary.replace(path)
    except OSError as e:
        raise InvalidRequest(f"--ready-file {path} cannot be written: {e.strerror}") from e
