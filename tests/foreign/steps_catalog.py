"""The differential script, first part: databases, tables, changes of tables, and partitions."""

from __future__ import annotations

import json
from typing import Any

import fluss
import pyarrow as pa
import raw_wire as wire
from exam_script import Exam, column, table_json


async def databases(exam: Exam) -> None:
    admin = await exam.admin()
    own = exam.database + "_own"
    described = fluss.DatabaseDescriptor(comment="a comment", custom_properties={"owner": "exam"})

    async def info() -> Any:
        found = await admin.get_database_info(own)
        descriptor = found.get_database_descriptor()
        return [descriptor.comment, descriptor.get_custom_properties(), found.created_time > 0]

    async def listed() -> Any:
        return own in await admin.list_databases()

    await exam.step("create", lambda: admin.create_database(own, described))
    await exam.step("create again", lambda: admin.create_database(own, described))
    await exam.step("create again, ignoring", lambda: admin.create_database(own, described, ignore_if_exists=True))
    await exam.step("exists", lambda: admin.database_exists(own))
    await exam.step("exists not", lambda: admin.database_exists("no_such_database"))
    await exam.step("listed", listed)
    await exam.step("info", info)
    await exam.step("info of a missing one", lambda: admin.get_database_info("no_such_database"))
    await exam.step("tables of a missing one", lambda: admin.list_tables("no_such_database"))
    await exam.step("tables of an empty one", lambda: admin.list_tables(own))
    await exam.step("drop a missing one", lambda: admin.drop_database("no_such_database"))
    await exam.step(
        "drop a missing one, ignoring", lambda: admin.drop_database("no_such_database", ignore_if_not_exists=True)
    )
    exam.create_table("t", table_json(), database=own)
    await exam.step("drop a full one", lambda: admin.drop_database(own, cascade=False))
    await exam.step("drop a full one with its tables", lambda: admin.drop_database(own, cascade=True))
    await exam.step("exists after the drop", lambda: admin.database_exists(own))
    for label, name in {
        "empty": "",
        "dot": ".",
        "two dots": "..",
        "inner dot": "a.b",
        "space": "a b",
        "slash": "a/b",
        "accent": "a\u00e9",
        "reserved prefix": "__a",
        "longest": "a" * 200,
        "too long": "a" * 201,
        "dashes": "a-b_c-1",
        "digits": "1",
    }.items():
        await exam.step(f"name: {label}", lambda name=name: admin.create_database(name, None, ignore_if_exists=True))
    await exam.step("json that is none", lambda: _create_database(exam, "bad_json", b"{no json"))
    await exam.step("json that is a list", lambda: _create_database(exam, "bad_json", b"[]"))
    await exam.step("empty json", lambda: _create_database(exam, "bad_json", b""))
    for name in ["a" * 200, "a-b_c-1", "1", "bad_json"]:
        await admin.drop_database(name, ignore_if_not_exists=True)


def _create_database(exam: Exam, name: str, document: bytes) -> None:
    exam.call("coordinator", 1001, [(1, name), (2, True), (3, document)])


_KEYED = [column("id"), column("day", "STRING"), column("n"), column("text", "STRING")]
_ARRAY = {"type": "ARRAY", "element_type": {"type": "INTEGER"}}
_MAP = {"type": "MAP", "key_type": {"type": "STRING", "nullable": False}, "value_type": {"type": "INTEGER"}}
_ROW = {"type": "ROW", "fields": [{"name": "x", "field_type": {"type": "INTEGER"}, "field_id": 9}]}

