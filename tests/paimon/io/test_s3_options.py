"""S3 without a server: the calls to pyarrow and to boto3, and the handling of their results. Needs neither boto3."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pyarrow import fs

from forebay.base.errors import InvalidRequest, StorageFailure
from forebay.paimon.io import s3
from forebay.paimon.io.opening import open_file_io
from forebay.paimon.io.s3 import S3FileIO

KEYS = {"s3.access-key": "k", "s3.secret-key": "s"}
OPTIONS = {**KEYS, "s3.endpoint": "http://127.0.0.1:1", "s3.region": "r"}


class ClientError(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


class BotoCoreError(Exception):
    pass


class FakeS3:
    """What was asked of pyarrow and boto3, and how boto3 answers."""

    def __init__(self) -> None:
        self.filesystems: list[dict[str, str]] = []
        self.clients: list[dict[str, str]] = []
        self.puts: list[dict[str, Any]] = []
        self.failure: Exception | None = None

    def filesystem(self, **given: str) -> fs.FileSystem:
        self.filesystems.append(given)
        return fs.LocalFileSystem()

    def client(self, service: str, **given: str) -> FakeS3:
        assert service == "s3"
        self.clients.append(given)
        return self

    def put_object(self, **given: Any) -> None:
        self.puts.append(given)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeS3:
    found = FakeS3()

    def module(name: str, **content: object) -> None:
        made = ModuleType(name)
        made.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, made)

    module("boto3", client=found.client)
    module("botocore")
    module("botocore.exceptions", ClientError=ClientError, BotoCoreError=BotoCoreError)
    monkeypatch.setattr(s3.fs, "S3FileSystem", found.filesystem)
    monkeypatch.chdir(tmp_path)
    return found


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"s3.access-key": "k"}, "without 's3.secret-key'"),
        ({"s3.secret-key": "s"}, "without 's3.access-key'"),
        ({"s3.session-token": "t"}, "without 's3.access-key' and 's3.secret-key'"),
        ({"s3.session-token": "t", "s3.access-key": "k"}, "without 's3.secret-key'"),
    ],
)
def test_credentials_in_part_are_refused(fake: FakeS3, options: dict[str, str], missing: str) -> None:
    with pytest.raises(InvalidRequest, match=missing):
        S3FileIO(options)
    assert fake.filesystems == []


def test_only_what_is_given_is_handed_on(fake: FakeS3) -> None:
    for options in ({}, OPTIONS, {**KEYS, "s3.session-token": "t"}):
        S3FileIO(options).create("s3://lake/f", b"x")
    assert fake.filesystems == [
        {},
        {"endpoint_override": "http://127.0.0.1:1", "access_key": "k", "secret_key": "s", "region": "r"},
        {"access_key": "k", "secret_key": "s", "session_token": "t"},
    ]
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s"}
    assert fake.clients == [
        {},
        {"endpoint_url": "http://127.0.0.1:1", **keys, "region_name": "r"},
        {**keys, "aws_session_token": "t"},
    ]


def test_paths_of_s3_are_opened_with_a_catalogs_options(fake: FakeS3) -> None:
    for scheme in ("s3", "s3a", "oss"):
        assert isinstance(open_file_io(f"{scheme}://lake/x", {"s3.region": scheme}), S3FileIO)
    assert isinstance(open_file_io("s3://lake/x"), S3FileIO)
    assert fake.filesystems == [{"region": "s3"}, {"region": "s3a"}, {"region": "oss"}, {}]


def test_objects_are_created_by_a_conditional_put_of_one_client(fake: FakeS3) -> None:
    io = pickle.loads(pickle.dumps(S3FileIO(OPTIONS)))
    assert io.supports_atomic_create
    assert [io.create(f"s3://lake/d/{i}", b"x") for i in range(2)] == [True, True]
    assert fake.puts == [{"Bucket": "lake", "Key": f"d/{i}", "Body": b"x", "IfNoneMatch": "*"} for i in range(2)]
    assert len(fake.clients) == 1


@pytest.mark.parametrize(
    ("failure", "says"),
    [
        (ClientError("PreconditionFailed"), None),
        (ClientError("412"), None),
        (ClientError("ConditionalRequestConflict"), "another process is writing it right now"),
        (ClientError("409"), "another process is writing it right now"),
        (ClientError("SlowDown"), "cannot create s3://lake/f: SlowDown"),
        (BotoCoreError("no route"), "cannot create s3://lake/f: no route"),
    ],
)
def test_who_comes_second_is_told_so_and_other_refusals_are_failures(
    fake: FakeS3, failure: Exception, says: str | None
) -> None:
    fake.failure = failure
    io = S3FileIO(OPTIONS)
    if says is None:
        assert io.create("s3://lake/f", b"x") is False
        return
    with pytest.raises(StorageFailure, match=says):
        io.create("s3://lake/f", b"x")


@pytest.mark.parametrize("without", [{"option": True}, {"boto3": True}])
def test_without_conditional_puts_commits_need_a_lock(
    fake: FakeS3, monkeypatch: pytest.MonkeyPatch, without: dict[str, bool]
) -> None:
    if without.get("boto3"):
        monkeypatch.setitem(sys.modules, "boto3", None)
    options = {**OPTIONS, "s3.conditional-put": "false"} if without.get("option") else OPTIONS
    assert not S3FileIO(options).supports_atomic_create
