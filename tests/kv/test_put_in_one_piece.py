"""A put in one piece (`hlog`) writes the same changelog and the same rows as a put in steps, and refuses the same."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap

from forebay.base.errors import ErrorCode, ForebayError
from forebay.codec.kv.kv_batch import HEADER_BYTES, seal_kv_batch
from forebay.fs.local import LocalFileSystem
from forebay.kv import _digest
from forebay.kv.engine import KvEngine
from forebay.kv.hlog.hlog_engine import HlogEngine, HlogWrites
from forebay.kv.tablet import ChangelogCodec, KvTablet, PutRequest
from forebay.log.tablet import LogTablet
from forebay.metadata import types
from forebay.metadata.table import AggregateFunction, Column
from forebay.metadata.types import DataType, TypeRoot
from tests.kv.memory_engine import MemoryEngine
from tests.kv.tables import FakeTable

OPTIONS = [
    {},
    {"table.delete.behavior": "ignore"},
    {"table.delete.behavior": "disable"},
    {"table.changelog.image": "wal"},
    {"table.kv.format": "INDEXED"},
    {"table.log.format": "COMPACTED"},
]

ENGINE, VERSION = "table.merge-engine", "table.merge-engine.versioned.ver-column"
INDEXED = {"table.kv.format": "INDEXED", "table.log.format": "INDEXED"}
AGGREGATES = (
    (types.int_(), "sum"),
    (types.bigint(), "product"),
    (types.decimal(9, 2), "sum"),
    (types.decimal(30, 4), "product"),
    (types.string(), "listagg"),
    (types.string(), "max"),
    (types.timestamp(6), "min"),
    (types.double(), "last_value"),
    (types.string(), "first_value"),
    (types.string(), "last_value_ignore_nulls"),
    (types.boolean(), "bool_or"),
)


def plain(options: dict[str, str]) -> FakeTable:
    return FakeTable(options)


def versioned(data_type: DataType, options: dict[str, str]) -> FakeTable:
    columns = Column("id", types.int_()), Column("name", types.string()), Column("v", data_type)
    return FakeTable({ENGINE: "versioned", VERSION: "v", **options}, columns)


def aggregation(options: dict[str, str]) -> FakeTable:
    columns = [
        Column(f"c{i}_{function}", data_type, aggregate=AggregateFunction(function))
        for i, (data_type, function) in enumerate(AGGREGATES)
    ]
    return FakeTable({ENGINE: "aggregation", **options}, [Column("id", types.int_()), *columns])


def numbered(data_type: DataType, options: dict[str, str]) -> FakeTable:
    columns = Column("id", types.int_()), Column("number", data_type), Column("name", types.string())
    return FakeTable(options, [*columns, Column("score", types.bigint())], "number")


TABLES = {
    "first_row": lambda: plain({ENGINE: "first_row"}),
    "first_row, wal": lambda: plain({ENGINE: "first_row", "table.changelog.image": "wal"}),
    "versioned": lambda: versioned(types.timestamp(6), {}),
    "versioned, wal": lambda: versioned(types.int_(), {"table.changelog.image": "wal"}),
    "versioned, indexed": lambda: versioned(types.timestamp_ltz(6), INDEXED | {"table.delete.behavior": "disable"}),
    "aggregation": lambda: aggregation({}),
    "aggregation, indexed": lambda: aggregation(INDEXED | {"table.delete.behavior": "allow"}),
    "numbered": lambda: numbered(types.int_(), {}),
    "numbered, indexed": lambda: numbered(types.bigint(), INDEXED | {"table.changelog.image": "wal"}),
}


class Side:
    """A tablet with one engine."""

    def __init__(self, table: FakeTable, folder: Path, engine: KvEngine) -> None:
        self.table = table
        self.engine = engine
        self.log = LogTablet.open(LocalFileSystem(), str(folder))
        self.numbers = itertools.count(1)
        self.tablet = KvTablet(table, self.log, engine, lambda count: count * next(self.numbers))

    def put(self, requests: list[PutRequest]) -> list[tuple[int, str]]:
        results = self.tablet.put_group(requests)
        return [(result.log_end_offset, str(result.error)) for result in results]

    def changelog(self) -> list[bytes]:
        """The batches, without the time at which they were appended and the checksum over it."""
        return [bytes(data[:12]) + bytes(data[25:]) for _, data in self.log.iterate_batches(0)]

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.engine.items())


class Pair:
    def __init__(self, folder: Path, table: FakeTable, seed: int, partial: float = 0.1) -> None:
        """`partial`: the part of the requests that write some columns."""
        self.rng = random.Random(seed)
        self.table = table
        self.partial = partial
        self.hlog = HlogEngine(folder / "db", garbage_min=1 << 15)
        self.sides = Side(self.table, folder / "one", self.hlog), Side(self.table, folder / "steps", MemoryEngine())
        self.sequence = 0

    def request(self) -> PutRequest:
        rng = self.rng
        columns = [column for column in self.table.info.schema.columns if column.name != "id"]
        count = rng.choice((0, 1, 2, 30, 200))
        rows: list[dict[str, Any]] = [
            {"id": rng.randrange(60)}
            | {column.name: None if rng.random() < 0.2 else self.value(column.data_type) for column in columns}
            for _ in range(count)
        ]
        deletes = [rng.random() < 0.2 for _ in rows] if rng.random() < 0.7 else None
        options = {"writer_id": 3, "sequence": self.sequence} if rng.random() < 0.5 else {}
        self.sequence += len(options) > 0
        schema_id = rng.choice([*self.table.schemas]) if rng.random() < 0.2 else None
        if schema_id is not None:
            known = self.table.schemas[schema_id].names
            rows = [{name: value for name, value in row.items() if name in known} for row in rows]
        request = self.table.request(
            rows, deletes, schema_id=schema_id, overwrite=rng.random() < 0.1,
            targets=self.targets([column.name for column in columns]), **options,
        )  # fmt: skip
        return self.damaged(request) if rng.random() < 0.15 else request

    def targets(self, names: list[str]) -> list[str]:
        """All columns ([]), or the key and some of `names`."""
        if self.rng.random() >= self.partial:
            return []
        numbered = self.table.info.schema.auto_increment_column
        return ["id", *(name for name in names if name != numbered and self.rng.random() < 0.6)]

    def value(self, data_type: DataType) -> object:
        rng, root = self.rng, data_type.root
        if root is TypeRoot.STRING:
            return rng.randbytes(rng.randrange(40)).hex()
        if root is TypeRoot.DECIMAL:
            return Decimal(rng.randrange(-(10**7), 10**7)).scaleb(-2)
        if root is TypeRoot.TIMESTAMP or root is TypeRoot.TIMESTAMP_LTZ:
            zone = dt.UTC if root is TypeRoot.TIMESTAMP_LTZ else None
            return dt.datetime(1969, 12, 31, 23, 59, 59, rng.randrange(10**6), zone)
        if root is TypeRoot.DOUBLE:
            return rng.random()
        return rng.random() < 0.5 if root is TypeRoot.BOOLEAN else rng.randrange(99)

    def damaged(self, request: PutRequest) -> PutRequest:
        """With a few bytes of its records changed, under a right checksum."""
        records = bytearray(request.records)
        if len(records) == HEADER_BYTES:
            return request
        for _ in range(self.rng.choice((1, 4))):
            records[self.rng.randrange(HEADER_BYTES, len(records))] = self.rng.randrange(256)
        seal_kv_batch(records, -1, -1)
        return PutRequest(bytes(records), request.target_columns, request.acks, request.overwrite)

    def check(self) -> None:
        one, steps = self.sides
        assert one.rows() == steps.rows()
        assert one.changelog() == steps.changelog()
        assert one.tablet.row_count == steps.tablet.row_count
        rows = steps.rows()
        assert self.hlog._log.digest == _digest.of_pairs(list(rows), list(rows.values()))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_puts_in_one_piece_and_in_steps_are_the_same(options: dict[str, str], seed: int, tmp_path: Path) -> None:
    compare(Pair(tmp_path, plain(options), seed), turns=60)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("seed", range(2))
def test_merging_in_one_piece_and_in_steps_is_the_same(kind: str, seed: int, tmp_path: Path) -> None:
    whole_rows = kind.startswith(("first_row", "versioned"))
    pair = Pair(tmp_path, TABLES[kind](), seed, partial=0.1 if whole_rows else 1.0 if "numbered" in kind else 0.4)
    compare(pair, turns=40)


@pytest.mark.parametrize("options", [{}, {"table.changelog.image": "wal"}, INDEXED], ids=str)
def test_partial_updates_in_one_piece_and_in_steps_are_the_same(options: dict[str, str], tmp_path: Path) -> None:
    compare(Pair(tmp_path, plain(options), 1, partial=0.7), turns=40)


def compare(pair: Pair, turns: int) -> None:
    """Put the same requests both ways, before and after the table gets a column."""
    for turn in range(turns):
        requests = [pair.request() for _ in range(pair.rng.choice((1, 1, 2, 5)))]
        one, steps = (side.put(requests) for side in pair.sides)
        assert one == steps
        if turn == turns // 2:
            pair.table.add_column(Column("note", types.string()))
    pair.check()


@pytest.fixture
def in_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the number of keys that each put in steps changes."""
    counts: list[int] = []
    put = HlogWrites.put

    def counted(self: HlogWrites, touched: dict[bytes, bytes | None]) -> None:
        counts.append(len(touched))
        put(self, touched)

    monkeypatch.setattr(HlogWrites, "put", counted)
    return counts


