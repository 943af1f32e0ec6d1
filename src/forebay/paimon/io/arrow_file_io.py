"""File systems of pyarrow, and through them those of fsspec: HDFS, S3, memory and many others.

pyarrow has no atomic create for object stores. If the store supports conditional writes, pass `put_if_absent`;
otherwise commits need a catalog's lock. On HDFS, a rename never overwrites, so a file is written under another name and
renamed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

import pyarrow as pa
from pyarrow import fs

from forebay.base.ambient import SYSTEM_IDS, IdSource
from forebay.base.errors import Conflict, InvalidRequest, NotFound, StorageFailure
from forebay.base.locations import check_path
from forebay.paimon.io.file_io import FileStatus

PutIfAbsent = Callable[[str, bytes], bool]
"""Creates an object (path without scheme, content); returns False if it already exists."""

_RENAME_NEVER_OVERWRITES = ("hdfs", "viewfs")
_IN_THIS_MACHINE = ("local", "mock")


class ArrowFileIO:
    """Files of a `pyarrow.fs.FileSystem`.

    `prefix` is the part that its paths lack, such as `s3://`; `top` is the part that replaces it.
    """

    def __init__(
        self,
        filesystem: fs.FileSystem,
        prefix: str = "",
        put_if_absent: PutIfAbsent | None = None,
        ids: IdSource = SYSTEM_IDS,
        top: str = "",
    ) -> None:
        self._fs, self._prefix, self._put_if_absent, self._ids = filesystem, prefix, put_if_absent, ids
        self._top = top

    @property
    def _renames_safely(self) -> bool:
        return self._fs.type_name in _RENAME_NEVER_OVERWRITES

    @property
    def supports_atomic_create(self) -> bool:
        return self._put_if_absent is not None or self._renames_safely

    @property
    def is_remote(self) -> bool:
        return self._fs.type_name not in _IN_THIS_MACHINE

    def read(self, path: str) -> bytes:
        with _errors("read", path), self._fs.open_input_file(self._inside(path)) as f:
            return bytes(f.read())

    def open_input(self, path: str) -> BinaryIO:
        with _errors("open", path):
            return cast(BinaryIO, self._fs.open_input_file(self._inside(path)))

    def open_output(self, path: str) -> BinaryIO:
        with _errors("write", path):
            return cast(BinaryIO, self._open(self._inside(path)))

    def write(self, path: str, data: bytes, *, durable: bool = True) -> None:
        with _errors("write", path), self._open(self._inside(path)) as f:
            f.write(data)

    def create(self, path: str, data: bytes) -> bool:
        """See `FileIO.create`. Without atomic creation (see `supports_atomic_create`), concurrent creators may
        overwrite each other."""
        inside = self._inside(path)
        with _errors("create", path):
            if self._info(inside).type is not fs.FileType.NotFound:
                return False
            if self._put_if_absent is not None:
                return self._put_if_absent(inside, data)
            if not self._renames_safely:
                with self._open(inside) as f:
                    f.write(data)
                return True
            directory, _, name = inside.rpartition("/")
            temporary = f"{directory}/.{name}.{self._ids.token_hex()}.tmp"
            with self._open(temporary) as f:
                f.write(data)
            try:
                self._fs.move(temporary, inside)
            except OSError:
                with contextlib.suppress(OSError):
                    self._fs.delete_file(temporary)
                if self._info(inside).type is fs.FileType.NotFound:
                    raise
                return False
            return True

    def exists(self, path: str) -> bool:
        with _errors("look for", path):
            return self._info(self._inside(path)).type is not fs.FileType.NotFound

    def list(self, path: str) -> list[FileStatus]:
        return list(self._select(path, recursive=False))

    def walk(self, path: str) -> Iterator[FileStatus]:
        return (status for status in self._select(path, recursive=True) if not status.is_directory)

    def delete(self, path: str) -> bool:
        """Delete a file; return False if there was none, also if another process deletes it meanwhile."""
        inside = self._inside(path)
        with _errors("delete", path):
            if self._info(inside).type is fs.FileType.NotFound:
                return False
            try:
                self._fs.delete_file(inside)
            except FileNotFoundError:
                return False
            return True

    def delete_directory(self, path: str) -> None:
        inside = self._inside(path)
        with _errors("delete", path), contextlib.suppress(FileNotFoundError):
            if self._info(inside).type is fs.FileType.Directory:
                self._fs.delete_dir(inside)

    def delete_empty_directory(self, path: str) -> bool:
        if self.list(path):
            return False
        self.delete_directory(path)
        return True

    def make_directory(self, path: str) -> None:
        with _errors("make the directory", path):
            self._fs.create_dir(self._inside(path), recursive=True)

    def rename(self, source: str, target: str) -> None:
        if self.exists(target):
            raise Conflict(f"cannot rename {source} to {target}: the target exists")
        with _errors("rename", source):
            self._make_parent(self._inside(target))
            self._fs.move(self._inside(source), self._inside(target))

    def _inside(self, path: str) -> str:
        """`path` in the form of the file system. Raises `InvalidRequest` for one that names could lead astray."""
        check_path(path)
        if not path.startswith(self._prefix):
            raise InvalidRequest(f"{path!r} is not in the file system of '{self._prefix}'")
        return self._top + path[len(self._prefix) :]

    def _info(self, inside: str) -> Any:
        return self._fs.get_file_info(inside)

    def _make_parent(self, inside: str) -> None:
        parent = inside.rpartition("/")[0]
        if parent and self._fs.type_name not in ("s3", "gcs", "abfs"):  # object stores have no directories
            self._fs.create_dir(parent, recursive=True)

    def _open(self, inside: str) -> Any:
        self._make_parent(inside)
        return self._fs.open_output_stream(inside)

    def _select(self, path: str, recursive: bool) -> Iterator[FileStatus]:
        selector = fs.FileSelector(self._inside(path), allow_not_found=True, recursive=recursive)
        with _errors("list", path):
            infos = self._fs.get_file_info(selector)
        for info in infos:
            modified = None if info.mtime_ns is None else info.mtime_ns // 1_000_000
            is_directory = info.type is fs.FileType.Directory
            yield FileStatus(self._prefix + info.path[len(self._top) :], info.size or 0, is_directory, modified)


@contextlib.contextmanager
def _errors(action: str, path: str) -> Iterator[None]:
    """Translate errors of the file system."""
    try:
        yield
    except FileNotFoundError as e:
        raise NotFound(f"cannot {action} {path}: there is no such file") from e
    except (OSError, pa.ArrowException) as e:
        raise StorageFailure(f"cannot {action} {path}: {e}") from e
