"""Changes of metadata that wait for their turn, while other clients change the same things."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from forebay.metadata.table import TableInfo
from forebay.protocol import fluss_pb2 as pb
from forebay.protocol.messages import partition_spec_to_pb, table_path_to_pb
from forebay.server.catalog import TableCatalog
from forebay.server.handlers import tables
from tests.server.test_catalog import PATH, descriptor, opened, spec


class Waiting:
    """As much of a server as changes of its tables need. Each waits until `meanwhile` has been done."""

    def __init__(self, catalog: TableCatalog, meanwhile: Callable[[], object]) -> None:
        self.catalog, self.meanwhile = catalog, meanwhile
        self.removed: list[tuple[int, Sequence[int], str]] = []

    async def in_coordinator(self, work: Callable[..., Any], *arguments: Any) -> Any:
        self.meanwhile()
        return work(*arguments)

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
