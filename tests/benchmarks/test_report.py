"""Figures, their verdicts, and their output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import data, machine
from benchmarks.report import (
    MISS,
    OK,
    Figure,
    FigureTable,
    Grid,
    Kind,
    Limit,
    Section,
    document,
    joined,
    merged,
    number,
    pages,
    section_text,
)


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure("x", 10), ""),
        (Figure("x", 10, value_min=10), OK),
        (Figure("x", 9.9, value_min=10), MISS),
        (Figure("x", 10, value_max=10), OK),
        (Figure("x", 10.1, value_max=10), MISS),
        (Figure("x", 10, ratio=3.0, ratio_min=3), OK),
        (Figure("x", 10, ratio=2.99, ratio_min=3), MISS),
        (Figure("x", 10, ratio=None, ratio_min=3), MISS),
        (Figure("x", 10, ratio=5.0, ratio_min=3, value_min=11), MISS),
        (Figure("x", 10, ratio=1.2, ratio_max=1.2), OK),
        (Figure("x", 10, ratio=1.21, ratio_max=1.2), MISS),
        (Figure("x", 10, ratio=None, ratio_max=1.2), MISS),
    ],
)
def test_a_figure_meets_its_target_only_if_every_part_of_it_is_met(figure: Figure, verdict: str) -> None:
    assert figure.verdict == verdict


@pytest.mark.parametrize(
    ("value", "text"), [(1234567.8, "1,234,568"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123"), (0, "0.00")]
)
def test_numbers_show_the_digits_that_matter(value: float, text: str) -> None:
    assert number(value) == text


def test_reasons_are_told_of_misses_only() -> None:
    table = FigureTable("t", "why")
    table.add(Figure("good", 5, value_min=1, reason="never told"))
    table.add(Figure("bad", 5, value_min=9, reason="the disk is slow"))
    section = Section("s", "S", [table])
    for text in (section_text(section), document([section], [])):
        assert "the disk is slow" in text
        assert "never told" not in text


def test_a_run_without_misses_says_so() -> None:
    assert document([Section("s", "S")], []).endswith("Nothing in this run.\n")


def test_the_turns_of_a_figure_are_shown_beside_it() -> None:
    assert Figure("x", 10, "ms", spread=(9, 123.4)).cells()[1] == "10.0 ms (9.00 to 123)"


def test_a_grid_is_written_with_all_its_rows() -> None:
    grid = Grid("Growth", "why", ["what", "1 row", "2 rows"], [["read", "3 ms", "6 ms"]])
    section = Section("s", "S", [grid])
    assert "| what | 1 row | 2 rows |\n|---|--:|--:|\n| read | 3 ms | 6 ms |" in document([section], [])
    assert "read" in section_text(section)


def section_of(name: str, what: str) -> Section:
    return Section(name, name, [FigureTable("t", "why", [Figure(what, 1, value_min=2, reason=f"{what} is slow")])])


def test_parts_and_the_rest_of_the_document_do_not_replace_each_other() -> None:
    facts = [("date", "today")]
    whole = merged("", [section_of("append", "log")], [], facts)
    assert whole == document([section_of("append", "log")], facts)
    both = merged(whole, [], [section_of("paimon", "lake 1")], facts)
    assert both.startswith(whole)
    assert both.count("* t, lake 1: lake 1 is slow") == 1
    renewed = merged(both, [], [section_of("paimon", "lake 2")], facts)
    assert renewed == both.replace("lake 1", "lake 2")
    again = merged(renewed, [section_of("append", "log 2")], [], facts)
    assert again == renewed.replace("| log |", "| log 2 |").replace("append, log: log is", "append, log 2: log 2 is")
    assert merged("", [], [section_of("paimon", "lake 2")], facts).startswith("# Benchmarks\n")


def with_kind(name: str, ours: float) -> Section:
    kind = Kind(f"{name} work", "rows/s", ours, {"slow": 2.0, "quick 1.0": 8.0}, Limit("the disk", 32.0))
    return Section(name, name, kinds=[kind])


def test_the_first_page_names_the_best_peer_and_the_limit_and_keeps_the_lines_of_other_sections() -> None:
    facts = [("date", "2026-01-01")]
    whole = merged("", [with_kind("spark", 16)], [with_kind("peers", 4)], facts)
    page = whole[: whole.index("How to read the rest")]
    assert "| peers work | 4.00 rows/s | 8.00: quick 1.0 | 0.50 x | 32.0: the disk | 12 % | 2026-01-01 |" in page
    assert page.index("peers work") < page.index("spark work") < page.index("first page: end")
    renewed = merged(whole, [], [with_kind("peers", 16)], [("date", "2026-02-02")])
    assert "| peers work | 16.0 rows/s | 8.00: quick 1.0 | 2.00 x | 32.0: the disk | 50 % | 2026-02-02 |" in renewed
    assert renewed.count("| spark work | 16.0 rows/s |") == renewed.count("| peers work |") == 1
    older = "# Benchmarks\n\nWithout a first page.\n"
    assert "| peers work |" in merged(older, [], [with_kind("peers", 4)], facts)


def test_the_pages_of_a_document_have_the_details_to_which_the_first_one_links() -> None:
    facts = [("date", "2026-01-01"), ("processor", "one core")]
    whole = merged("", [with_kind("spark", 16)], [with_kind("peers", 4)], facts)
    made = pages(whole, "benchmarks")
    assert list(made) == ["", "live", "peers"]
    assert "Machine: one core." in made[""]
    assert "Command: `make bench-peers`; [details](benchmarks/peers.md)." in made[""]
    assert made["peers"].startswith("# peers\n")
    assert "kind spark" in made["live"]
    assert pages(joined(made), "benchmarks") == made
    renewed = pages(merged(joined(made), [], [with_kind("peers", 16)], facts), "benchmarks")
    assert "| peers work | 16.0 rows/s |" in renewed[""]
    assert renewed["live"] == made["live"]


def test_of_times_the_least_is_the_best() -> None:
    kind = Kind("plan", "ms", 4.0, {"slow": 9.0, "quick": 2.0}, Limit("the manifests' bytes", 1.0))
    assert kind.cells("")[2:6] == ["2.00: quick", "0.50 x", "1.00: the manifests' bytes", "25 %"]
    assert Kind("alone", "ms", 4.0).cells("")[2:6] == [""] * 4


def test_the_machine_is_described_without_names_of_hosts_and_paths(tmp_path: Path) -> None:
    facts = dict(machine.facts(tmp_path))
    assert {"date", "processor", "memory", "kernel", "file system", "packages"} <= set(facts)
    assert not re.search(r"/(root|home|tmp|work)\b", " ".join(facts.values()))


def test_rows_are_the_same_in_every_run_and_about_70_bytes_long() -> None:
    rows = data.table(10_000)
    assert rows.equals(data.table(10_000))
    assert 60 <= rows.nbytes / rows.num_rows <= 80
    assert rows.schema == data.SCHEMA
    assert len(rows.column_names) == 8


@pytest.mark.parametrize("rows", [100, 101])
def test_half_of_the_upserted_rows_are_new(rows: int) -> None:
    ids = [i for batch in data.half_updates(rows, 1000) for i in batch.column(0).to_pylist()]
    assert len(ids) == len(set(ids)) == rows
    assert sum(i >= 1000 for i in ids) == rows // 2
