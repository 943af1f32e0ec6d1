"""A plugin of dbt-duckdb: live tables and lakes as sources of dbt's models, and models that are written to them.

    plugins: [{module: forebay.dbt, alias: forebay, config: {bootstrap_servers: "host:9123", warehouse: /lake}}]

A source whose `meta` has `plugin: forebay` is a view over a pinned scan: all models of a run read it as of one instant,
and DuckDB pushes columns and filters into it. A model with `materialized='external', plugin='forebay'` and
`table='database.table'` goes into that table, which exists: as one transaction, or one lake commit.
"""

from __future__ import annotations

from typing import Any

import pyarrow.dataset as ds
from dbt.adapters.duckdb.plugins import BasePlugin

from forebay.api.duckdb import ScanDataset, check_version
from forebay.api.scan import Scan
from forebay.base.errors import InvalidRequest
from forebay.client.connection import Connection, connect
from forebay.query.run import SqlDatabase, imported_duckdb
from forebay.query.statement import TableName
from forebay.query.tables import LAKE, opened_lake, quoted

_OPTIONS = ("bootstrap_servers", "user", "password", "warehouse", "lakes", "lake_options")


class Plugin(BasePlugin):  # type: ignore[misc]  # dbt is not installed where types are checked
    """The plugin with which dbt-duckdb loads and stores."""

    def initialize(self, config: dict[str, Any]) -> None:
        """Connect to what the profile's `config` names. Raises `InvalidRequest` for unknown options."""
        unknown = [name for name in config if name not in _OPTIONS and name not in (self.creds.settings or {})]
        if unknown:
            raise InvalidRequest(f"option {unknown[0]!r} of the plugin is unknown; there are {', '.join(_OPTIONS)}")
        connection: Connection | None = None
        locations = {**({LAKE: config["warehouse"]} if "warehouse" in config else {}), **config.get("lakes", {})}
        lakes = {
            name: opened_lake(location) for name, location in locations.items()
        }  # before there is a connection to close
        if "bootstrap_servers" in config or not lakes:
            connection = connect(
                config.get("bootstrap_servers"),
                config.get("user"),
                config.get("password"),
                lake_options=config.get("lake_options"),
            )
        self._database = SqlDatabase(connection, lakes)

    def default_materialization(self) -> str:
        """A view: nothing is copied into DuckDB's file."""
        return "view"

    def load(self, source_config: Any) -> Any:
        """The rows of a source: of the table of its schema and name, or of `table` in its meta."""
        words = {"schema": source_config.schema, "identifier": source_config.identifier}
        name = source_config.get("table", "{schema}.{identifier}").format(**words)
        scan = self._database.tables.scan(TableName(tuple(name.split("."))), source_config.get("as_of"))
        check_version(imported_duckdb(), scan.schema)
        return ScanDataset(scan) if isinstance(scan, Scan) else scan

    def store(self, target_config: Any) -> None:
        """Write a model's rows, which dbt-duckdb has put into a file."""
        name = target_config.config.get("table")
        if name is None:
            raise InvalidRequest(
                f"the model {target_config.relation.identifier} does not say where it is written to: add "
                "table='database.table' to its config"
            )
        location = target_config.location
        rows = ds.dataset(location.path, format=location.format).scanner().to_reader()
        target = ".".join(map(quoted, name.split(".")))
        self._database.execution({"__forebay_model": rows}).run(f"INSERT INTO {target} BY NAME FROM __forebay_model")