# Label -> arguments of `table_json`. What a server takes or refuses, and with which code.
_DEFINITIONS: dict[str, dict[str, Any]] = {
    "log table": {},
    "log table without a bucket count": {"bucket_count": None},
    "log table with a bucket key": {"bucket_key": ["id"], "bucket_count": 3},
    "primary-key table": {"columns": _KEYED, "primary_key": ["id"]},
    "primary-key table, bucket key a part": {"columns": _KEYED, "primary_key": ["id", "n"], "bucket_key": ["id"]},
    "partitioned log table": {"columns": _KEYED, "partition_key": ["day"]},
    "partitioned primary-key table": {
        "columns": _KEYED,
        "primary_key": ["id", "day"],
        "partition_key": ["day"],
        "bucket_key": ["id"],
    },
    "no column": {"columns": [], "columns_override": []},
    "the same column twice": {"columns": [column("id"), column("id")]},
    "column names that differ by case": {"columns": [column("id"), column("ID")]},
    "empty column name": {"columns": [column("")]},
    "column name with a space": {"columns": [column("a b")]},
    "column name with two underscores": {"columns": [column("__a")]},
    **{
        f"reserved column {name}": {"columns": [column("id"), column(name)]}
        for name in ["__offset", "__timestamp", "__bucket", "_change_type", "_log_offset", "_commit_timestamp"]
    },
    "column ids missing on one": {"columns": [column("a", id=0), column("b")]},
    "column ids equal": {"columns": [column("a", id=0), column("b", id=0)]},
    "highest column id too small": {"columns": [column("a", id=0), column("b", id=5)], "highest_field_id": 1},
    "unknown type": {"columns": [column("a", "BANANA")]},
    "char of length 0": {"columns": [column("a", {"type": "CHAR", "length": 0})]},
    "binary of length 0": {"columns": [column("a", {"type": "BINARY", "length": 0})]},
    "decimal of 39 digits": {"columns": [column("a", {"type": "DECIMAL", "precision": 39, "scale": 0})]},
    "decimal with scale above precision": {"columns": [column("a", {"type": "DECIMAL", "precision": 3, "scale": 4})]},
    "timestamp of precision 10": {"columns": [column("a", {"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "precision": 10})]},
    "key of a missing column": {"columns": _KEYED, "primary_key": ["nope"]},
    "key column twice": {"columns": _KEYED, "primary_key": ["id", "id"]},
    "empty key": {"columns": _KEYED, "primary_key": []},
    "key of an array": {"columns": [*_KEYED, column("a", _ARRAY)], "primary_key": ["a"]},
    "key of a map": {"columns": [*_KEYED, column("a", _MAP)], "primary_key": ["a"]},
    "key of a row": {"columns": [*_KEYED, column("a", _ROW)], "primary_key": ["a"], "highest_field_id": 9},
    "bucket key of a missing column": {"bucket_key": ["nope"]},
    "bucket key of an array": {"columns": [*_KEYED, column("a", _ARRAY)], "bucket_key": ["a"]},
    "bucket key outside the primary key": {"columns": _KEYED, "primary_key": ["id"], "bucket_key": ["n"]},
    "bucket key with the partition key": {
        "columns": _KEYED,
        "primary_key": ["id", "day"],
        "partition_key": ["day"],
        "bucket_key": ["id", "day"],
    },
    "bucket key twice": {"columns": _KEYED, "bucket_key": ["id", "id"]},
    "no bucket": {"bucket_count": 0},
    "minus one buckets": {"bucket_count": -1},
    "too many buckets": {"bucket_count": 1_000_000},
    "partition key of a missing column": {"columns": _KEYED, "partition_key": ["nope"]},
    "partition key outside the primary key": {"columns": _KEYED, "primary_key": ["id"], "partition_key": ["day"]},
    "partition key is the whole primary key": {"columns": _KEYED, "primary_key": ["day"], "partition_key": ["day"]},
    "partition key of a decimal": {
        "columns": [column("id"), column("d", {"type": "DECIMAL", "precision": 5, "scale": 0})],
        "partition_key": ["d"],
    },
    "partition key of an int": {"columns": _KEYED, "partition_key": ["n"]},
    "partition key of a date": {"columns": [column("id"), column("d", "DATE")], "partition_key": ["d"]},
    "auto-increment column": {
        "columns": _KEYED,
        "primary_key": ["id"],
        "auto_increment_column": ["n"],
    },
    "auto-increment in a log table": {"columns": _KEYED, "auto_increment_column": ["n"]},
    "auto-increment of a key": {"columns": _KEYED, "primary_key": ["id"], "auto_increment_column": ["id"]},
    "auto-increment of a string": {"columns": _KEYED, "primary_key": ["id"], "auto_increment_column": ["text"]},
    "auto-increment of two columns": {"columns": _KEYED, "primary_key": ["id"], "auto_increment_column": ["n", "text"]},
    "auto-increment of a missing column": {"columns": _KEYED, "primary_key": ["id"], "auto_increment_column": ["no"]},
}

_KEY = {"columns": _KEYED, "primary_key": ["id"]}
_PARTITIONED = {"columns": _KEYED, "partition_key": ["day"]}
# Label -> (table arguments, its properties).
_PROPERTIES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "unknown table property": ({}, {"table.no.such.property": "1"}),
    "property that is not the table's": ({}, {"owner": "me"}),
    "client property": ({}, {"client.connect-timeout": "30s"}),
    "time to live": ({}, {"table.log.ttl": "3d"}),
    "time to live that is no duration": ({}, {"table.log.ttl": "banana"}),
    "negative time to live": ({}, {"table.log.ttl": "-1d"}),
    "two replicas": ({}, {"table.replication.factor": "2"}),
    "no replica": ({}, {"table.replication.factor": "0"}),
    "replicas that are no number": ({}, {"table.replication.factor": "x"}),
    "log format indexed": ({}, {"table.log.format": "indexed"}),
    "log format compacted": ({}, {"table.log.format": "compacted"}),
    "log format in capitals": ({}, {"table.log.format": "ARROW"}),
    "log format unknown": ({}, {"table.log.format": "parquet"}),
    "kv format on a log table": ({}, {"table.kv.format": "indexed"}),
    "kv format unknown": (_KEY, {"table.kv.format": "parquet"}),
    "kv compacted, log indexed": (_KEY, {"table.kv.format": "compacted", "table.log.format": "indexed"}),
    "kv compacted, log compacted": (_KEY, {"table.kv.format": "compacted", "table.log.format": "compacted"}),
    "kv indexed, log indexed": (_KEY, {"table.kv.format": "indexed", "table.log.format": "indexed"}),
    "compression none": ({}, {"table.log.arrow.compression.type": "NONE"}),
    "compression lz4": ({}, {"table.log.arrow.compression.type": "LZ4_FRAME"}),
    "compression unknown": ({}, {"table.log.arrow.compression.type": "SNAPPY"}),
    "compression level 0": ({}, {"table.log.arrow.compression.zstd.level": "0"}),
    "compression level 22": ({}, {"table.log.arrow.compression.zstd.level": "22"}),
    "compression level 23": ({}, {"table.log.arrow.compression.zstd.level": "23"}),
    "merge engine on a log table": ({}, {"table.merge-engine": "first_row"}),
    "merge engine unknown": (_KEY, {"table.merge-engine": "banana"}),
    "merge engine first row": (_KEY, {"table.merge-engine": "first_row"}),
    "merge engine versioned without a column": (_KEY, {"table.merge-engine": "versioned"}),
    "merge engine versioned by a missing column": (
        _KEY,
        {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "nope"},
    ),
    "merge engine versioned by a string": (
        _KEY,
        {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "text"},
    ),
    "merge engine versioned by an int": (
        _KEY,
        {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "n"},
    ),
    "merge engine aggregation": (_KEY, {"table.merge-engine": "aggregation"}),
    "merge engine aggregation without old values": (
        _KEY,
        {"table.merge-engine": "aggregation", "table.changelog.image": "wal"},
    ),
    "first row that allows deletes": (_KEY, {"table.merge-engine": "first_row", "table.delete.behavior": "allow"}),
    "delete behaviour unknown": (_KEY, {"table.delete.behavior": "banana"}),
    "delete behaviour on a log table": ({}, {"table.delete.behavior": "disable"}),
    "changelog image unknown": (_KEY, {"table.changelog.image": "banana"}),
    "changelog image wal": (_KEY, {"table.changelog.image": "wal"}),
    "lake without a cluster's lake": (_KEY, {"table.datalake.enabled": "true"}),
    "lake format unknown": (_KEY, {"table.datalake.format": "banana"}),
    "automatic partitions without partitions": ({}, {"table.auto-partition.enabled": "true"}),
    "automatic partitions without a unit": (_PARTITIONED, {"table.auto-partition.enabled": "true"}),
    "automatic partitions, unit unknown": (
        _PARTITIONED,
        {"table.auto-partition.enabled": "true", "table.auto-partition.time-unit": "banana"},
    ),
    "tiered segments 0": ({}, {"table.log.tiered.local-segments": "0"}),
    "statistics of all columns": ({}, {"table.statistics.columns": "*"}),
    "kv format version 1": (_KEY, {"table.kv.format-version": "1"}),
    "kv format version 3": (_KEY, {"table.kv.format-version": "3"}),
}

_TABLE_NAMES = {
    "empty": "",
    "dot": ".",
    "dollar": "a$b",
    "space": "a b",
    "slash": "a/b",
    "accent": "a\u00e9",
    "reserved prefix": "__a",
    "longest": "a" * 200,
    "too long": "a" * 201,
    "dashes": "a-b_c-1",
    "capitals": "Aa",
}


async def tables(exam: Exam) -> None:
    admin = await exam.admin()
    await exam.step("create", lambda: exam.create_table("t", table_json()))
    await exam.step("create again", lambda: exam.create_table("t", table_json()))
    await exam.step("create again, ignoring", lambda: exam.create_table("t", table_json(), ignore=True))
    await exam.step(
        "create again as another, ignoring",
        lambda: exam.create_table("t", table_json([column("other")]), ignore=True),
    )
    await exam.step("create in a missing database", lambda: exam.create_table("t", table_json(), database="nowhere"))
    await exam.step("exists", lambda: admin.table_exists(exam.path("t")))
    await exam.step("exists not", lambda: admin.table_exists(exam.path("missing")))
    await exam.step("exists not in a missing database", lambda: admin.table_exists(fluss.TablePath("nowhere", "t")))
    await exam.step("listed", lambda: admin.list_tables(exam.database))
    await exam.step("info of a missing table", lambda: admin.get_table_info(exam.path("missing")))
    await exam.step("open a missing table", lambda: _open(exam, "missing"))
    await exam.step("schema of a missing table", lambda: _schema(exam, "missing", None))
    await exam.step("schema", lambda: _schema(exam, "t", None))
    await exam.step("schema 1", lambda: _schema(exam, "t", 1))
    await exam.step("schema 2", lambda: _schema(exam, "t", 2))
    await exam.step("schema 0", lambda: _schema(exam, "t", 0))
    for label, name in _TABLE_NAMES.items():
        await exam.step(f"name: {label}", lambda name=name: exam.create_table(name, table_json()))
    await exam.step("filled in: log table", lambda: _filled_in(exam, "filled"))
    await exam.step("filled in: primary-key table", lambda: _filled_in(exam, "filled_keyed", primary_key=["id"]))
    for label, arguments in _DEFINITIONS.items():
        document = _document(arguments)
        await exam.step(label, lambda label=label, document=document: _define(exam, label, document))
    for label, (arguments, properties) in _PROPERTIES.items():
        document = table_json(**{**arguments, "properties": properties})
        await exam.step(label, lambda label=label, document=document: _define(exam, label, document))
    for label, document in {
        "json that is none": b"{no json",
        "empty json": b"",
        "json without a schema": b'{"version":1}',
        "json of a later version": table_json().replace(b'"version": 1', b'"version": 99'),
        "json with an unknown key": table_json().replace(b'{"version": 1', b'{"later": true, "version": 1', 1),
    }.items():
        await exam.step(label, lambda label=label, document=document: _define(exam, label, document))
    if "value" in exam.outcomes["tables: automatic partitions without a unit"]:
        await exam.until_ready(lambda: _some_partition(exam, _table_name("automatic partitions without a unit")))
    await exam.step("drop", lambda: admin.drop_table(exam.path("t")))
    await exam.step("drop again", lambda: admin.drop_table(exam.path("t")))
    await exam.step("drop again, ignoring", lambda: admin.drop_table(exam.path("t"), ignore_if_not_exists=True))
    await exam.step("drop in a missing database", lambda: admin.drop_table(fluss.TablePath("nowhere", "t")))
    await exam.step(
        "by pyfluss, a tz-aware timestamp",
        lambda: admin.create_table(
            exam.path("tz"), fluss.TableDescriptor(fluss.Schema(pa.schema([("t", pa.timestamp("us", tz="UTC"))])))
        ),
    )


def _document(arguments: dict[str, Any]) -> bytes:
    arguments = dict(arguments)
    if "columns_override" not in arguments:
        return table_json(**arguments)
    document = json.loads(table_json())
    document["schema"]["columns"] = arguments["columns_override"]
    return json.dumps(document).encode()


async def _open(exam: Exam, name: str) -> None:
    await (await exam.connection()).get_table(exam.path(name))


def _schema(exam: Exam, name: str, schema_id: int | None) -> Any:
    answer = exam.call("tablet", wire.GET_TABLE_SCHEMA, [(1, exam.table_path(name)), (2, schema_id)])
    return [wire.one(answer, 1), json.loads(wire.one(answer, 2))]


def _table_name(label: str) -> str:
    return "d_" + "".join(letter if letter.isalnum() else "_" for letter in label)


async def _some_partition(exam: Exam, table: str) -> None:
    """Fails until the server has made the table's first automatic partition."""
    if not await (await exam.admin()).list_partition_infos(exam.path(table)):
        raise LookupError(table)


# What servers write into every definition has steps of its own: a later version fills in more.
_FILLED_IN = {"table.replication.factor", "table.kv.format-version", "table.kv.standby-replica.enabled"}


def _filled_in(exam: Exam, name: str, **arguments: Any) -> Any:
    """The properties of a table for which none were given."""
    exam.create_table(name, table_json(**arguments))
    answer = exam.call("coordinator", wire.GET_TABLE_INFO, [(1, exam.table_path(name))])
    return json.loads(wire.one(answer, 3))["properties"]


def _define(exam: Exam, label: str, document: bytes) -> Any:
    """Create a table and say how the server completed its definition: defaults are part of the contract."""
    name = _table_name(label)
    exam.create_table(name, document)
    answer = exam.call("coordinator", wire.GET_TABLE_INFO, [(1, exam.table_path(name))])
    stored = json.loads(wire.one(answer, 3))
    given = json.loads(document).get("properties", {})
    kept = {key: stored.get(key) for key in ["bucket_count", "bucket_key", "partition_key"]}
    kept["properties"] = {k: v for k, v in stored["properties"].items() if k in given or k not in _FILLED_IN}
    schema = stored["schema"]
    kept["columns"] = [
        f"{field['name']} {field['data_type']['type']} {field.get('id')}"
        + ("" if field["data_type"].get("nullable", True) else " not null")
        for field in schema["columns"]
    ]
    kept["schema"] = {key: schema.get(key) for key in ["primary_key", "auto_increment_column", "highest_field_id"]}
    return kept


async def alter(exam: Exam) -> None:
    """Each step changes a fresh table, so that a change which one server refuses and another takes stays one step."""
    made = 0

    def change(*earlier: dict[str, Any], **parts: Any) -> Any:
        nonlocal made
        made += 1
        name = f"a{made}"
        exam.create_table(name, table_json([column("id"), column("name", "STRING")], primary_key=["id"]))
        for part in earlier:
            _alter(exam, name, **part)
        return _alter(exam, name, **parts)

    number = json.dumps({"type": "INTEGER"}).encode()
    not_null = json.dumps({"type": "INTEGER", "nullable": False}).encode()
    nested = json.dumps(_ROW).encode()
    owned: dict[str, Any] = {"configs": [("owner", "exam", 0)]}
    aged: dict[str, Any] = {"add": [("age", number, 0)]}
    for label, parts in {
        "nothing": {},
        "set a custom property": owned,
        "reset a property that is not there": {"configs": [("owner", None, 1)]},
        "append to a property": {"configs": [("owner", "x", 2)]},
        "operation unknown": {"configs": [("owner", "x", 9)]},
        "set without a value": {"configs": [("owner", None, 0)]},
        "set the time to live": {"configs": [("table.log.ttl", "3d", 0)]},
        "set a wrong time to live": {"configs": [("table.log.ttl", "banana", 0)]},
        "set the kv format": {"configs": [("table.kv.format", "indexed", 0)]},
        "set an unknown property": {"configs": [("table.no.such", "1", 0)]},
        "switch the lake on": {"configs": [("table.datalake.enabled", "true", 0)]},
        "set the lake's freshness": {"configs": [("table.datalake.freshness", "5min", 0)]},
        "add a column": aged,
        "add a column that is there": {"add": [("name", number, 0)]},
        "add two at once": {"add": [("b", number, 0), ("c", number, 0)]},
        "add one twice at once": {"add": [("e", number, 0), ("e", number, 0)]},
        "add one that is not null": {"add": [("size", not_null, 0)]},
        "add one at the front": {"add": [("size", number, 1)]},
        "add one after another": {"add": [("size", number, 2)]},
        "add a reserved name": {"add": [("__offset", number, 0)]},
        "add one of an unknown type": {"add": [("size", b'{"type":"BANANA"}', 0)]},
        "add a nested one": {"add": [("nested", nested, 0)]},
        "drop a column": {"drop": ["name"]},
        "rename a column": {"rename": [("name", "title")]},
        "modify a column": {"modify": [("name", number)]},
        "property and column at once": {**owned, **aged},
    }.items():
        await exam.step(label, lambda parts=parts: change(**parts))
    await exam.step("reset a custom property", lambda: change(owned, configs=[("owner", None, 1)]))
    await exam.step("the second change", lambda: change(aged, add=[("b", number, 0)]))
    await exam.step("a missing table", lambda: _alter(exam, "missing", **owned))
    await exam.step("a missing table, ignoring", lambda: _alter(exam, "missing", **owned, ignore=True))
    exam.create_table("evolved", table_json([column("id"), column("name", "STRING")], primary_key=["id"]))
    for part in [aged, {"add": [("nested", nested, 0)]}]:
        _alter(exam, "evolved", **part)
    await exam.step("schema 1 afterwards", lambda: _schema(exam, "evolved", 1))
    await exam.step("the newest schema afterwards", lambda: _schema(exam, "evolved", None))


def _alter(
    exam: Exam,
    name: str,
    *,
    configs: list[tuple[str, str | None, int]] | None = None,
    add: list[tuple[str, bytes, int]] | None = None,
    drop: list[str] | None = None,
    rename: list[tuple[str, str]] | None = None,
    modify: list[tuple[str, bytes]] | None = None,
    ignore: bool = False,
) -> Any:
    fields: list[tuple[int, Any]] = [(1, exam.table_path(name)), (2, ignore)]
    fields += [(3, [(1, key), (2, value), (3, kind)]) for key, value, kind in configs or []]
    fields += [(4, [(1, column_name), (2, kind), (4, position)]) for column_name, kind, position in add or []]
    fields += [(5, [(1, column_name)]) for column_name in drop or []]
    fields += [(6, [(1, old), (2, new)]) for old, new in rename or []]
    fields += [(7, [(1, column_name), (2, kind)]) for column_name, kind in modify or []]
    exam.call("coordinator", wire.ALTER_TABLE, fields)
    if ignore:
        return None
    info = exam.call("coordinator", wire.GET_TABLE_INFO, [(1, exam.table_path(name))])
    stored = json.loads(wire.one(info, 3))
    changed = {key: value for key, value in stored["properties"].items() if key.startswith(("table.log", "table.data"))}
    names = [field["name"] for field in stored["schema"]["columns"]]
    return [wire.one(info, 2), names, stored["custom_properties"], changed]


async def partitions(exam: Exam) -> None:
    admin = await exam.admin()
    path = exam.path("p")
    two_keys = table_json(
        [column("id"), column("region", "STRING"), column("day", "STRING")], partition_key=["region", "day"]
    )
    exam.create_table("p", two_keys)
    exam.create_table("numbered", table_json([column("id"), column("n")], partition_key=["n"]))
    exam.create_table("plain", table_json())
    first = {"region": "eu", "day": "2026-01-01"}

    async def names(table: str = "p", spec: dict[str, str] | None = None) -> list[str]:
        found = await admin.list_partition_infos(exam.path(table), spec)
        return sorted(info.partition_name for info in found)

    await exam.step("none at first", names)
    await exam.step("create", lambda: admin.create_partition(path, first))
    await exam.step("create again", lambda: admin.create_partition(path, first))
    await exam.step("create again, ignoring", lambda: admin.create_partition(path, first, ignore_if_exists=True))
    await exam.step(
        "create with keys in another order", lambda: admin.create_partition(path, {"day": "1", "region": "us"})
    )
    await exam.step("listed", names)
    await exam.step("listed by a part", lambda: names("p", {"region": "us"}))
    await exam.step("listed by a part that is nowhere", lambda: names("p", {"region": "mars"}))
    await exam.step("listed by no key", lambda: names("p", {"id": "1"}))
    await exam.step("listed by a whole spec", lambda: names("p", first))
    await exam.step("listed in a table without partitions", lambda: names("plain"))
    await exam.step("listed in a missing table", lambda: names("missing"))
    for label, spec in {
        "a key missing": {"region": "eu"},
        "a key too many": {**first, "id": "1"},
        "another key": {"region": "eu", "month": "1"},
        "no key": {},
        "empty value": {"region": "", "day": "1"},
        "value with a dollar": {"region": "a$b", "day": "1"},
        "value with a space": {"region": "a b", "day": "1"},
        "value with a slash": {"region": "a/b", "day": "1"},
        "value with a dot": {"region": "a.b", "day": "1"},
        "value with an accent": {"region": "\u00e9", "day": "1"},
        "value with two underscores": {"region": "__a", "day": "1"},
        "internal name": {"region": "__historical__", "day": "1"},
    }.items():
        await exam.step(f"create: {label}", lambda spec=spec: admin.create_partition(path, spec))
    await exam.step("create: a number", lambda: admin.create_partition(exam.path("numbered"), {"n": "7"}))
    await exam.step(
        "create: a word where a number is due", lambda: admin.create_partition(exam.path("numbered"), {"n": "x"})
    )
    await exam.step(
        "create in a table without partitions", lambda: admin.create_partition(exam.path("plain"), {"id": "1"})
    )
    await exam.step("create in a missing table", lambda: admin.create_partition(exam.path("missing"), first))
    await exam.step("metadata of a missing partition", lambda: _partition_metadata(exam, "p", "nowhere$1"))
    await exam.step("metadata of a partition", lambda: _partition_metadata(exam, "p", "eu$2026-01-01"))
    await exam.step(
        "metadata by an unknown id",
        lambda: (
            exam.call(
                "tablet",
                wire.GET_METADATA,
                [
                    (1, exam.table_path("p")),
                    (3, wire.Packed([987654321])),
                ],
            )
            and None
        ),
    )
    await exam.step("drop", lambda: admin.drop_partition(path, first))
    await exam.step("drop again", lambda: admin.drop_partition(path, first))
    await exam.step("drop again, ignoring", lambda: admin.drop_partition(path, first, ignore_if_not_exists=True))
    await exam.step("drop: a key missing", lambda: admin.drop_partition(path, {"region": "us"}))
    await exam.step("drop in a table without partitions", lambda: admin.drop_partition(exam.path("plain"), {"id": "1"}))
    await exam.step("drop in a missing table", lambda: admin.drop_partition(exam.path("missing"), first))
    await exam.step("left", names)


def _partition_metadata(exam: Exam, table: str, partition: str) -> Any:
    answer = exam.call("tablet", wire.GET_METADATA, [(2, [*exam.table_path(table), (3, partition)])])
    return [wire.one(found, 2).decode() for found in wire.nested(answer, 4)]
