"""What an operator changes in the console, in a browser: each change asks first, and is done once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from forebay.tiering.now import tier_now
from forebay.tiering.runner import ThreadRunner
from tests.console.browser import browser, missing
from tests.console.browser_page import Shown

pytestmark = [pytest.mark.skipif(missing() is not None, reason=str(missing())), pytest.mark.slow]

EVIL = "<img src=x onerror=\"document.title='injected'\">"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        made = Shown(tmp_path_factory.mktemp("console"), page, allow_changes=True)
        try:
            made.conn.create_database("sales")
            table = made.conn.create_table(
                "sales.orders", {"id": "BIGINT", "name": "STRING"}, primary_key="id", buckets=2,
                options={"table.datalake.enabled": "true"},
            )  # fmt: skip
            for n in range(2):
                table.upsert([{"id": i, "name": str(n)} for i in range(100)])
                tier_now(made.conn, ["sales.orders"], ThreadRunner(1))
            yield made
        finally:
            made.close()


def press(shown: Shown, text: str, within: str = "main") -> None:
    """Click the button with this text."""
    clicked = shown.page.run(
        f"const b = [...document.querySelectorAll({within + ' button'!r})].find(b => b.innerText.trim() === {text!r});"
        "b?.click(); return !!b"
    )
    assert clicked, f"there is no button {text!r} in {within}"


def test_a_transaction_and_a_lease_are_ended_and_names_are_only_text(shown: Shown) -> None:
    page, table = shown.page, shown.conn.table("sales.orders")
    under_way = shown.conn.transaction(EVIL, 1).begin()
    under_way.upsert(table, [{"id": 1, "name": "x"}])
    snapshot = table.snapshot(name=EVIL)
    shown.open("/jobs")
    page.until_shown(EVIL)
    press(shown, "Abort")
    page.until_shown("Its program gets an error")
    press(shown, "Leave it", "dialog")
    assert shown.conn.admin.describe_server().open_transactions == 1
    press(shown, "Abort")
    page.until(lambda: page.run("return !!document.querySelector('dialog[open]')"), "no question")
    press(shown, "Abort the transaction", "dialog")
    page.until_shown("No transaction is open")
    assert shown.conn.admin.describe_server().open_transactions == 0
    shown.open("/activity?view=snapshots")
    page.until_shown(EVIL)
    press(shown, "Release")
    press_when_asked(shown, "Release the lease")
    page.until_shown("No table snapshot is open")
    assert page.run("return document.title") == "Activity · Forebay"
    assert page.run("return document.querySelectorAll('main img').length") == 0
    assert page.errors() == []
    snapshot.release()


def press_when_asked(shown: Shown, text: str) -> None:
    shown.page.until(lambda: shown.page.run("return !!document.querySelector('dialog[open]')"), "no question")
    press(shown, text, "dialog")


def test_tags_are_made_and_deleted_and_an_error_stays_in_the_question(shown: Shown) -> None:
    page = shown.page
    shown.open("/tables/sales/orders/lake?view=tags")
    page.until_shown("There are no tags")
    for _ in range(2):
        press(shown, "New tag")
        page.until(lambda: page.run("return !!document.querySelector('dialog[open]')"), "no question")
        page.type("dialog input[name=name]", "nightly")
        page.type("dialog input[name=retain]", "30 d")
        press(shown, "Create the tag", "dialog")
        page.until_shown("nightly", "30 d")
    page.until(lambda: "already" in page.text() or "exists" in page.text(), "no error")
    press(shown, "Leave it", "dialog")
    press(shown, "Delete")
    press_when_asked(shown, "Delete the tag")
    page.until_shown("There are no tags")


def test_a_lake_is_compacted_and_searched_for_orphans(shown: Shown) -> None:
    page = shown.page
    shown.open("/tables/sales/orders/lake?view=upkeep")
    page.until_shown("Planned compaction")
    page.click("input[type=checkbox]")
    page.until_shown("Files read")
    press(shown, "Compact")
    press_when_asked(shown, "Compact")
    page.until_shown("made snapshot", "There is nothing to compact")
    press(shown, "Search")
    page.until_shown("No orphans older than 1 d")
    shown.open("/jobs")
    page.until_shown("compaction", "search for orphans", "done")


def test_addresses_that_lead_nowhere_say_so(shown: Shown) -> None:
    page = shown.page
    for path, expected in (
        ("/tables/%E0%A4%A/x", "This page does not exist"),
        ("/nope", "This page does not exist"),
        ("/tables/sales/%3Cimg%20src=x%3E", "Not found"),
        ("/tables/sales/orders/lake?view=constructor", "Files by size"),
        ("/activity?view=toString", "In order of connection"),
        ("/lakes/sales/orders?lake=none", "this console has no lake 'none'"),
    ):
        shown.open(path)
        page.until_shown(expected)
        assert page.run("return document.querySelectorAll('main img').length") == 0
    page.errors()  # those of answers that were not found


def test_a_table_that_is_dropped_while_it_is_shown(shown: Shown) -> None:
    page, conn = shown.page, shown.conn
    made: Any = conn.create_table(
        "sales.gone", {"id": "BIGINT"}, primary_key="id", buckets=1, options={"table.datalake.enabled": "true"}
    )
    made.upsert([{"id": 1}])
    shown.open("/tables/sales/gone/union")
    page.until_shown("Bucket by bucket", "current rows")
    shown.open("/tables/sales/gone/lake")
    page.until_shown("This lake table is empty")
    conn.drop_table("sales.gone")
    shown.open("/tables/sales/gone/union")
    page.until_shown("Not found")
    shown.open("/tables/sales/gone/lake")
    page.until_shown("Not found")


@pytest.mark.parametrize(
    ("path", "shown_before"),
    [
        ("/tiering", "sales.orders"),
        ("/jobs", "Tiering rounds"),
        ("/activity", "Clients"),
        ("/tables/sales/orders/lake", "Files by size"),
    ],
)
def test_what_was_shown_stays_while_the_server_is_away(shown: Shown, path: str, shown_before: str) -> None:
    page = shown.page
    shown.open(path)
    page.until_shown(shown_before)
    shown.server.kill()
    try:
        page.until_shown("The server does not respond")
        assert shown_before in page.text()
    finally:
        shown.server.start(keep_ports=True)
    page.until(lambda: "The server does not respond" not in page.text(), "it does not see the server again")
    page.until_shown(shown_before)
