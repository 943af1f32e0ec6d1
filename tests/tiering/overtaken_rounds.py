"""Tiering rounds step by step: written, then committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from forebay.client.admin.lake import TieringTable
from forebay.client.table import Table
from forebay.tiering.control import RoundControl
from forebay.tiering.round import TieringRound, commit_round, plan_round, write_round
from forebay.tiering.runner import ThreadRunner
from tests.tiering.running import LakeCluster

SCHEMA = {"k": pa.int32(), "v": pa.string()}


def handed_out(table: Table, epoch: int) -> TieringTable:
    return TieringTable(table.info.table_id, table.path, 0, epoch)


def written(cluster: LakeCluster, table: Table, epoch: int) -> tuple[TieringRound, list[Any]]:
    """A round up to its commit."""
    ready = plan_round(cluster.connection, handed_out(table, epoch), cluster.lake)
    return ready, write_round(cluster.connection, ready, ThreadRunner(), RoundControl())


def commit(cluster: LakeCluster, ready: TieringRound, results: Sequence[Any]) -> None:
    commit_round(cluster.connection, ready, results, RoundControl())


def fill(table: Table, *keys: int) -> None:
    data = [{"k": k, "v": f"value {k}"} for k in keys]
    (table.upsert if table.has_primary_key else table.append)(data)
