"""The history of a key says who has its row now, the lake or the stream, and why."""

from __future__ import annotations

import pyarrow as pa
import pytest

from forebay.client.table import Table
from forebay.unionread.key_history import KeyHistory
from tests.unionread.world import PAIMON, World

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])

pytestmark = pytest.mark.parametrize("both", [PAIMON], indirect=True)


def why(table: Table, key: int) -> str:
    history = KeyHistory(table, str(key))
    return history.why([*history.log(), *history.lake(20)])


def test_before_the_first_round_the_stream_has_what_there_is(both: World) -> None:
    table = both.create(SCHEMA, primary_key=["id"])
    table.upsert([{"id": 1, "v": 1}])
    assert why(table, 1) == (
        "key 1: the stream has the row: its newest record is at offset 0 of the log; "
        "the lake has no readable snapshot yet"
    )
    assert "key 2: there is no row: no record in the log; " in why(table, 2)


def test_the_newest_record_decides_between_lake_and_stream(both: World) -> None:
    table = both.create(SCHEMA, primary_key=["id"])
    table.upsert([{"id": key, "v": 1} for key in (1, 2, 3)])
    snapshot = both.tier(table)
    held = f"lake snapshot {snapshot} holds bucket 0 up to offset 3"
    assert why(table, 1) == f"key 1: the lake has the row: its newest record is at offset 0 of the log, and {held}"
    table.upsert([{"id": 1, "v": 2}])
    table.delete([2])
    newest = "its newest record is at offset"
    assert why(table, 1) == f"key 1: the stream overrides the lake: {newest} 4 of the log, and {held}"
    assert why(table, 2) == f"key 2: deleted in the stream, which overrides the lake: {newest} 5 of the log, and {held}"
    assert why(table, 3) == f"key 3: the lake has the row: {newest} 2 of the log, and {held}"
    assert why(table, 9) == f"key 9: there is no row in lake or stream: no record in the log, and {held}"


def test_the_first_record_behind_the_lake_is_the_streams(both: World) -> None:
    table = both.create(SCHEMA, primary_key=["id"])
    table.upsert([{"id": 1, "v": 1}])
    both.tier(table)
    table.upsert([{"id": 2, "v": 1}])
    assert why(table, 2).startswith("key 2: the stream overrides the lake: its newest record is at offset 1 of the log")