def test_rows_of_older_schemas_are_put_in_steps_and_others_in_one_piece(tmp_path: Path, in_steps: list[int]) -> None:
    pair = Pair(tmp_path, plain({}), 1)
    one = pair.sides[0]
    row = {"id": 1, "name": "a", "score": 1}
    assert one.put([pair.table.request([row, row | {"id": 2}])]) == [(2, "None")]
    assert one.put([pair.table.request([row | {"name": "b"}], [True])]) == [(3, "None")]
    one.put([pair.table.request([{"id": 1, "name": "c"}], targets=("id", "name"))])
    assert in_steps == []
    pair.table.add_column(Column("note", types.string()))
    one.put([pair.table.request([{"id": 2, "name": "d"}])])  # whose old row has the schema of before
    one.put([pair.table.request([{"id": 2, "name": "e"}])])
    one.put([pair.table.request([{"id": 7, "name": "e"}], schema_id=1)])
    assert in_steps == [1, 1]


@pytest.mark.parametrize("kind", TABLES)
def test_each_merge_engine_is_one_piece(kind: str, tmp_path: Path, in_steps: list[int]) -> None:
    pair = Pair(tmp_path, TABLES[kind](), 1)
    one = pair.sides[0]
    targets = ("id", "name") if "numbered" in kind else ()
    for _ in range(3):
        assert one.put([pair.table.request([{"id": 1}, {"id": 2}, {"id": 1}], targets=targets)])[0][1] == "None"
    assert in_steps == []
    assert len(one.rows()) == 2


