"""Manifests as columns: compared with fastavro's reading of the same bytes, and with merging objects."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.base.errors import Conflict, CorruptData, InvalidRequest
from forebay.paimon.format import avro
from forebay.paimon.format.avro_schemas import MANIFEST_ENTRY, MANIFEST_FILE
from forebay.paimon.format.file_meta import (
    EMPTY_ROW,
    EMPTY_STATS,
    DataFileMeta,
    FileKind,
    FileSource,
    ManifestEntry,
    ManifestFileMeta,
    SimpleStats,
)
from forebay.paimon.format.manifest_codec import (
    Arities,
    data_file_record,
    parse_data_file,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from forebay.paimon.format.manifest_rows import live_rows, read_manifest_rows
from forebay.paimon.store.manifests import merge_entries

ARITIES = Arities(1, 2)


class Values:
    """Random manifest entries."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def number(self, bits: int = 64) -> int:
        return self._random.getrandbits(self._random.choice([1, 7, 20, bits - 1])) * self._random.choice([1, -1])

    def row(self) -> bytes:
        return self._random.randbytes(self._random.randint(9, 24))

    def name(self) -> str:
        return "".join(self._random.choices("abcä€𝄞", k=self._random.randint(0, 8)))

    def maybe(self, make: Callable[[], Any]) -> Any:
        return self._random.choice([lambda: None, make])()

    def several(self, make: Callable[[], Any]) -> tuple[Any, ...]:
        return tuple(make() for _ in range(self._random.randint(0, 3)))

    def stats(self) -> SimpleStats:
        counts = self.several(lambda: self.maybe(self.number))
        return SimpleStats(self.row(), self.row(), counts) if counts else EMPTY_STATS

    def file(self) -> DataFileMeta:
        return DataFileMeta(
            self.name(), self.number(), self.number(), self.row(), self.row(), self.stats(), self.stats(),
            self.number(), self.number(), self.number(), self.number(32), self.several(self.name),
            self.maybe(self.number), self.maybe(self.number), self.maybe(self.row),
            self.maybe(lambda: FileSource.COMPACT), self.maybe(lambda: self.several(self.name)), self.maybe(self.name),
            self.maybe(self.number), self.maybe(lambda: self.several(self.name)),
            self.maybe(lambda: self.several(self.number)),
        )  # fmt: skip

    def entry(self) -> ManifestEntry:
        kind = self._random.choice(list(FileKind))
        return ManifestEntry(kind, self.row(), self.number(32), self.number(32), self.file())

    def manifest(self) -> ManifestFileMeta:
        numbers = [self.number() for _ in range(4)]
        borders = [
            self.maybe(self.number) if wide else self.maybe(lambda: self.number(32)) for wide in (0, 0, 0, 0, 1, 1)
        ]
        return ManifestFileMeta(self.name(), *numbers[:3], self.stats(), numbers[3], *borders)


def file_named(name: str, **changes: Any) -> DataFileMeta:
    made = DataFileMeta(name, 10, 5, EMPTY_ROW, EMPTY_ROW, EMPTY_STATS, EMPTY_STATS, 0, 4, 0, 0)
    return replace(made, **changes)


def entry(name: str, kind: FileKind = FileKind.ADD, bucket: int = 0, total: int = 1, **changes: Any) -> ManifestEntry:
    return ManifestEntry(kind, bytes(16), bucket, total, file_named(name, **changes))


def record_of(e: ManifestEntry) -> dict[str, Any]:
    return {
        "_VERSION": 2,
        "_KIND": int(e.kind),
        "_PARTITION": ARITIES.partition + e.partition,
        "_BUCKET": e.bucket,
        "_TOTAL_BUCKETS": e.total_buckets,
        "_FILE": data_file_record(e.file, ARITIES),
    }


