"""A server whose store is an S3 service that others wrote: a new machine takes over, the earlier server is fenced."""

from __future__ import annotations

from pathlib import Path

import pytest

import forebay
from forebay.base.errors import ForebayError
from tests.java_programs import ExamUnavailable
from tests.store.versity_gateway import KEYS, running_gateway

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'forebay[store]'")


@pytest.mark.foreign
@pytest.mark.slow
def test_a_new_machine_takes_the_tables_of_an_s3_bucket_up(tmp_path: Path) -> None:
    (tmp_path / "buckets" / "shop").mkdir(parents=True)
    try:
        with running_gateway(tmp_path / "buckets") as endpoint:
            take_over(tmp_path, {"s3.endpoint": endpoint, **KEYS})
    except ExamUnavailable as e:
        pytest.skip(str(e))


def take_over(folder: Path, keys: dict[str, str]) -> None:
    settings = {"store": "s3://shop/fluss", "store.durability": "store"}
    settings |= {f"store.{name}": value for name, value in keys.items()}
    with forebay.embedded(folder / "old", settings=settings, writer_delivery_timeout="2 s") as old:
        kv = old.create_table("fluss.kv", {"id": "BIGINT", "v": "STRING"}, primary_key="id")
        for number in range(30):
            kv.upsert([{"id": number, "v": str(number)}])
        with old.transaction("app", 7) as tx:
            tx.upsert(kv, [{"id": 1000, "v": "committed"}])
        with forebay.embedded(folder / "new", settings=settings) as new:
            with pytest.raises(ForebayError):
                kv.upsert([{"id": 0, "v": "too late"}])
            table = new.table("fluss.kv")
            assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [*range(30), 1000]
            assert table.lookup(0).to_pylist() == [{"id": 0, "v": "0"}]
            assert new.admin.committed_version("app") == 7
            table.upsert([{"id": 0, "v": "later"}])