def test_bitmaps_are_united_in_steps(tmp_path: Path, in_steps: list[int]) -> None:
    bits = Column("bits", types.bytes_(), aggregate=AggregateFunction("rbm32"))
    pair = Pair(tmp_path, FakeTable({ENGINE: "aggregation"}, [Column("id", types.int_()), bits]), 1)
    request = pair.table.request([{"id": 1, "bits": BitMap([3]).serialize()}])
    assert [side.put([request, request]) for side in pair.sides] == [[(1, "None"), (3, "None")]] * 2
    assert in_steps == [1, 1]
    pair.check()


def test_numbers_go_on_from_one_segment_to_the_next(tmp_path: Path, in_steps: list[int]) -> None:
    table = numbered(types.int_(), {"table.auto-increment.cache-size": "3"})
    one, steps = Pair(tmp_path, table, 1).sides
    for first in (0, 2, 10):  # the second time, two of the rows are there
        request = table.request([{"id": first + i, "name": "a"} for i in range(4)], targets=("id", "name"))
        assert one.put([request]) == steps.put([request])
    assert in_steps == []
    assert one.rows() == steps.rows()
    numbers = sorted(row["number"] for row in table.rows_of_values([v[4:] for v in one.rows().values()]))
    assert numbers == list(range(3, 13))


