"""`forebay server`: run a server until it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from forebay.base.garbage import ShortRounds
from forebay.base.host import raise_open_files_max
from forebay.server.config import (
    SETTINGS,
    ServerConfig,
    exposed_settings,
    parse_definition,
    read_settings_file,
    server_config,
)
from forebay.server.log_limit import LogLimit
from forebay.server.server import Addresses, ForebayServer

_LOGGER = logging.getLogger(__name__)

_OPEN_FILES = 65_536
"""What is asked of the system: the usual limit of 1,024 is too little for many buckets and clients."""

_SWITCH_SECONDS = 0.001
"""How long a thread computes while another one waits for Python's lock. A put takes that lock again many times, and
waited up to 0.7 s beside four threads with long requests, with Python's default of 5 ms."""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    settings = "\n".join(
        f"  {key} ({f'default {setting.default}' if setting.default else 'not set'}): {setting.about}"
        for key, setting in sorted(SETTINGS.items())
    )
    parser.epilog = f"settings for -D and --config:\n{settings}\n\nListener and security settings are Fluss's own."
    parser.add_argument(
        "--data-dir", default="forebay-data", metavar="DIR", help="where tables live (default: %(default)s)"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--coordinator-port", type=int, default=9123, metavar="PORT", help="clients connect here (default: %(default)s)"
    )
    parser.add_argument(
        "--tablet-port", type=int, default=9124, metavar="PORT", help="data is served here (default: %(default)s)"
    )
    parser.add_argument(
        "--sasl", action="store_true", help="ask clients for user and password, and serve no port without"
    )
    parser.add_argument(
        "--plain",
        action="store_true",
        help="with --sasl: serve clients without a password, too; SASL then has ports of its own, which are printed",
    )
    parser.add_argument(
        "-D",
        dest="definitions",
        action="append",
        default=[],
        metavar="key=value",
        help="a setting; may be repeated. A secret is better given as '${env:NAME}' or '${directory:path:file}'",
    )
    parser.add_argument("--config", metavar="FILE", help="settings as 'key: value' lines (Fluss's server.yaml)")
    parser.add_argument(
        "--ready-file", metavar="FILE", help="write the addresses here, as JSON, once the server serves"
    )
    parser.add_argument("--log-level", default="INFO", help="DEBUG, INFO, WARNING or ERROR (default: %(default)s)")


def run(options: argparse.Namespace) -> int:
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogLimit())
    settings = read_settings_file(options.config) if options.config else {}
    settings |= dict(parse_definition(text) for text in options.definitions)
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
    asyncio.run(_serve(config, options.ready_file))
    return 0


def _warn_of_others(data_dir: Path) -> None:
    """A directory of an earlier release, or one that was made by hand, may be open to other users of the machine."""
    if data_dir.is_dir() and data_dir.stat().st_mode & 0o077:
        _LOGGER.warning(
            "other users of this machine may enter the data directory %s; shut them out with: chmod -R go= %s",
            data_dir,
            data_dir,
        )


def when_told_to_stop(call: Callable[[], object]) -> None:
    """Have the running event loop make a call, once or more, at SIGTERM and SIGINT. Only in the main thread.

    The loop's own way sends the signal's number through the pipe by which other threads wake the loop, and it is lost
    where that pipe is full: where a thousand clients are served at once. Then the loop is awake, so that a handler of
    Python's runs. Where the loop sleeps, and another thread gets the signal, the pipe is empty and wakes it.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, call)
        signal.signal(number, lambda number, frame: loop.call_soon_threadsafe(call))


async def _serve(config: ServerConfig, ready_file: str | None) -> None:
    stopping = asyncio.Event()
    when_told_to_stop(stopping.set)
    server = ForebayServer(config)
    addresses = await server.start()
    ShortRounds().install()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        print(_welcome(addresses, config), flush=True)
        if ready_file is not None:
            _write_ready_file(Path(ready_file), addresses)
        await stopping.wait()
        _LOGGER.info("stopping")
    finally:
        await server.stop()
    _LOGGER.info("stopped")


def _welcome(addresses: Addresses, config: ServerConfig) -> str:
    lines = [
        f"Forebay serves {Path(config.data_dir).absolute()}",
        f"  Python   forebay.connect('{addresses.bootstrap_servers}')",
        f"  pyfluss  fluss.Config({{'bootstrap.servers': '{addresses.bootstrap_servers}'}})",
        f"  Spark    forebay.spark.attach(spark, bootstrap_servers='{addresses.bootstrap_servers}')",
    ]
    if addresses.sasl_bootstrap_servers:
        lines.append(f"  SASL     {addresses.sasl_bootstrap_servers}")
    return "\n".join([*lines, "Stop it with Ctrl-C or SIGTERM."])


def _write_ready_file(path: Path, addresses: Addresses) -> None:
    """Whole or not at all: whoever waits for the file must not read half of it."""
    content = {
        "bootstrap.servers": addresses.bootstrap_servers,
        "sasl.bootstrap.servers": addresses.sasl_bootstrap_servers,
        "tablet.servers": addresses.tablet_servers,
        "pid": os.getpid(),
    }
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(content))
    temporary.replace(path)
