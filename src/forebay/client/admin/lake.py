"""The calls of a tiering worker: heartbeats, and the two steps that register a lake snapshot with the cluster.

    tiering = LakeTieringClient(connection)
    heartbeat = tiering.heartbeat(request=True)
    if heartbeat.table is not None:                                  # its turn has come, and it is ours
        path = tiering.prepare(info, log_end_offsets)                # goes into the lake snapshot
        ...                                                          # the lake commit
        tiering.commit(info, snapshot_id, path, readable_path=path)
        tiering.heartbeat(finished=[TieringDone(heartbeat.table)])

The same calls work with a Fluss cluster. `Admin.lake_snapshot` returns what the cluster has registered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forebay.base.errors import ForebayError, InternalError, error_from_wire
from forebay.metadata.log_offset import epoch_of
from forebay.metadata.table import TableBucket, TableInfo, TablePath
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.api import ApiKey
from forebay.protocol.messages import error_of, table_path_from_pb, table_path_to_pb

if TYPE_CHECKING:
    from forebay.client.session import Session


@dataclass(frozen=True, slots=True)
class TieringTable:
    """A table assigned to this worker, with the epochs that the worker presents from then on."""

    table_id: int
    path: TablePath
    coordinator_epoch: int
    tiering_epoch: int

    @property
    def fence(self) -> int:
        """Both epochs as one increasing number: the epoch of `forebay.lake.tiering.CommitterContext`."""
        return self.coordinator_epoch << 32 | self.tiering_epoch


@dataclass(frozen=True, slots=True)
class TieringDone:
    """A finished round. `forced`: it ran out of time and more data is pending; the sizes are those of the whole lake
    table.
    """

    table: TieringTable
    forced: bool = False
    file_bytes: int | None = None
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The cluster's response. `errors` by table id: a table with an error is no longer assigned to this worker."""

    coordinator_epoch: int
    table: TieringTable | None = None
    errors: Mapping[int, ForebayError] = field(default_factory=dict)


