"""Requests to the console's application in this process, without a socket."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

ORIGIN = "http://127.0.0.1:9130"


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[int, str, str]:
        found = self.json["error"]
        return self.status, found["kind"], found["message"]


def ask(
    app: Any, method: str, url: str, body: Any = None, headers: Any = None, *, leaves: bool = False, **query: Any
) -> Answer:
    """The answer to a request. A POST or DELETE has the headers of the console's own page; `headers` override them.

    A client that `leaves` closes its connection after the body, of which more should follow.
    """
    own = {"host": "127.0.0.1:9130"}
    if method not in ("GET", "HEAD"):
        own |= {"origin": ORIGIN, "x-forebay-console": "1"}
    sent = {**own, **(headers or {})}
    parts = urlsplit(url)
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": parts.path, "raw_path": parts.path.encode(), "query_string": (parts.query or urlencode(query)).encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items() if value is not None],
        "server": ("127.0.0.1", 9130), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip
    answer = Answer()
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": content, "more_body": leaves}]
    received = iter([*messages, {"type": "http.disconnect"}] if leaves else messages)

    async def receive() -> Any:
        for message in received:
            return message
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")

    asyncio.run(app(scope, receive, send))
    return answer
