"""Tables on S3, simulated by moto. Needs boto3 and moto (`pip install boto3 'moto[s3,server]'`); skipped without."""

from __future__ import annotations

import json
import pickle
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import Conflict, ForebayError, NotFound, UnsupportedOperation
from forebay.paimon.commit.committer import FileStoreCommit
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.opening import open_file_io
from forebay.paimon.store.context import TableContext
from forebay.paimon.store.manifests import ManifestStore
from forebay.paimon.store.paths import PathFactory
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.store.snapshots import SnapshotManager
from forebay.server.embedded import EmbeddedServer
from forebay.tiering.now import tier_table
from forebay.tiering.runner import ThreadRunner
from tests.paimon.commit.tables import SCHEMA, append, compact, data_file
from tests.patience import PATIENCE

boto3 = pytest.importorskip("boto3", reason="boto3 is not installed: pip install boto3 'moto[s3,server]'")
moto_server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[s3,server]'")

pytestmark = [pytest.mark.foreign, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def options() -> Iterator[Mapping[str, str]]:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    _, port = server.get_host_and_port()
    found = {
        "s3.endpoint": f"http://127.0.0.1:{port}",
        "s3.access-key": "test",
        "s3.secret-key": "test",
        "s3.region": "us-east-1",
    }
    client: Any = boto3.client(
        "s3",
        endpoint_url=found["s3.endpoint"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="lake")
    yield found
    server.stop()


@pytest.fixture
def io(options: Mapping[str, str]) -> FileIO:
    return open_file_io("s3://lake/x", options)


def test_objects_are_written_listed_and_deleted(io: FileIO) -> None:
    io = pickle.loads(pickle.dumps(io))
    io.write("s3://lake/d/f", b"abc")
    assert io.read("s3://lake/d/f") == b"abc"
    assert [(s.path, s.size) for s in io.list("s3://lake/d")] == [("s3://lake/d/f", 3)]
    assert [s.path for s in io.walk("s3://lake")] == ["s3://lake/d/f"]
    assert io.delete("s3://lake/d/f") is True
    with pytest.raises(NotFound):
        io.read("s3://lake/d/f")


def test_of_many_creators_one_wins(io: FileIO) -> None:
    wins = []
    start = threading.Barrier(4)

    def create(i: int) -> None:
        start.wait()
        if io.create("s3://lake/race", b"%d" % i):
            wins.append(i)

    threads = [threading.Thread(target=create, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert io.read("s3://lake/race") == b"%d" % wins[0]
    assert io.create("s3://lake/race", b"again") is False


def test_a_table_is_committed_to_by_conditional_writes(io: FileIO) -> None:
    paths = PathFactory.of("s3://lake/db.db/t", SCHEMA)
    SchemaManager(io, paths).create(SCHEMA)
    table = TableContext(io, paths, SCHEMA, SchemaManager(io, paths))
    commit, other = (FileStoreCommit(table, user) for user in ("u", "o"))
    commit.commit([append("f1")])
    other.commit([append("f2")])
    commit.commit([compact([data_file("f1")], [data_file("big", level=5)])])
    with pytest.raises(Conflict):
        other.commit([compact([data_file("f1")], [data_file("big2", level=5)])])
    latest = commit.snapshots.latest()
    assert latest is not None
    assert latest.id == 3
    live = ManifestStore(io, paths, SCHEMA).live_files(latest)
    assert sorted(e.file.file_name for e in live) == ["big", "f2"]


def test_without_conditional_writes_a_commit_is_refused(options: Mapping[str, str]) -> None:
    plain = open_file_io("s3://lake/x", {**options, "s3.conditional-put": "false"})
    assert not plain.supports_atomic_create
    with pytest.raises(UnsupportedOperation, match="catalog with a lock"):
        SchemaManager(plain, PathFactory("s3://lake/db.db/u")).create(SCHEMA)


@pytest.mark.parametrize("guarded_by", ["conditional writes", "a lock"])
def test_committers_that_are_at_work_at_once_are_all_seen(options: Mapping[str, str], guarded_by: str) -> None:
    """What is acknowledged is visible, and once; on a store without conditional writes under a lock."""
    conditional = guarded_by == "conditional writes"
    root = f"s3://lake/races.db/{conditional}"
    lock = None if conditional else ThreadLock()
    schema = SCHEMA.with_options({**SCHEMA.options, "commit.max-retries": "200"})
    paths = PathFactory.of(root, schema)

    def store() -> FileIO:
        return open_file_io(root, {**options, "s3.conditional-put": str(conditional).lower()})

    SchemaManager(store(), paths, lock).create(schema)
    acknowledged: list[str] = []

    def commit(worker: int) -> None:
        own = store()
        table = TableContext(own, paths, schema, SchemaManager(own, paths, lock))
        committer = FileStoreCommit(table, f"user{worker}", lock=lock)
        for i in range(8):
            committer.commit([append(f"w{worker}-{i}")], identifier=i)
            acknowledged.append(f"w{worker}-{i}")

    threads = [threading.Thread(target=commit, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(acknowledged) == [f"w{worker}-{i}" for worker in range(3) for i in range(8)]
    snapshots = SnapshotManager(store(), paths)
    assert snapshots.ids() == list(range(1, 25))
    latest = snapshots.latest()
    assert latest is not None
    live = ManifestStore(store(), paths, schema).live_files(latest)
    assert sorted(e.file.file_name for e in live) == sorted(acknowledged)


class ThreadLock:
    """A commit lock for the threads of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def hold(self) -> Iterator[None]:
        with self._lock:
            yield


def test_readers_and_workers_bring_temporary_credentials_of_their_own(tmp_path: Path) -> None:
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"

    def client(service: str) -> Any:
        given = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        return boto3.client(service, endpoint_url=endpoint, **given)

    client("s3").create_bucket(Bucket="lake")
    everything = json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
    )
    iam = client("iam")
    role = iam.create_role(RoleName="reader", AssumeRolePolicyDocument=everything)["Role"]["Arn"]
    iam.put_role_policy(RoleName="reader", PolicyName="all", PolicyDocument=everything)
    found = client("sts").assume_role(RoleArn=role, RoleSessionName="reader")["Credentials"]
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": "s3://lake/w"}
    settings |= {f"datalake.paimon.{name}": v for name, v in (("s3.endpoint", endpoint), ("s3.region", "us-east-1"))}
    temporary = {"s3.access-key": found["AccessKeyId"], "s3.secret-key": found["SecretAccessKey"]}
    whole = {**temporary, "s3.session-token": found["SessionToken"]}
    settings |= {f"datalake.paimon.{name}": value for name, value in whole.items()}
    refuse_strangers = urllib.request.Request(f"{endpoint}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"})
    urllib.request.urlopen(refuse_strangers, timeout=PATIENCE).close()
    with EmbeddedServer(tmp_path, settings=settings) as forebay_server:
        address = forebay_server.bootstrap_servers
        with forebay.connect(address, lake_options=whole) as connection:
            properties = {"table.datalake.enabled": "true"}
            connection.create_table("fluss.t", {"id": pa.int32()}, options=properties)
            connection.table("fluss.t").append([{"id": 1}])
            tier_table(connection, "fluss.t", ThreadRunner(1))
            connection.table("fluss.t").append([{"id": 2}])
            rows = connection.table("fluss.t").scan(source="union").to_arrow()
            assert sorted(rows.column("id").to_pylist()) == [1, 2]
        stale = {**whole, "s3.session-token": "ended"}
        with (
            forebay.connect(address, lake_options=stale) as connection,
            pytest.raises(ForebayError, match=r"(?i)ACCESS_DENIED|InvalidToken|InvalidAccessKey|Forbidden|403"),
        ):
            connection.table("fluss.t").scan(source="union").to_arrow()
    server.stop()
