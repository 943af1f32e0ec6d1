"""Ids of writers are given once, and cheaply."""

from __future__ import annotations

from forebay.server.writer_ids import TAKEN_AT_ONCE
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
        assert taken == [TAKEN_AT_ONCE] * 2
    with running(tmp_path / "data") as bench:
        assert bench.tablet.call(ApiKey.INIT_WRITER, pb.InitWriterRequest()).writer_id > max(given)
