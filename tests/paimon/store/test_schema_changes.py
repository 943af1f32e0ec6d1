"""The effect of changes on a schema, and the changes that are rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import AlreadyExists, Conflict, InvalidRequest, NotFound, UnsupportedOperation
from forebay.metadata import types
from forebay.metadata.types import DataType, RowField, TypeRoot
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.paths import PathFactory
from forebay.paimon.store.schema_changes import (
    AddColumn,
    DropColumn,
    DropPrimaryKey,
    MoveColumn,
    Position,
    RemoveOption,
    RenameColumn,
    SchemaChange,
    SetOption,
    UpdateColumnComment,
    UpdateColumnDefault,
    UpdateColumnNullability,
    UpdateColumnType,
    UpdateComment,
    apply_changes,
)
from forebay.paimon.store.schemas import SchemaManager

ADDRESS = DataType(
    TypeRoot.ROW, fields=(RowField("street", types.string(), None, 5), RowField("number", types.int_(), None, 6))
)
SCHEMA = TableSchema(
    id=4,
    fields=(
        DataField(0, "p", types.string().not_null()),
        DataField(1, "id", types.bigint().not_null()),
        DataField(2, "n", types.int_()),
        DataField(3, "seq", types.bigint()),
        DataField(4, "home", ADDRESS),
        DataField(7, "others", types.array(ADDRESS)),
        DataField(8, "by_name", types.map_(types.string(), types.int_())),
    ),
    highest_field_id=8,
    partition_keys=("p",),
    primary_keys=("p", "id"),
    options={"bucket": "2", "sequence.field": "seq", "fields.n.aggregate-function": "sum"},
)


def _after(*changes: SchemaChange, schema: TableSchema = SCHEMA, has_snapshots: bool = True) -> TableSchema:
    after = apply_changes(schema, changes, 99, has_snapshots)
    assert after is not None
    assert (after.id, after.time_millis) == (schema.id + 1, 99)
    return after


def _refused(*changes: SchemaChange, match: str, schema: TableSchema = SCHEMA) -> None:
    with pytest.raises((InvalidRequest, UnsupportedOperation), match=match):
        apply_changes(schema, changes, 99)


def test_a_new_column_gets_a_new_id_even_after_a_drop() -> None:
    after = _after(DropColumn(("n",)), AddColumn(("n",), types.string(), "again"))
    assert after.field_named("n") == DataField(9, "n", types.string(), "again")
    assert after.highest_field_id == 9
    assert after.names[-1] == "n"


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (Position("first"), ("x", "p", "id", "n")),
        (Position("after", "p"), ("p", "x", "id", "n")),
        (Position("before", "n"), ("p", "id", "x", "n")),
    ],
)
def test_a_new_column_goes_where_it_is_told(position: Position, expected: tuple[str, ...]) -> None:
    assert _after(AddColumn(("x",), types.int_(), position=position)).names[:4] == expected


@pytest.mark.parametrize(
    ("change", "before", "expected"),
    [
        (AddColumn(("x",), types.int_()), "true", ("id", "x", "p", "q", "home")),
        (AddColumn(("x",), types.int_()), "false", ("id", "p", "q", "home", "x")),
        (AddColumn(("x",), types.int_(), position=Position("last")), "true", ("id", "p", "q", "home", "x")),
        (AddColumn(("x",), types.int_(), position=Position("after", "p")), "true", ("id", "p", "x", "q", "home")),
        (AddColumn(("home", "x"), types.int_()), "true", ("id", "p", "q", "home")),
    ],
)
def test_a_new_column_goes_before_the_partition_if_the_table_wants_it(
    change: AddColumn, before: str, expected: tuple[str, ...]
) -> None:
    fields = (
        DataField(0, "id", types.bigint()),
        DataField(1, "p", types.string()),
        DataField(2, "q", types.string()),
        DataField(3, "home", ADDRESS),
    )
    schema = TableSchema(1, fields, 6, ("p", "q"), (), {"add-column-before-partition": before})
    assert _after(change, schema=schema).names == expected


def test_columns_move() -> None:
    for position, expected in (
        (Position("first"), ("n", "p", "id", "seq")),
        (Position("after", "seq"), ("p", "id", "seq", "n")),
        (Position("before", "id"), ("p", "n", "id", "seq")),
    ):
        assert _after(MoveColumn("n", position)).names[:4] == expected
    assert _after(MoveColumn("p", Position("last"))).names[-1] == "p"
    _refused(MoveColumn("n", Position("after", "n")), match="beside itself")
    _refused(MoveColumn("n", Position("under", "p")), match="first, last, before or after")


def test_nested_fields_are_added_renamed_and_dropped() -> None:
    nested = DataType(TypeRoot.ROW, fields=(RowField("a", types.int_()),))
    after = _after(
        AddColumn(("home", "geo"), nested),
        RenameColumn(("others", "element", "street"), "road"),
        DropColumn(("others", "element", "number")),
        UpdateColumnType(("by_name", "value"), types.bigint()),
    )
    geo = after.field_named("home").type.fields[2]
    assert (geo.name, geo.field_id, geo.data_type.fields[0].field_id) == ("geo", 9, 10)
    element = after.field_named("others").type.element
    assert element is not None
    assert [(f.name, f.field_id) for f in element.fields] == [("road", 5)]
    assert after.field_named("by_name").type == types.map_(types.string(), types.bigint())
    assert after.highest_field_id == 10
    _refused(DropColumn(("others", "element")), match="neither be renamed, added nor dropped|only column")
    _refused(AddColumn(("n", "x"), types.int_()), match="has no parts")
    _refused(UpdateColumnType(("by_name", "key"), types.bigint()), match="called 'value'")


def test_a_rename_follows_into_keys_and_options() -> None:
    after = _after(RenameColumn(("id",), "key"), RenameColumn(("seq",), "version"), RenameColumn(("n",), "m"))
    assert after.primary_keys == ("p", "key")
    assert after.options == {"bucket": "2", "sequence.field": "version", "fields.m.aggregate-function": "sum"}
    group = SCHEMA.with_options({"fields.seq,n.sequence-group": "home,by_name", "bucket-key": "id"})
    renamed = _after(RenameColumn(("seq",), "s"), RenameColumn(("home",), "h"), schema=group)
    assert renamed.options == {"fields.s,n.sequence-group": "h,by_name", "bucket-key": "id"}


def test_types_change_by_the_rules_of_casts() -> None:
    assert _after(UpdateColumnType(("n",), types.bigint())).field_named("n").type == types.bigint()
    assert _after(UpdateColumnType(("n",), types.string())).field_named("n").type == types.string()
    strict = SCHEMA.with_options({"disable-explicit-type-casting": "true"})
    assert _after(UpdateColumnType(("n",), types.double()), schema=strict).field_named("n").type == types.double()
    _refused(UpdateColumnType(("n",), types.string()), schema=strict, match="cannot become STRING")
    _refused(UpdateColumnType(("n",), types.date()), match="cannot become DATE")
    dated = replace(
        SCHEMA, fields=(*SCHEMA.fields, DataField(9, "d", types.date()), DataField(10, "b", types.bytes_()))
    )
    assert _after(UpdateColumnType(("d",), types.string()), schema=dated).field_named("d").type == types.string()
    short = DataType(TypeRoot.STRING, length=30)
    _refused(UpdateColumnType(("d",), short), match=r"cannot become VARCHAR\(30\)", schema=dated)
    assert _after(UpdateColumnType(("n",), short)).field_named("n").type == short
    assert _after(UpdateColumnType(("b",), types.string()), schema=dated).field_named("b").type == types.string()
    _refused(
        UpdateColumnType(("b",), types.string()), match="cannot become STRING",
        schema=dated.with_options({"disable-explicit-type-casting": "true"}),
    )  # fmt: skip
    _refused(UpdateColumnType(("home",), types.int_()), match="cannot become INT")
    kept = _after(UpdateColumnType(("n",), types.bigint().not_null(), keep_nullability=True))
    assert kept.field_named("n").type == types.bigint()


def test_nullability_comments_and_defaults_change() -> None:
    loose = SCHEMA.with_options({"alter-column-null-to-not-null.disabled": "false"})
    assert not _after(UpdateColumnNullability(("n",), False), schema=loose).field_named("n").type.nullable
    _refused(UpdateColumnNullability(("n",), False), match="may hold nulls")
    _refused(UpdateColumnType(("n",), types.bigint().not_null()), match="may hold nulls")
    _refused(UpdateColumnNullability(("id",), True), match="key column")
    after = _after(UpdateColumnComment(("n",), "how many"), UpdateColumnDefault(("n",), "1"), UpdateComment("t"))
    assert after.field_named("n") == DataField(2, "n", types.int_(), "how many", "1")
    assert after.comment == "t"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (AddColumn(("x",), types.int_().not_null()), "must be nullable"),
        (AddColumn(("n",), types.int_()), "there is a column 'n' already"),
        (RenameColumn(("p",), "q"), "cannot rename 'p'"),
        (RenameColumn(("n",), "id"), "there is a column 'id' already"),
        (DropColumn(("id",)), "cannot drop 'id'"),
        (RenameColumn(("nope",), "id"), "there is no column 'nope'"),
        (DropColumn(("nope",)), "there is no column 'nope'"),
        (UpdateColumnType(("id",), types.string().not_null()), "cannot change the type of 'id'"),
        (SetOption("merge-engine", "aggregation"), "'merge-engine' cannot be changed"),
        (SetOption("bucket", "-1"), "from 2 to -1"),
        (SetOption("deletion-vectors.enabled", "true"), "full compaction"),
        (RemoveOption("bucket"), "from 2 to -1"),
        (DropPrimaryKey(), "with data"),
    ],
)
def test_what_old_data_forbids_is_refused(change: SchemaChange, match: str) -> None:
    _refused(change, match=match)


def test_an_empty_table_may_change_more() -> None:
    after = _after(SetOption("merge-engine", "aggregation"), DropPrimaryKey(), has_snapshots=False)
    assert (after.options["merge-engine"], after.primary_keys) == ("aggregation", ())


def test_options_are_set_and_removed() -> None:
    after = _after(SetOption("bucket", "8"), RemoveOption("sequence.field"), SetOption("my.own", "1"))
    assert after.options == {"bucket": "8", "fields.n.aggregate-function": "sum", "my.own": "1"}


def test_changes_that_change_nothing_make_no_schema() -> None:
    assert apply_changes(SCHEMA, [SetOption("bucket", "2"), UpdateComment(None)], 99) is None


def test_schema_files_are_created_in_turn(tmp_path: Path) -> None:
    io, paths = LocalFileIO(sync=False), PathFactory(str(tmp_path / "t"))
    manager = SchemaManager(io, paths, clock=ManualClock(5))
    assert manager.latest_id() is None
    with pytest.raises(NotFound, match="no Paimon table"):
        manager.latest()
    first = TableSchema(0, SCHEMA.fields, 8)
    manager.create(first)
    with pytest.raises(AlreadyExists):
        manager.create(first)
    assert manager.change([UpdateComment("x")]).time_millis == 5
    assert manager.change([UpdateComment("x")]).id == 1
    other = SchemaManager(io, paths)
    assert other.latest().comment == "x"
    manager.change([UpdateComment("y")])
    assert (other.latest_id(), other.latest().comment) == (2, "y")
    assert [s.comment for s in other.all()] == [None, "x", "y"]


class TakenIO(LocalFileIO):
    """Others are always faster."""

    def create(self, path: str, data: bytes) -> bool:
        return False


def test_who_never_wins_a_change_of_the_schema_is_told_so(tmp_path: Path) -> None:
    paths = PathFactory(str(tmp_path / "t"))
    taken = SchemaManager(TakenIO(sync=False), paths)
    with pytest.raises(AlreadyExists, match="there is a table at"):
        taken.create(TableSchema(0, SCHEMA.fields, 8))
    SchemaManager(LocalFileIO(sync=False), paths).create(TableSchema(0, SCHEMA.fields, 8))
    with pytest.raises(Conflict, match="changed by others 20 times"):
        taken.change([UpdateComment("x")])
    with pytest.raises(NotFound, match=r"there is no Paimon table at .*/t, or it has no branch 'b'$"):
        SchemaManager(LocalFileIO(sync=False), paths.on_branch("b")).latest()


class BusyLock:
    """A lock before which something happens."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    @contextmanager
    def hold(self) -> Iterator[None]:
        self._meanwhile()
        yield


