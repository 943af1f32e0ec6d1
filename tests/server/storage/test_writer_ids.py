"""Writer ids are unique, and cheap."""

from __future__ import annotations

import asyncio

from forebay.base.ambient import ManualClock
from forebay.metadata.table import TableBucket
from forebay.server.server import Injected
from forebay.server.storage.writer_ids import TAKEN_AT_ONCE, WriterIds
from tests.server.raw_client import ApiKey, RawClient, pb
from tests.server.running import LOG_COLUMNS, log_records, running


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


def test_writers_that_were_silent_for_too_long_are_forgotten_in_each_open_bucket(tmp_path):
    clock = ManualClock()
    with running(tmp_path / "data", Injected(clock=clock)) as bench:
        tables = [bench.create(name, LOG_COLUMNS) for name in ("one", "other")]
        for table in tables:
            assert not bench.append(table, log_records([1], writer_id=7, batch_sequence=0)).error_code
        replicas = bench.server.server.context.replicas

        def known() -> list[list[int]]:
            found = []
            for table in tables:
                with replicas.using(TableBucket(table, 0)) as replica:
                    found.append(list(replica.log.writer_states()))
            return found

        replicas.expire_writers()
        assert known() == [[7], [7]]
        clock.advance(7 * 86_400 + 1)
        replicas.expire_writers()
        assert known() == [[], []]
