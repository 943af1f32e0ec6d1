"""The web application: requests to functions of screens, and their results to JSON.

A screen's function is called with the console, the parts of the path, and the query's (or the body's) values by name,
converted as its annotations say. What it raises becomes a status and {"error": {"message", "kind"}}.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.base.errors import ForebayError, InvalidRequest, UnsupportedOperation
from forebay.base.version import __version__
from forebay.console import lakes, overview, rows, statements, tables, work
from forebay.console.explain import explain
from forebay.console.session import Console
from forebay.console.visitors import Doors, Visitors

_LOGGER = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"

SCREENS: dict[str, Callable[..., Any]] = {
    "/api/overview": overview.overview,
    "/api/settings": overview.settings,
    "/api/tables": tables.tables,
    "/api/tables/{database}/{table}": tables.table,
    "/api/tables/{database}/{table}/buckets": tables.buckets,
    "/api/tables/{database}/{table}/partitions": tables.partitions,
    "/api/tables/{database}/{table}/commits": tables.commits,
    "/api/peek/{database}/{table}": rows.peek,
    "/api/key/{database}/{table}": rows.key,
    "/api/tiering": lakes.tiering,
    "/api/lakes": lakes.lakes,
    "/api/lake/{database}/{table}": lakes.lake,
    "/api/lake/{database}/{table}/files": lakes.lake_files,
    "/api/lake/{database}/{table}/partitions": lakes.lake_partitions,
    "/api/lake/{database}/{table}/snapshots": lakes.lake_snapshots,
    "/api/lake/{database}/{table}/tags": lakes.lake_tags,
    "/api/lake/{database}/{table}/compaction": lakes.lake_compaction,
    "/api/lake/{database}/{table}/orphans": lakes.lake_orphans,
    "/api/explain/{database}/{table}": explain,
    "/api/completions": tables.completions,
    "/api/jobs": work.jobs,
    "/api/applications": work.applications,
    "/api/work": work.work,
    "/api/work/connections": work.connections,
    "/api/work/scans": work.scans,
    "/api/work/snapshots": work.snapshots,
}
"""What screens ask for with GET: the path, and the function that answers."""

ACTIONS: dict[str, Callable[..., Any]] = {
    "/api/lake/{database}/{table}/orphans": lakes.find_orphans,
    "/api/tasks/cancel": work.cancel_task,
}
"""What they start with POST in any console: it changes no table."""

CHANGES: dict[str, Callable[..., Any]] = {
    "/api/lake/{database}/{table}/compact": lakes.compact,
    "/api/lake/{database}/{table}/tags/create": lakes.create_tag,
    "/api/lake/{database}/{table}/tags/delete": lakes.delete_tag,
    "/api/transactions/abort": work.abort_transaction,
    "/api/work/snapshots/release": work.release_snapshot,
}
"""What they change with POST, only in a console with --allow-changes."""

_STATUS = {
    "access_denied": 403, "already_exists": 409, "conflict": 409, "invalid": 400, "limit": 429, "not_found": 404,
    "unavailable": 503, "unsupported": 501,
}  # fmt: skip
_CLIENT_LEFT = 499
"""The status that nginx logs for such requests; HTTP has none."""

_BODY_MAX = 256 << 10
_GONE_SECONDS = 0.2
"""How often a request that waits looks whether its page is still there."""

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def make_app(visitors: Visitors, doors: Doors, *, allow_changes: bool = False, cookie: str = "forebay") -> Starlette:
    """The application. `cookie` is the name of its cookie: browsers send cookies to all ports of a host."""
    routes = [
        Route("/api/session", partial(_session, visitors, cookie, allow_changes), methods=["GET", "POST", "DELETE"]),
        *(Route(path, partial(_screen, visitors, cookie, function)) for path, function in SCREENS.items()),
        *(
            Route(path, partial(_change, visitors, cookie, function, True), methods=["POST"])
            for path, function in ACTIONS.items()
        ),
        *(
            Route(path, partial(_change, visitors, cookie, function, allow_changes), methods=["POST"])
            for path, function in CHANGES.items()
        ),
        Route("/api/sql", partial(_sql, visitors, cookie), methods=["POST"]),
        Route("/api/tail/{database}/{table}", partial(_tail, visitors, cookie)),
        Route("/{file:path}", partial(_static, StaticFiles(directory=STATIC, html=True))),
    ]
    app = Starlette(routes=routes, middleware=[Middleware(_Guard, doors=doors)])
    app.add_exception_handler(ForebayError, _error_response)
    app.add_exception_handler(ClientDisconnect, _left)
    app.add_exception_handler(Exception, _broken)
    app.add_exception_handler(404, _nothing_here)
    app.add_exception_handler(405, _nothing_here)
    return app


class _Guard:
    """Refuses requests of other sites, and adds headers to all answers."""

    def __init__(self, app: ASGIApp, doors: Doors) -> None:
        self._app, self._doors = app, doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                more = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                if b"cache-control" not in names:
                    more.append((b"cache-control", b"no-store"))
                message["headers"] = [*message["headers"], *more]
            await send(message)

        request = Request(scope)
        why = self._doors.refusal(request.method, request.headers)
        if why is None:
            await self._app(scope, receive, send_with_headers)
        else:
            await _error(403, "refused", why)(scope, receive, send_with_headers)


# ---- answers --------------------------------------------------------------------------------------------------------


class _Json(JSONResponse):
    def render(self, content: Any) -> bytes:
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(errors="replace")


def _error(status: int, kind: str, message: str) -> Response:
    return _Json({"error": {"message": message, "kind": kind}}, status)


async def _error_response(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ForebayError)
    return _error(_STATUS.get(error.kind, 500), error.kind, error.message)


async def _left(request: Request, _error_of_starlette: Exception) -> Response:
    """The answer to a client that has closed its connection before the end of its request. It is not sent."""
    _LOGGER.debug("the client of %s %s left before the end of its request", request.method, request.url.path)
    return Response(status_code=_CLIENT_LEFT)


async def _broken(request: Request, error: Exception) -> Response:
    _LOGGER.error("request %s %s failed", request.method, request.url.path, exc_info=error)
    return _error(500, "internal", f"{type(error).__name__}: {error}. The console's log has the rest")


async def _nothing_here(request: Request, _error_of_starlette: Exception | None) -> Response:
    return _error(404, "not_found", f"there is nothing at {request.method} {request.url.path}")


async def _static(files: StaticFiles, request: Request) -> Response:
    """A file of the page; the page itself for the address of a screen, which the page then shows."""
    path = request.path_params["file"]
    if path.partition("/")[0] == "api":
        return await _nothing_here(request, None)
    if "." not in path.rpartition("/")[2]:
        path = "index.html"
    response = await files.get_response(path, request.scope)
    response.headers["Cache-Control"] = "no-cache"  # asks each time, by its ETag: an upgrade shows at once
    return response


# ---- sessions -------------------------------------------------------------------------------------------------------


async def _session(visitors: Visitors, cookie: str, allow_changes: bool, request: Request) -> Response:
    """GET: what a visitor needs, and has. POST: log in. DELETE: log out."""
    name = request.cookies.get(cookie)
    if request.method == "POST":
        body = await _body(request)
        credentials = {key: str(body[key]) for key in ("token", "user", "password") if key in body}
        name = await asyncio.wrap_future(visitors.logins.submit(visitors.log_in, **credentials))
        response = _Json(_session_facts(visitors, name, allow_changes))
        response.set_cookie(cookie, name, httponly=True, samesite="strict", path="/", secure=_is_https(request))
        return response
    if request.method == "DELETE":
        await asyncio.get_running_loop().run_in_executor(None, visitors.log_out, name)
        response = _Json(_session_facts(visitors, None, allow_changes))
        response.delete_cookie(cookie, httponly=True, samesite="strict", path="/")
        return response
    return _Json(_session_facts(visitors, name, allow_changes))


def _session_facts(visitors: Visitors, name: str | None, allow_changes: bool) -> dict[str, Any]:
    console = visitors.console(name)
    return {
        "needs": visitors.needs if console is None else None,
        "has_login": visitors.needs is not None,
        "user": visitors.user(name),
        "allow_changes": allow_changes,
        "version": __version__,
        "bootstrap_servers": None if console is None else console.bootstrap_servers,
        "lakes": [] if console is None else list(console.warehouses),
    }


def _is_https(request: Request) -> bool:
    return "https" in (request.url.scheme, request.headers.get("x-forwarded-proto"))


def _console(visitors: Visitors, cookie: str, request: Request) -> Console | None:
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    return visitors.console(request.cookies.get(cookie), bearer if scheme.lower() == "bearer" else None)


_STRANGER = (401, "login", "log in first")


# ---- screens --------------------------------------------------------------------------------------------------------


async def _screen(visitors: Visitors, cookie: str, function: Callable[..., Any], request: Request) -> Response:
    console = _console(visitors, cookie, request)
    if console is None:
        return _error(*_STRANGER)
    arguments = _arguments(function, dict(request.query_params))
    return await _json_response(request, console, partial(function, console, *_path_values(request), **arguments))


async def _change(
    visitors: Visitors, cookie: str, function: Callable[..., Any], allow_changes: bool, request: Request
) -> Response:
    console = _console(visitors, cookie, request)
    if console is None:
        return _error(*_STRANGER)
    if not allow_changes:
        raise UnsupportedOperation("this console is read-only: start it with --allow-changes")
    arguments = _arguments(function, await _body(request))
    return await _json_response(request, console, partial(function, console, *_path_values(request), **arguments))


async def _json_response(request: Request, console: Console, call: Callable[[], Any]) -> Response:
    return _Json(await asyncio.wrap_future(console.submit(call)))


# ---- statements and tails: what has to end when its page does -------------------------------------------------------


async def _sql(visitors: Visitors, cookie: str, request: Request) -> Response:
    """A statement's rows. It is stopped when the page cancels the request, or is closed."""
    console = _console(visitors, cookie, request)
    if console is None:
        return _error(*_STRANGER)
    execution = statements.new_execution(console)
    call = partial(statements.run, console, execution)
    arguments = _arguments(call, await _body(request))
    future = asyncio.wrap_future(console.submit(call, **arguments))
    try:
        while not (await asyncio.wait({future}, timeout=_GONE_SECONDS))[0]:
            if await request.is_disconnected():
                raise InvalidRequest("the statement was stopped by the page")
    finally:
        if not future.done():  # also where the console ends, which would wait for the statement
            execution.cancel()
            future.add_done_callback(lambda done: done.cancelled() or done.exception())  # it is of no interest any more
    return _Json(future.result())