def test_a_change_that_waits_for_a_lock_is_not_made_to_another_table_of_that_name(tmp_path: Path) -> None:
    io, paths = LocalFileIO(sync=False), PathFactory(str(tmp_path / "t"))

    def recreate() -> None:
        io.delete_directory(paths.root)
        SchemaManager(io, paths).create(TableSchema(0, SCHEMA.fields, 9))

    SchemaManager(io, paths).create(TableSchema(0, SCHEMA.fields, 8))
    with pytest.raises(Conflict, match="it was dropped, and perhaps recreated"):
        SchemaManager(io, paths, BusyLock(recreate)).change([UpdateComment("x")])
    assert [s.comment for s in SchemaManager(io, paths).all()] == [None]


def test_a_change_for_empty_tables_is_not_made_once_there_are_rows(tmp_path: Path) -> None:
    io, paths = LocalFileIO(sync=False), PathFactory(str(tmp_path / "t"))
    SchemaManager(io, paths).create(TableSchema(0, SCHEMA.fields, 8))
    lock = BusyLock(lambda: io.write(paths.snapshot(1), b"{}"))
    with pytest.raises(Conflict, match="rows were written"):
        SchemaManager(io, paths, lock).change([SetOption("bucket", "2")], has_snapshots=False)
    assert SchemaManager(io, paths).ids() == [0]


