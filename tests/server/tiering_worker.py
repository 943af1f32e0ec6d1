"""The tiering worker that tests of the server play."""

from __future__ import annotations

from typing import Any

from tests.server.raw_client import ApiKey, pb
from tests.server.running import Bench


class Worker:
    """A tiering worker, as the server hears it."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.epoch = self.ask().coordinator_epoch

    def ask(self, **request: Any) -> Any:
        return self.bench.coordinator.call(ApiKey.LAKE_TIERING_HEARTBEAT, pb.LakeTieringHeartbeatRequest(**request))

    def of(self, table: Any, epoch: int | None = None, **stats: int) -> pb.PbHeartbeatReqForTable:
        return pb.PbHeartbeatReqForTable(
            table_id=table.table_id,
            tiering_epoch=table.tiering_epoch,
            coordinator_epoch=self.epoch if epoch is None else epoch,
            lake_tiering_stats=pb.PbLakeTieringStats(**stats) if stats else None,
        )

    def next(self) -> Any:
        answer = self.ask(request_table=True)
        return answer.tiering_table if answer.HasField("tiering_table") else None
