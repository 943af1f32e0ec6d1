"""Time travel: `VERSION AS OF` and `TIMESTAMP AS OF` as Paimon's options, and the schema of then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.base.errors import InvalidRequest, NotFound
from forebay.paimon.read.snapshot_planner import SnapshotPlanner

if TYPE_CHECKING:
    from forebay.paimon.format.schema import TableSchema
    from forebay.paimon.format.snapshot import Snapshot
    from forebay.paimon.table import Table
    from forebay.spark.sql.catalog import TimeTravel

_WATERMARK = "watermark-"
"""How a version begins that is a watermark, as in Paimon's own connector."""


def travelled(name: str, table: Table, travel: TimeTravel) -> tuple[dict[str, str], TableSchema]:
    """The options that choose the snapshot, and the schema that the table had then.

    A version is the name of a tag, the id of a snapshot, or `watermark-<milliseconds>`: the first of these that there
    is. Raises `NotFound`, with what there is.
    """
    options, snapshot = _chosen(name, table, travel)
    return options, table.context.schemas.schema(snapshot.schema_id)


def _chosen(name: str, table: Table, travel: TimeTravel) -> tuple[dict[str, str], Snapshot]:
    if travel.timestamp_us is not None:
        return _by_id(SnapshotPlanner(table.context).at_timestamp(travel.timestamp_us // 1000))
    version = travel.version or ""
    tag = table.context.tags.find(version)
    if tag is not None:
        return {"scan.tag-name": version}, tag.snapshot
    if version.isdigit():
        return _by_id(table.context.snapshots.snapshot(int(version)))
    if version.startswith(_WATERMARK):
        text = version[len(_WATERMARK) :]
        if not text.isdigit():
            raise InvalidRequest(f"version '{version}' of table {name}: write {_WATERMARK} and milliseconds since 1970")
        return _by_id(SnapshotPlanner(table.context).at_watermark(int(text)))
    tags = ", ".join(table.context.tags.names()) or "none"
    branches = table.context.branches
    hint = f"; there is a branch of this name, which is table `{name}$branch_{version}`"
    raise NotFound(
        f"table {name} has no version '{version}': it is neither the id of a snapshot nor a tag; tags are {tags}"
        + (hint if branches.exists(version) else "")
    )


def _by_id(snapshot: Snapshot) -> tuple[dict[str, str], Snapshot]:
    return {"scan.snapshot-id": str(snapshot.id)}, snapshot