def test_a_schema_that_was_deleted_is_not_remembered(tmp_path: Path) -> None:
    manager = SchemaManager(LocalFileIO(sync=False), PathFactory(str(tmp_path / "t")))
    manager.create(TableSchema(0, SCHEMA.fields, 8))
    manager.change([UpdateComment("x")])
    assert manager.latest().comment == "x"
    manager.delete(1)
    assert (manager.latest_id(), manager.latest().comment) == (0, None)
    with pytest.raises(NotFound):
        manager.schema(1)


def test_what_never_was_named_or_never_may_change_is_refused() -> None:
    _refused(AddColumn((), types.int_()), match=r"\(\) does not name a column")
    _refused(DropColumn(("home", "")), match="does not name a column")
    _refused(UpdateColumnDefault(("home", "street"), "x"), match="'home.street' is nested")
    _refused(RenameColumn(("home", "street"), "number"), match="there is a column 'number' already")
    for change in (SetOption("path", "/x"), SetOption("type", "x")):
        with pytest.raises(UnsupportedOperation, match="cannot be changed"):
            apply_changes(SCHEMA, [change], 99, has_snapshots=False)
    lossy = SCHEMA.with_options({"bucket": "2", "ignore-delete": "true", "path": "/x"})
    for change in (SetOption("ignore-delete", "false"), RemoveOption("ignore-delete")):
        _refused(change, schema=lossy, match="cannot go back to false")
    with pytest.raises(UnsupportedOperation, match="cannot be changed"):
        apply_changes(lossy, [RemoveOption("path")], 99, has_snapshots=False)
    emptied = apply_changes(lossy, [RemoveOption("ignore-delete")], 99, has_snapshots=False)
    assert emptied is not None
    assert "ignore-delete" not in emptied.options
    fresh = SCHEMA.with_options({"bucket": "2", "deletion-vectors.modifiable": "true"})
    assert _after(SetOption("deletion-vectors.enabled", "true"), schema=fresh).options["deletion-vectors.enabled"]
    assert _after(SetOption("ignore-delete", "true"), schema=fresh).options["ignore-delete"] == "true"
