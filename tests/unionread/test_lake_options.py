"""Readers and workers with their own lake options."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import ForebayError, InvalidRequest
from forebay.client.connection import Connection
from forebay.client.settings import make_settings
from forebay.paimon.io.opening import open_file_io
from forebay.server.embedded import EmbeddedServer
from forebay.tiering.now import tier_table
from forebay.tiering.runner import ThreadRunner
from forebay.unionread.planning import plan_union

PATH = "fluss.t"
ROWS = [{"id": 1}, {"id": 2}]


@pytest.fixture
def moved(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """(address, warehouse) of a server with a tiered table whose lake lies elsewhere than the server tells."""
    there, elsewhere = tmp_path / "there", tmp_path / "elsewhere"
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(there)}
    with EmbeddedServer(tmp_path / "data", settings=settings) as server:
        with forebay.connect(server.bootstrap_servers) as connection:
            properties = {"table.datalake.enabled": "true"}
            connection.create_table(PATH, {"id": pa.int32()}, options=properties)
            connection.table(PATH).append(ROWS)
            tier_table(connection, PATH, ThreadRunner(1))
        shutil.move(there, elsewhere)
        yield server.bootstrap_servers, str(elsewhere)


def _union_rows(connection: Connection) -> list[dict[str, int]]:
    rows: list[dict[str, int]] = connection.table(PATH).scan(source="union").to_arrow().sort_by("id").to_pylist()
    return rows


def test_a_reader_s_options_of_the_lake_go_before_those_that_the_server_tells(moved: tuple[str, str]) -> None:
    address, warehouse = moved
    with forebay.connect(address) as connection, pytest.raises(ForebayError):
        _union_rows(connection)
    with forebay.connect(address, lake_options={"warehouse": warehouse}) as connection:
        assert _union_rows(connection) == ROWS
        connection.table(PATH).append([{"id": 3}])
        assert tier_table(connection, PATH, ThreadRunner(1)).rows == 1
        assert _union_rows(connection) == [*ROWS, {"id": 3}]


def test_options_of_the_lake_travel_to_workers_and_are_not_shown(moved: tuple[str, str]) -> None:
    address, warehouse = moved
    secret = {"warehouse": warehouse, "s3.access-key": "open", "s3.secret-key": "open-sesame"}
    with forebay.connect(address, lake_options=secret) as connection:
        plan = plan_union(connection.table(PATH))
        reader, splits = pickle.loads(pickle.dumps((plan.reader, plan.splits)))
        rows = [row for split in splits for batch in reader.read(split, connection) for row in batch.to_pylist()]
        assert rows == ROWS
        scan = connection.table(PATH).scan(source="union")
        shown = f"{connection!r} {connection.settings!r} {plan!r} {scan!r} {scan.explain()}"
        assert "sesame" not in shown
        assert "s3.secret-key" in repr(connection.settings)
        assert pickle.loads(pickle.dumps(connection.settings)) == connection.settings


def test_options_of_the_lake_are_a_mapping() -> None:
    with pytest.raises(InvalidRequest, match="lake_options is a list; give a mapping"):
        make_settings("localhost", options={"lake_options": ["a=b"]})


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"s3.session-token": "t"}, "'s3.access-key' and 's3.secret-key'"),
        ({"s3.session-token": "t", "s3.access-key": "k"}, "'s3.secret-key'"),
        ({"s3.secret-key": "t"}, "'s3.access-key'"),
    ],
)
def test_half_a_set_of_credentials_of_s3_is_refused_by_name(given: dict[str, str], missing: str) -> None:
    with pytest.raises(InvalidRequest, match=f"is given without {missing}"):
        open_file_io("s3://lake/x", given)
