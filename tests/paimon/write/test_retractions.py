"""Deletes and retractions do what they say in every merge engine, or are refused before anything is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.base.errors import ForebayError, InvalidRequest, UnsupportedOperation
from forebay.paimon.table import Table
from tests.paimon.lake import new_catalog, put, rows_of

COLUMNS = pa.schema([("id", pa.int64()), ("g", pa.int32()), ("v", pa.int64()), ("m", pa.int64())])
GROUPS = {"merge-engine": "partial-update", "fields.g.sequence-group": "v"}
REMOVES = {**GROUPS, "partial-update.remove-record-on-sequence-group": "g"}
SUM = {"merge-engine": "aggregation", "fields.v.aggregate-function": "sum"}


def keyed(folder: Path, options: dict[str, str]) -> Table:
    return new_catalog(folder).create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "1", **options})


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"ignore-delete": "true"}, "'ignore-delete' = 'true'"),
        ({"merge-engine": "partial-update"}, r"partial-update takes no deletes .*partial-update\.remove-record-on-del"),
        ({"merge-engine": "partial-update", "ignore-delete": "true"}, "'ignore-delete' = 'true'"),
        (GROUPS, r"partial-update takes no deletes unless .*remove-record-on-sequence-group' = 'g'"),
        (SUM, r"aggregation takes no deletes unless .*'aggregation\.remove-record-on-delete' = 'true'"),
        ({"merge-engine": "first-row"}, "first-row keeps rows for ever"),
        ({"merge-engine": "first-row", "ignore-delete": "true"}, "first-row keeps rows for ever"),
    ],
)
def test_deletes_that_a_merge_engine_would_ignore_are_refused(
    tmp_path: Path, options: dict[str, str], reason: str
) -> None:
    table = keyed(tmp_path, options)
    put(table, [{"id": 1, "g": 1, "v": 10}])
    before = table.context.snapshots.latest_id()
    with pytest.raises(UnsupportedOperation, match=reason):
        table.delete(1)
    with table.stream_writer("s") as writer, pytest.raises(UnsupportedOperation, match=reason):
        writer.delete([1])
    assert table.context.snapshots.latest_id() == before


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({}, 1),
        ({"sequence.field": "g"}, {"id": 1, "g": 1}),
        ({"sequence.field": "g,v"}, {"id": 1, "g": 1, "v": 10}),
        ({"merge-engine": "partial-update", "partial-update.remove-record-on-delete": "true"}, 1),
        (REMOVES, {"id": 1, "g": 1}),
        ({**SUM, "aggregation.remove-record-on-delete": "true"}, 1),
    ],
)
@pytest.mark.parametrize("compacts", [False, True])
def test_a_deleted_row_is_gone(tmp_path: Path, options: dict[str, str], key: Any, compacts: bool) -> None:
    table = keyed(tmp_path, options)
    put(table, [{"id": i, "g": 1, "v": 10} for i in (1, 2)])
    assert table.delete(key).rows == 1
    if compacts:
        table.compact(full=True)
    assert rows_of(table, ["id", "v"]) == [(2, 10)]


@pytest.mark.parametrize(
    ("options", "field", "keys"),
    [
        ({"sequence.field": "g"}, "'g'", [{"id": 1}]),
        ({"sequence.field": "g,v"}, "'v'", [{"id": 1, "g": 5}]),
        ({"sequence.field": "g"}, "'g'", [{"id": 2, "g": 5}, {"id": 1, "g": None}]),
        (REMOVES, "'g'", [{"id": 1}]),
        (REMOVES, "'g'", [{"id": 2, "g": 5}, {"id": 1, "g": None}]),
    ],
)
def test_a_delete_has_the_values_that_say_whether_it_is_newer(
    tmp_path: Path, options: dict[str, str], field: str, keys: list[dict[str, int]]
) -> None:
    table = keyed(tmp_path, options)
    put(table, [{"id": 1, "g": 1, "v": 10}])
    with pytest.raises(InvalidRequest, match=rf"{field}.* give (it|{field}) beside the primary key"):
        table.delete(keys)
    assert rows_of(table, ["id", "g", "v"]) == [(1, 1, 10)]


@pytest.mark.parametrize("kind", ["-U", "-D"])
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"merge-engine": "first-row"}, "first-row"),
        ({"merge-engine": "partial-update"}, "partial-update"),
        ({**SUM, "fields.m.aggregate-function": "max"}, "'max' of column 'm' cannot take back"),
        ({**GROUPS, "fields.v.aggregate-function": "max"}, "'max' of column 'v' cannot take back"),
    ],
)
def test_rows_that_would_make_their_key_unreadable_are_refused(
    tmp_path: Path, options: dict[str, str], reason: str, kind: str
) -> None:
    """A single -D of a key used to be stored, and a read failed as soon as there was another row of the key."""
    table = keyed(tmp_path, options)
    row = {"id": 1, "g": 1, "v": 10, "m": 1}
    with pytest.raises(ForebayError, match=reason):
        put(table, [row], [kind])
    assert table.context.snapshots.latest_id() is None
    put(table, [row])
    assert table.scan(["id"]).count() in (0, 1)  # the level-0 rows of first-row wait for a compaction


def test_what_options_ignore_is_not_counted(tmp_path: Path) -> None:
    table = keyed(tmp_path, {"ignore-delete": "true"})
    rows = [{"id": i, "_change_type": kind} for i, kind in enumerate(["insert", "delete", "update_before", "insert"])]
    assert table.write_changes(rows).rows == 2
    assert table.write_changes(rows[1:2]).rows == 0
    assert rows_of(table, ["id"]) == [(0,), (3,)]


@pytest.mark.parametrize("data", [[{"id": 1, "v": 5}], pa.table({"id": [1], "v": [5]})])
def test_columns_of_a_sequence_group_need_its_order(tmp_path: Path, data: Any) -> None:
    table = keyed(tmp_path, GROUPS)
    put(table, [{"id": 1, "g": 1, "v": 10}])
    with pytest.raises(InvalidRequest, match="'v' without 'g'"):
        table.upsert(data)
    table.upsert([{"id": 1, "m": 7}])
    table.upsert([{"id": 1, "g": None, "v": 5}])  # said for this row: it leaves the group as it is
    assert rows_of(table) == [(1, 1, 10, 7)]
