"""Fixtures of the exams: a real Fluss cluster, our server with authentication, the Java client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from exams_cache import ExamUnavailable, jar_path, java_classes, java_tool
from fluss_cluster import SASL_USERS, RealFluss

from forebay.testing.server import ServerProcess


@pytest.fixture(scope="session")
def real_fluss() -> Iterator[RealFluss]:
    """A running Apache Fluss 0.9.1 cluster with plain and SASL listeners; skips with the reason where none can be."""
    cluster = RealFluss()
    try:
        cluster.start()
    except ExamUnavailable as reason:
        pytest.skip(f"no real Fluss cluster here: {reason}")
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """`forebay server` with the users that the tests of others expect, in a process of its own."""
    credentials = ",".join(f"{name}:{password}" for name, password in SASL_USERS.items())
    folder = tmp_path_factory.mktemp("exam") / "data"
    settings = {"security.sasl.plain.credentials": credentials}
    server = ServerProcess(folder, sasl=True, settings=settings, arguments=["--plain"])
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def java_fluss_client() -> Callable[..., list[dict[str, Any]]]:
    """`java_client.run_scenarios`, ready to run; skips with the reason where there is no Java."""
    import java_client

    try:
        java_tool("java")
        java_classes("client", jar_path("fluss-client-", "slf4j-", "jsr305-"))
    except ExamUnavailable as reason:
        pytest.skip(f"no Java client here: {reason}")
    return java_client.run_scenarios