class LakeTieringClient:
    """The worker's side of tiering. Thread-safe."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def heartbeat(
        self,
        working: Iterable[TieringTable] = (),
        finished: Iterable[TieringDone] = (),
        failed: Iterable[TieringTable] = (),
        *,
        request: bool = False,
        retry_seconds: float | None = None,
    ) -> Heartbeat:
        """Report progress, and request another table (`request`). A worker that sends no heartbeat for two minutes
        loses its tables. `retry_seconds` limits retries further than `client.retry-timeout`.

        Errors are FENCED_TIERING_EPOCH (50), INVALID_COORDINATOR (23: the cluster was restarted), TABLE_NOT_EXIST
        (7) and -1. A lost response may have assigned a table; that table is assigned again after two minutes.
        """
        message = pb.LakeTieringHeartbeatRequest(request_table=request)
        for table in working:
            message.tiering_tables.append(_report(table))
        for done in finished:
            report = _report(done.table)
            if done.file_bytes is not None or done.rows is not None:
                report.lake_tiering_stats.CopyFrom(
                    pb.PbLakeTieringStats(file_size=done.file_bytes, record_count=done.rows)
                )
            message.finished_tables.append(report)
            if done.forced:
                message.force_finished_tables.append(done.table.table_id)
        for table in failed:
            message.failed_tables.append(_report(table))
        repeatable = not (request or message.finished_tables or message.failed_tables)
        answer = self._session.cluster.coordinator_call(
            ApiKey.LAKE_TIERING_HEARTBEAT,
            message,
            pb.LakeTieringHeartbeatResponse,
            repeatable=repeatable,
            retry_seconds=retry_seconds,
        )
        return Heartbeat(answer.coordinator_epoch, _assigned(answer), _errors(answer))

    def prepare(self, info: TableInfo, log_end_offsets: Mapping[TableBucket, int], *, merge: bool = True) -> str:
        """Let the cluster record which log offsets a lake snapshot will contain; returns the path of that file.

        With `merge`, buckets without new records may be omitted: they get the offsets of the latest known snapshot.
        """
        message = pb.PrepareLakeTableSnapshotRequest()
        if not merge:
            message.ignore_previous_table_offsets = True
        table = message.bucket_offsets.add(table_id=info.table_id, table_path=table_path_to_pb(info.path))
        for bucket, offset in log_end_offsets.items():
            table.bucket_offsets.add(
                partition_id=bucket.partition_id,
                bucket_id=bucket.bucket,
                log_end_offset=offset,
                log_epoch=epoch_of(offset),
            )
        answer = self._session.cluster.coordinator_call(
            ApiKey.PREPARE_LAKE_TABLE_SNAPSHOT, message, pb.PrepareLakeTableSnapshotResponse, repeatable=True
        )
        path: str = _only(answer.prepare_lake_table_resp, info).lake_table_offsets_path
        return path

    def commit(
        self,
        info: TableInfo,
        snapshot_id: int,
        tiered_path: str,
        *,
        readable_path: str | None = None,
        earliest_to_keep: int | None = None,
        replaces: str | None = None,
        log_end_offsets: Mapping[TableBucket, int] | None = None,
        max_timestamps: Mapping[TableBucket, int] | None = None,
    ) -> None:
        """Register a lake snapshot, with the paths that `prepare` returned.

        `readable_path`: union reads may start from the snapshot, and go on in the log from those offsets.
        `earliest_to_keep`: `forebay.lake.tiering.LakeCommitResult.earliest_snapshot_to_keep`. `replaces`: the lake
        table was rolled back behind the newest snapshot that the cluster knows, whose `offsets_name` this is. (A Fluss
        cluster ignores that, and takes any snapshot for the newest one.) With `log_end_offsets` (and the newest commit
        timestamp of each bucket) a Fluss cluster learns immediately which log records it may drop.

        The request is not retried when the response is lost (`Unavailable`): check `Admin.lake_snapshot`.
        """
        message = pb.CommitLakeTableSnapshotRequest()
        message.lake_table_snapshot_metadata.add(
            table_id=info.table_id,
            snapshot_id=snapshot_id,
            tiered_bucket_offsets_file_path=tiered_path,
            readable_bucket_offsets_file_path=readable_path,
            earliest_snapshot_id_to_keep=earliest_to_keep,
            replaces_offsets_name=replaces,
        )
        if log_end_offsets:
            table = message.tables_req.add(table_id=info.table_id, snapshot_id=snapshot_id)
            for bucket, offset in log_end_offsets.items():
                table.buckets_req.add(
                    partition_id=bucket.partition_id,
                    bucket_id=bucket.bucket,
                    log_end_offset=offset,
                    max_timestamp=(max_timestamps or {}).get(bucket),
                )
        answer = self._session.cluster.coordinator_call(
            ApiKey.COMMIT_LAKE_TABLE_SNAPSHOT, message, pb.CommitLakeTableSnapshotResponse, repeatable=False
        )
        _only(answer.table_resp, info)


def _report(table: TieringTable) -> pb.PbHeartbeatReqForTable:
    return pb.PbHeartbeatReqForTable(
        table_id=table.table_id, coordinator_epoch=table.coordinator_epoch, tiering_epoch=table.tiering_epoch
    )


def _assigned(answer: pb.LakeTieringHeartbeatResponse) -> TieringTable | None:
    if not answer.HasField("tiering_table"):
        return None
    table = answer.tiering_table
    path = table_path_from_pb(table.table_path)
    return TieringTable(table.table_id, path, answer.coordinator_epoch, table.tiering_epoch)


def _errors(answer: pb.LakeTieringHeartbeatResponse) -> dict[int, ForebayError]:
    return {
        table.table_id: error_from_wire(table.error.error_code, table.error.error_message)
        for tables in (answer.tiering_table_resp, answer.finished_table_resp, answer.failed_table_resp)
        for table in tables
        if table.HasField("error") and table.error.error_code
    }


def _only(answers: Any, info: TableInfo) -> Any:
    """The single result in a response for the one requested table. Raises the error in it."""
    if len(answers) != 1 or answers[0].table_id != info.table_id:
        table_ids = [answer.table_id for answer in answers]
        raise InternalError(f"the cluster responded for tables {table_ids} to a request about table {info.table_id}")
    error = error_of(answers[0])
    if error is not None:
        raise error
    return answers[0]
