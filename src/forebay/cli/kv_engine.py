"""`forebay kv-engine`: move primary-key tables of a Forebay server to another key-value engine."""

from __future__ import annotations

import argparse

from forebay.cli.connecting import add_connection_arguments, password_of
from forebay.client.connection import connect

_EPILOG = """engines:
  hlog  hash index in memory over a log of records: fastest; keys have no order, 14 bytes of memory a key
  lmdb  B-tree in a mapped file: keys in order, as prefix lookups need them
  auto  as the server chooses ('kv.engine'); buckets keep the engine that they have

examples:
  forebay kv-engine -b 127.0.0.1:9123 --table sales.orders hlog
  forebay kv-engine -b 127.0.0.1:9123 --table sales.orders --table sales.items lmdb

The server moves each bucket as soon as it is not used for a moment, or when it starts; rows are copied, and no write is
lost. It needs the space of the largest bucket for a while. Without space a bucket stays as it is, and the server's log
says so."""


def add_arguments(parser: argparse.ArgumentParser, _name: str) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("engine", choices=["auto", "hlog", "lmdb"], help="the engine to move the tables to")
    parser.add_argument("--table", action="append", required=True, metavar="DATABASE.TABLE", help="may be repeated")
    add_connection_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Set the engine of each table. The server converts their buckets later."""
    with connect(options.bootstrap_servers, options.user, password_of(options)) as connection:
        for name in options.table:
            connection.table(name).alter(set={"forebay.kv.engine": options.engine})
            effect = "keep their engines" if options.engine == "auto" else f"move to the engine '{options.engine}' soon"
            print(f"{name}: its buckets {effect}")
    return 0
