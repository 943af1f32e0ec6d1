"""The quickstart's lake: its options, clearing it, and reading it with an independent program."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

from forebay.base.errors import InternalError, InvalidRequest, UnsupportedOperation
from forebay.base.locations import location
from forebay.metadata.table import TableInfo

TABLES = ("nyc.flights", "nyc.events")

_ICEBERG = """from pyiceberg.catalog import load_catalog

lake = load_catalog("fluss-iceberg-catalog", type="sql", uri={uri}, warehouse={warehouse})
flights = lake.load_table("nyc.flights").scan().to_arrow()
events = lake.load_table("nyc.events").scan(selected_fields=("kind",)).to_arrow()
"""

_PAIMON = """import duckdb
from forebay.paimon import Catalog

lake = Catalog.open({folder})
lake.table("nyc.flights").compact(full=True)  # now its files hold each flight once, as it is

def files(name):  # of the newest snapshot
    return lake.table(name).system("files").read(["file_path"]).read_all()["file_path"].to_pylist()

flights = duckdb.read_parquet(files("nyc.flights")).to_arrow_table()
events = duckdb.read_parquet(files("nyc.events")).project("kind").to_arrow_table()
"""

_HAND_OVER = """
import sys
import pyarrow as pa

for name, table in (("flights", flights), ("events", events)):
    with pa.OSFile(f"{sys.argv[1]}/{name}", "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
"""


@dataclass(frozen=True)
class QuickstartLake:
    """A warehouse in a separate folder. `format` is "iceberg" or "paimon"."""

    format: str
    folder: Path

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the server whose tables are tiered into it."""
        return {"datalake.format": self.format, f"datalake.{self.format}.warehouse": str(self.folder)}

    def check_installed(self) -> None:
        """Raise `UnsupportedOperation` if a package is missing."""
        package = "pyiceberg" if self.format == "iceberg" else "duckdb"
        if find_spec(package) is None:
            raise UnsupportedOperation(f"the quickstart needs {package}: pip install 'forebay[quickstart]'")

    def check_is_of(self, table: TableInfo) -> None:
        """Raise `InvalidRequest` if the lake of a table is another one: a server that runs may have any."""
        lake_format, warehouse = table.descriptor.lake_format, table.lake_options().get("warehouse", "")
        if lake_format != self.format or not warehouse or location(warehouse) != location(self.folder):
            raise InvalidRequest(
                f"the lake of the server is {lake_format} in {warehouse}, not {self.format} in {self.folder}: set "
                "--lake, and --data-dir to the folder that contains 'lake', or start the server with "
                + " ".join(f"{key}={value}" for key, value in self.settings.items())
            )

    def drop_tables(self) -> None:
        """Drop the tables of an earlier quickstart: the server never drops lake tables."""
        if self.format == "iceberg":
            from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

            from forebay.lakes.iceberg_tables import opened

            with opened({"warehouse": str(self.folder)}) as catalog:
                for table in TABLES:
                    try:
                        catalog.purge_table(table)
                    except (NoSuchTableError, NoSuchNamespaceError):
                        continue
            return
        from forebay.paimon import Catalog

        if self.folder.exists():
            warehouse = Catalog.open(str(self.folder))
            for table in TABLES:
                warehouse.drop_table(table, ignore_if_not_exists=True)

    @property
    def reader_name(self) -> str:
        """The third-party software that reads the tables' files."""
        return "pyiceberg" if self.format == "iceberg" else "DuckDB"

    @property
    def program(self) -> str:
        """A Python program that reads both tables from their files, into `flights` and `events`, without a server."""
        if self.format == "iceberg":
            from forebay.lakes.iceberg_tables import catalog_properties

            properties = catalog_properties({"warehouse": str(self.folder)})
            return _ICEBERG.format(uri=json.dumps(properties["uri"]), warehouse=json.dumps(properties["warehouse"]))
        return _PAIMON.format(folder=json.dumps(str(self.folder)))

    def read_alone(self) -> tuple[pa.Table, pa.Table]:
        """The flights and the events that `program` finds, run in a separate process."""
        with tempfile.TemporaryDirectory(prefix="forebay-quickstart-") as folder:
            command = [sys.executable, "-c", self.program + _HAND_OVER, folder]
            process = subprocess.run(command, capture_output=True, text=True, check=False)
            if process.returncode:
                raise InternalError(f"{self.reader_name} cannot read the lake tables:\n{process.stderr}")
            flights, events = (_read(Path(folder) / name) for name in ("flights", "events"))
        return flights, events


def _read(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()
