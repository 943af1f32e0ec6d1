"""Answers about the server and its types: SqlInfo, and JDBC's type info."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from forebay.base.errors import NotFound

_VALUE = pa.dense_union(
    [
        pa.field("string_value", pa.string()),
        pa.field("bool_value", pa.bool_()),
        pa.field("bigint_value", pa.int64()),
        pa.field("int32_bitmask", pa.int32()),
        pa.field("string_list", pa.list_(pa.string())),
        pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
    ]
)
SQL_INFO = pa.schema([pa.field("info_name", pa.uint32(), False), pa.field("value", _VALUE)])

_STRING, _BOOL, _BIGINT, _BITMASK, _STRINGS = range(5)


def sql_info(numbers: Sequence[int], read_only: bool) -> pa.Table:
    """The facts of these numbers, or all. Raises `NotFound` for a number that is none of SqlInfo's.

    Numbers of JDBC's (500 and above) are answered where the answer is known; a client has its own for others.
    """
    facts = _facts(read_only)
    requested = list(numbers) or list(facts)
    unknown = [number for number in requested if number not in facts and not 500 <= number < 600]
    if unknown:
        raise NotFound(f"there is no SqlInfo of number {unknown[0]}")
    entries = [(number, facts[number]) for number in requested if number in facts]
    children: list[list[Any]] = [[] for _ in range(_VALUE.num_fields)]
    kinds, offsets = list[int](), list[int]()
    for _, value in entries:
        kind = _kind(value)
        kinds.append(kind)
        offsets.append(len(children[kind]))
        children[kind].append(int(value) if kind == _BITMASK else value)
    values = pa.UnionArray.from_dense(
        pa.array(kinds, pa.int8()),
        pa.array(offsets, pa.int32()),
        [pa.array(rows, _VALUE.field(i).type) for i, rows in enumerate(children)],
        [_VALUE.field(i).name for i in range(_VALUE.num_fields)],
    )
    return pa.table([pa.array([number for number, _ in entries], pa.uint32()), values], schema=SQL_INFO)


class _Bits(int):
    """Flags, or a value of an enumeration."""


def _kind(value: Any) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, _Bits):
        return _BITMASK
    if isinstance(value, int):
        return _BIGINT
    return _STRING if isinstance(value, str) else _STRINGS


def _facts(read_only: bool) -> Mapping[int, Any]:
    from forebay.base.version import __version__

    varying = {0: "Forebay", 1: __version__, 2: pa.__version__, 3: read_only, 10: not read_only}
    return dict(sorted({**varying, **_UNLIMITED, **_FACTS}.items()))


_UNLIMITED: dict[int, Any] = dict.fromkeys(range(541, 562), 0)
"""The greatest lengths and numbers of things, which have no limit."""

_FACTS: dict[int, Any] = {
    4: True,  # SQL
    5: False,  # Substrait
    8: _Bits(0),  # transactions: none
    9: True,  # CancelFlightInfo
    11: False,  # ingestion in transactions
    100: 0,  # a statement has no time-out of its own
    101: 0,
    500: False,  # CREATE CATALOG
    501: False,  # CREATE SCHEMA
    502: False,  # CREATE TABLE
    503: _Bits(1),  # names are case-insensitive
    504: '"',
    505: _Bits(1),
    506: True,  # all tables can be read
    507: _Bits(3),  # nulls are sorted at the end
    508: ["ANTI", "ASOF", "DESCRIBE", "PIVOT", "QUALIFY", "SEMI", "SUMMARIZE", "UNPIVOT"],
    509: ["ABS", "CEIL", "FLOOR", "LN", "LOG", "MOD", "POWER", "ROUND", "SIGN", "SQRT", "TRUNC"],
    510: ["CONCAT", "LENGTH", "LOWER", "LTRIM", "REPLACE", "RTRIM", "SUBSTRING", "TRIM", "UPPER"],
    511: ["COALESCE", "IFNULL", "NULLIF"],
    512: ["DATE_DIFF", "DATE_PART", "DATE_TRUNC", "EXTRACT", "NOW", "STRFTIME"],
    513: "\\",
    514: "",
    515: True,  # aliases of columns
    516: True,  # NULL + x is NULL
    518: True,  # aliases of tables
    519: False,
    520: True,  # expressions in ORDER BY
    521: True,
    522: _Bits(3),  # GROUP BY of columns that are not selected
    523: True,  # LIKE ... ESCAPE
    524: True,  # NOT NULL
    525: _Bits(3),
    526: _Bits(1),
    527: False,
    528: _Bits(4),  # FULL OUTER JOIN
    529: "schema",
    530: "",
    531: "catalog",
    532: True,  # a catalog stands before the schema
    536: False,  # SELECT FOR UPDATE
    537: False,  # procedures
    538: _Bits(15),  # subqueries everywhere
    539: True,
    540: _Bits(3),  # UNION, UNION ALL
    556: True,
    557: 1 << 20,
    562: 0,  # default isolation: none, as there are no transactions
    563: False,
    564: _Bits(0),
    565: False,
    566: False,
    567: _Bits(2),  # result sets are read forward
    568: _Bits(0),
    569: _Bits(2),
    570: _Bits(0),
    571: _Bits(0),
    572: True,  # a batch of parameters is one change
    573: False,
    574: False,
    575: False,
    576: False,
}


TYPE_INFO = pa.schema(
    [
        pa.field("type_name", pa.string(), False),
        pa.field("data_type", pa.int32(), False),
        pa.field("column_size", pa.int32()),
        pa.field("literal_prefix", pa.string()),
        pa.field("literal_suffix", pa.string()),
        pa.field("create_params", pa.list_(pa.field("item", pa.string(), False))),
        pa.field("nullable", pa.int32(), False),
        pa.field("case_sensitive", pa.bool_(), False),
        pa.field("searchable", pa.int32(), False),
        pa.field("unsigned_attribute", pa.bool_()),
        pa.field("fixed_prec_scale", pa.bool_(), False),
        pa.field("auto_increment", pa.bool_()),
        pa.field("local_type_name", pa.string()),
        pa.field("minimum_scale", pa.int32()),
        pa.field("maximum_scale", pa.int32()),
        pa.field("sql_data_type", pa.int32(), False),
        pa.field("datetime_subcode", pa.int32()),
        pa.field("num_prec_radix", pa.int32()),
        pa.field("interval_precision", pa.int32()),
    ]
)

# name, JDBC's number, size, quote before, quote after, parameters of the type
_TYPES = (
    ("TINYINT", -6, 3, None, None, None),
    ("BIGINT", -5, 19, None, None, None),
    ("BYTES", -3, 2**31 - 1, "'", "'::BLOB", None),
    ("BINARY", -2, 2**31 - 1, "'", "'::BLOB", ["length"]),
    ("CHAR", 1, 2**31 - 1, "'", "'", ["length"]),
    ("DECIMAL", 3, 38, None, None, ["precision", "scale"]),
    ("INT", 4, 10, None, None, None),
    ("SMALLINT", 5, 5, None, None, None),
    ("FLOAT", 7, 24, None, None, None),
    ("DOUBLE", 8, 53, None, None, None),
    ("STRING", 12, 2**31 - 1, "'", "'", None),
    ("BOOLEAN", 16, 1, None, None, None),
    ("DATE", 91, 10, "DATE '", "'", None),
    ("TIME", 92, 18, "TIME '", "'", ["precision"]),
    ("TIMESTAMP", 93, 29, "TIMESTAMP '", "'", ["precision"]),
    ("TIMESTAMP_LTZ", 2014, 35, "TIMESTAMPTZ '", "'", ["precision"]),
)


def type_info(number: int | None) -> pa.Table:
    """The types of columns, or those of one of JDBC's numbers."""
    rows = [
        {
            "type_name": name,
            "data_type": jdbc,
            "column_size": size,
            "literal_prefix": before,
            "literal_suffix": after,
            "create_params": parameters,
            "nullable": 1,
            "case_sensitive": jdbc in (1, 12),
            "searchable": 3,
            "unsigned_attribute": False,
            "fixed_prec_scale": False,
            "auto_increment": False,
            "local_type_name": name,
            "minimum_scale": 0 if jdbc == 3 else None,
            "maximum_scale": 38 if jdbc == 3 else None,
            "sql_data_type": 9 if jdbc in (91, 92, 93) else jdbc,
            "datetime_subcode": {91: 1, 92: 2, 93: 3}.get(jdbc),
            "num_prec_radix": 10 if jdbc in (-6, -5, 3, 4, 5) else 2 if jdbc in (7, 8) else None,
            "interval_precision": None,
        }
        for name, jdbc, size, before, after, parameters in _TYPES
        if number is None or jdbc == number
    ]
    return pa.Table.from_pylist(rows, schema=TYPE_INFO)
