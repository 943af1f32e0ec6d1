"""The file system of a path."""

from __future__ import annotations

from collections.abc import Mapping

from pyarrow import fs

from forebay.base.errors import InvalidRequest, StorageFailure
from forebay.paimon.io.arrow_file_io import ArrowFileIO
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.io.s3 import S3FileIO


def open_file_io(path: str, options: Mapping[str, str] | None = None) -> FileIO:
    """The file system of `path`, which may be plain or a URI.

    `options` are a catalog's, for S3 and compatible stores: `s3.endpoint` (with http:// or https://), `s3.access-key`,
    `s3.secret-key`, `s3.session-token`, `s3.region`, `s3.conditional-put`. Raises `InvalidRequest` for an unknown
    scheme.
    """
    scheme, separator, rest = path.partition("://")
    if not separator or scheme == "file":
        return LocalFileIO()
    if scheme in ("s3", "s3a", "s3n", "oss"):
        return S3FileIO(options or {}, scheme)
    try:
        filesystem, inside = fs.FileSystem.from_uri(path)
    except (ValueError, ImportError) as e:
        raise InvalidRequest(f"{path}: no file system serves '{scheme}://': {e}") from e
    except OSError as e:
        raise StorageFailure(f"cannot reach {path}: {e}") from e
    prefix = path[: len(path) - len(inside)] if inside and path.endswith(inside) else f"{scheme}://{rest}"
    return ArrowFileIO(filesystem, prefix)
