"""Spark's filters as predicates."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from forebay.base.errors import InvalidRequest
from forebay.metadata import types
from forebay.metadata.predicate import Compound, CompoundFunction, Leaf, LeafFunction, Predicate, col
from forebay.metadata.table import Column, PartitionInfo
from forebay.spark.filters import key_values, matching_partitions, predicate_of, to_predicate, to_text
from forebay.spark.jvm.expressions import Expression, Function, Literal, Literals, Reference

COLUMNS = [
    Column("i", types.int_()),
    Column("l", types.bigint()),
    Column("f", types.float_()),
    Column("s", types.string()),
    Column("b", types.boolean()),
    Column("d", types.date()),
    Column("ts", types.timestamp(6)),
    Column("ltz", types.timestamp_ltz(6)),
    Column("nanos", types.timestamp(9)),
    Column("dec", types.decimal(10, 2)),
    Column("bin", types.bytes_()),
    Column("t", types.time(3)),
    Column("arr", types.array(types.int_())),
]

ID_, S = Reference(("i",)), Reference(("s",))


def integer(value: object) -> Literal:
    return Literal(str(value), '"integer"')


def text(value: str) -> Literal:
    return Literal("'" + value.replace("'", "''") + "'", '"string"')


A, B = Function("=", (ID_, integer(1))), Function("=", (S, text("x")))


@pytest.mark.parametrize(
    ("expression", "predicate"),
    [
        (Function("=", (ID_, integer(5))), col("i") == 5),
        (Function("<>", (ID_, integer(5))), col("i") != 5),
        (Function("<", (integer(5), ID_)), col("i") > 5),
        (Function(">=", (integer(5), ID_)), col("i") <= 5),
        (Function("<=>", (ID_, integer(5))), col("i") == 5),
        (Function("<=>", (ID_, integer("null"))), col("i").is_null()),
        (Function("NOT", (Function("<=>", (ID_, integer(5))),)), col("i").is_null() | (col("i") != 5)),
        (Function("IN", (ID_, Literals("1, 2, null", '"integer"'))), col("i").is_in([1, 2])),
        (Function("NOT", (Function("IN", (ID_, Literals("1, 2", '"integer"'))),)), col("i").not_in([1, 2])),
        (Function("IN", (S, Literals("'a', 'it''s, [x]', ''", '"string"'))), col("s").is_in(["a", "it's, [x]", ""])),
        (Function("IS_NULL", (Reference(("arr",)),)), col("arr").is_null()),
        (Function("NOT", (Function("IS_NULL", (ID_,)),)), col("i").is_not_null()),
        (Function("STARTS_WITH", (S, text("a%"))), col("s").starts_with("a%")),
        (Function("ENDS_WITH", (S, text("z"))), col("s").ends_with("z")),
        (Function("CONTAINS", (S, text("'"))), col("s").contains("'")),
        (Function("NOT", (Function("AND", (A, B)),)), (col("i") != 1) | (col("s") != "x")),
        (Function("NOT", (Function("OR", (A, Function("NOT", (B,)))),)), (col("i") != 1) & (col("s") == "x")),
        (Function("=", (Reference(("b",)), Literal("true", '"boolean"'))), col("b") == True),  # noqa: E712
        (Function("=", (Reference(("d",)), Literal("19723", '"date"'))), col("d") == dt.date(2024, 1, 1)),
        (
            Function(">", (Reference(("ltz",)), Literal("1700000000000001", '"timestamp"'))),
            col("ltz") > dt.datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=dt.UTC),
        ),
        (
            Function(">", (Reference(("ts",)), Literal("-1", '"timestamp_ntz"'))),
            col("ts") > dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
        ),
        (Function("=", (Reference(("dec",)), Literal("1.50", '"decimal(10,2)"'))), col("dec") == Decimal("1.50")),
        (Function("=", (Reference(("bin",)), Literal("0x00FF", '"binary"'))), col("bin") == b"\x00\xff"),
        (Function("=", (Reference(("f",)), Literal("0.1", '"float"'))), col("f") == 0.10000000149011612),
        (Function("=", (Reference(("t",)), Literal("3600000000000", '"time(6)"'))), col("t") == dt.time(1)),
        (Function(">", (ID_, Literal("3.5", '"double"'))), col("i") > 3),
    ],
    ids=str,
)
def test_a_filter_becomes_the_predicate_that_means_the_same(expression: Expression, predicate: Predicate) -> None:
    assert to_predicate(expression, COLUMNS) == predicate


@pytest.mark.parametrize(
    "expression",
    [
        Function("=", (Reference(("st", "a")), integer(1))),
        Function("=", (Reference(("nowhere",)), integer(1))),
        Function("=", (ID_, S)),
        Function("=", (Function("UPPER", (S,)), text("x"))),
        Function("ALWAYS_FALSE"),
        Function("NOT", (Function("STARTS_WITH", (S, text("a"))),)),
        Function("OR", (A, Function("UPPER", (S,)))),
        Function("=", (S, Literal("'a'", '"string collate UTF8_LCASE"'))),
        Function("=", (Reference(("nanos",)), Literal("5", '"timestamp_ntz"'))),
        Function("=", (Reference(("arr",)), integer(1))),
        Function("=", (Reference(("d",)), Literal("99999999", '"date"'))),
        Function("=", (Reference(("t",)), Literal("1", '"time(9)"'))),
        Function("=", (Reference(("l",)), Literal("x", '"long"'))),
        Function("=", (Reference(("b",)), Literal("5", '"boolean"'))),
        Function("IN", (S, Literals("'a' 'b'", '"string"'))),
        Function("IN", (ID_, Literals("1; 2", '"integer"'))),
        Function("=", (Reference(("arr",)), Literal("x", '{"type":"array"}'))),
        ID_,
    ],
    ids=str,
)
def test_what_cannot_be_said_exactly_stays_with_spark(expression: Expression) -> None:
    assert to_predicate(expression, COLUMNS) is None


def test_a_value_that_the_column_cannot_have_matches_nothing() -> None:
    predicate = to_predicate(Function("=", (ID_, Literal("3.5", '"double"'))), COLUMNS)
    assert predicate == Leaf(LeafFunction.IN, "i", ())


def test_explain_shows_filters_as_people_write_them() -> None:
    predicate = ((col("d") >= dt.date(2024, 1, 1)) & col("s").is_in(["a", "b"])) | col("i").is_null()
    assert to_text(predicate) == "((d >= 2024-01-01 AND s IN ('a', 'b')) OR i IS NULL)"
    assert to_text(col("i").is_in(range(100))).endswith("9, ...)")


# ---- partitions and keys --------------------------------------------------------------------------------------------

PARTITION_TYPES: list[tuple[types.DataType, list[str], Any, list[int]]] = [
    (types.string(), ["a", "b", "c"], "b", [1]),
    (types.boolean(), ["true", "false"], False, [1]),
    (types.tinyint(), ["1", "-2"], -2, [1]),
    (types.smallint(), ["1", "-2"], 1, [0]),
    (types.int_(), ["10", "9", "-1"], 9, [1]),
    (types.bigint(), ["10", "9"], 10, [0]),
    (types.float_(), ["0_5", "NaN"], 0.5, [0]),
    (types.double(), ["1_25", "-Inf"], float("-inf"), [1]),
    (types.bytes_(), ["00ff", "0a"], b"\x0a", [1]),
    (types.binary(2), ["00ff", "0a0b"], b"\x0a\x0b", [1]),
    (types.date(), ["2024-01-01", "2024-01-02"], dt.date(2024, 1, 2), [1]),
    (types.time(3), ["10-11-12_345", "00-00-00_000"], dt.time(10, 11, 12, 345000), [0]),
    (types.timestamp(6), ["2024-01-01-00-00-00_5"], dt.datetime(2024, 1, 1, 0, 0, 0, 500000), [0]),
    (types.timestamp_ltz(6), ["2024-01-01-00-00-00_"], dt.datetime(2024, 1, 1, tzinfo=dt.UTC), [0]),
]


@pytest.mark.parametrize(("t", "texts", "value", "expected"), PARTITION_TYPES, ids=lambda v: str(v)[:30])
def test_partitions_are_pruned_by_keys_of_every_type(
    t: types.DataType, texts: list[str], value: Any, expected: list[int]
) -> None:
    partitions = [PartitionInfo(number, (("k", text),)) for number, text in enumerate(texts)]
    keys = [Column("k", t.not_null())]
    found = matching_partitions(partitions, keys, [col("k") == value])
    assert [partition.partition_id for partition in found] == expected
    others = matching_partitions(partitions, keys, [col("k") != value])
    assert sorted(p.partition_id for p in [*found, *others]) == list(range(len(texts)))


def test_several_filters_on_several_partition_keys_hold_together() -> None:
    partitions = [
        PartitionInfo(n, (("dt", f"2024-01-0{n % 3 + 1}"), ("region", "EU" if n % 2 else "US"))) for n in range(6)
    ]
    keys = [Column("dt", types.date()), Column("region", types.string())]
    found = matching_partitions(partitions, keys, [col("dt") > dt.date(2024, 1, 1), col("region") == "EU"])
    assert [p.partition_id for p in found] == [1, 5]
    assert matching_partitions(partitions, keys, [col("region") == "nowhere"]) == []
    assert matching_partitions(partitions, keys, []) == partitions


def test_keys_are_found_where_filters_fix_every_key_column() -> None:
    by_list = [col("a").is_in([1, 2, 2]), col("b") == "x", col("a").is_not_null(), col("c") > 5]
    assert key_values(by_list, ("a", "b"), 10) == ([(1, "x"), (2, "x")], [col("c") > 5])
    assert key_values([col("a") == 1, col("a").is_in([1, 2])], ("a",), 10) == ([(1,)], [])
    assert key_values([col("a") == 1, col("a") == 2], ("a",), 10) == ([], [])
    assert key_values([col("a") == 1], ("a", "b"), 10) is None
    assert key_values([col("a") >= 1, col("a") <= 1], ("a",), 10) is None
    assert key_values([col("a").is_in(range(11))], ("a",), 10) is None


# ---- filters as text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "predicate"),
    [
        ("i = 5", col("i") == 5),
        ("5 < i", col("i") > 5),
        ("i <> -5 and s = 'it\\'s'", (col("i") != -5) & (col("s") == "it's")),
        ("i=1 OR i=2 AND s='x'", (col("i") == 1) | ((col("i") == 2) & (col("s") == "x"))),
        ("(i=1 OR i=2) AND s='x'", ((col("i") == 1) | (col("i") == 2)) & (col("s") == "x")),
        ("NOT (i = 1 OR s IS NULL)", (col("i") != 1) & col("s").is_not_null()),
        ("`i` IN (1, 2)", col("i").is_in([1, 2])),
        ("i NOT IN (1, 2)", col("i").not_in([1, 2])),
        ("s LIKE 'a%'", col("s").starts_with("a")),
        ("s LIKE '%a'", col("s").ends_with("a")),
        ("s LIKE '%a%'", col("s").contains("a")),
        ("s LIKE 'a'", col("s") == "a"),
        ("i BETWEEN 1 AND 5", (col("i") >= 1) & (col("i") <= 5)),
        ("i NOT BETWEEN 1 AND 5", (col("i") < 1) | (col("i") > 5)),
        ("b", col("b") == True),  # noqa: E712
        ("NOT b", col("b") != True),  # noqa: E712
        ("d = DATE '2024-01-15'", col("d") == dt.date(2024, 1, 15)),
        ("ts < TIMESTAMP '2024-01-15 10:00:00'", col("ts") < dt.datetime(2024, 1, 15, 10)),
        ("ltz < TIMESTAMP '2024-01-15T10:00:00Z'", col("ltz") < dt.datetime(2024, 1, 15, 10, tzinfo=dt.UTC)),
        ("dec > 1.25", col("dec") > Decimal("1.25")),
        ("f > 1e3", col("f") > 1000.0),
        ("bin = X'00ff'", col("bin") == b"\x00\xff"),
        ("i <=> NULL", col("i").is_null()),
    ],
)
def test_filters_are_read_from_text(text: str, predicate: Predicate) -> None:
    assert predicate_of(text, COLUMNS) == predicate


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"is not one condition"),
        ("i = = 5", r"is not SQL"),
        ("i = 5 OR", r"is not SQL"),
        ("i = 5 s = 'x'", r"is not SQL: .*Unexpected token"),
        ("i = 'unfinished", r"is not SQL: .*unfinishe"),
        ("i IN ()", r"'i IN \(\)' cannot be part of it"),
        ("(i = 5", r"is not SQL: Expecting \)"),
        ("nowhere = 5", r"no column 'nowhere' to filter on; the columns are \['i', 'l'"),
        ("i = 'x'", r"column 'i' is INT, and 'x' is not"),
        ("s LIKE 'a_b'", r"LIKE takes .*, not 'a_b'"),
        ("NOT s LIKE 'a%'", r"NOT STARTS_WITH on column 's' is not supported"),
        ("d = DATE '2024-13-01'", r"column 'd' is DATE, and '2024-13-01' is not"),
        ("bin = X'0'", r"column 'bin' is BYTES, and '0' is not"),
        ("NOT " * 5000 + "b", r"nested too deeply"),
        ("(" * 5000 + "i = 1" + ")" * 5000, r"nested too deeply"),
        ("s LIKE 5", r"cannot be part of it"),
        ("i NOT 5", r"is not SQL"),
        (
            "nanos > TIMESTAMP '2024-01-15 10:00:00'",
            r"column 'nanos' of type TIMESTAMP\(9\) can only be tested by IS NULL",
        ),
        ("i = 5 OR arr = 1", r"column 'arr'"),
        ("i + 1 = 2", r"cannot be part of it"),
    ],
)
def test_a_bad_filter_is_refused_where_it_goes_wrong(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        predicate_of(text, COLUMNS)


def test_predicates_of_several_children_are_flat() -> None:
    predicate = predicate_of("i = 1 OR i = 2 OR i = 3", COLUMNS)
    assert isinstance(predicate, Compound)
    assert (predicate.function, len(predicate.children)) == (CompoundFunction.OR, 3)
