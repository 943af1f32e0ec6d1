"""The console in a browser: every screen in both themes and on a small screen, and what an operator does with it.

With FOREBAY_PICTURES=docs/pictures it makes the pictures of docs/console.md.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import forebay
from forebay.tiering.now import tier_now
from forebay.tiering.runner import ThreadRunner
from tests.console.browser import browser, missing
from tests.console.browser_page import Shown

pytestmark = [pytest.mark.skipif(missing() is not None, reason=str(missing())), pytest.mark.slow]

AXE = "axe-core@4.14.1"
PICTURES = os.environ.get("FOREBAY_PICTURES")
STATES = ("new", "paid", "shipped", "returned")


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with browser(tmp_path_factory.mktemp("profile")) as page:
        made = Shown(tmp_path_factory.mktemp("console"), page)
        try:
            _fill(made.conn)
            yield made
        finally:
            made.close()


def _fill(conn: forebay.Connection) -> None:
    for database in ("sales", "telemetry", "web"):
        conn.create_database(database)
    columns = {
        "id": "BIGINT", "customer": "STRING", "amount": "DECIMAL(10,2)", "status": "STRING", "at": "TIMESTAMP_LTZ(3)",
    }  # fmt: skip
    orders = conn.create_table(
        "sales.orders", columns, primary_key="id", buckets=4, comment="what was bought",
        options={"table.datalake.enabled": "true", "owner": "sales@example.org"},
    )  # fmt: skip
    begin = dt.datetime(2026, 1, 31, 9, tzinfo=dt.UTC)

    def rows(first: int, last: int, state: int = 0) -> list[dict[str, Any]]:
        return [
            {"id": i, "customer": f"customer-{i % 97}", "amount": Decimal(i * 37 % 9000) / 100,
             "status": STATES[(i + state) % 4], "at": begin + dt.timedelta(seconds=i)}
            for i in range(first, last)
        ]  # fmt: skip

    orders.upsert(rows(0, 4000))
    tier_now(conn, ["sales.orders"], ThreadRunner(1))
    orders.upsert(rows(1000, 1040, 1))
    orders.upsert([row | {"amount": Decimal("19.90")} for row in rows(1030, 1033, 2)])
    orders.delete([7, 8])
    visits = conn.create_table(
        "web.visits", {"user": "BIGINT", "day": "STRING", "page": "STRING"}, primary_key=["user", "day"],
        partition_keys="day", buckets=2,
    )  # fmt: skip
    visits.upsert([{"user": i, "day": f"2026-01-{1 + i % 9:02}", "page": f"/p/{i % 7}"} for i in range(900)])
    visits.alter(add_columns={"referrer": "STRING"})
    events = conn.create_table("web.events", {"user": "BIGINT", "page": "STRING", "tags": "ARRAY<STRING>"}, buckets=2)
    events.append([{"user": i % 50, "page": f"/p/{i % 7}", "tags": ["a", None]} for i in range(2000)])
    for i in range(60):
        metric = conn.create_table(f"telemetry.metric_{i:02}", {"host": "STRING", "value": "DOUBLE"}, buckets=1)
        if i < 20 and i % 3:
            metric.append([{"host": f"host-{n % 9}", "value": n / 7} for n in range(100 + 37 * i)])
    for run in range(12):
        with conn.transaction("nightly", run) as tx:
            tx.append("telemetry.metric_03", [{"host": f"run-{run}", "value": n} for n in range(3)])


SCREENS = {
    "overview": "/overview",
    "tables": "/tables",
    "table": "/tables/sales/orders",
    "commits": "/tables/telemetry/metric_03",
    "rows": "/tables/sales/orders/rows",
    "live": "/tables/web/events/live",
    "key": "/tables/sales/orders/key?k.id=1031",
    "tiering": "/tiering",
    "lakes": "/lakes",
    "lake": "/tables/sales/orders/lake",
    "lake-files": "/tables/sales/orders/lake?view=files",
    "lake-snapshots": "/tables/sales/orders/lake?view=snapshots",
    "lake-tags": "/tables/sales/orders/lake?view=tags",
    "lake-upkeep": "/tables/sales/orders/lake?view=upkeep",
    "union": "/tables/sales/orders/union",
    "jobs": "/jobs",
    "activity": "/activity",
    "scans": "/activity?view=scans",
    "snapshots": "/activity?view=snapshots",
    "sql": "/sql?q=SELECT status, count(*) AS orders, sum(amount) AS amount%0AFROM sales.orders%0AGROUP BY status",
}
PICTURED = ("overview", "tables", "table", "rows", "live", "key", "sql", "union", "lake", "tiering")
SHAPES = {"light": (1120, 720, False), "dark": (1120, 720, True), "small": (390, 844, False)}


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core, which finds what keeps people out, from npm."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm, which axe-core comes from")
    folder = tmp_path_factory.mktemp("axe")
    got = subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, capture_output=True, text=True, check=False)
    if got.returncode:
        pytest.skip(f"npm has no {AXE} here: {got.stderr.strip()[-200:]}")
    with tarfile.open(next(folder.glob("*.tgz"))) as packed:
        found = packed.extractfile("package/axe.min.js")
        assert found is not None
        return found.read().decode()


def _prepare(shown: Shown, screen: str) -> None:
    """What a screen shows only after something is done."""
    if screen == "live":
        shown.page.until_shown("live")
        table = shown.conn.table("web.events")
        for n in range(6):
            table.append([{"user": 70 + n, "page": "/p/live", "tags": [str(n)]}])
        shown.page.until_shown("/p/live")
    elif screen == "sql":
        shown.page.click("textarea")
        shown.page.press("Control+Enter")
        shown.page.until_shown("4 rows")
    elif screen == "overview":
        for _ in range(3):  # rates need some samples
            shown.conn.table("web.events").append([{"user": n, "page": "/p/0", "tags": None} for n in range(300)])
            time.sleep(2)
    shown.page.until_settled()


@pytest.mark.parametrize("screen", SCREENS)
def test_a_screen_fits_and_can_be_used_by_all(shown: Shown, axe: str, screen: str) -> None:
    page = shown.page
    page.errors()
    for shape, (width, height, dark) in SHAPES.items():
        page.shape(width, height, dark=dark)
        shown.open(SCREENS[screen])
        _prepare(shown, screen)
        wide = page.run("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{screen} is {wide} pixels too wide for {width}"
        found = page.run(axe + "; return axe.run(document)")
        assert len(found["passes"]) > 10
        serious = [
            (each["id"], each["help"], [node["html"][:200] for node in each["nodes"][:3]])
            for each in found["violations"]
            if each["impact"] in ("serious", "critical")
        ]
        assert serious == [], shape
        if PICTURES and (screen in PICTURED if shape != "small" else screen == "tables"):
            page.picture(Path(PICTURES) / f"console-{screen}-{shape}.png")
    assert page.errors() == []


def test_keys_lead_everywhere(shown: Shown) -> None:
    page = shown.page
    page.shape(1280, 800, dark=False)
    shown.open("/overview")
    page.press("g", "t")
    page.until_shown("of 63")
    page.press("/")
    page.type("input[type=search]", "VISITS web")
    page.until_shown("1–1 of 1")
    assert "search=VISITS" in page.run("return location.search")
    page.press("Escape")
    page.run("document.querySelector('td.name a').focus()")
    page.press("Enter")
    page.until_shown("web.visits", "2026-01-01", "added referrer STRING")
    page.click("nav.tabs a:nth-child(2)")
    page.until_shown("100 log records searched", "_partition")
    page.press("?")
    page.until_shown("Previous and next page of a list")
    page.press("Escape")
    page.until(lambda: "Previous and next page of a list" not in page.text(), "the dialog stays")
    page.click("td.open button")
    page.until_shown("History of this key")
    page.click("dialog a.button")
    page.until_shown("Current row", "The whole log")
    assert page.errors() == []


def test_lists_have_pages(shown: Shown) -> None:
    page = shown.page
    shown.open("/tables")
    page.until_shown("1–50 of 63", "telemetry.metric_00")
    page.press("]")
    page.until_shown("51–63 of 63", "web.visits")
    page.press("[")
    page.until_shown("1–50 of 63", "telemetry.metric_00")


def test_a_statement_is_stopped_and_errors_are_shown(shown: Shown) -> None:
    page = shown.page
    shown.open("/sql")
    page.run("localStorage.clear()")
    shown.open("/sql")
    page.type("textarea", "SELECT count(*) FROM range(1000000000) a, range(1000000000) b")
    page.press("Control+Enter")
    page.until(lambda: page.run("return !!document.querySelector('.progress')"), "it does not run")
    page.click("form button[type=button]")
    page.until_shown("The statement was stopped.")
    page.until(lambda: not shown.console._rooms.get("sql"), "the server goes on")
    page.click("textarea")
    page.press("Control+a")
    page.type("textarea", "DROP TABLE sales.orders")
    page.press("Control+Enter")
    page.until_shown("Not supported", "DROP is not supported")
    assert shown.conn.table_exists("sales.orders")


def test_a_live_tail_ends_with_its_page(shown: Shown) -> None:
    page = shown.page
    shown.open("/tables/web/events/live")
    page.until_shown("live")
    page.until(lambda: shown.console._rooms.get("live tails") == 1, "no tail")
    page.click("nav.tabs a:nth-child(1)")
    page.until(lambda: shown.console._rooms.get("live tails") == 0, "the tail goes on")


def test_a_server_that_is_killed_and_comes_back(shown: Shown) -> None:
    page = shown.page
    shown.open("/tables")
    page.until_shown("1–50 of 63")
    shown.server.kill()
    page.until_shown("The server does not respond")
    assert "telemetry.metric_00" in page.text(), "what was shown stays"
    shown.server.start(keep_ports=True)
    page.until(lambda: "The server does not respond" not in page.text(), "it does not see the server again")
    page.until_shown("1–50 of 63")


def test_the_overview_does_not_call_a_server_healthy_that_does_not_answer(shown: Shown) -> None:
    page = shown.page
    shown.open("/overview")
    page.until_shown("healthy")
    shown.server.kill()
    page.until_shown("no answer", "This page shows its state at")
    assert "healthy" not in page.text()
    shown.server.start(keep_ports=True)
    page.until_shown("healthy")


def test_a_live_tail_goes_on_when_the_server_is_back_and_says_what_it_missed(shown: Shown) -> None:
    page = shown.page
    shown.open("/tables/web/events/live")
    page.until_shown("live")
    shown.server.kill()
    page.until_shown("reconnecting")
    shown.server.start(keep_ports=True)
    page.until_shown("The stream was interrupted from")
    shown.conn.table("web.events").append([{"user": 99, "page": "/p/again", "tags": None}])
    page.until_shown("/p/again")


def test_the_sql_box_completes_names_and_shows_where_an_error_is(shown: Shown) -> None:
    page = shown.page
    shown.open("/sql")
    page.run("localStorage.clear()")
    shown.open("/sql")
    page.type("textarea", "SELECT nope FROM ord")
    page.until_shown("sales.orders")
    page.press("Tab")
    page.until(lambda: page.run("return document.querySelector('textarea').value.endsWith('FROM sales.orders')"), "no")
    page.press("Control+Enter")
    page.until_shown("LINE 1: SELECT nope")
    [message] = page.run("return [...document.querySelectorAll('.box .lines')].map((each) => each.innerText)")
    lines = message.splitlines()
    shown_at = next(i for i, line in enumerate(lines) if line.startswith("LINE 1:"))
    assert lines[shown_at + 1].index("^") == lines[shown_at].index("nope")


def test_on_a_small_screen_the_screens_are_a_menu(shown: Shown) -> None:
    page = shown.page
    page.shape(390, 844, dark=False)
    shown.open("/tables")
    assert not page.run("return document.querySelector('#screens').checkVisibility()")
    page.click(".side .menu")
    page.click("#screens a[href='/jobs']")
    page.until_shown("Tiering rounds, compactions and open transactions")
    assert not page.run("return document.querySelector('#screens').checkVisibility()")
    page.shape(1280, 800, dark=False)


def test_a_commit_leads_to_the_table_as_of_it(shown: Shown) -> None:
    page = shown.page
    page.errors()  # those of earlier tests
    page.shape(1280, 800, dark=False)
    shown.open("/tables/telemetry/metric_03")
    page.until_shown("Commit 12", "Commit 3", "nightly version 11", "1–10 of 12", "WRITE")
    assert "Commit 2\n" not in page.text()
    page.press("]")
    page.until_shown("Commit 2", "11–12 of 12")
    page.run("[...document.querySelectorAll('td.name a')].find((a) => a.textContent === 'Commit 2').click()")
    page.until(lambda: page.run("return location.pathname") == "/sql", "the link does not lead to the SQL box")
    page.press("Control+Enter")
    page.until_shown("6 rows", "run-1")
    assert "run-2" not in page.text()
    shown.open("/tables/telemetry/metric_04")
    page.until_shown("No commits", "Rows that are written without one are only in the log.")
    assert page.errors() == []
