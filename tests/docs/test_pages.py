"""Every block of README.md and docs runs verbatim, in order, and a second time; here the pages without Spark.

Of these, `make test` types docs/paimon.md twice and the others once; `make nightly` types them twice."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, SHOWN, TYPED, blocks, pages_before, typed
from tests.docs.spark_pages import TYPED_PAGES, WITH_SPARK
from tests.every_run import every_run

PRINTED = {
    "docs/comparison.md": [
        "three copies: 'table.replication.factor' must be 1",
        "a live table loses a column: alter table fluss.orders: drop_columns='item' is not possible",
        "access rules: this server has no access control lists",
        "DuckDB's whole SQL: ",
    ],
    "docs/merge-engines.md": ["[{'item': 'cup', 'sold': 1, 'best': 7.0}, {'item': 'tin', 'sold': 5, 'best': 2.5}]\n"],
    "docs/live-merge-engines.md": [
        "[{'item': 'cup', 'pieces': 1, 'counted': 10}, {'item': 'tin', 'pieces': 5, 'counted': 20}]\n",
        "[{'item': 'tin', 'sold': 6, 'best': 2.5, 'who': 'ann+bob'}]\n",
    ],
    "docs/paimon.md": [
        "['orders', 'visits']\n",
        "there is no column 'amuont'; columns are id, customer, item, amount; did you mean 'amount'?\n",
        "[{'item': 'rum', 'amount': 10.0}]\n",
        "{'order': 99, 'item': None, 'amount': None}",
        "{'id': 2, 'what': 'tea', 'note': None}",
    ],
    "docs/paimon-streams.md": ["4\n5 3\n", "['update_before', 'update_after']\n"],
    "docs/paimon-maintenance.md": [
        "\nsales.orders\nsales.visits\n",
        "primary-key table",
        "\nid,item,amount\n",
        "sales.orders has 2 buckets",
        "\nbefore-tests",
    ],
    "docs/paimon-catalogs.md": ["['items']\n"],
}
"""What comments on a page say that it prints. Sentences on all pages that say `prints` are looked for as well."""


@pytest.mark.parametrize(
    ("page", "times"),
    every_run(
        [(page, times) for page in TYPED_PAGES if page not in WITH_SPARK for times in (1, 2)],
        lambda case: case[1] == 1,
    ),
)
def test_the_blocks_of_a_page_run_in_order_and_again_on_the_next_day_and_print_what_it_says(
    page: str, times: int, tmp_path: Path
) -> None:
    printed, *_ = typed(page, tmp_path, times)
    promised = re.findall(r"\bprints `([^`]+)`(?: and `([^`]+)`)?", (ROOT / page).read_text(encoding="utf-8"))
    for wanted in [*PRINTED.get(page, []), *(f"{line}\n" for pair in promised for line in pair if line)]:
        assert wanted in printed


def test_the_errors_that_the_questions_name_are_words_of_messages() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    messages = re.sub(r'"\s*\n\s*f?"', "", code)
    page = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8").partition("\n## Errors\n")[2]
    headings = re.findall(r"^### (.+)$", page, re.MULTILINE)
    assert len(headings) > 10
    assert [words for words in headings if words not in messages and not words.startswith("Spark says")] == []


@pytest.mark.parametrize("page", [page for page in PAGES if pages_before(page)])
def test_a_page_names_all_pages_that_its_examples_continue(page: str) -> None:
    before = pages_before(page)
    for number, name in enumerate(before):
        assert any(block.is_typed for block in blocks(name)), f"{page}: {name} has no examples"
        assert set(pages_before(name)) <= set(before[:number]), f"{page}: {name} continues other pages"
    assert any(block.is_typed for block in blocks(page)), f"{page} has no examples, and needs no other page"


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_typed_or_says_why_not(page: str) -> None:
    for block in blocks(page):
        place = f"{page}:{block.line}"
        assert block.language in (*TYPED, *SHOWN), f"{place}: blocks of '{block.language}' are not known to tests/docs"
        if block.language in SHOWN:
            assert not block.text.startswith(("$ ", "import ", "from ")), (
                f"{place}: say its language, so that it is run"
            )
        if block.comment is not None and block.comment[0] == "not run":
            assert len(block.comment[1].split()) >= 3, f"{place}: why it is not run takes a few words"
