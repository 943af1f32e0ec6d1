"""The keys of a store that clients may read themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.raw_client import ApiKey, pb
from tests.server.running import Bench, running

S3 = {
    "store_s3_endpoint": "http://127.0.0.1:1", "store_s3_region": "eu-central-1",
    "store_s3_access__key": "writer", "store_s3_secret__key": "writes",
}  # fmt: skip


def token(bench: Bench) -> Any:
    return bench.tablet.call(ApiKey.GET_FILESYSTEM_SECURITY_TOKEN, pb.GetFileSystemSecurityTokenRequest())


def test_without_keys_for_clients_the_token_is_empty(tmp_path: Path) -> None:
    with running(tmp_path / "data", store=str(tmp_path / "store"), store_client__access="direct") as bench:
        assert (token(bench).schema, token(bench).token) == ("file", b"")


def test_clients_get_their_keys_and_the_service_and_never_the_servers_keys(tmp_path: Path) -> None:
    keys = {"store_client_s3_access__key": "reader", "store_client_s3_secret__key": "reads"}
    with running(tmp_path / "data", store=str(tmp_path / "store"), store_client__access="direct", **keys) as bench:
        context = bench.server.server.context
        context.config.settings.update({k.replace("__", "-").replace("_", "."): v for k, v in S3.items()})
        answer = token(bench)
    assert answer.schema == "s3"
    assert json.loads(answer.token) == {
        "access_key_id": "reader", "access_key_secret": "reads", "security_token": None,
    }  # fmt: skip
    assert {each.key: each.value for each in answer.addition_info} == {
        "fs.s3a.endpoint": "http://127.0.0.1:1",
        "fs.s3a.endpoint.region": "eu-central-1",
        "fs.s3a.path.style.access": "true",
    }
    assert b"writes" not in answer.SerializeToString()


@pytest.mark.parametrize("session", [{}, {"store_client_s3_session__token": "session"}])
def test_clients_ask_again_for_the_keys_of_a_session(tmp_path: Path, session: dict[str, str]) -> None:
    keys = {"store_client_s3_access__key": "reader", "store_client_s3_secret__key": "reads", **session}
    with running(tmp_path / "data", store=str(tmp_path / "store"), store_client__access="direct", **keys) as bench:
        clock = bench.server.server.context.clock
        before = clock.now_ms()
        answer = token(bench)
        after = clock.now_ms()
    assert answer.HasField("expiration_time") == bool(session)
    assert not session or before + 900_000 <= answer.expiration_time <= after + 900_000