async def _tail(visitors: Visitors, cookie: str, request: Request) -> Response:
    """Server-Sent Events: "columns", then "rows" as they are written, then "failed" if that does not go on."""
    console = _console(visitors, cookie, request)
    if console is None:
        return _error(*_STRANGER)
    open_tail = partial(rows.LiveTail, console, *_path_values(request))
    arguments = _arguments(open_tail, dict(request.query_params))
    tail = await asyncio.wrap_future(console.submit(open_tail, **arguments))
    headers = {"X-Accel-Buffering": "no"}
    return StreamingResponse(_events(console, tail), media_type="text/event-stream", headers=headers)


async def _events(console: Console, tail: rows.LiveTail) -> AsyncIterator[bytes]:
    step: asyncio.Future[Any] | None = None
    try:
        yield _event("columns", tail.columns)
        while True:
            step = asyncio.wrap_future(tail.submit())
            yield _event("rows", await asyncio.shield(step))
    except ForebayError as e:
        yield _event("failed", {"message": e.message, "kind": e.kind})
    finally:  # the page has gone, or the tail has failed
        if step is not None and not step.done():
            step.add_done_callback(lambda _: tail.end())
        else:
            tail.end()


def _event(name: str, content: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(content, ensure_ascii=False)}\n\n".encode()


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Raises `InvalidRequest`."""
    size = 0
    parts = []
    async for part in request.stream():
        size += len(part)
        if size > _BODY_MAX:
            raise InvalidRequest(f"the request has more than {_BODY_MAX:,} bytes")
        parts.append(part)
    try:
        body = json.loads(b"".join(parts) or b"{}")
    except (ValueError, RecursionError) as e:
        raise InvalidRequest(f"the request is not JSON: {e}") from e
    if not isinstance(body, dict):
        raise InvalidRequest("the request is not a JSON object")
    return body


def _arguments(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values for a function's keyword arguments. Raises `InvalidRequest` for others, and for wrong values."""
    parameters = {
        name: parameter
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    unknown = [name for name in values if name not in parameters]
    if unknown:
        raise InvalidRequest(f"there is no parameter {unknown[0]!r}; there are {', '.join(parameters) or 'none'}")
    lacking = [name for name, each in parameters.items() if name not in values and each.default is each.empty]
    if lacking:
        raise InvalidRequest(f"parameter {lacking[0]!r} is missing")
    return {name: _converted(name, value, parameters[name].annotation) for name, value in values.items()}


def _converted(name: str, value: Any, annotation: Any) -> Any:
    """A value of a query, which is text, or of a body, as an annotation wants it."""
    if isinstance(value, str):
        _check_text(name, value)
        if annotation in (int, int | None):
            try:
                return int(value)
            except ValueError as e:
                raise InvalidRequest(f"{name}={value!r} is not a whole number") from e
        if annotation in (bool, bool | None):
            if value.lower() not in ("true", "false", "1", "0"):
                raise InvalidRequest(f"{name}={value!r} is neither true nor false")
            return value.lower() in ("true", "1")
    elif annotation in (str, str | None, int, int | None, bool, bool | None):
        kinds = tuple(kind for kind in (str, int, bool) if annotation in (kind, kind | None))
        if type(value) not in kinds and not (value is None and annotation not in kinds):
            raise InvalidRequest(f"{name}={value!r} is not of type {kinds[0].__name__}")
    return value


def _path_values(request: Request) -> list[str]:
    """The parts of the path that a function gets. Raises `InvalidRequest`."""
    for name, value in request.path_params.items():
        _check_text(name, value)
    return list(request.path_params.values())


def _check_text(name: str, value: str) -> None:
    """Raise `InvalidRequest` for texts that no server, file system or database takes: with NUL, or no Unicode."""
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise InvalidRequest(f"{name} has a character that no text may have")
