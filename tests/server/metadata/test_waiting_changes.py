"""Changes of metadata that wait for their turn, while other clients change the same things."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forebay.metadata.table import TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.messages import partition_spec_to_pb, table_path_to_pb
from forebay.server.context import ServerContext
from forebay.server.handlers import databases, tables
from forebay.server.metadata.catalog import TableCatalog
from tests.server.metadata.catalogs import PATH, descriptor, opened, spec


class Waiting:
    """As much of a server as changes of its tables need. Each waits until `meanwhile` has been done."""

    def __init__(self, catalog: TableCatalog, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.catalog, self.meanwhile = catalog, meanwhile
        self.is_made, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.may_go_on.set()
        self._unfinished: set[asyncio.Task[Any]] = set()
        self.removed: list[tuple[int, Sequence[int], str]] = []

    async def in_coordinator(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self.meanwhile()
        made = work(*arguments)
        self.is_made.set()
        await self.may_go_on.wait()
        return made

    to_the_end, _has_ended, ended = ServerContext.to_the_end, ServerContext._has_ended, ServerContext.ended

    async def remove_data(self, info: TableInfo, partition_ids: Sequence[int], folder: str) -> None:
        self.removed.append((info.table_id, partition_ids, folder))


def test_a_dropped_partition_is_one_of_the_table_that_has_the_name_when_it_is_dropped(tmp_path: Path) -> None:
    with opened(tmp_path) as (catalog, store):
        catalog.create_table(PATH, descriptor(), ignore_if_exists=False)
        catalog.create_partition(PATH, spec("1"), False)

        def create_again() -> None:
            catalog.drop_table(PATH)
            catalog.create_table(PATH, descriptor(), ignore_if_exists=False)
            catalog.create_partition(PATH, spec("1"), False)

        context = Waiting(catalog, create_again)
        request = pb.DropPartitionRequest(
            table_path=table_path_to_pb(PATH), partition_spec=partition_spec_to_pb(list(spec("1").items()))
        )
        asyncio.run(tables.drop_partition(context, SimpleNamespace(message=request)))  # type: ignore[arg-type]
        [(table_id, partition_ids, folder)] = context.removed
        assert table_id == catalog.table(PATH).info.table_id == 2
        assert list(partition_ids) == [2]
        assert folder in store.doomed_folders()


DROPS: dict[str, tuple[Any, Any, tuple[int, list[int]]]] = {
    "table": (tables.drop_table, pb.DropTableRequest(table_path=table_path_to_pb(PATH)), (1, [1])),
    "partition": (
        tables.drop_partition,
        pb.DropPartitionRequest(
            table_path=table_path_to_pb(PATH), partition_spec=partition_spec_to_pb(list(spec("1").items()))
        ),
        (1, [1]),
    ),
    "database": (
        databases.drop_database,
        pb.DropDatabaseRequest(database_name=PATH.database, cascade=True, ignore_if_not_exists=False),
        (1, [1]),
    ),
}


@pytest.mark.parametrize("what", DROPS)
def test_the_data_of_what_is_dropped_goes_although_the_client_has_gone_meanwhile(tmp_path: Path, what: str) -> None:
    handler, request, removed = DROPS[what]

    async def run(context: Waiting) -> None:
        context.may_go_on.clear()
        dropping = asyncio.ensure_future(handler(context, SimpleNamespace(message=request)))
        await context.is_made.wait()
        dropping.cancel()  # its connection is lost
        await asyncio.gather(dropping, return_exceptions=True)
        context.may_go_on.set()
        await context.ended()  # type: ignore[misc]

    with opened(tmp_path) as (catalog, _):
        catalog.create_table(PATH, descriptor(), ignore_if_exists=False)
        catalog.create_partition(PATH, spec("1"), False)
        context = Waiting(catalog)
        asyncio.run(run(context))
        assert [(table_id, list(ids)) for table_id, ids, _ in context.removed] == [removed]
