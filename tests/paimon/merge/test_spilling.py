"""Merging more runs than are merged at once: the same rows as without spilling, and no files left behind."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.base.errors import InvalidRequest, StorageFailure
from forebay.metadata import types
from forebay.paimon.merge import MergeSpec, merge_function, merge_runs
from forebay.paimon.merge.leveled import LevelRules, merge_leveled, with_level
from tests.paimon.merge.reference import Record
from tests.paimon.merge.tables import in_batches, runs_of, table_schema, to_batch

COLUMNS = {"id": types.int_().not_null(), "v": types.string(), "s": types.int_()}
ENGINES: list[dict[str, str]] = [
    {},
    {"sequence.field": "s", "sequence.field.sort-order": "descending"},
    {"merge-engine": "partial-update"},
    {"merge-engine": "first-row"},
    {"merge-engine": "aggregation", "fields.s.aggregate-function": "sum", "fields.v.aggregate-function": "listagg"},
]


def records_of(rng: random.Random) -> list[Record]:
    return [
        Record((i := rng.randrange(6),), n, 0, {"id": i, "v": rng.choice([None, "a", "b"]), "s": rng.randrange(4)})
        for n in range(rng.randrange(40))
    ]


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


@given(st.sampled_from(ENGINES), st.integers(2, 3), st.randoms(use_true_random=True))
def test_rows_are_the_same_however_many_runs_are_merged_at_once(
    options: dict[str, str], runs_max: int, rng: random.Random
) -> None:
    table = table_schema(COLUMNS, options=options)
    spec = merge_function(table)
    dealt = runs_of(records_of(rng), rng, 9, spec.sequence_fields, spec.sequence_descending)
    few = replace(spec, runs_max=runs_max)
    expected = rows_of(merge_runs([in_batches(run, table, rng) for run in dealt], spec))
    assert rows_of(merge_runs([in_batches(run, table, rng) for run in dealt], few)) == expected


@given(st.integers(2, 3), st.randoms(use_true_random=True))
def test_levels_count_the_same_however_many_runs_are_merged_at_once(runs_max: int, rng: random.Random) -> None:
    table = table_schema(COLUMNS)
    spec = merge_function(table)
    dealt = runs_of(records_of(rng), rng, 7)
    names = [*spec.key_columns, "_SEQUENCE_NUMBER", "_VALUE_KIND", *COLUMNS]

    def merged(spec: MergeSpec) -> list[object]:
        runs = [with_level(in_batches(run, table, rng), max(0, i - 3)) for i, run in enumerate(dealt)]
        found = []
        for window in merge_leveled(runs, spec, names, LevelRules(before_level=3)):
            before = [None if i < 0 else window.source.slice(i, 1).to_pylist() for i in window.before.tolist()]
            found += zip(window.rows.to_pylist(), before, window.changed.tolist(), strict=True)
        return found

    assert merged(replace(spec, runs_max=runs_max)) == merged(spec)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where merges spill."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class Run:
    """A run that knows whether it is open."""

    opened: list[Run]

    def __init__(self, number: int, opened: list[Run], peak: list[int]) -> None:
        self.number, self._opened, self._peak = number, opened, peak

    def batches(self) -> Iterator[pa.RecordBatch]:
        self._opened.append(self)
        self._peak.append(len(self._opened))
        try:
            for i in range(3):
                row = {"id": i, "v": "x", "s": self.number}
                yield to_batch([Record((i,), self.number, 0, row)], table_schema(COLUMNS))
        finally:
            self._opened.remove(self)


def tracked(count: int) -> tuple[list[Iterator[pa.RecordBatch]], list[Run], list[int]]:
    opened: list[Run] = []
    peak: list[int] = []
    return [Run(i, opened, peak).batches() for i in range(count)], opened, peak


def test_no_more_runs_are_open_at_once_than_the_option_says(folder: Path) -> None:
    spec = merge_function(table_schema(COLUMNS, options={"sort-spill-threshold": "5"}))
    runs, opened, peak = tracked(60)
    assert [row["s"] for row in rows_of(merge_runs(runs, spec))] == [59, 59, 59]
    assert max(peak) == 5
    assert opened == []
    assert list(folder.iterdir()) == []


def test_a_merge_that_is_given_up_closes_its_runs_and_deletes_what_it_spilled(folder: Path) -> None:
    spec = merge_function(table_schema(COLUMNS))
    for spec_of_now, spilled in ((spec, 0), (replace(spec, runs_max=3), 1)):
        runs, opened, _ = tracked(7)
        merging = merge_runs(runs, spec_of_now)
        next(merging)
        assert len(list(folder.iterdir())) == spilled
        merging.close()
        assert opened == []
        assert list(folder.iterdir()) == []


def test_a_run_that_fails_closes_the_others(folder: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield to_batch([Record((0,), 99, 0, {"id": 0, "v": "x", "s": 1})], table_schema(COLUMNS))
        raise ZeroDivisionError

    spec = merge_function(table_schema(COLUMNS))
    for spec_of_now in (spec, replace(spec, runs_max=3)):
        runs, opened, _ = tracked(4)
        with pytest.raises(ZeroDivisionError):
            rows_of(merge_runs([*runs, failing()], spec_of_now))
        assert opened == []
        assert list(folder.iterdir()) == []


def test_a_local_disk_that_fails_is_an_error_of_storage(folder: Path) -> None:
    spec = replace(merge_function(table_schema(COLUMNS)), runs_max=2)
    runs, opened, _ = tracked(5)
    folder.rmdir()
    with pytest.raises(StorageFailure, match="cannot spill"):
        rows_of(merge_runs(runs, spec))
    assert opened == []


def test_a_threshold_that_could_never_be_met_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="sort-spill-threshold"):
        merge_function(table_schema(COLUMNS, options={"sort-spill-threshold": "1"}))
