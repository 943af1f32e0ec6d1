"""Views in a Hive Metastore, as Java Paimon writes and reads them: descriptions of type VIRTUAL_VIEW with a query.

The metastore keeps one query, so that a view here has no dialects. Options and comment are the parameters. Columns have
types of Hive, which has fewer: where a type is not the same one when it is read back, the columns are also in parameter
`forebay.view.fields`, as Paimon's JSON. Other software that changes the columns leaves that parameter as it is; it
counts as long as its types are those of the columns in Hive.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from forebay.base.errors import CorruptData, UnsupportedOperation
from forebay.hive.metastore import Metastore, current_user
from forebay.hive.tables import described_columns, hive_type
from forebay.metadata import types
from forebay.metadata.types import DataType
from forebay.paimon.catalog.definition import COMMENT, new_fields
from forebay.paimon.catalog.views import View
from forebay.paimon.format.schema import DataField
from forebay.paimon.format.schema_json import format_field, parse_field

_VIEW = "VIRTUAL_VIEW"
_FIELDS = "forebay.view.fields"
_OF_METASTORE = frozenset({"transient_lastDdlTime", _FIELDS})
"""Parameters that are no options."""

_INPUT_FORMAT = "org.apache.hadoop.mapred.SequenceFileInputFormat"
_OUTPUT_FORMAT = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
_SERDE = "org.apache.hadoop.hive.serde2.MetadataTypedColumnsetSerDe"
"""The storage classes that Hive writes for views, which have no files."""

_TYPES: dict[str, DataType] = {
    "boolean": types.boolean(),
    "tinyint": types.tinyint(),
    "smallint": types.smallint(),
    "int": types.int_(),
    "bigint": types.bigint(),
    "float": types.float_(),
    "double": types.double(),
    "string": types.string(),
    "binary": types.bytes_(),
    "date": types.date(),
    "timestamp": types.timestamp(),
    "timestamp with local time zone": types.timestamp_ltz(),
}
_TOKEN = re.compile(r"[<>,:()]|[^<>,:()]+")


def is_view(table: Any) -> bool:
    """Whether a description is that of a view, of whichever software."""
    return bool(table.tableType == _VIEW)


def described(metastore: Metastore, view: View, seconds: int) -> Any:
    """The description of a view, created at `seconds` since 1970. Raises `UnsupportedOperation` for dialects."""
    others = [name for name, query in view.dialects.items() if query != view.query]
    if others:
        raise UnsupportedOperation(
            f"view {view.name} has another query for {', '.join(others)}, and a Hive Metastore keeps one query of a "
            "view; create it without dialects"
        )
    parameters = dict(view.options)
    if view.comment is not None:
        parameters[COMMENT] = view.comment
    if _of_hive(view.fields) != view.fields:
        parameters[_FIELDS] = json.dumps([format_field(f) for f in view.fields])
    database, _, name = view.name.partition(".")
    new = metastore.new
    return new(
        "Table",
        tableName=name,
        dbName=database,
        owner=current_user(),
        createTime=seconds,
        lastAccessTime=seconds,
        retention=0,
        partitionKeys=[],
        parameters=parameters,
        tableType=_VIEW,
        viewOriginalText=view.query,
        viewExpandedText=view.query,
        sd=new(
            "StorageDescriptor",
            cols=described_columns(metastore, view.fields),
            inputFormat=_INPUT_FORMAT,
            outputFormat=_OUTPUT_FORMAT,
            compressed=False,
            numBuckets=-1,
            serdeInfo=new("SerDeInfo", serializationLib=_SERDE, parameters={}),
            bucketCols=[],
            sortCols=[],
            parameters={},
        ),
    )


def view_of(name: str, table: Any) -> View:
    """The view `name` with this description."""
    parameters = dict(table.parameters or {})
    options = {key: value for key, value in parameters.items() if key not in _OF_METASTORE and key != COMMENT}
    metastore_fields = new_fields([DataField(-1, c.name, from_hive_type(c.type), c.comment) for c in table.sd.cols])
    return View(
        name, _exact(name, parameters.get(_FIELDS), metastore_fields),
        table.viewExpandedText or table.viewOriginalText or "",
        comment=parameters.get(COMMENT), options=options,
    )  # fmt: skip


def _exact(name: str, parameter: str | None, metastore_fields: tuple[DataField, ...]) -> tuple[DataField, ...]:
    """The columns in the parameter, if they are those that the metastore shows."""
    if parameter is None:
        return metastore_fields
    try:
        exact = tuple(parse_field(node) for node in json.loads(parameter))
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptData(f"parameter '{_FIELDS}' of view '{name}' has no columns: {type(e).__name__} {e}") from e
    is_same = [(f.name, f.type) for f in _of_hive(exact)] == [(f.name.lower(), f.type) for f in metastore_fields]
    return exact if is_same else metastore_fields


def _of_hive(fields: tuple[DataField, ...]) -> tuple[DataField, ...]:
    """The fields as they are read back from their types in Hive, which also writes names in lower case."""
    return new_fields([replace(f, name=f.name.lower(), type=from_hive_type(hive_type(f.type))) for f in fields])


def from_hive_type(text: str) -> DataType:
    """The type for the name of a Hive type. Raises `UnsupportedOperation` for one that Paimon does not have."""
    tokens = iter([*(token.strip() for token in _TOKEN.findall(text)), ""])
    try:
        data_type, after = _parsed(next(tokens), tokens)
    except (StopIteration, ValueError):
        data_type, after = None, ""
    if data_type is None or after:
        raise UnsupportedOperation(f"a view has a column of Hive's type '{text}', which Paimon does not have")
    return data_type


def _parsed(word: str, tokens: Iterator[str]) -> tuple[DataType | None, str]:
    """The type that begins with `word`, None if there is no such type, and the token after it."""
    word = word.lower()
    if word in _TYPES:
        return _TYPES[word], next(tokens)
    if word not in ("decimal", "char", "varchar", "array", "map", "struct"):
        return None, ""
    opening = next(tokens)
    if word == "decimal" and opening != "(":
        return types.decimal(10, 0), opening
    parts: list[tuple[str, DataType]] = []
    numbers: list[int] = []
    token = ","
    while token == ",":
        label = next(tokens)
        if opening == "(":
            numbers.append(int(label))
            token = next(tokens)
            continue
        if word == "struct":
            next(tokens)  # the colon
        inner, token = _parsed(next(tokens) if word == "struct" else label, tokens)
        if inner is None:
            return None, ""
        parts.append((label, inner))
    return _built(word, numbers, parts), next(tokens)


def _built(word: str, numbers: list[int], parts: list[tuple[str, DataType]]) -> DataType | None:
    match word, numbers, parts:
        case "decimal", [precision, *scale], []:
            return types.decimal(precision, *scale)
        case "char", [length], []:
            return types.char(length)
        case "varchar", [length], []:
            return replace(types.string(), length=length)
        case "array", [], [(_, element)]:
            return types.array(element)
        case "map", [], [(_, key), (_, value)]:
            return types.map_(key, value)
        case "struct", [], [*fields]:
            return types.row(*(types.field(name, t) for name, t in fields))
    return None
