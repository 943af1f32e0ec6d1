"""The public write methods: append, upsert, delete, changes and overwrite, their results and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from forebay.api.changes import CHANGE_TYPE_COLUMN
from forebay.api.results import WriteResult
from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.table import Table
from tests.paimon.lake import altered, new_catalog, rows_of

COLUMNS = {"id": "BIGINT", "name": "STRING", "n": "INT"}
PARTIAL = {"merge-engine": "partial-update"}
SUM = {"merge-engine": "aggregation", "fields.n.aggregate-function": "sum"}


@pytest.fixture
def catalog(tmp_path: Path) -> FileSystemCatalog:
    return new_catalog(tmp_path)


def keyed(catalog: FileSystemCatalog, **options: str) -> Table:
    return catalog.create_table("db.keyed", COLUMNS, primary_key="id", buckets=1, options=options)


def plain(catalog: FileSystemCatalog) -> Table:
    return catalog.create_table("db.plain", COLUMNS)


def change(kind: str, i: int, name: str | None = None) -> dict[str, Any]:
    return {CHANGE_TYPE_COLUMN: kind, "id": i, "name": name}


# ---- results --------------------------------------------------------------------------------------------------------


def test_a_write_tells_how_many_rows_it_wrote_and_which_snapshot_has_them(catalog: FileSystemCatalog) -> None:
    table, log = keyed(catalog), plain(catalog)
    results = [
        log.append([{"id": 1}, {"id": 2}]),
        log.overwrite([{"id": 3}]),
        table.upsert(pa.table({"id": [1, 2, 3]}), missing="null"),
        table.delete([1, 2]),
        table.write_changes([change("insert", 7)]),
    ]
    assert [type(result) for result in results] == [WriteResult] * 5
    assert [(result.rows, result.snapshot.id, dict(result.end_offsets)) for result in results] == [
        (2, 1, {}), (1, 2, {}), (3, 1, {}), (2, 2, {}), (1, 3, {}),
    ]  # fmt: skip


def test_a_write_of_nothing_commits_nothing(catalog: FileSystemCatalog) -> None:
    result = plain(catalog).append([])
    assert (result.rows, result.snapshot) == (0, None)
    assert catalog.table("db.plain").context.snapshots.latest_id() is None


# ---- which word for which table -------------------------------------------------------------------------------------


def test_a_table_with_a_primary_key_is_not_appended_to(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    with pytest.raises(InvalidRequest, match=r"table db\.keyed has a primary key: use upsert"):
        table.append([{"id": 1}])
    with table.stream_writer("me") as writer, pytest.raises(InvalidRequest, match="has a primary key: use upsert"):
        writer.append([{"id": 1}])
    assert table.context.snapshots.latest_id() is None


@pytest.mark.parametrize("act", [lambda t: t.upsert([{"id": 1}]), lambda t: t.delete(1)], ids=["upsert", "delete"])
def test_a_table_without_a_primary_key_has_nothing_to_find_rows_by(
    catalog: FileSystemCatalog, act: Callable[[Any], Any]
) -> None:
    table = plain(catalog)
    with pytest.raises(InvalidRequest, match=r"table db\.plain has no primary key by which to find rows: use append"):
        act(table)
    with table.stream_writer("me") as writer, pytest.raises(InvalidRequest, match="use append"):
        act(writer)


# ---- keys -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys",
    [
        [2, 3],
        {2, 3},
        range(2, 4),
        [(2,), (3,)],
        [{"id": 2}, {"id": 3, "n": 7}],
        pa.array([2, 3]),
        pa.chunked_array([[2], [3]]),
        pa.table({"id": [2, 3]}),
        pd.DataFrame({"id": [2, 3]}),
    ],
    ids=lambda keys: type(keys).__name__,
)
def test_keys_are_written_in_many_ways(catalog: FileSystemCatalog, keys: Any) -> None:
    table = keyed(catalog)
    table.upsert([{"id": i} for i in range(5)], missing="null")
    assert table.delete(keys).rows == 2
    assert rows_of(table, ["id"]) == [(0,), (1,), (4,)]


@pytest.mark.parametrize("key", [2, {"id": 2}])
def test_one_key_needs_no_list(catalog: FileSystemCatalog, key: Any) -> None:
    table = keyed(catalog)
    table.upsert([{"id": 1}, {"id": 2}], missing="null")
    table.delete(key)
    assert rows_of(table, ["id"]) == [(1,)]


def test_keys_of_several_columns_are_tuples(catalog: FileSystemCatalog) -> None:
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id", "name"], buckets=1)
    table.upsert([{"id": i, "name": name} for i in (1, 2) for name in "ab"], missing="null")
    table.delete([(1, "a"), (2, "b")])
    assert rows_of(table, ["id", "name"]) == [(1, "b"), (2, "a")]
    table.delete((1, "b"))  # one tuple is one key
    assert rows_of(table, ["id", "name"]) == [(2, "a")]
    with pytest.raises(InvalidRequest, match=r"needs 2 columns to find a row \(id, name\): give tuples"):
        table.delete([1])
    with pytest.raises(InvalidRequest, match=r"key 0 is \(2, 'a', 3\); a key of table .* has 2 values \(id, name\)"):
        table.delete([(2, "a", 3)])


def test_a_lake_deletes_whole_rows(catalog: FileSystemCatalog) -> None:
    with pytest.raises(UnsupportedOperation, match=r"delete\(columns=\['n'\]\) is not possible in a lake"):
        keyed(catalog).delete(1, columns=["n"])


# ---- some columns ---------------------------------------------------------------------------------------------------


def test_some_columns_of_rows_are_written_and_the_others_stay(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog, **PARTIAL)
    table.upsert([{"id": 1, "name": "one", "n": 1}, {"id": 2, "name": "two", "n": 2}])
    table.upsert(pa.table({"id": [1, 3], "n": pa.array([10, 30], pa.int32())}), columns=["id", "n"])
    assert rows_of(table) == [(1, "one", 10), (2, "two", 2), (3, None, 30)]


def test_a_default_value_does_not_replace_what_is_there(catalog: FileSystemCatalog) -> None:
    from forebay.paimon.store.schema_changes import UpdateColumnDefault

    table = altered(keyed(catalog, **PARTIAL), [UpdateColumnDefault(("name",), "nameless")])
    table.upsert([{"id": 1, "name": "one", "n": 1}])
    table.upsert([{"id": 1, "n": 2}], columns=["id", "n"])
    assert rows_of(table) == [(1, "one", 2)]
    table.upsert([{"id": 1, "n": 3}])
    assert rows_of(table) == [(1, "nameless", 3)]


def test_some_columns_are_merged_by_their_functions(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog, **SUM)
    table.upsert([{"id": 1, "name": "one", "n": 1}])
    with table.stream_writer("me") as writer:
        writer.upsert([{"id": 1, "n": 5}], columns=["id", "n"])
        writer.commit(1)
    assert rows_of(table) == [(1, "one", 6)]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (["id", "nmae"], "there is no column 'nmae'; .*; did you mean 'name'"),
        (["name"], "lacks 'id' of the primary key; add it"),
        ("id name", "there is no column 'id name'"),
    ],
)
def test_columns_to_write_are_checked(catalog: FileSystemCatalog, columns: Any, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        keyed(catalog, **PARTIAL).upsert([{"id": 1, "name": "x"}], columns=columns)


def test_rows_with_more_columns_than_are_to_be_written_are_refused(catalog: FileSystemCatalog) -> None:
    with pytest.raises(InvalidRequest, match="the data has column 'n', which is none of id, name"):
        keyed(catalog, **PARTIAL).upsert([{"id": 1, "n": 2}], columns=["id", "name"])


@pytest.mark.parametrize("engine", ["deduplicate", "first-row"])
def test_only_engines_that_put_rows_together_write_some_columns(catalog: FileSystemCatalog, engine: str) -> None:
    with pytest.raises(UnsupportedOperation, match=f"its merge engine is '{engine}'"):
        keyed(catalog, **{"merge-engine": engine}).upsert([{"id": 1}], columns=["id"])


def test_a_column_for_which_null_is_a_value_cannot_be_left_out(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog, **SUM, **{"fields.name.aggregate-function": "last_value"})
    with pytest.raises(UnsupportedOperation, match=r"column 'name' of table .* is merged by last_value"):
        table.upsert([{"id": 1, "n": 1}], columns=["id", "n"])


def test_a_sequence_group_is_written_as_a_whole(catalog: FileSystemCatalog) -> None:
    columns = {"id": "INT", "v": "INT", "a": "INT", "x": "STRING"}
    options = {**PARTIAL, "fields.v.sequence-group": "a"}
    table = catalog.create_table("db.t", columns, primary_key="id", buckets=1, options=options)
    table.upsert([{"id": 1, "v": 5, "a": 50, "x": "x"}])
    table.upsert([{"id": 1, "v": 6, "a": 60}], columns=["id", "v", "a"])
    table.upsert([{"id": 1, "x": "y"}], columns=["id", "x"])
    assert rows_of(table) == [(1, 6, 60, "y")]
    with pytest.raises(InvalidRequest, match="lacks 'a': v, a are one sequence group"):
        table.upsert([{"id": 1, "v": 7}], columns=["id", "v"])


# ---- changes --------------------------------------------------------------------------------------------------------

CHANGES = [
    change("insert", 1, "one"),
    change("insert", 2, "two"),
    change("update_before", 1, "one"),
    change("update_after", 1, "uno"),
    change("delete", 2, "two"),
]


def as_arrow(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(
    "given",
    [
        list,
        as_arrow,
        lambda rows: as_arrow(rows).combine_chunks().to_batches()[0],
        lambda rows: as_arrow(rows).to_reader(2),
        lambda rows: as_arrow(rows).set_column(0, CHANGE_TYPE_COLUMN, as_arrow(rows).column(0).dictionary_encode()),
        pd.DataFrame,
    ],
    ids=["dicts", "table", "batch", "reader", "dictionary", "pandas"],
)
def test_changes_say_what_becomes_of_each_row(catalog: FileSystemCatalog, given: Callable[[Any], Any]) -> None:
    table = keyed(catalog, **{"changelog-producer": "input"})
    assert table.write_changes(given(CHANGES)).rows == 5
    assert rows_of(table, ["id", "name"]) == [(1, "uno")]


def test_a_table_without_a_primary_key_takes_inserts_only(catalog: FileSystemCatalog) -> None:
    table = plain(catalog)
    table.write_changes(CHANGES[:2])
    assert rows_of(table, ["id", "name"]) == [(1, "one"), (2, "two")]
    with pytest.raises(InvalidRequest):
        table.write_changes(CHANGES)
    assert table.context.snapshots.latest_id() == 1


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"id": 1}], "the rows lack column '_change_type', which says what each is: insert, update_before"),
        (pa.table({"id": [1]}), "the rows lack column '_change_type'"),
        (pd.DataFrame({"id": [1]}), "the rows lack column '_change_type'"),
        ([change("insert", 1), change("+X", 2)], r"row 1 has _change_type='\+X', which is none of insert, "),
        ([{**change("insert", 1), CHANGE_TYPE_COLUMN: None}], "row 0 has _change_type=None"),
        (pa.table({"id": [1], CHANGE_TYPE_COLUMN: [[1]]}), "its values are texts"),
        (change("insert", 1), "changes are rows, got {.*: write a list of rows"),
        (7, "int is no data: give Arrow data"),
    ],
)
def test_changes_without_a_right_type_are_refused(catalog: FileSystemCatalog, rows: Any, says: str) -> None:
    table = keyed(catalog)
    with pytest.raises(InvalidRequest, match=says):
        table.write_changes(rows)
    assert table.context.snapshots.latest_id() is None


def test_a_stream_writer_writes_changes_too(catalog: FileSystemCatalog) -> None:
    table = keyed(catalog)
    with table.stream_writer("me") as writer:
        assert (writer.write_changes(CHANGES), writer.upsert([{"id": 8}], missing="null"), writer.delete(8)) == (
            5,
            1,
            1,
        )
        writer.commit(1)
    assert rows_of(table, ["id", "name"]) == [(1, "uno")]
