"""The exam harness itself: what it compares, reads and skips. Needs neither Java nor a network."""

from __future__ import annotations

import json
from pathlib import Path

import batches
import differential
import pytest
import raw_wire as wire
import suites
from exams_cache import ExamUnavailable, cache_root, entry, tool
from fluss_cluster import RealFluss

GOLDEN_FILES = sorted(differential.GOLDEN.parent.glob("*_0_9_1.json"))
OUTCOME_KINDS = {"value", "error", "error_frame", "unanswered", "raised"}


def test_raw_frames_are_those_of_a_real_client() -> None:
    """The frames captured from pyfluss 1.0.0, reference appendix D."""
    versions = wire.frame(wire.API_VERSIONS, 0, wire.encode([(1, "fluss-rust"), (2, "1.0.0")]))
    assert versions.hex() == "0000001b03e80000000000000a0a666c7573732d727573741205312e302e30"
    metadata = wire.frame(wire.GET_METADATA, 1, wire.encode([(1, [(1, "fluss"), (2, "l")])]))
    assert metadata.hex() == "0000001403f40000000000010a0a0a05666c75737312016c"


def test_negative_numbers_take_ten_bytes_and_come_back() -> None:
    encoded = wire.encode([(1, -1), (2, wire.Packed([1, -1])), (3, None), (4, True)])
    assert encoded[:11].hex() == "08ffffffffffffffffff01"
    decoded = wire.decode(encoded)
    assert decoded == {1: [-1], 2: [b"\x01" + b"\xff" * 9 + b"\x01"], 4: [1]}


def test_key_value_batches_are_those_of_a_real_client() -> None:
    """The records of the batch captured from pyfluss, reference part 2.12; the checksum is checked in `forebay`'s."""
    batch = batches.kv_batch([(batches.key(1), batches.row(1, "xx")), (batches.key(300), batches.row(300, None))])
    assert batch[28:].hex() == "0700000001010001027878" + "0600000002ac0202ac02"
    assert len(batch) == 4 + int.from_bytes(batch[:4], "little") == 0x2D + 4


def test_log_batches_have_the_length_and_checksum_that_they_name() -> None:
    batch = batches.log_batch([(1, "a"), (2, None)], writer_id=77, sequence=0)
    (header,) = batches.log_headers(batch)
    assert len(batch) == 12 + header.length
    assert batches.crc_is_right(batch)
    assert not batches.crc_is_right(batches.log_batch([(1, "a")], crc_change=1))
    assert (header.records, header.last_offset_delta, header.writer_id) == (2, 1, 77)


def test_a_step_that_differs_or_is_missing_is_a_difference() -> None:
    first = {"s: same": {"value": 1}, "s: other": {"error": 7}, "s: gone": {"value": None}}
    second = {"s: same": {"value": 1}, "s: other": {"error_frame": 7}, "s: new": {"value": None}}
    differences = differential.compare(first, second, {"s: n*": "because"})
    assert [(d.step, d.known) for d in differences] == [("s: other", None), ("s: gone", None), ("s: new", "because")]


def test_a_deviation_that_no_longer_shows_is_healed() -> None:
    first = {"a": {"value": 1}, "b: x": {"value": 1}, "b: y": {"value": 1}}
    second = {"a": {"value": 1}, "b: x": {"value": 2}, "b: y": {"value": 1}}
    deviations = {"a": "was wrong", "b: *": "is wrong", "never ran": "unknown"}
    assert differential.healed(differential.compare(first, second, deviations), deviations, second) == ["a"]


def test_unknown_differences_are_counted_and_known_ones_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = {"a": {"value": 1}, "b": {"error": 7}}, {"a": {"value": 2}, "b": {"error": 4}}
    assert differential.print_table(("x", "y"), first, second, {"a": "on purpose"}, every=False) == 1
    printed = capsys.readouterr().out
    assert "KNOWN    a" in printed
    assert "DIFFERS  b" in printed


def test_a_golden_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    outcomes = {"s: one": {"value": {"b": [1, None], "a": "\u00e9"}}, "s: two": {"error": -1}}
    differential.write_golden(tmp_path / "deep" / "g.json", "a server", outcomes)
    assert differential.read_golden(tmp_path / "deep" / "g.json") == outcomes


@pytest.mark.parametrize("name", ["real_fluss_0_9_1.json", "java_client_0_9_1.json"])
def test_golden_files_hold_codes_and_values_and_no_sentences(name: str) -> None:
    outcomes = differential.read_golden(differential.GOLDEN.parent / name)
    assert len(outcomes) > 100
    for step, outcome in outcomes.items():
        assert len(outcome) == 1, step
        assert set(outcome) <= OUTCOME_KINDS, step
        assert "Exception" not in json.dumps(outcome.get("value")), step
    assert not [step for step in outcomes if "broke off" in step or "the scenario itself" in step]


