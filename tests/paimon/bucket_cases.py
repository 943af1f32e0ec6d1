"""Bucket keys, and their buckets in Java Paimon 1.4.2; the exam has Java confirm each."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa

from forebay.metadata import types
from forebay.metadata.types import DataType
from forebay.paimon.format.arrow import arrow_type
from forebay.paimon.format.types_json import parse_type
from forebay.paimon.table import Table

MANY = (1 << 31) - 1
"""So many buckets show nearly the whole hash."""


class Case(NamedTuple):
    """A bucket function, the columns of a bucket key, and (values of a key, its bucket)."""

    function: str
    total: int
    columns: list[DataType]
    buckets: list[tuple[tuple[Any, ...], int]]


def _hive(column: DataType, *pairs: tuple[Any, int]) -> Case:
    return Case("hive", MANY, [column], [((value,), bucket) for value, bucket in pairs])


def _mod(column: DataType, total: int, *pairs: tuple[Any, int]) -> Case:
    return Case("mod", total, [column], [((value,), bucket) for value, bucket in pairs])


CASES: dict[str, Case] = {
    "mod int": _mod(
        types.int_(),
        7,
        (0, 0),
        (1, 1),
        (-1, 6),
        (6, 6),
        (7, 0),
        (-7, 0),
        (-8, 6),
        (2**31 - 1, 1),
        (-(2**31), 5),
        (None, 0),
    ),
    "mod bigint": _mod(
        types.bigint(),
        5,
        (0, 0),
        (17, 2),
        (-3, 2),
        (5, 0),
        (2**31, 3),
        (-(2**31) - 1, 1),
        (2**63 - 1, 2),
        (-(2**63), 2),
        (None, 0),
    ),
    "mod bigint, many": _mod(
        types.bigint(),
        MANY,
        (-1, 2147483646),
        (2**31 - 1, 0),
        (2**31, 1),
        (-(2**31), 2147483646),
        (2**63 - 1, 1),
        (-(2**63), 2147483645),
    ),
    "boolean": _hive(types.boolean(), (True, 1), (False, 0), (None, 0)),
    "tinyint": _hive(types.tinyint(), (-128, 2147483520), (-1, 0), (0, 0), (127, 127), (None, 0)),
    "smallint": _hive(types.smallint(), (-(2**15), 2147450880), (-1, 0), (0, 0), (2**15 - 1, 32767), (None, 0)),
    "int": _hive(types.int_(), (-(2**31), 0), (-1, 0), (0, 0), (7, 7), (2**31 - 1, 0), (None, 0)),
    "bigint": _hive(
        types.bigint(),
        (-(2**63), 0),
        (-(2**32), 0),
        (-1, 0),
        (0, 0),
        (7, 7),
        (2**31, 0),
        (2**32 + 5, 4),
        (2**63 - 1, 0),
        (None, 0),
    ),
    "float": _hive(
        types.float_(),
        (0.0, 0),
        (-0.0, 0),
        (1.5, 1069547520),
        (-1.5, 1069547520),
        (math.nan, 2143289344),
        (math.inf, 2139095040),
        (-math.inf, 2139095040),
        (None, 0),
    ),
    "double": _hive(
        types.double(),
        (0.0, 0),
        (-0.0, 0),
        (1.5, 1073217536),
        (-2.5, 1074003968),
        (0.1, 639631363),
        (math.nan, 2146959360),
        (math.inf, 2146435072),
        (-math.inf, 2146435072),
        (5e-324, 1),
        (None, 0),
    ),
    "string": _hive(
        types.string(),
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("é", 2147481670),
        ("日本語 text", 629242323),
        ("😀", 2146910423),
        ("x" * 40, 847293440),
        (None, 0),
    ),
    "char": _hive(types.char(3), ("abc", 96354), ("é12", 2145584359), (None, 0)),
    "varchar": _hive(parse_type("VARCHAR(60)"), ("", 0), ("under_score %", 1614641072), (None, 0)),
    "bytes": _hive(
        types.bytes_(),
        (b"", 0),
        (b"\x01\x02\x03", 1026),
        (b"\xff\x80\x7f", 2147478846),
        (bytes(range(256)), 1777795200),
        (None, 0),
    ),
    "binary": _hive(types.binary(4), (b"\xff\x00\x00\x80", 2147453729), (None, 0)),
    "date": _hive(
        types.date(),
        (datetime.date(1970, 1, 1), 0),
        (datetime.date(1969, 12, 31), 0),
        (datetime.date(2026, 7, 1), 20635),
        (datetime.date(1, 1, 1), 2146764486),
        (datetime.date(9999, 12, 31), 2932896),
        (None, 0),
    ),
    "time": _hive(
        types.time(3), (datetime.time(0, 0, 0, 0), 0), (datetime.time(23, 59, 59, 999000), 86399999), (None, 0)
    ),
    "decimal, compact": _hive(
        types.decimal(10, 4),
        (Decimal("0.0000"), 0),
        (Decimal("12.3400"), 38256),
        (Decimal("-12.3400"), 2147445396),
        (Decimal("100.0000"), 3100),
        (Decimal("0.0001"), 35),
        (Decimal("-0.0001"), 2147483621),
        (Decimal("999999.9999"), 762356583),
        (Decimal("-999999.9999"), 1385127073),
        (None, 0),
    ),
    "decimal, 18 digits": _hive(
        types.decimal(18, 0),
        (Decimal("0"), 0),
        (Decimal("1000"), 31000),
        (Decimal("-1000"), 2147452648),
        (Decimal("999999999999999999"), 1571411412),
        (Decimal("-999999999999999999"), 576072236),
        (Decimal("4294967296"), 961),
        (None, 0),
    ),
    "decimal, large": _hive(
        types.decimal(38, 6),
        (Decimal("0.000000"), 0),
        (Decimal("1.500000"), 466),
        (Decimal("-1.500000"), 2147483184),
        (Decimal("18446744073709551616.000000"), 29791),
        (Decimal("-18446744073709551616.000000"), 2147453857),
        (Decimal("79228162514264337593543950336.000000"), 923521),
        (Decimal("99999999999999999999999999999999.999999"), 1720285268),
        (Decimal("-99999999999999999999999999999999.999999"), 427198392),
        (Decimal("12345678901234567890123456789012.345600"), 2095013690),
        (None, 0),
    ),
    "decimal, all fraction": _hive(
        types.decimal(38, 38),
        (Decimal("0.00000000000000000000000000000000000000"), 0),
        (Decimal("0.00000000000000000000000000000000000001"), 69),
        (Decimal("-0.50000000000000000000000000000000000000"), 2147483494),
        (Decimal("0.99999999999999999999999999999999999999"), 1720285300),
    ),
    "several": Case(
        "hive",
        MANY,
        [types.int_(), types.string(), types.bytes_(), types.decimal(10, 4)],
        [
            ((7, "hello", b"\x01\x02\x03", Decimal("12.3400")), 805989529),
            ((-7, None, b"\xff", Decimal("-1.0000")), 2147275049),
            ((None, None, None, None), 0),
            ((None, "é", None, None), 2145582790),
            ((2**31 - 1, "x" * 40, None, Decimal("0.0000")), 352663457),
        ],
    ),
    "several, few buckets": Case(
        "hive",
        8,
        [types.bigint(), types.string()],
        [
            ((7, "hello"), 3),
            ((-7, "é"), 0),
            ((None, "a"), 1),
            ((3, None), 5),
            ((2**63 - 1, ""), 0),
            ((-(2**63), "日本語"), 2),
        ],
    ),
}


def columns_of(case: Case) -> dict[str, DataType]:
    """The columns of a table for `case`: an id, and the bucket key."""
    return {"id": types.int_(), **{f"k{i}": t for i, t in enumerate(case.columns)}}


def options_of(case: Case) -> dict[str, str]:
    keys = ",".join(f"k{i}" for i in range(len(case.columns)))
    return {"bucket": str(case.total), "bucket-key": keys, "bucket-function.type": case.function}


def data_of(case: Case) -> pa.Table:
    """A row for each key, numbered by `id`."""
    rows = [{"id": i, **{f"k{n}": v for n, v in enumerate(key)}} for i, (key, _) in enumerate(case.buckets)]
    fields = [pa.field(name, arrow_type(t)) for name, t in columns_of(case).items()]
    return pa.Table.from_pylist(rows, schema=pa.schema(fields))


def buckets_by_id(table: Table) -> dict[int, int]:
    """The bucket that each row of `table` lies in."""
    reader = table.split_reader()
    return {i: s.bucket for s in table.scan().plan() for b in reader.read(s) for i in b.column("id").to_pylist()}