@pytest.mark.parametrize("seed", range(20))
def test_entries_are_written_as_fastavro_writes_them_and_read_as_it_reads_them(seed: int) -> None:
    values = Values(seed)
    entries = [values.entry() for _ in range(seed)]
    ours = write_manifest(entries, ARITIES, "none")
    assert ours == avro.write_records(MANIFEST_ENTRY, [record_of(e) for e in entries], "none")
    assert [parse_data_file(r["_FILE"]) for r in avro.read_records(ours)] == [e.file for e in entries]
    assert read_manifest_rows(ours).entries() == entries


@pytest.mark.parametrize("seed", range(20))
def test_manifest_lists_are_written_as_fastavro_writes_them(seed: int) -> None:
    values = Values(seed)
    manifests = [values.manifest() for _ in range(seed)]
    ours = write_manifest_list(manifests, 1, "none")
    assert ours == avro.write_records(MANIFEST_FILE, avro.read_records(ours), "none")
    assert read_manifest_list(ours) == manifests


def test_manifests_of_older_and_newer_writers_are_read() -> None:
    (full,) = [record_of(entry("f", first_row_id=3, write_cols=("a",)))]
    optional_fields = ("_EXTERNAL_PATH", "_FIRST_ROW_ID", "_WRITE_COLS", "_WRITE_COLS_SEQUENCES", "_FILE_SOURCE")
    file_fields = MANIFEST_ENTRY["fields"][5]["type"]["fields"]
    old = {
        **MANIFEST_ENTRY["fields"][5]["type"],
        "fields": [f for f in file_fields if f["name"] not in optional_fields],
    }
    new = {**old, "fields": [{"name": "_NEWER", "type": {"type": "map", "values": "long"}}, *file_fields]}
    for file_type, expected in ((old, file_named("f")), (new, file_named("f", first_row_id=3, write_cols=("a",)))):
        fields = [*MANIFEST_ENTRY["fields"][:5], {"name": "_FILE", "type": file_type}]
        record = {**full, "_FILE": {**full["_FILE"], "_NEWER": {"x": 1}}}
        data = avro.write_records({**MANIFEST_ENTRY, "fields": fields}, [record])
        (read,) = read_manifest_rows(data).entries()
        assert read.file == expected
        assert read_manifest_rows(data).null_counts(np.array([0]), 0, keys=True).tolist() == [-1]


def test_values_that_do_not_fit_are_refused() -> None:
    for changes in ({"row_count": 1 << 63}, {"level": 1 << 31}, {"min_key": None}, {"file_name": None}):
        with pytest.raises(InvalidRequest):
            write_manifest([entry("f"), entry("g", **changes)] if "file_name" not in changes else
                           [replace(entry("f"), file=file_named("g", **changes))], ARITIES)  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [("_VERSION", 3), ("_KIND", 2), ("_KIND", -1), ("_SOURCE", 2)])
def test_numbers_that_mean_nothing_are_corrupt(name: str, value: int) -> None:
    record = record_of(entry("f"))
    if name == "_SOURCE":
        record["_FILE"]["_FILE_SOURCE"] = value
    else:
        record[name] = value
    with pytest.raises(CorruptData):
        read_manifest_rows(avro.write_records(MANIFEST_ENTRY, [record])).entries()


def test_a_name_that_is_not_utf8_is_corrupt() -> None:
    body = avro.read_container(write_manifest([entry("abcdef")], ARITIES, "none"))
    bad = avro.write_container(body.schema, [(1, body.body.replace(b"abcdef", b"abc\xffef"))], "none")
    with pytest.raises(CorruptData, match="UTF-8"):
        read_manifest_rows(bad).entries()


