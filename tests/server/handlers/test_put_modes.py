"""PutKv's `agg_mode`, and options of merge engines that a table does not have."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import ErrorCode, InvalidRequest
from tests.server.raw_client import ApiKey, pb
from tests.server.running import KV_COLUMNS, kv_key, kv_records, running

_DEFAULT, _OVERWRITE = 0, 1


@pytest.mark.parametrize("behavior", ["ignore", "disable"])
def test_a_put_that_overwrites_deletes_where_others_may_not(tmp_path: Path, behavior: str) -> None:
    with running(tmp_path) as bench:
        table = bench.create("t", KV_COLUMNS, ["id"], properties={"table.delete.behavior": behavior})
        bench.put(table, kv_records([{"id": 1, "name": "a"}]))

        def delete(mode: int) -> int:
            request = pb.PutKvRequest(acks=-1, table_id=table, timeout_ms=10_000, agg_mode=mode)
            request.buckets_req.add(bucket_id=0, records=kv_records([{"id": 1}], [True]))
            return int(bench.tablet.call(ApiKey.PUT_KV, request).buckets_resp[0].error_code)

        def is_there() -> bool:
            return bool(bench.lookup(table, [kv_key(1)]).values[0].HasField("values"))

        expected = ErrorCode.DELETION_DISABLED_EXCEPTION if behavior == "disable" else ErrorCode.NONE
        assert (delete(_DEFAULT), is_there()) == (expected, True)
        assert (delete(_OVERWRITE), is_there()) == (ErrorCode.NONE, False)


def test_aggregate_functions_without_their_engine_are_refused_and_not_kept_in_silence(tmp_path: Path) -> None:
    with running(tmp_path) as bench, forebay.connect(bench.server.bootstrap_servers) as connection:
        columns = {"k": pa.int32(), "v": pa.int64()}
        with pytest.raises(InvalidRequest, match=r"'fields.v.agg' = 'sum' asks for an aggregate function") as refused:
            connection.create_table("fluss.t", columns, primary_key=["k"], options={"fields.v.agg": "sum"})
        assert refused.value.code == ErrorCode.INVALID_CONFIG_EXCEPTION
        connection.create_table("fluss.t", columns, primary_key=["k"], options={"fields.v.note": "x"})
        with pytest.raises(InvalidRequest, match="only the aggregation merge engine uses"):
            connection.table("fluss.t").alter(set={"fields.v.agg": "sum"})
