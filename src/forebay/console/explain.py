"""The plan of a union read as values, which a screen draws: lake files, log ranges, and what overrides what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay.api.filters import as_predicate
from forebay.base.errors import InvalidRequest
from forebay.console.session import Console, page_of
from forebay.metadata.predicate import conjuncts, predicate_text
from forebay.metadata.table import TableBucket, TablePath
from forebay.unionread.plan import PlanPiece, UnionPlan
from forebay.unionread.planning import plan_union

_SECONDS = 3.0


def explain(
    console: Console,
    database: str,
    table: str,
    *,
    columns: str | None = None,
    where: str | None = None,
    rows: int | None = None,
    page_token: str | None = None,
    limit: int = 50,
) -> dict[str, Any]:
    """How SELECT `columns` FROM the table WHERE `where` LIMIT `rows` would be read now.

    `columns` are names with commas, all by default. Items are a page of what is read of each bucket; `text` has all of
    it in words.
    """
    if rows is not None and rows < 0:
        raise InvalidRequest(f"rows={rows} is less than 0")
    path = TablePath(database, table)
    key = "explain", path, columns, where, rows
    plan: UnionPlan = console.remembered(key, _SECONDS, lambda: _planned(console, path, columns, where, rows))
    info, facts = plan.reader.info, plan.facts
    pieces = plan.pieces()
    page, following = page_of(pieces, page_token, limit)
    buckets = _buckets_by_place(plan)
    page_buckets = [(piece, piece.table_bucket or buckets.get((piece.partition, piece.bucket))) for piece in page]
    distinct_buckets = list({bucket for _, bucket in page_buckets if bucket is not None})
    starts = console.conn.admin.list_offsets(info, "earliest", buckets=distinct_buckets) if distinct_buckets else {}
    return {
        "kind": "primary key" if info.has_primary_key else "log",
        "buckets": info.bucket_count,
        "partitioned": info.is_partitioned,
        "lake_enabled": info.lake_enabled,
        "lake_format": facts.lake_format,
        "lake_snapshot": None if facts.snapshot_id is None else str(facts.snapshot_id),
        "expired_snapshot": None if facts.expired_snapshot_id is None else str(facts.expired_snapshot_id),
        "columns": list(plan.reader.schema.names),
        "filters": _filters(plan),
        "chosen": plan.selection,
        "pruned_partitions": list(facts.pruned_partitions[:limit]),
        "lake_only_partitions": list(facts.lake_only_partitions[:limit]),
        "totals": _totals(pieces),
        "items": [_piece(piece, bucket, starts, plan) for piece, bucket in page_buckets],
        "next": following,
        "total": len(pieces),
        "text": plan.explain(),
    }


def _planned(console: Console, path: TablePath, columns: str | None, where: str | None, rows: int | None) -> UnionPlan:
    table = console.conn.table(path)
    names = [name.strip() for name in (columns or "").split(",") if name.strip()] or None
    predicate = as_predicate(where, table.arrow_schema) if where and where.strip() else None
    return plan_union(table, names, predicate, rows, look_up=True)


def _buckets_by_place(plan: UnionPlan) -> Mapping[tuple[str | None, int], TableBucket]:
    names = plan.facts.partition_names
    return {
        (None if bucket.partition_id is None else names.get(bucket.partition_id), bucket.bucket): bucket
        for bucket in plan.facts.lake_offsets
    }


def _filters(plan: UnionPlan) -> list[dict[str, Any]]:
    accepted = None if plan.reader.lake is None else plan.reader.lake.accepted
    return [
        {"text": predicate_text(part), "skips_lake_rows": None if accepted is None else part in accepted}
        for part in conjuncts(plan.reader.view.predicate)
    ]


def _totals(pieces: list[PlanPiece]) -> dict[str, Any]:
    in_lake = [piece for piece in pieces if piece.lake]
    return {
        "lake_splits": sum(len(piece.lake) for piece in in_lake),
        "lake_rows": None if any(p.lake_rows is None for p in in_lake) else sum(p.lake_rows or 0 for p in in_lake),
        "log_records": sum(piece.stop - piece.start for piece in pieces),
        "log_buckets": sum(piece.stop > piece.start for piece in pieces),
        "keys": sum(piece.keys for piece in pieces),
    }


def _piece(
    piece: PlanPiece, bucket: TableBucket | None, starts: Mapping[TableBucket, int], plan: UnionPlan
) -> dict[str, Any]:
    """One bucket: from the log's first offset over the end of the lake's part to where the read stops."""
    lake_end = None if bucket is None else plan.facts.lake_offsets.get(bucket)
    log_end = None if bucket is None else plan.log_offsets.get(bucket)
    reads_log = piece.kind in ("overridden", "log")
    return {
        "kind": piece.kind,
        "partition": piece.partition,
        "bucket": None if piece.bucket < 0 else piece.bucket,
        "lake_splits": len(piece.lake),
        "lake_rows": piece.lake_rows if piece.lake else None,
        "log_start": None if bucket is None else starts.get(bucket),
        "lake_end": lake_end,
        "start": piece.start if reads_log else None,
        "stop": piece.stop if reads_log else log_end,
        "keys": piece.keys or None,
    }
