"""Object stores of clouds: the contract on obstore's store in memory and on S3, simulated by moto."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from forebay.base.errors import StorageFailure, UnsupportedOperation
from forebay.store.cloud import CloudStore
from forebay.store.opening import open_store
from tests.java_programs import ExamUnavailable
from tests.store.moto_s3 import running_moto
from tests.store.object_store_contract import ObjectStoreContract
from tests.store.versity_gateway import KEYS, running_gateway

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'forebay[store]'")


class TestCloudStoreInMemory(ObjectStoreContract):
    @pytest.fixture
    def store(self) -> CloudStore:
        return CloudStore("memory:///", {})


class TestCloudStoreWithoutSuffixes(ObjectStoreContract):
    """As in Azure, where the end of an object is not to be asked for."""

    @pytest.fixture
    def store(self, monkeypatch: pytest.MonkeyPatch) -> CloudStore:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        assert not CloudStore("az://container/store", {})._has_suffixes
        store = CloudStore("memory:///", {})
        store._has_suffixes = False
        return store


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    with running_moto("stores") as options:
        yield options


@pytest.mark.foreign
class TestCloudStoreOnS3(ObjectStoreContract):
    @pytest.fixture
    def store(self, s3: dict[str, str], request: pytest.FixtureRequest) -> CloudStore:
        store = open_store(f"s3://stores/{abs(hash(request.node.name))}", s3)
        assert isinstance(store, CloudStore)
        return store


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("gateway")
    (folder / "stores").mkdir()
    try:
        with running_gateway(folder) as endpoint:
            yield {"s3.endpoint": endpoint, **KEYS}
    except ExamUnavailable as e:
        pytest.skip(str(e))


@pytest.mark.foreign
@pytest.mark.slow
class TestCloudStoreOnVersity(ObjectStoreContract):
    @pytest.fixture
    def store(self, gateway: dict[str, str], request: pytest.FixtureRequest) -> CloudStore:
        store = open_store(f"s3://stores/{abs(hash(request.node.name))}", gateway)
        assert isinstance(store, CloudStore)
        return store


def test_a_service_that_does_not_answer_is_a_storage_failure() -> None:
    keys = {"s3.access-key": "a", "s3.secret-key": "b", "s3.region": "c", "s3.endpoint": "http://127.0.0.1:9"}
    with pytest.raises(StorageFailure, match=r"cannot read journal/1 in s3://bucket/store"):
        CloudStore("s3://bucket/store", keys).read("journal/1")


class Denying(BaseHTTPRequestHandler):
    """S3 as it is for those whose credentials have ended."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = answer

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_credentials_that_do_not_suffice_are_a_storage_failure_and_no_fault_of_a_client() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Denying) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        store = CloudStore("s3://bucket/store", {**KEYS, "s3.endpoint": endpoint, "s3.region": "us-east-1"})
        calls: list[Callable[[], object]] = [
            lambda: store.create("a", b"x"), lambda: store.read("a"), lambda: store.read("a", -1),
            lambda: store.upload("a", [b"x"]),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(StorageFailure, match="the credentials of this process do not allow it"):
                call()
        for call in (lambda: list(store.list("a")), lambda: store.delete(["a"])):
            with pytest.raises(StorageFailure, match="403 Forbidden"):  # which obstore does not tell from others
                call()
        server.shutdown()
        thread.join()


def test_an_installation_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UnsupportedOperation, match=r"pip install 'forebay\[store\]'"):
        CloudStore("s3://bucket/store", {})