@pytest.mark.parametrize(
    ("exam", "golden"), [("differential", "real_fluss_0_9_1.json"), ("java client", "java_client_0_9_1.json")]
)
def test_every_deviation_names_a_step_and_a_reason(exam: str, golden: str) -> None:
    steps = differential.read_golden(differential.GOLDEN.parent / golden)
    for name, reason in differential.read_deviations(differential.DEVIATIONS, exam).items():
        assert [step for step in steps if step == name or (name[-1] == "*" and step.startswith(name[:-1]))], name
        assert len(reason) > 10, name


LIBTEST_OUTPUT = """
running 3 tests
test integration::admin::works ... ok
test integration::log::fails ... FAILED
test integration::log::waits ... ignored

failures:

---- integration::log::fails stdout ----
thread 'integration::log::fails' panicked at tests/log.rs:7:9:
assertion failed: left == right
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

failures:
    integration::log::fails

test result: FAILED. 1 passed; 1 failed; 1 ignored
"""


def test_results_of_rust_tests_are_read_with_their_reasons() -> None:
    result = suites.read_libtest(LIBTEST_OUTPUT, 1.0)
    assert result.passed == ["integration::admin::works"]
    assert result.failed == ["integration::log::fails"]
    assert result.skipped == ["integration::log::waits"]
    assert "left == right" in result.reasons["integration::log::fails"]
    assert "RUST_BACKTRACE" not in result.reasons["integration::log::fails"]


def test_results_of_pytest_are_read_with_their_reasons(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        """<testsuites><testsuite>
        <testcase classname="deep.test_admin" name="test_ok"/>
        <testcase classname="deep.test_admin" name="test_bad"><failure message="FlussError: 39&#10;more"/></testcase>
        <testcase classname="deep.test_admin" name="test_setup"><error message="no cluster"/></testcase>
        <testcase classname="deep.test_admin" name="test_not"><skipped/></testcase>
        </testsuite></testsuites>"""
    )
    result = suites.read_junit(report, 2.0)
    assert result.passed == ["test_admin::test_ok"]
    assert result.failed == ["test_admin::test_bad", "test_admin::test_setup"]
    assert result.skipped == ["test_admin::test_not"]
    assert result.reasons["test_admin::test_bad"] == "FlussError: 39"


@pytest.mark.parametrize(
    ("passed", "failed", "known", "good"),
    [
        (["a"], [], {}, True),
        (["a"], ["b"], {}, False),
        (["a"], ["b"], {"b": "why"}, True),
        (["a", "b"], [], {"b": "why"}, False),
        ([], [], {}, False),
    ],
    ids=["all passed", "unknown failure", "known failure", "known failure healed", "nothing ran"],
)
def test_a_suite_is_good_if_exactly_the_known_tests_fail(
    passed: list[str], failed: list[str], known: dict[str, str], good: bool
) -> None:
    result = suites.SuiteResult(passed, failed, [], {}, 0.0)
    assert suites.report("suite", result, known) is good


def test_known_failures_name_tests_of_both_suites() -> None:
    for suite in ["pyfluss", "rust"]:
        assert suites.known_failures(suites.KNOWN_FAILURES, suite)


def test_a_cache_entry_is_built_once_and_never_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_EXAMS_CACHE", str(tmp_path))
    built = []

    def fail(scratch: Path) -> None:
        (scratch / "half").touch()
        raise ExamUnavailable("no network")

    def build(scratch: Path) -> None:
        built.append(scratch)
        (scratch / "whole").touch()

    with pytest.raises(ExamUnavailable, match="no network"):
        entry("thing", "1", fail)
    assert [path.name for path in cache_root().iterdir()] == [".lock"]
    first, second = entry("thing", "1", build), entry("thing", "1", build)
    assert first == second
    assert [path.name for path in first.iterdir()] == ["whole"]
    assert len(built) == 1


def test_a_missing_tool_is_named_with_its_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ExamUnavailable, match=r"`mvn` is not on PATH.*download Apache Fluss"):
        tool("mvn", "download Apache Fluss from Maven Central")


def test_without_tools_a_cluster_is_unavailable_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY_EXAMS_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    cluster = RealFluss()
    with pytest.raises(ExamUnavailable, match="is not on PATH"):
        cluster.start()
    cluster.stop()
    assert cluster.folder is None
