"""The lake contract's random histories: random rounds, compared with a dict or a list as model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay.metadata import types
from forebay.testing.lake_contract_base import ID_NAME, LakeContractBase
from forebay.testing.lake_rounds import Row, TieredTable, in_order

_change = st.tuples(st.sampled_from(["+U", "+I", "-D"]), st.integers(0, 8), st.sampled_from(["a", "b", None, ""]))
_round = st.tuples(st.lists(_change, max_size=12), st.sampled_from([1, 2, 5, None]), st.booleans())
_histories = st.lists(_round, min_size=1, max_size=5)
_settings = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.differing_executors])


class RandomRounds(LakeContractBase):
    """Random rounds; each snapshot must equal the model at that time, and the last one also in key order."""

    @_settings
    @given(history=_histories, compacts=st.booleans())
    def test_any_history_of_a_table_with_a_key_ends_as_a_dict_does(
        self, tmp_path_factory: pytest.TempPathFactory, history: list[Any], compacts: bool
    ) -> None:
        """Each snapshot has the newest row of each key at its time, also after compactions and commits of other
        programs."""
        storage = self.open_storage(tmp_path_factory.mktemp("lake"))
        options = {"table.datalake.auto-compaction": str(compacts).lower()}
        table = self.keyed_table(storage, properties=options)
        model: dict[int, Row] = {}
        snapshots: list[tuple[int, list[Row]]] = []
        for changes, chunk, disturbed in history:
            placed: dict[Any, list[Any]] = {}
            for kind, key, name in changes:
                row = {"id": key, "name": name}
                placed.setdefault(table.place_of(row), []).append((kind, row))
                model.pop(key, None)
                if kind != "-D":
                    model[key] = row
            snapshots.append((table.round(placed, {}, chunk).snapshot_id, in_order(model.values())))
            if disturbed:
                self.disturb(storage)
        for snapshot_id, rows in snapshots:
            assert table.read(snapshot_id) == rows
        if self.sorts:
            self.check_order(table, snapshots[-1][1])

    def check_order(self, table: TieredTable, rows: list[Row]) -> None:
        """Check that all buckets, read in key order, hold `rows`."""
        rows_read: list[Row] = []
        for bucket in range(table.info.bucket_count):
            reader = table.source().create_sorted_reader([s for s in table.splits() if s.bucket() == bucket])
            assert reader is not None
            ranks: list[bytes] = []
            for batch in reader.read():
                rows_read += table.plain(batch)
                ranks += reader.order.comparable(batch.select(["id"])).to_pylist()
            assert ranks == sorted(set(ranks))
        assert in_order(rows_read) == rows

    @_settings
    @given(
        rounds=st.lists(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=6), min_size=1, max_size=4)
    )
    def test_any_history_of_a_log_ends_as_a_list_does(
        self, tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[int, int]]]
    ) -> None:
        """Each snapshot has all rows that were appended before it, with duplicates."""
        storage = self.open_storage(tmp_path_factory.mktemp("lake"))
        columns = {**ID_NAME, "p": types.string()}
        table = self.create(storage, self.descriptor(columns, partition_keys=["p"]))
        model: list[Row] = []
        for number, appended in enumerate(rounds):
            placed: dict[Any, list[Any]] = {}
            for bucket, key in appended:
                row = {"id": key, "name": f"r{number}", "p": "xy"[key % 2]}
                placed.setdefault(((row["p"],), bucket), []).append(("+A", row))
                model.append(row)
            snapshot = table.round(placed).snapshot_id
            assert table.read(snapshot) == in_order(model)
