"""The HTTP client of a REST catalog: JSON requests with translated errors. See Paimon's rest-catalog-open-api.yaml."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote_plus, unquote, urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from forebay.base.ambient import SYSTEM_CLOCK, Clock
from forebay.base.errors import (
    AccessDenied,
    AlreadyExists,
    CorruptData,
    ForebayError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StorageFailure,
    Unavailable,
    UnsupportedOperation,
)

_TIMEOUT_SECONDS = 180
_TRIES = 6
_FIRST_WAIT_SECONDS = 0.1
"""The wait before the second try; it doubles with each further try."""

_REDIRECTS = 10
_IDLE_CONNECTIONS_MAX = 16
_HEADER = "header."

_KINDS: dict[int, type[ForebayError]] = {
    400: InvalidRequest,
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    409: AlreadyExists,
    429: Unavailable,
    501: UnsupportedOperation,
    503: Unavailable,
}
"""Other codes are a `StorageFailure`.

With status 500 or more the outcome is unknown, so requests that change something raise `OutcomeUnknown`.
"""


class RestApi:
    """A server's resources. Thread-safe. `options` are the caller's, extended by the server's configuration."""

    def __init__(self, options: Mapping[str, str], clock: Clock = SYSTEM_CLOCK) -> None:
        """Request the configuration from the server. Raises `InvalidRequest`, `AccessDenied`, `Unavailable`."""
        uri = options.get("uri", "")
        if not uri.startswith(("http://", "https://")):
            raise InvalidRequest(f"a REST catalog needs option 'uri', such as http://host:8080; it is {uri!r}")
        self.caller_options, self._uri, self._clock = dict(options), uri.rstrip("/"), clock
        self._connections: Any = None
        self._process = 0
        self._headers = {**_headers_in(options), **_authorization(options)}
        self.options = self._configured()
        self._headers = {**_headers_in(self.options), **self._headers}
        prefix = self.options.get("prefix")
        self._root = "/v1" + (f"/{quote_plus(prefix)}" if prefix else "")

    def _configured(self) -> dict[str, str]:
        """The given options, with what the server's configuration says now."""
        warehouse = self.caller_options.get("warehouse")
        config = self._send("GET", "/v1/config", {"warehouse": warehouse} if warehouse else {})
        merged = {**(config.get("defaults") or {}), **self.caller_options, **(config.get("overrides") or {})}
        return {str(k): str(v) for k, v in merged.items() if v is not None}

    def is_configured_as_before(self) -> bool:
        """Whether the server's configuration is still what it was when this was opened."""
        return self._configured() == self.options

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_connections": None}

    def get(self, *path: str) -> dict[str, Any]:
        return self._send("GET", self._path(path), {})

    def post(self, *path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._send("POST", self._path(path), {}, body)

    def delete(self, *path: str) -> None:
        self._send("DELETE", self._path(path), {})

    def listed(self, member: str, *path: str) -> Iterator[Any]:
        """The items in `member` of a paged list."""
        query: dict[str, str] = {}
        while True:
            page = self._send("GET", self._path(path), query)
            yield from page.get(member) or []
            token = page.get("nextPageToken")
            if not token:
                return
            query = {"pageToken": str(token)}

    def _pool(self) -> Any:
        """The connection pool of this process: a forked child creates its own."""
        if self._connections is None or self._process != os.getpid():
            self._connections, self._process = _new_pool(self._uri), os.getpid()
        return self._connections

    def _path(self, parts: tuple[str, ...]) -> str:
        return "/".join([self._root, *map(quote_plus, parts)])

    def _send(
        self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        url = self._uri + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", "Content-Type": "application/json", **self._headers}
        wait, http = _FIRST_WAIT_SECONDS, _urllib3()
        for retries in reversed(range(_TRIES)):
            try:
                answer = self._pool().request(method, url, body=data, headers=headers)
                if 200 <= answer.status < 300:
                    return _parsed(url, answer.data)
                error = _error(method, url, answer)
            except http.exceptions.HTTPError as e:
                if method != "GET" and not _was_refused(e, http):  # the request may have been executed
                    raise OutcomeUnknown(
                        f"{method} {url}: the connection failed: {e}. The server may have done it or not: look before "
                        "you repeat it"
                    ) from e
                error = Unavailable(f"{method} {url}: {e}")
            # A server that responds "unavailable" has done nothing, so that any request can be retried.
            if not isinstance(error, Unavailable) or retries == 0:
                raise error
            self._clock.sleep(wait)
            wait *= 2
        raise AssertionError("unreachable")


def _urllib3() -> Any:
    try:
        return importlib.import_module("urllib3")
    except ImportError as e:
        raise UnsupportedOperation(
            "a REST catalog needs the package urllib3: pip install 'forebay[paimon,rest]'"
        ) from e


def _new_pool(uri: str) -> Any:
    """A connection pool for `uri`, through the proxy that the environment names. Redirects are followed."""
    http, place = _urllib3(), urlsplit(uri)
    settings = {
        "timeout": _TIMEOUT_SECONDS,
        "retries": http.Retry(None, connect=False, read=False, redirect=_REDIRECTS),
        "maxsize": _IDLE_CONNECTIONS_MAX,
    }
    proxy = getproxies().get(place.scheme)
    if not proxy or proxy_bypass(place.netloc):
        return http.PoolManager(**settings)
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    user = None if parts.username is None else f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return http.ProxyManager(address, proxy_headers=http.make_headers(proxy_basic_auth=user), **settings)


def _was_refused(failure: Exception, http: Any) -> bool:
    """Whether no connection was established, so that the server has not seen the request."""
    return isinstance(getattr(failure, "reason", None) or failure, http.exceptions.NewConnectionError)


def _parsed(url: str, data: bytes) -> dict[str, Any]:
    try:
        node = json.loads(data) if data.strip() else {}
    except ValueError as e:
        raise CorruptData(f"{url} did not answer with JSON: {data[:100]!r}") from e
    return node if isinstance(node, dict) else {}


def _error(method: str, url: str, answer: Any) -> ForebayError:
    text = answer.data.decode(errors="replace")
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        message = text[:200] or answer.reason
    text = f"{method} {url}: the server says {answer.status}: {message}"
    if answer.status in _KINDS:
        return _KINDS[answer.status](text)
    if method == "GET" or answer.status < 500:
        return StorageFailure(text)
    return OutcomeUnknown(f"{text}. It may have done it or not: look before you repeat it")


def _headers_in(options: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(_HEADER): value for key, value in options.items() if key.startswith(_HEADER)}


def _authorization(options: Mapping[str, str]) -> dict[str, str]:
    provider = options.get("token.provider")
    if provider is None and "token" not in options:
        return {}
    if provider not in (None, "bear"):
        raise UnsupportedOperation(f"option 'token.provider' is {provider!r}; supported: bear")
    if not options.get("token"):
        raise InvalidRequest("option 'token.provider' is 'bear', which needs option 'token'")
    return {"Authorization": f"Bearer {options['token']}"}
