"""Our server in the exams: its answers against the golden ones of a real cluster, and third-party tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("fluss", reason="pyfluss has no wheel for this Python")

import differential
import java_client
import suites
from exams_cache import ExamUnavailable

from forebay.testing.server import ServerProcess

pytestmark = pytest.mark.foreign


def unknown_differences(exam: str, golden: differential.Outcomes, found: differential.Outcomes) -> list[str]:
    deviations = differential.read_deviations(differential.DEVIATIONS, exam)
    return [
        f"{difference.step}: {differential.label(difference.first)} there, {differential.label(difference.second)} here"
        for difference in differential.compare(golden, found, deviations)
        if difference.known is None
    ]


def test_answers_are_those_of_apache_fluss_but_for_the_listed_deviations(our_server: ServerProcess) -> None:
    ready = our_server.ready
    found = asyncio.run(differential.run_script(ready["bootstrap.servers"], ready["sasl.bootstrap.servers"]))
    assert unknown_differences("differential", differential.read_golden(differential.GOLDEN), found) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_java_client_sees_what_it_sees_of_apache_fluss(
    our_server: ServerProcess, java_fluss_client: Callable[..., list[dict[str, Any]]]
) -> None:
    found = java_client.outcomes_of(java_fluss_client(our_server.ready["bootstrap.servers"]))
    golden = differential.read_golden(java_client.GOLDEN)
    assert unknown_differences("java client", golden, found) == []
    for step in ("limit_scan: more than there are", "limit_scan: projected"):  # in an order of their own
        assert sorted(found[step]["value"]) == sorted(golden[step]["value"])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_java_client_authenticates(
    our_server: ServerProcess, java_fluss_client: Callable[..., list[dict[str, Any]]]
) -> None:
    settings = {
        "client.security.protocol": "sasl",
        "client.security.sasl.mechanism": "PLAIN",
        "client.security.sasl.username": "admin",
        "client.security.sasl.password": "admin-secret",
    }
    lines = java_fluss_client(our_server.ready["sasl.bootstrap.servers"], ["offsets"], settings)
    assert java_client.outcomes_of(lines)["offsets: latest"] == {"value": {"0": 10, "1": 6}}
    wrong = {**settings, "client.security.sasl.password": "wrong"}
    with pytest.raises(RuntimeError, match="AuthenticationException"):
        java_fluss_client(our_server.ready["sasl.bootstrap.servers"], ["offsets"], wrong)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("suite", ["pyfluss", "rust"])
def test_other_clients_own_tests_pass(our_server: ServerProcess, suite: str) -> None:
    runner = {"pyfluss": suites.run_pyfluss_suite, "rust": suites.run_rust_suite}[suite]
    try:
        result = runner(our_server.ready["bootstrap.servers"], our_server.ready["sasl.bootstrap.servers"])
    except ExamUnavailable as reason:
        pytest.skip(f"the {suite} suite cannot run here: {reason}")
    known = suites.known_failures(suites.KNOWN_FAILURES_OF_OURS, suite)
    assert {name: result.reasons.get(name, "") for name in result.failed if name not in known} == {}
    assert len(result.passed) > 50
