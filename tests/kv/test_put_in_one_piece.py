"""A put in one piece (`hlog`) writes the same changelog and the same rows as a put in steps, and refuses the same."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forebay.base.errors import ErrorCode, ForebayError
from forebay.codec.rows import HEADER_BYTES, seal_kv_batch
from forebay.fs.local import LocalFileSystem
from forebay.kv import _digest
from forebay.kv.engine import KvEngine
from forebay.kv.hlog_engine import HlogEngine, HlogWrites
from forebay.kv.tablet import ChangelogCodec, KvTablet, PutRequest
from forebay.log.tablet import LogTablet
from forebay.metadata import types
from forebay.metadata.table import Column
from forebay.testing.memory_engine import MemoryEngine
from tests.kv.tables import FakeTable

OPTIONS = [
    {},
    {"table.delete.behavior": "ignore"},
    {"table.delete.behavior": "disable"},
    {"table.changelog.image": "wal"},
    {"table.kv.format": "INDEXED"},
    {"table.log.format": "COMPACTED"},
]


class Side:
    """A tablet with one engine."""

    def __init__(self, table: FakeTable, folder: Path, engine: KvEngine) -> None:
        self.table = table
        self.engine = engine
        self.log = LogTablet.open(LocalFileSystem(), str(folder))
        self.tablet = KvTablet(table, self.log, engine, lambda count: 1)

    def put(self, requests: list[PutRequest]) -> list[tuple[int, str]]:
        results = self.tablet.put_group(requests)
        return [(result.log_end_offset, str(result.error)) for result in results]

    def changelog(self) -> list[bytes]:
        """The batches, without the time at which they were appended and the checksum over it."""
        return [bytes(data[:12]) + bytes(data[25:]) for _, data in self.log.iterate_batches(0)]

    def rows(self) -> dict[bytes, bytes]:
        return dict(self.engine.items())


class Pair:
    def __init__(self, folder: Path, options: dict[str, str], seed: int) -> None:
        self.rng = random.Random(seed)
        self.table = FakeTable(options)
        self.hlog = HlogEngine(folder / "db", garbage_min=1 << 15)
        self.sides = Side(self.table, folder / "one", self.hlog), Side(self.table, folder / "steps", MemoryEngine())
        self.sequence = 0

    def request(self) -> PutRequest:
        rng = self.rng
        names = [column.name for column in self.table.info.schema.columns if column.name != "id"]
        count = rng.choice((0, 1, 2, 30, 200))
        rows = [
            {"id": rng.randrange(60)} | {name: None if rng.random() < 0.2 else self.value(name) for name in names}
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
            targets=("id", "name") if rng.random() < 0.1 else (), **options,
        )  # fmt: skip
        return self.damaged(request) if rng.random() < 0.15 else request

    def value(self, name: str) -> object:
        return self.rng.randbytes(self.rng.randrange(40)).hex() if name in ("name", "note") else self.rng.randrange(99)

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
    pair = Pair(tmp_path, options, seed)
    for turn in range(60):
        requests = [pair.request() for _ in range(pair.rng.choice((1, 1, 2, 5)))]
        one, steps = (side.put(requests) for side in pair.sides)
        assert one == steps
        if turn == 30:
            pair.table.add_column(Column("note", types.string()))
    pair.check()


def test_whole_rows_are_put_in_one_piece_and_others_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, {}, 1)
    one = pair.sides[0]
    in_steps: list[int] = []
    put = HlogWrites.put

    def counted(self: HlogWrites, touched: dict[bytes, bytes | None]) -> None:
        in_steps.append(len(touched))
        put(self, touched)

    monkeypatch.setattr(HlogWrites, "put", counted)
    row = {"id": 1, "name": "a", "score": 1}
    assert one.put([pair.table.request([row, row | {"id": 2}])]) == [(2, "None")]
    assert one.put([pair.table.request([row | {"name": "b"}], [True])]) == [(3, "None")]
    assert in_steps == []
    one.put([pair.table.request([{"id": 1, "name": "c"}], targets=("id", "name"))])
    assert in_steps == [1]
    pair.table.add_column(Column("note", types.string()))
    one.put([pair.table.request([{"id": 2, "name": "d"}])])  # whose old row has the schema of before
    one.put([pair.table.request([{"id": 2, "name": "e"}])])
    one.put([pair.table.request([{"id": 7, "name": "e"}], schema_id=1)])
    assert in_steps == [1, 1, 1]


def test_what_the_log_refuses_leaves_no_trace_in_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path, {}, 1)
    one = pair.sides[0]
    one.put([pair.table.request([{"id": 1, "name": "a"}])])
    before = one.rows()
    append = LogTablet.append_as_leader

    def failing(self: LogTablet, batch: bytes) -> object:
        if b"refused" in bytes(batch):
            raise ForebayError("no")
        return append(self, batch)

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
    pair = Pair(tmp_path, options, 5)
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
