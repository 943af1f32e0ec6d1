"""Locations: a path or URI as a user writes it, made absolute once; and names from data, which stay in their folder.

A *location* is an absolute path of this machine (`/data/lake`) or a URI of another store (`s3://bucket/lake`), without
`.`, `..`, doubled or trailing slashes. `location` makes one where a warehouse, table or folder is opened; everything
below passes it on and joins names to it. Nothing is ever percent-decoded: `file:/data/a%20b` is the folder `a%20b`, as
in Java Paimon, whose `Path` takes a URI apart without decoding it.

A *name* is one step below a folder: of a database, table, branch, tag, file. Names come from data, so `child` and
`check_name` refuse those that would leave the folder, and file systems refuse paths with such steps (`check_path`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from forebay.base.errors import ForebayError, InvalidRequest

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*):(.*)", re.DOTALL)
_UNSAFE_STEP = re.compile(r"//|/\.\.?(?:/|\Z)|\0")
_SEPARATORS = re.compile(r"[/\\\0]")
_CATALOG_KINDS = ("metastore", "type", "catalog-type")
_JDBC_SQLITE = "jdbc:sqlite:"
_SERVER_NAMES_WAREHOUSE = ("rest", "bigquery")


def location(value: str | os.PathLike[str], what: str = "the location") -> str:
    """The location that a user names by a path (absolute, relative, `~`), a `file:` URI, or the URI of another store.

    A relative path is below the working directory of now. Symbolic links stay as they are. `what` names the value in
    errors. Raises `InvalidRequest` for an empty text, the `file:` URI of another host, and a URI without `//`.
    """
    if isinstance(value, os.PathLike):
        text = os.fsdecode(value)
        uri = _URI.fullmatch(text)
        if uri is not None and uri[2].startswith("/"):
            raise InvalidRequest(
                f"{what} is {value!r}, and a Path is a folder of this machine; write the URI '{uri[1]}:...' as text"
            )
        return _local(text, what)
    if not isinstance(value, str):
        raise InvalidRequest(f"{what} is {value!r}; write a path or a URI as text, or a pathlib.Path")
    uri = _URI.fullmatch(value)
    if uri is None:
        return _local(value, what)
    scheme, rest = uri[1].lower(), uri[2]
    if scheme == "file":
        return _local(_path_of_file_uri(value, rest, what), what)
    if not rest.startswith("//"):
        raise InvalidRequest(
            f"{what} '{value}' begins with the scheme '{scheme}:' and lacks '//'; write '{scheme}://...', or "
            f"'./{value}' for a folder of this name"
        )
    _refuse_nul(value, what)
    authority, _, path = rest[2:].partition("/")
    steps = _resolved(path, value, what)
    if not authority and not steps:
        raise InvalidRequest(f"{what} '{value}' names no place in '{scheme}://'")
    return "/".join([f"{scheme}://{authority}", *steps])


def located(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a lake's catalog with `warehouse` as a location, and a SQLite file in `uri` made absolute.

    They mean the same in a process with another working directory. The warehouse of a REST catalog is a name on its
    server. Raises as `location` does.
    """
    result = dict(options)
    named_by_server = any(str(result.get(kind, "")).lower() in _SERVER_NAMES_WAREHOUSE for kind in _CATALOG_KINDS)
    if result.get("warehouse") and not named_by_server:
        result["warehouse"] = location(result["warehouse"], "option 'warehouse'")
    if str(result.get("uri", "")).startswith(_JDBC_SQLITE):
        path, mark, parameters = result["uri"].removeprefix(_JDBC_SQLITE).partition("?")
        if path and not path.startswith(("/", ":", "file:")):
            result["uri"] = _JDBC_SQLITE + location(path, "the file in option 'uri'") + mark + parameters
    return result


def local_folder(value: str | os.PathLike[str], what: str) -> str:
    """The location of a folder on this machine. Raises `InvalidRequest` for one elsewhere, and as `location` does.

    Behind a symbolic link `..` means the parent of the link's target, as for every program of this machine.
    """
    text = os.fsdecode(value)
    if ".." in text.split("/") and _URI.fullmatch(text) is None:
        return os.path.realpath(os.path.expanduser(text) if text.startswith("~/") else text)
    place = location(value, what)
    if not is_local(place):
        raise InvalidRequest(f"{what} is '{place}', and must be a folder of this machine")
    return place


def is_local(path: str) -> bool:
    """Whether a path or URI is one of this machine."""
    uri = _URI.fullmatch(path)
    return uri is None or uri[1].lower() == "file"


def file_uri(path: str) -> str:
    """The URI `file:///...` of an absolute path, which readers of Java and pyiceberg do not decode."""
    return f"file://{path}"


