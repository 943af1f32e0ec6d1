"""A third-party lake format: a package with an entry point is sufficient for server, tiering and reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.metadata.table_options import is_added_lake_format
from forebay.server.embedded import EmbeddedServer
from forebay.testing.memory_lake import forget_lake
from forebay.tiering.now import tier_now

_PACKAGE = """
from forebay.testing.memory_lake import MemoryLakeStorage

class Lagoon(MemoryLakeStorage):
    @property
    def format(self):
        return "lagoon"
"""


@pytest.fixture
def lagoon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a lake format that a package has brought which knows of Forebay, and not the other way round."""
    installed = tmp_path / "site"
    about = installed / "lagoon_lake-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lagoon_lake\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[forebay.lakes]\nlagoon = lagoon_lake:Lagoon\n")
    (installed / "lagoon_lake.py").write_text(_PACKAGE)
    monkeypatch.syspath_prepend(installed)
    is_added_lake_format.cache_clear()
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    return "lagoon"


@pytest.mark.parametrize("keyed", [True, False], ids=["primary key", "log"])
def test_a_format_that_a_package_brings_is_tiered_and_read_without_a_change_of_ours(
    tmp_path: Path, lagoon: str, keyed: bool
) -> None:
    name = f"added lake {keyed}"
    settings = {"datalake.format": lagoon, f"datalake.{lagoon}.name": name}
    options = {"primary_key": ["id"]} if keyed else {"bucket_keys": ["id"]}
    properties = {"table.datalake.enabled": "true"}
    with (
        EmbeddedServer(tmp_path / "data", settings=settings) as server,
        forebay.connect(server.bootstrap_servers) as connection,
    ):
        schema = {"id": pa.int64(), "name": pa.string()}
        connection.create_table("fluss.t", schema, buckets=3, options=properties, **options)
        table = connection.table("fluss.t")
        write = table.upsert if keyed else table.append
        write([{"id": i, "name": "old"} for i in range(9)])
        (outcome,) = tier_now(connection, ["fluss.t"])
        assert outcome.report is not None
        assert outcome.report.rows == 9
        write([{"id": i, "name": "new"} for i in (3, 10)])
        scan = table.scan(source="union")
        found = sorted((row["id"], row["name"]) for row in scan.to_arrow().to_pylist())
        kept = [(i, "old") for i in range(9) if not keyed or i != 3]
        assert found == sorted([*kept, (3, "new"), (10, "new")])
        assert f"lake: {lagoon}, snapshot" in str(scan.explain())
    forget_lake(name)
