"""ScanKv answered in Arrow: the rows are those of value batches, whatever the types, schemas, engines and filters."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay import col
from forebay.base.errors import ErrorCode
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.codec.arrow.arrow_message import message_codec
from forebay.codec.kv.value_batch import ArrowRows
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey, NegotiatedVersions
from forebay.protocol.predicates import predicate_to_pb
from tests.kv.tables import FakeTable
from tests.patience import PATIENCE
from tests.server.handlers.kv_scans import go_on, open_request, scan
from tests.server.handlers.snapshot_pages import open_snapshot, page_request
from tests.server.running import KV_COLUMNS, Bench, kv_records

ENGINES = ["hlog", "lmdb"]

COLUMNS = {
    "id": "BIGINT NOT NULL",
    "flag": "BOOLEAN",
    "tiny": "TINYINT",
    "small": "SMALLINT",
    "number": "INT",
    "single": "FLOAT",
    "double": "DOUBLE",
    "short_decimal": "DECIMAL(10, 2)",
    "long_decimal": "DECIMAL(38, 9)",
    "text": "STRING",
    "padded": "CHAR(4)",
    "data": "BYTES",
    "fixed": "BINARY(3)",
    "day": "DATE",
    "clock": "TIME(3)",
    **{f"moment_{digits}": f"TIMESTAMP({digits})" for digits in (0, 3, 6, 9)},
    **{f"instant_{digits}": f"TIMESTAMP_LTZ({digits})" for digits in (0, 3, 6, 9)},
    "numbers": "ARRAY<INT>",
    "nested": "ARRAY<ARRAY<STRING>>",
    "by_name": "MAP<STRING, DECIMAL(20, 1)>",
    "part": "ROW<a INT, b STRING, c ROW<d DOUBLE, e ARRAY<BIGINT>>>",
    "parts": "ARRAY<ROW<a INT, b TIMESTAMP(6)>>",
}


def row_of(i: int) -> dict[str, Any]:
    """A row of `COLUMNS`. Every column but the first has nulls."""
    moment = datetime(1902, 3, 4) + timedelta(days=30 * i, seconds=i)
    values: dict[str, Any] = {
        "flag": i % 3 == 0,
        "tiny": i % 256 - 128,
        "small": i * 61 % 65_536 - 32_768,
        "number": i * 4_294_967 - 2_147_483_000,
        "single": i / 8,
        "double": -i / 3,
        "short_decimal": Decimal(i * 99_999 - 49_999_999).scaleb(-2),
        "long_decimal": Decimal((-1) ** i * (10**37 + i)).scaleb(-9),
        "text": "ä" * (i % 5) + f"text {i}",
        "padded": f"{i % 10_000:04}",
        "data": bytes([i % 256]) * (i % 4),
        "fixed": bytes([i % 256, 0, 7]),
        "day": date(1890, 1, 1) + timedelta(days=i * 50),
        "clock": (datetime(2020, 1, 1) + timedelta(milliseconds=i)).time(),
        **{name: moment for name in COLUMNS if name.startswith("moment")},
        **{name: moment.replace(tzinfo=UTC) for name in COLUMNS if name.startswith("instant")},
        "numbers": [None if n % 2 else n for n in range(i % 4)],
        "nested": [None if n == 1 else [f"{i}.{n}"] * n for n in range(i % 4)],
        "by_name": {f"k{n}": None if n == 1 else Decimal(i * n) for n in range(i % 3)},
        "part": {"a": i, "b": None if i % 2 else f"b{i}", "c": {"d": i / 2, "e": [i] * (i % 3)} if i % 4 else None},
        "parts": [{"a": n, "b": moment} if n else None for n in range(i % 3)],
    }
    return {"id": i, **{name: None if (i + at) % 11 == 0 else value for at, (name, value) in enumerate(values.items())}}


@pytest.fixture(scope="module")
def connection(bench: Bench) -> Any:
    with forebay.connect(bench.server.bootstrap_servers) as opened:
        yield opened


def both(read: Callable[[], pa.Table], monkeypatch: pytest.MonkeyPatch, by: str = "id") -> pa.Table:
    """What `read` gives from a server that answers in Arrow, which is what it gives from one that does not."""
    asked: list[bool] = []
    real = ArrowRows.message
    with monkeypatch.context() as patched:
        patched.setattr(ArrowRows, "message", lambda *given: (asked.append(True), real(*given))[1])
        found = read().sort_by(by)
    assert asked
    with monkeypatch.context() as patched:
        patched.setattr(NegotiatedVersions, "scans_in_arrow", False)
        patched.setattr(ArrowRows, "message", None)
        plain = read().sort_by(by)
    assert found.schema == plain.schema
    assert found.equals(plain)
    found.validate(full=True)
    return found


@pytest.mark.parametrize("kv_format", ["compacted", "indexed"])
def test_all_types_are_those_of_value_batches(
    bench: Bench, connection: Connection, monkeypatch: pytest.MonkeyPatch, kv_format: str
) -> None:
    options = {"table.kv.format": kv_format}
    table = connection.create_table(f"fluss.all_{kv_format}", COLUMNS, primary_key="id", buckets=2, options=options)
    table.upsert([row_of(i) for i in range(1000)])
    dice = random.Random(7)
    for compression in ("none", "lz4", "zstd"):
        given = {"client.scanner.kv.compression": compression, "client.scanner.kv.fetch.max-bytes": "20kb"}
        with forebay.connect(bench.server.bootstrap_servers, **given) as own:
            mine = own.table(table.path)
            names = ["id", *dice.sample([name for name in COLUMNS if name != "id"], 12)]
            both(mine.scan(names).to_arrow, monkeypatch)
            both(mine.scan(filter=col("number") > 0).to_arrow, monkeypatch)
            with mine.snapshot() as snapshot:
                both(snapshot.scan(list(COLUMNS)[:-1]).to_arrow, monkeypatch)
    for name in COLUMNS:
        if name != "id":
            both(table.scan(["id", name]).to_arrow, monkeypatch)


FILTERS = [
    col("id") < 10,
    (col("number") > 0) & (col("text") != "text 7"),
    col("double").is_null() | (col("flag") == True),  # noqa: E712
    col("text").is_in(["text 1", "ätext 6", "nothing"]),
    col("id") < 0,
]


@pytest.mark.parametrize("engine", ENGINES)
def test_filters_and_columns_leave_the_same_rows(
    connection: Connection, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    options = {"forebay.kv.engine": engine}
    table = connection.create_table(f"fluss.filters_{engine}", COLUMNS, primary_key="id", options=options)
    table.upsert([row_of(i) for i in range(300)])
    for condition in FILTERS:
        both(table.scan(["id"], condition).to_arrow, monkeypatch)
        both(table.scan(["part", "id"], condition).to_arrow, monkeypatch)
    assert table.scan(filter=col("id") < 10, limit=3).to_arrow().num_rows == 3
    assert table.scan(["text"], limit=7).to_arrow().num_rows == 7
    assert table.scan(filter=col("id") > 5).count() == 294


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_of_older_and_newer_schemas_have_the_columns_that_were_asked_for(bench: Bench, engine: str) -> None:
    created = bench.create(f"older_{engine}", KV_COLUMNS, ["id"], engine=engine)
    fake = FakeTable()
    bench.put(created, kv_records([{"id": i, "name": f"n{i}", "score": i} for i in range(5)]))
    with forebay.connect(bench.server.bootstrap_servers) as own:
        own.table(f"fluss.older_{engine}").alter(add_columns={"extra": "STRING"})
        own.table(f"fluss.older_{engine}").upsert(
            [{"id": i, "name": "new", "score": 9, "extra": f"e{i}"} for i in range(3, 8)]
        )
    fake.add_column(Column("extra", types.string()))
    opened = open_snapshot(bench, created)
    columns = fake.schemas[2].columns
    newer = page_rows(bench, page_request(opened, created, size=1 << 20), 2, [0, 3], columns)
    assert newer == [{"id": i, "extra": f"e{i}" if i > 2 else None} for i in range(8)]
    older = page_rows(bench, page_request(opened, created, size=1 << 20), 1, [0, 1], columns)
    assert older == [{"id": i, "name": "new" if i > 2 else f"n{i}"} for i in range(8)]


def page_rows(
    bench: Bench, request: pb.ScanKvRequest, schema_id: int, positions: list[int], columns: tuple[Column, ...]
) -> list[dict[str, Any]]:
    request.as_arrow.CopyFrom(pb.PbArrowRows(schema_id=schema_id, projected_fields=positions))
    found = rows_of(bench.tablet.call(ApiKey.SCAN_KV, request), [columns[position] for position in positions])
    return sorted(found, key=lambda row: row["id"])


def rows_of(answer: Any, columns: list[Column]) -> list[dict[str, Any]]:
    assert not answer.error_code, answer
    batch = message_codec(tuple(columns)).decode(answer.records, 0, len(answer.records), answer.arrow_rows)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


@pytest.fixture(scope="module")
def table_id(bench: Bench) -> int:
    """A table of 100 rows."""
    created = bench.create("in_arrow", KV_COLUMNS, ["id"])
    bench.put(created, kv_records([{"id": i, "name": f"n{i}", "score": i} for i in range(100)]))
    return created


ID_AND_NAME = FakeTable().info.schema.columns[:2]


def test_a_session_gives_each_row_once_and_repeats_a_page_byte_for_byte(bench: Bench, table_id: int) -> None:
    request = open_request(table_id, size=100)
    request.as_arrow.CopyFrom(pb.PbArrowRows(schema_id=1, projected_fields=[0, 1]))
    answer = scan(bench.tablet, request)
    assert answer.log_offset == 100
    found, call = rows_of(answer, list(ID_AND_NAME)), 0
    while answer.has_more_results:
        call += 1
        answer = go_on(bench.tablet, answer.scanner_id, call, 100)
        again = go_on(bench.tablet, answer.scanner_id, call, 100)
        assert (again.records, again.arrow_rows, again.has_more_results) == (
            answer.records, answer.arrow_rows, answer.has_more_results,
        )  # fmt: skip
        found += rows_of(answer, list(ID_AND_NAME))
    assert call > 3
    assert sorted(row["id"] for row in found) == list(range(100))
    assert {row["name"] for row in found} == {f"n{i}" for i in range(100)}


def test_whoever_does_not_ask_gets_the_bytes_of_before(bench: Bench, table_id: int) -> None:
    opened = open_snapshot(bench, table_id)
    plain = bench.tablet.call(ApiKey.SCAN_KV, page_request(opened, table_id, size=1 << 20))
    assert not plain.HasField("arrow_rows")
    assert len(FakeTable().rows_of_page(plain.records)) == 100
    session = scan(bench.tablet, open_request(table_id, size=1 << 20))
    assert not session.HasField("arrow_rows")
    assert session.records == plain.records


def test_rows_without_columns_are_counted(bench: Bench, table_id: int) -> None:
    opened = open_snapshot(bench, table_id)
    request = page_request(opened, table_id, size=1 << 20)
    request.as_arrow.CopyFrom(pb.PbArrowRows(schema_id=1))
    answer = bench.tablet.call(ApiKey.SCAN_KV, request)
    assert (answer.arrow_rows, answer.has_more_results) == (100, False)
    assert pa.ipc.read_record_batch(pa.py_buffer(answer.records), pa.schema([])).num_rows == 100


def test_a_page_without_a_match_says_where_to_go_on(bench: Bench, table_id: int) -> None:
    schema = FakeTable().info.schema
    opened = open_snapshot(bench, table_id)
    wanted = pb.PbArrowRows(
        schema_id=1, projected_fields=[0], filter_predicate=predicate_to_pb(col("id") >= 99, schema)
    )
    found, pages, after = list[int](), 0, None
    while True:
        request = page_request(opened, table_id, size=100)
        request.as_arrow.CopyFrom(wanted)
        if after is not None:
            request.resume_after = after
        answer = bench.tablet.call(ApiKey.SCAN_KV, request)
        assert answer.HasField("position")
        found += [row["id"] for row in rows_of(answer, list(ID_AND_NAME[:1]))] if answer.arrow_rows else []
        after, pages = answer.position, pages + 1
        if not answer.has_more_results:
            break
    assert found == [99]
    assert pages > 10


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"schema_id": 7}, ErrorCode.SCHEMA_NOT_EXIST),
        ({"schema_id": -1}, ErrorCode.SCHEMA_NOT_EXIST),
        ({"projected_fields": [1, 0]}, ErrorCode.INVALID_COLUMN_PROJECTION),
        ({"projected_fields": [0, 0]}, ErrorCode.INVALID_COLUMN_PROJECTION),
        ({"projected_fields": [0, 3]}, ErrorCode.INVALID_COLUMN_PROJECTION),
        ({"projected_fields": [-1]}, ErrorCode.INVALID_COLUMN_PROJECTION),
        ({"projected_fields": list(range(100_000))}, ErrorCode.INVALID_COLUMN_PROJECTION),
        ({"compression": 3}, ErrorCode.INVALID_SCAN_REQUEST),
        ({"compression": -1}, ErrorCode.INVALID_SCAN_REQUEST),
    ],
)
def test_what_cannot_be_is_an_error_that_says_so(bench: Bench, table_id: int, fields: Any, code: ErrorCode) -> None:
    scanners = bench.server.server.context.scanners
    opened, before = open_snapshot(bench, table_id), scanners.session_count
    for request in (page_request(opened, table_id), open_request(table_id)):
        request.as_arrow.CopyFrom(pb.PbArrowRows(**{"schema_id": 1, "projected_fields": [0], **fields}))
        answer = bench.tablet.call(ApiKey.SCAN_KV, request)
        assert answer.error_code == code
        assert 0 < len(answer.error_message) < 300
    assert scanners.session_count == before


def test_a_scan_does_not_become_one_in_arrow_on_its_way(bench: Bench, table_id: int) -> None:
    begun = scan(bench.tablet, open_request(table_id, size=100))
    request = pb.ScanKvRequest(scanner_id=begun.scanner_id, call_seq_id=1, batch_size_bytes=100)
    request.as_arrow.CopyFrom(pb.PbArrowRows(schema_id=1))
    assert scan(bench.tablet, request).error_code == ErrorCode.INVALID_SCAN_REQUEST


@pytest.mark.parametrize(
    "condition",
    [
        pb.PbPredicate(type=0),
        pb.PbPredicate(type=9),
        pb.PbPredicate(type=0, leaf=pb.PbLeafPredicate(function=99, field_id=0)),
        pb.PbPredicate(type=0, leaf=pb.PbLeafPredicate(function=0, field_id=77)),
    ],
)
def test_filters_that_cannot_be_used_are_ignored(bench: Bench, table_id: int, condition: Any) -> None:
    opened = open_snapshot(bench, table_id)
    request = page_request(opened, table_id, size=1 << 20)
    request.as_arrow.CopyFrom(pb.PbArrowRows(schema_id=1, projected_fields=[0], filter_predicate=condition))
    assert bench.tablet.call(ApiKey.SCAN_KV, request).arrow_rows == 100


def test_filters_of_very_many_conditions_are_ignored(bench: Bench, table_id: int) -> None:
    schema = FakeTable().info.schema
    many = col("name").starts_with("x")
    for i in range(100):
        many = many | col("name").starts_with(f"x{i}")
    opened = open_snapshot(bench, table_id)
    request = page_request(opened, table_id, size=1 << 20)
    request.as_arrow.CopyFrom(
        pb.PbArrowRows(schema_id=1, projected_fields=[0], filter_predicate=predicate_to_pb(many, schema))
    )
    assert bench.tablet.call(ApiKey.SCAN_KV, request).arrow_rows == 100


WIDE = 500


@pytest.mark.parametrize("kind", ["DECIMAL(38, 1)", f"ROW<{', '.join(f'f{i} BIGINT' for i in range(100))}>"])
def test_nulls_do_not_make_an_answer_larger_than_it_may_be(connection: Connection, kind: str) -> None:
    """Stored rows have a bit for a NULL, columns a whole value."""
    columns = {"id": "INT NOT NULL", **{f"c{i}": kind for i in range(WIDE if kind.startswith("D") else 20)}}
    table = connection.create_table(f"fluss.nulls_{kind[:3].lower()}", columns, primary_key="id")
    table.upsert([{"id": i} for i in range(2000)], missing="null")
    check_pages(table, 64 << 10)


def test_elements_that_are_null_do_not_either(connection: Connection) -> None:
    element = f"ROW<{', '.join(f'f{i} BIGINT' for i in range(200))}>"
    table = connection.create_table(
        "fluss.null_elements", {"id": "INT NOT NULL", "a": f"ARRAY<{element}>"}, primary_key="id"
    )
    table.upsert([{"id": i, "a": [None] * 100} for i in range(50)])
    check_pages(table, 64 << 10)


def check_pages(table: Table, bytes_max: int) -> None:
    """All rows come, in pages that are not much larger than `bytes_max`, but for a row."""
    with table.snapshot() as snapshot:
        (bucket,) = snapshot.buckets
        cluster = table.connection.cluster
        node = cluster.leader(table.path, bucket)
        rows, after = 0, None
        while True:
            request = pb.ScanKvRequest(
                table_snapshot_id=snapshot.raw_id, batch_size_bytes=bytes_max, resume_after=after,
                bucket_scan_req=pb.PbScanReqForBucket(table_id=bucket.table_id, bucket_id=bucket.bucket),
                as_arrow=pb.PbArrowRows(
                    schema_id=table.info.schema_id, projected_fields=range(len(table.info.schema.columns))
                ),
            )  # fmt: skip
            call = cluster.send(node, ApiKey.SCAN_KV, request)
            assert call.wait(PATIENCE)
            answer, payloads = call.response().parse_split(pb.ScanKvResponse)
            rows, after = rows + answer.arrow_rows, answer.position
            assert answer.arrow_rows == 1 or len(payloads[0]) < 4 * bytes_max
            if not answer.has_more_results:
                break
    assert rows == table.scan(["id"]).count()


def test_a_snapshot_is_exact_while_it_is_written_to(connection: Connection) -> None:
    table = connection.create_table(
        "fluss.written", {"id": "INT NOT NULL", "n": "INT", "x": "STRING"}, primary_key="id", buckets=2
    )
    table.upsert([{"id": i, "n": 0, "x": "a" * 50} for i in range(3000)])
    with table.snapshot() as snapshot:
        with table.writer() as writer:
            reader = snapshot.scan(["id", "n"]).reader()
            for turn in range(1, 20):
                for start in range(0, 3000, 500):
                    writer.upsert([{"id": i, "n": turn, "x": "b" * 200} for i in range(start, start + 500)])
                    writer.delete([{"id": start + turn}])
            found = reader.read_all()
        assert sorted(found["id"].to_pylist()) == list(range(3000))
        assert set(found["n"].to_pylist()) == {0}
        again = snapshot.scan(["id", "n"]).to_arrow()
        assert again.sort_by("id").equals(found.sort_by("id"))
