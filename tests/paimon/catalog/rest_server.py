"""A small server of a REST catalog, as Paimon's OpenAPI document describes it, over a file system catalog."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote_plus, urlsplit

from forebay.base.errors import AlreadyExists, ForebayError, NotFound
from forebay.metadata import types
from forebay.paimon.catalog.definition import new_schema
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.format.schema_json import format_field, parse_field
from forebay.paimon.format.snapshot_json import format_snapshot, snapshot_from_json, snapshot_to_json
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.store.schema_changes import AddColumn, RenameColumn, SchemaChange, SetOption
from forebay.paimon.table import Table
from tests.paimon.lake import altered

TOKEN = "open sesame"
_PAGE = 2


class RestServer:
    """Serves on a free port of 127.0.0.1 until it is closed. `fail` may answer a request (method, path) by a code.

    With `keep_alive` connections stay open until `close_idle`.
    """

    def __init__(self, folder: Path, overrides: dict[str, str] | None = None, keep_alive: bool = False) -> None:
        (folder / "served").mkdir(parents=True, exist_ok=True)
        self.lake = FileSystemCatalog(LocalFileIO(sync=False), str(folder / "served"))
        self.databases: dict[str, dict[str, str]] = {}
        self.views: dict[str, dict[str, Any]] = {}
        """The definitions of views, as clients have sent them, by "database.view"."""
        self.overrides = overrides or {}
        self.requests: list[tuple[str, str]] = []
        self.commits: list[dict[str, Any]] = []
        self.fail: Callable[[str, str], int | None] = lambda method, path: None
        self.lose_answers = 0
        self.connections = 0
        self._open: set[socket.socket] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1" if keep_alive else "HTTP/1.0"

            def setup(self) -> None:
                server.connections += 1
                super().setup()
                server._open.add(self.connection)

            def _serve(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                url = urlsplit(self.path)
                server.requests.append((self.command, url.path))
                code, answer = server.answer(self.command, url.path, parse_qs(url.query), body, dict(self.headers))
                if url.path.endswith("/commit") and server.lose_answers > 0:
                    server.lose_answers -= 1
                    self.close_connection = True
                    return
                data = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_DELETE = _serve

            def log_message(self, *_: Any) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.options = {
            "metastore": "rest",
            "uri": f"http://127.0.0.1:{self._http.server_port}",
            "warehouse": "served",
            "token.provider": "bear",
            "token": TOKEN,
        }

    def close_idle(self) -> None:
        """Close the connections that clients keep, as a server does after a while; they see it at once."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def close(self) -> None:
        """Stop, and give the port back. May be called twice."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(
        self, method: str, path: str, query: dict[str, list[str]], body: Any, headers: dict[str, str]
    ) -> tuple[int, Any]:
        failed = self.fail(method, path)
        if failed is not None:
            return failed, {"message": "as the test wants it", "code": failed}
        if headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"message": "who are you?", "code": 401}
        if path == "/v1/config" and query.get("warehouse") != ["served"]:
            return 404, {"message": "no such warehouse", "code": 404}
        if path == "/v1/config":
            return 200, {"defaults": {"prefix": "p x"}, "overrides": self.overrides}
        parts = [unquote_plus(part) for part in path.split("/")[2:]]
        if parts.pop(0) != "p x":
            return 404, {"message": "no such prefix", "code": 404}
        try:
            return 200, self._resource(method, parts, query, body)
        except NotFound as e:
            return 404, {"message": e.message, "code": 404, "resourceType": "TABLE", "resourceName": ""}
        except AlreadyExists as e:
            return 409, {"message": e.message, "code": 409}
        except ForebayError as e:
            return 400, {"message": e.message, "code": 400}

    def _resource(self, method: str, parts: list[str], query: dict[str, list[str]], body: Any) -> Any:
        match method, parts:
            case "GET", ["databases"]:
                return _page("databases", self.lake.list_databases(), query)
            case "POST", ["databases"]:
                self.databases[body["name"]] = body["options"]
                self.lake.create_database(body["name"])
                return {}
            case "DELETE", ["databases", name]:
                return self.lake.drop_database(name) or {}
            case "GET", ["databases", name, "tables"]:
                return _page("tables", self.lake.list_tables(name), query)
            case "POST", ["databases", name, "tables"]:
                return self._create(name, body)
            case "POST", ["tables", "rename"]:
                return self.lake.rename_table(_name(body["source"]), _name(body["destination"])) or {}
            case "GET", ["databases", database, "tables", table]:
                return self._table(database, table)
            case "POST", ["databases", database, "tables", table]:
                altered(self.lake.table(f"{database}.{table}"), [_change(c) for c in body["changes"]])
                return {}
            case "DELETE", ["databases", database, "tables", table]:
                return self.lake.drop_table(f"{database}.{table}") or {}
            case _, ["databases", database, "views", *view]:
                return self._views(method, database, view, query, body)
            case "POST", ["views", "rename"]:
                return self._rename_view(_name(body["source"]), _name(body["destination"]))
            case "GET", ["databases", database, "tables", table, "snapshot"]:
                return self._snapshot(self.lake.table(f"{database}.{table}"))
            case "POST", ["databases", database, "tables", table, "commit"]:
                return self._commit(self.lake.table(f"{database}.{table}"), body)
        raise NotFound(f"there is no resource {method} {parts}")

    def _create(self, database: str, body: Any) -> dict[str, Any]:
        schema = body["schema"]
        definition = new_schema(
            [parse_field(f) for f in schema["fields"]], schema["primaryKeys"], schema["partitionKeys"],
            schema["options"], schema["comment"],
        )  # fmt: skip
        self.lake.create_defined(f"{database}.{body['identifier']['object']}", definition)
        return {}

    def _table(self, database: str, table: str) -> dict[str, Any]:
        found = self.lake.table(f"{database}.{table}")
        schema = found.schema
        fields = [format_field(f) for f in schema.fields]
        return {
            "id": f"id of {table}",
            "database": database,
            "name": table,
            "path": "file:" + self.lake.table_path(f"{database}.{table}"),
            "isExternal": False,
            "schemaId": schema.id,
            "schema": {
                "fields": fields, "partitionKeys": list(schema.partition_keys),
                "primaryKeys": list(schema.primary_keys), "options": dict(schema.options), "comment": schema.comment,
            },
        }  # fmt: skip

    def _views(self, method: str, database: str, view: list[str], query: dict[str, list[str]], body: Any) -> Any:
        self.lake.list_tables(database)  # which has to exist
        match method, view:
            case "GET", []:
                inside = (name.partition(".") for name in self.views)
                return _page("views", sorted(name for home, _, name in inside if home == database), query)
            case "POST", []:
                name = _name(body["identifier"])
                if name in self.views:
                    raise AlreadyExists(f"there is a view {name}")
                self.views[name] = body["schema"]
                return {}
        name = f"{database}.{view[0]}"
        if name not in self.views:
            raise NotFound(f"there is no view {name}")
        match method:
            case "GET":
                return {"id": "1", "name": view[0], "schema": self.views[name], "owner": "me"}
            case "DELETE":
                del self.views[name]
            case "POST":
                self.views[name] = _changed(self.views[name], body["changes"])
        return {}

    def _rename_view(self, name: str, new_name: str) -> dict[str, Any]:
        if name not in self.views:
            raise NotFound(f"there is no view {name}")
        if new_name in self.views:
            raise AlreadyExists(f"there is a view {new_name}")
        self.views[new_name] = self.views.pop(name)
        return {}

    def _snapshot(self, table: Table) -> dict[str, Any]:
        latest = table.context.snapshots.latest()
        if latest is None:
            raise NotFound("there is no snapshot")
        counts = {"recordCount": 0, "fileSizeInBytes": 0, "fileCount": 0, "lastFileCreationTime": 0}
        return {"snapshot": {"snapshot": snapshot_to_json(latest), **counts}}

    def _commit(self, table: Table, body: Any) -> dict[str, Any]:
        self.commits.append(body)
        snapshot = snapshot_from_json(body["snapshot"])
        latest = table.context.snapshots.latest()
        if body["baseSnapshotUuid"] != (latest and latest.uuid):
            return {"success": False}
        done = LocalFileIO(sync=False).create(table.context.paths.snapshot(snapshot.id), format_snapshot(snapshot))
        return {"success": done}


def _name(identifier: Any) -> str:
    return f"{identifier['database']}.{identifier['object']}"


def _page(member: str, names: list[str], query: dict[str, list[str]]) -> dict[str, Any]:
    """Two names a page."""
    first = int(query.get("pageToken", ["0"])[0])
    more = {"nextPageToken": str(first + _PAGE)} if first + _PAGE < len(names) else {}
    return {member: names[first : first + _PAGE], **more}


def _change(node: Any) -> SchemaChange:
    match node["action"]:
        case "setOption":
            return SetOption(node["key"], node["value"])
        case "renameColumn":
            return RenameColumn(tuple(node["fieldNames"]), node["newName"])
        case "addColumn":
            assert node["dataType"] == "INT"
            return AddColumn(tuple(node["fieldNames"]), types.int_(), node["comment"])
    raise NotFound(f"no change {node['action']}")


def _changed(view: dict[str, Any], changes: list[dict[str, Any]]) -> dict[str, Any]:
    """A definition after changes, which are refused as Java Paimon's server refuses them."""
    options, dialects, comment = dict(view["options"]), dict(view["dialects"]), view.get("comment")
    for change in changes:
        match change["action"]:
            case "setOption":
                options[change["key"]] = change["value"]
            case "removeOption":
                options.pop(change["key"], None)
            case "updateComment":
                comment = change["comment"]
            case "addDialect":
                if change["dialect"] in dialects:
                    raise AlreadyExists(f"there is a dialect {change['dialect']}")
                dialects[change["dialect"]] = change["query"]
            case "updateDialect" | "dropDialect" as action:
                if change["dialect"] not in dialects:
                    raise NotFound(f"there is no dialect {change['dialect']}")
                del dialects[change["dialect"]]
                if action == "updateDialect":
                    dialects[change["dialect"]] = change["query"]
    return {**view, "options": options, "dialects": dialects, "comment": comment}
