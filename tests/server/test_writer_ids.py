"""Ids of writers are given once, and cheaply."""

from __future__ import annotations

import asyncio

from forebay.server.writer_ids import TAKEN_AT_ONCE, WriterIds
from tests.server.raw_client import ApiKey, RawClient, pb
from tests.server.running import running


def test_ids_are_given_once_and_taken_from_the_store_many_at_a_time(tmp_path, monkeypatch):
    with running(tmp_path / "data") as bench:
        store, taken = bench.server.server.context.store, list[int]()
        take = store.take
        monkeypatch.setattr(store, "take", lambda counter, count=1: taken.append(count) or take(counter, count))
        with RawClient(bench.server.addresses.tablet_servers) as other:
            clients = [bench.tablet, other]
            ids = [(client, client.send(ApiKey.INIT_WRITER, pb.InitWriterRequest())) for client in clients * 600]
            given = [client.receive(each).writer_id for client, each in ids]
        assert len(set(given)) == 1200
        assert len(taken) <= 2
        assert min(taken) > TAKEN_AT_ONCE
    with running(tmp_path / "data") as bench:
        assert bench.tablet.call(ApiKey.INIT_WRITER, pb.InitWriterRequest()).writer_id > max(given)


def test_those_who_wait_for_an_id_get_one_in_their_order_and_are_not_overtaken():
    async def test() -> None:
        may_go_on, taken, order = asyncio.Event(), list[int](), list[str]()

        async def run_change(take, counter, count):
            await may_go_on.wait()
            return take(counter, count)

        class Store:
            def take(self, counter: str, count: int) -> int:
                taken.append(count)
                return 1 + sum(taken[:-1])

        ids = WriterIds(Store())

        async def ask(name: str) -> int:
            given = await ids.take(run_change)
            order.append(name)
            return given

        early = [asyncio.create_task(ask(f"early{number}")) for number in range(3)]
        await asyncio.sleep(0)
        may_go_on.set()
        while not order:
            await asyncio.sleep(0)
        late = await ask("late")
        assert [await each for each in early] == [1, 2, 3]
        assert (late, order) == (4, ["early0", "early1", "early2", "late"])
        assert len(taken) == 1

    asyncio.run(test())