def split_uri(path: str) -> tuple[str, str]:
    """(`scheme://authority`, the path behind it) of a URI."""
    scheme, _, rest = path.partition("://")
    authority, slash, inner = rest.partition("/")
    return f"{scheme}://{authority}", slash + inner


# ---- names and paths from data --------------------------------------------------------------------------------------


def check_name(name: str, what: str = "name", error: type[ForebayError] = InvalidRequest) -> str:
    """`name`, if it is one step below a folder. Raises `error` otherwise."""
    if not name or name in (".", "..") or _SEPARATORS.search(name):
        raise error(
            f"the {what} {name!r} cannot name a folder or file: it must not be empty, '.' or '..', nor have a slash, "
            "backslash or NUL"
        )
    return name


def child(folder: str, name: str, what: str = "name", error: type[ForebayError] = InvalidRequest) -> str:
    """The path of `name` directly in `folder`. Raises `error` for a name that leaves it."""
    return f"{folder}/{check_name(name, what, error)}"


def below(folder: str, path: str, what: str = "path") -> str:
    """The path of a relative `path` of one or more names below `folder`. Raises `InvalidRequest` if it leaves it."""
    names = [step for step in path.split("/") if step not in ("", ".")]
    if path.startswith("/") or _URI.fullmatch(path):
        raise InvalidRequest(f"the {what} {path!r} must be relative to {folder}")
    for name in names:
        check_name(name, what)
    return "/".join([folder, *names])


def check_path(path: str) -> str:
    """`path`, if it is absolute (or a URI) and each step is a name. For file systems; raises `InvalidRequest`.

    A slash at the end is accepted: stores mark folders by it.
    """
    if path.startswith("/"):
        return check_steps(path)
    if "://" not in path:
        raise InvalidRequest(f"{path!r} is no absolute path")
    check_steps(path.partition("://")[2])
    return path


def check_steps(path: str) -> str:
    """`path`, if each step is a name. Raises `InvalidRequest`."""
    # Searches for text are quicker than one for a pattern, and nearly all paths end here.
    if "//" not in path and "/." not in path and "\0" not in path and not path.startswith("."):
        return path
    if _UNSAFE_STEP.search(path if path.startswith("/") else f"/{path}"):
        raise InvalidRequest(f"{path!r} is not opened: an empty step, '.' or '..' could lead out of its folder")
    return path


def local_path(path: str) -> str:
    """The plain path of a location of this machine, which may be written as `file:` URI; nothing is decoded.

    For file systems: raises `InvalidRequest` for a URI of another store, and as `check_path` does.
    """
    if path.startswith("/"):
        return check_path(path)
    uri = _URI.fullmatch(path)
    if uri is not None and uri[1].lower() == "file":
        return check_path(_path_of_file_uri(path, uri[2], "the path"))
    if uri is not None:
        raise InvalidRequest(f"{path!r} is no path of this machine's file system")
    return check_path(path)


# ---- parts ----------------------------------------------------------------------------------------------------------


def _local(path: str, what: str) -> str:
    """The absolute form of a plain path."""
    if not path.strip():
        raise InvalidRequest(f"{what} is empty; write a path or a URI")
    _refuse_nul(path, what)
    if path == "~" or path.startswith("~/"):
        path = os.path.expanduser(path)
    try:
        return "/" + os.path.abspath(path).lstrip("/")  # POSIX keeps two slashes at the start, Java does not
    except FileNotFoundError as e:
        raise InvalidRequest(f"{what} '{path}' is relative, and the working directory does not exist any more") from e


def _path_of_file_uri(value: str, rest: str, what: str) -> str:
    """The path in a `file:` URI, whose part behind the colon is `rest`."""
    if rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        if authority.lower() not in ("", "localhost"):
            raise InvalidRequest(
                f"{what} '{value}' lies on the host '{authority}', and a 'file:' URI is read on this machine; write "
                f"'file:///{authority}/...' for a folder '/{authority}', or mount the other machine's folder"
            )
        rest = slash + path
    if not rest.startswith("/"):
        raise InvalidRequest(f"{what} '{value}' has no absolute path; write 'file:///path', or a relative path alone")
    return rest


def _resolved(path: str, value: str, what: str) -> list[str]:
    """The steps of the path of a URI, without empty ones, `.` and `..`."""
    steps: list[str] = []
    for step in path.split("/"):
        if step == "..":
            if not steps:
                raise InvalidRequest(f"{what} '{value}' leaves its store by '..'")
            steps.pop()
        elif step not in ("", "."):
            steps.append(step)
    return steps


def _refuse_nul(text: str, what: str) -> None:
    if "\0" in text:
        raise InvalidRequest(f"{what} {text!r} has a NUL, which no path can have")
