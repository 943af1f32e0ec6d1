"""Object stores of clouds: the contract on obstore's store in memory and on S3, simulated by moto."""

from __future__ import annotations

import sys
from collections.abc import Iterator

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


def test_an_installation_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(UnsupportedOperation, match=r"pip install 'forebay\[store\]'"):
        CloudStore("s3://bucket/store", {})