def test_columns_say_what_the_entries_say() -> None:
    row, other = bytes(8) + b"x" * 8, bytes(8) + b"y" * 8
    stats = SimpleStats(row, other, (None, 7))
    entries = [
        ManifestEntry(FileKind.ADD, row, 1, 4, file_named("a", level=3, schema_id=2, key_stats=stats)),
        ManifestEntry(FileKind.DELETE, other, 0, 8, file_named("b", value_stats=stats, value_stats_cols=("q",))),
        ManifestEntry(FileKind.ADD, other, -2, -1, file_named("c", row_count=9)),
        ManifestEntry(FileKind.ADD, row, 2, 5, file_named("d", value_stats_cols=("q",))),
    ]
    rows = read_manifest_rows(write_manifest(entries, ARITIES))
    assert rows.deletions.tolist() == [False, True, False, False]
    assert (rows.buckets.tolist(), rows.total_buckets.tolist()) == ([1, 0, -2, 2], [4, 8, -1, 5])
    assert (rows.levels.tolist(), rows.schema_ids.tolist()) == ([3, 0, 0, 0], [2, 0, 0, 0])
    assert rows.row_counts.tolist() == [5, 5, 9, 5]
    assert rows.partitions == [row, other]
    assert rows.of_partitions([False, True]).tolist() == [False, True, True, False]
    assert rows.bucket_counts() == {row: 5}
    assert rows.buckets_of_totals == [(-2, -1), (0, 8), (1, 4), (2, 5)]
    assert rows.of_buckets([True, False, True, False]).tolist() == [True, False, True, False]
    assert rows.entries(np.array([2, 0])) == [entries[2], entries[0]]
    assert rows.least(np.array([0, 1]), keys=True) == pa.array([row, EMPTY_ROW])
    assert rows.greatest(np.array([1]), keys=False) == pa.array([other])
    assert rows.null_counts(rows.all, 1, keys=True).tolist() == [7, -1, -1, -1]
    assert rows.null_counts(rows.all, 0, keys=False).tolist() == [-1] * 4
    groups = rows.by_statistics(rows.all, keys=False)
    assert {key: members.tolist() for key, members in groups.items()} == {
        (2, None): [0], (0, ("q",)): [1, 3], (0, None): [2],
    }  # fmt: skip


def related(seed: int) -> list[list[ManifestEntry]]:
    """A few manifests whose entries are about few files, in an order that mostly makes sense."""
    choose = random.Random(seed).choice
    there: set[Any] = set()
    manifests = []
    for _ in range(choose([0, 1, 3])):
        entries = []
        for _ in range(choose([0, 3, 8])):
            e = entry(
                choose("fg"), FileKind.ADD, choose([0, 1]), level=choose([0, 5]),
                extra_files=choose([(), (), ("x",), ("x", "y"), ("xy",)]), embedded_index=choose([None, None, b""]),
                external_path=choose([None, None, "", "p"]),
            )  # fmt: skip
            if (e.identity in there) != (choose(range(8)) == 0):
                e = replace(e, kind=FileKind.DELETE)
            there ^= {e.identity}
            entries.append(e)
        manifests.append(entries)
    return manifests


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_rows_are_merged_as_entries_are(first_seed: int) -> None:
    outcomes = set()
    for seed in range(first_seed, first_seed + 100):
        manifests = related(seed)
        parts = [(rows, rows.all) for rows in (read_manifest_rows(write_manifest(m, ARITIES)) for m in manifests)]
        expected: Any = merged(lambda m=manifests: merge_entries(e for entries in m for e in entries))
        outcomes.add(type(expected))
        for with_deletions in (True, False):

            def by_rows(parts: Any = parts, deletions: bool = with_deletions) -> list[ManifestEntry]:
                live = live_rows(parts, with_deletions=deletions)
                return [e for (rows, _), chosen in zip(parts, live, strict=True) for e in rows.entries(chosen)]

            if with_deletions or isinstance(expected, str):
                assert merged(by_rows) == expected
            else:
                assert merged(by_rows) == [e for e in expected if e.kind is FileKind.ADD]
    assert outcomes == {list, str}, "some histories conflict, and some do not"


def merged(merge: Callable[[], list[ManifestEntry]]) -> list[ManifestEntry] | str:
    """What is left, or the message of the conflict."""
    try:
        return merge()
    except Conflict as e:
        return e.message
