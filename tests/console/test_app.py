"""The web application: who is answered, what is refused, and how errors and parameters cross it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import forebay
from forebay.base.ambient import SYSTEM_CLOCK, ManualClock, SeededIds
from forebay.base.errors import AccessDenied, ErrorCode, Unavailable
from forebay.console.app import STATIC, make_app
from forebay.console.session import Console
from forebay.console.visitors import Doors, Visitors
from forebay.testing.server import EmbeddedServer
from tests.console.asking import ask


def test_a_page_and_its_files_are_served_with_headers_that_allow_nothing_else(app: Any) -> None:
    for path in ("/", "/tables", "/tables/sales/orders"):
        page = ask(app, "GET", path)
        assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.body == (STATIC / "index.html").read_bytes()
    script = ask(app, "GET", "/app.js")
    assert script.status == 200
    assert "javascript" in script.headers["content-type"]
    policy = script.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert script.headers["x-content-type-options"] == "nosniff"
    assert ask(app, "GET", "/nothing.js").status == 404
    assert ask(app, "GET", "/../app.py").status == 404
    assert ask(app, "GET", "/api/nothing").error[:2] == (404, "not_found")
    assert ask(app, "POST", "/api/tables", {}).status in (404, 405)


def test_the_page_asks_no_other_host_and_has_no_script_of_its_own() -> None:
    for path in STATIC.rglob("*"):
        if path.suffix in (".html", ".js", ".css"):
            text = path.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
            assert not re.search(r"(https?:)?//[a-z0-9.-]+\.[a-z]{2,}/", text), path
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>(.*?)</script>", page) == [""]
    assert " on" not in re.sub(r"<noscript>.*?</noscript>", "", page)


REFUSED = {
    "a name that was made to resolve to this machine": ("GET", {"host": "evil.example:9130"}),
    "an address that is not loopback": ("GET", {"host": "10.0.0.5:9130"}),
    "no name": ("GET", {"host": ""}),
    "a page of another site": ("GET", {"origin": "https://evil.example"}),
    "a page of another port": ("GET", {"origin": "http://127.0.0.1:8000"}),
    "a frame or picture of another site": ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
    "a frame that leads here": (
        "GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    ),
    "a form of another site": ("POST", {"origin": "https://evil.example"}),
    "a form without an origin": ("POST", {"origin": None}),
    "a form without the header": ("POST", {"x-forebay-console": None}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_other_sites_are_refused(case: str) -> None:
    method, headers = REFUSED[case]
    app = make_app(Visitors(SYSTEM_CLOCK), Doors.of("127.0.0.1"))
    status, kind, _ = ask(app, method, "/api/session", None if method == "GET" else {}, headers).error
    assert (status, kind) == (403, "refused")


def test_a_link_of_another_site_leads_to_the_page() -> None:
    app = make_app(Visitors(SYSTEM_CLOCK), Doors.of("127.0.0.1"))
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask(app, "GET", "/tables", headers=headers).status == 200


def test_names_and_addresses_that_a_console_for_other_machines_answers_to() -> None:
    doors = Doors.of("0.0.0.0", ("console.example.org",))
    for name in ("10.0.0.5:9130", "[fe80::1]:9130", "console.example.org", "CONSOLE.example.org:443", "localhost:1"):
        assert doors.refusal("GET", {"host": name}) is None, name
    assert "--allow-host" in str(doors.refusal("GET", {"host": "evil.example"}))


@pytest.mark.parametrize(
    "url",
    ["/api/sql", "/api/session", "/api/tasks/cancel", "/api/lake/sales/orders/orphans", "/api/work/snapshots/release"],
)
def test_a_client_that_leaves_in_its_request_is_no_failure(
    console: Console, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(Visitors(SYSTEM_CLOCK, console), Doors.of("127.0.0.1"), allow_changes=True)
    with caplog.at_level("DEBUG", "forebay"):
        answer = ask(app, "POST", url, b'{"statement": ', leaves=True)
    assert answer.status == 499
    assert [(each.levelname, each.exc_info) for each in caplog.records] == [("DEBUG", None)]


# ---- sessions -------------------------------------------------------------------------------------------------------


def test_a_console_with_a_token_tells_strangers_nothing(console: Console) -> None:
    app = make_app(Visitors(SYSTEM_CLOCK, console, token="a" * 32), Doors.of("0.0.0.0"))
    assert ask(app, "GET", "/api/tables").error == (401, "login", "log in first")
    stranger = ask(app, "GET", "/api/session").json
    assert (stranger["needs"], stranger["bootstrap_servers"]) == ("token", None)
    assert ask(app, "POST", "/api/session", {"token": "b" * 32}).error[:2] == (403, "access_denied")
    answer = ask(app, "POST", "/api/session", {"token": "a" * 32})
    assert answer.json["needs"] is None
    assert answer.json["bootstrap_servers"] == console.bootstrap_servers
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    held = {"cookie": cookie.split(";")[0]}
    assert ask(app, "GET", "/api/tables", headers=held).status == 200
    assert ask(app, "GET", "/api/tables", headers={"cookie": "forebay=" + "0" * 32}).status == 401
    assert ask(app, "GET", "/api/tables", headers={"authorization": "Bearer " + "a" * 32}).status == 200
    assert ask(app, "GET", "/api/tables", headers={"authorization": "Bearer " + "b" * 32}).status == 401
    assert ask(app, "DELETE", "/api/session", headers=held).json["needs"] == "token"
    assert ask(app, "GET", "/api/tables", headers=held).status == 401


def test_where_the_server_asks_for_a_login_each_visitor_has_a_console_of_their_own(console: Console) -> None:
    opened, closed = list[str](), list[str]()

    class Own(Console):
        def close(self) -> None:
            closed.append("closed")

    def open_console(user: str, password: str) -> Console:
        if password != "secret":
            raise AccessDenied("the user name or the password is wrong", ErrorCode.AUTHENTICATE_EXCEPTION)
        opened.append(user)
        return Own(console.conn, console.bootstrap_servers)

    clock = ManualClock()
    visitors = Visitors(clock, open=open_console, ids=SeededIds(1))
    app = make_app(visitors, Doors.of("127.0.0.1"))
    assert ask(app, "GET", "/api/session").json["needs"] == "password"
    assert ask(app, "POST", "/api/session", {"user": "ann", "password": "x"}).error[:2] == (403, "access_denied")
    assert ask(app, "POST", "/api/session", {"user": "ann"}).error[:2] == (400, "invalid")
    answer = ask(app, "POST", "/api/session", {"user": "ann", "password": "secret"})
    assert answer.json["user"] == "ann"
    assert "secret" not in answer.body.decode() + str(answer.headers)
    held = {"cookie": answer.headers["set-cookie"].split(";")[0]}
    assert ask(app, "GET", "/api/tables", headers=held).status == 200
    clock.advance(13 * 3600)
    assert ask(app, "GET", "/api/tables", headers=held).status == 401
    assert (opened, closed) == (["ann"], ["closed"])


def test_a_login_that_ends_after_the_console_was_closed_leaves_no_connection_open(console: Console) -> None:
    closed = list[str]()

    class Own(Console):
        def close(self) -> None:
            closed.append("closed")

    def open_console(user: str, password: str) -> Console:
        visitors.close()
        return Own(console.conn, console.bootstrap_servers)

    visitors = Visitors(SYSTEM_CLOCK, open=open_console)
    with pytest.raises(Unavailable, match="is stopping"):
        visitors.log_in(user="ann", password="secret")
    assert closed == ["closed"]


def test_the_oldest_of_too_many_sessions_ends(console: Console) -> None:
    visitors = Visitors(SYSTEM_CLOCK, console, token="t")
    names = [visitors.log_in(token="t") for _ in range(101)]
    assert visitors.console(names[0]) is None
    assert all(visitors.console(name) is console for name in names[1:])


# ---- parameters and errors ------------------------------------------------------------------------------------------


def test_parameters_are_checked(app: Any) -> None:
    assert ask(app, "GET", "/api/tables", nothing=1).error[2].startswith("there is no parameter 'nothing'; there are")
    assert ask(app, "GET", "/api/tables", limit="x").error == (400, "invalid", "limit='x' is not a whole number")
    assert ask(app, "GET", "/api/tables", limit=1001).error[:2] == (400, "invalid")
    assert ask(app, "GET", "/api/tables", page_token="-1").error[:2] == (400, "invalid")


def test_a_server_that_does_not_respond_is_an_error_to_show(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "data").start()
    address = server.bootstrap_servers
    console = Console(forebay.connect(address, retry_timeout="100 ms"), address)
    app = make_app(Visitors(SYSTEM_CLOCK, console), Doors.of("127.0.0.1"))
    assert ask(app, "GET", "/api/tables").status == 200
    server.stop()
    console.forget("databases")
    status, kind, message = ask(app, "GET", "/api/tables").error
    assert (status, kind) == (503, "unavailable")
    assert address in message
    console.close()


def test_texts_that_nothing_takes_are_refused(app: Any) -> None:
    for url in ("/api/lake/a%00b/c", "/api/tables/a/b%00"):
        path = urlsplit(url).path
        assert ask(app, "GET", path.replace("%00", "\0")).error[:2] == (400, "invalid")
    assert ask(app, "GET", "/api/tables", search="a\0").error[:2] == (400, "invalid")
    answer = ask(app, "POST", "/api/tasks/cancel", {"task_id": "\ud800"})
    assert answer.error[:2] == (400, "invalid")
    assert ask(app, "POST", "/api/tasks/cancel", b"[" * 100_000).error[:2] == (400, "invalid")


def test_changes_need_permission_and_searches_do_not(app: Any) -> None:
    for path in (
        "/api/lake/a/b/compact", "/api/lake/a/b/tags/create", "/api/lake/a/b/tags/delete", "/api/transactions/abort",
        "/api/work/snapshots/release",
    ):  # fmt: skip
        status, kind, message = ask(app, "POST", path, {}).error
        assert (status, kind) == (501, "unsupported"), path
        assert "--allow-changes" in message
    assert ask(app, "POST", "/api/lake/a/b/orphans", {}).error[:2] == (404, "not_found")
    assert ask(app, "POST", "/api/tasks/cancel", {"task_id": "1"}).error[:2] == (404, "not_found")
    assert ask(app, "GET", "/api/lake/a/b/compact").status == 404