def test_a_row_may_outgrow_the_room_for_the_records(tmp_path: Path, in_steps: list[int]) -> None:
    pair = Pair(tmp_path, aggregation({}), 1)
    name = next(column.name for column in pair.table.info.schema.columns if column.name.endswith("listagg"))
    for turn in range(4):  # 500 bytes at first, 90 kB at last, and a few others in the same batch
        rows = [{"id": key, name: f"{turn}" * 500} for key in (*range(20), *([7] * 60))]
        one, steps = (side.put([pair.table.request(rows)]) for side in pair.sides)
        assert one == steps
        assert one[0][1] == "None"
    assert in_steps == []
    pair.check()


@pytest.mark.slow  # builds 1 GiB twice
def test_the_rows_that_a_put_makes_of_others_are_bounded(tmp_path: Path) -> None:
    pair = Pair(tmp_path, aggregation({}), 1)
    name = next(column.name for column in pair.table.info.schema.columns if column.name.endswith("listagg"))
    one = pair.sides[0]
    result = one.tablet.put_group([pair.table.request([{"id": 1, name: "x" * 65536}] * 190)])[0]
    assert result.error is not None
    assert result.error.code == ErrorCode.RECORD_TOO_LARGE_EXCEPTION
    assert "put fewer rows at a time" in result.error.message
    assert one.rows() == {}


def test_what_the_log_refuses_leaves_no_trace_in_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, plain({}), 1)
    one = pair.sides[0]
    one.put([pair.table.request([{"id": 1, "name": "a"}])])
    before = one.rows()
    append = LogTablet.append_as_leader

    def failing(self: LogTablet, batch: bytes, **more: Any) -> object:
        if b"refused" in bytes(batch):
            raise ForebayError("no")
        return append(self, batch, **more)

    monkeypatch.setattr(LogTablet, "append_as_leader", failing)
    table = FakeTable({"table.log.arrow.compression.type": "NONE"})
    one.table.info = table.info
    results = one.put([
        pair.table.request([{"id": 2, "name": "b"}]),
        pair.table.request([{"id": 1, "name": "refused"}, {"id": 2, "name": "x"}, {"id": 3, "name": "y"}]),
        pair.table.request([{"id": 1, "name": "c"}]),
    ])  # fmt: skip
    assert [error for _, error in results] == ["None", "no", "None"]
    rows = one.rows()
    assert len(rows) == 2
    assert rows != before
    assert sorted(row["name"] for row in pair.table.rows_of_values([v[4:] for v in rows.values()])) == ["b", "c"]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_first_look_at_staged_rows_passes_nothing_that_the_closer_one_refuses(
    options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path, plain(options), 5)
    passed: list[bool] = []
    look = ChangelogCodec._has_plain_rows

    def outcome(request: PutRequest) -> ErrorCode | None:
        try:
            ChangelogCodec(pair.table.info, pair.table.schema_by_id).check(request)
        except ForebayError as e:
            return e.code
        return None

    for turn in range(150):
        request = pair.request()
        with monkeypatch.context() as patch:
            patch.setattr(ChangelogCodec, "_has_plain_rows", lambda *_: False)
            closer = outcome(request)
        with monkeypatch.context() as patch:
            patch.setattr(ChangelogCodec, "_has_plain_rows", lambda *given: passed.append(look(*given)) or passed[-1])
            assert outcome(request) == closer
        if turn == 75:
            pair.table.add_column(Column("note", types.string()))
    assert set(passed) == {True, False}
