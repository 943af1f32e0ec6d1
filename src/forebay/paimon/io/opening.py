"""The file system of a location."""

from __future__ import annotations

from collections.abc import Mapping

from pyarrow import fs

from forebay.base.errors import InvalidRequest, StorageFailure
from forebay.base.locations import is_local, location, split_uri
from forebay.paimon.io.arrow_file_io import ArrowFileIO
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.io.s3 import S3FileIO


def open_file_io(path: str, options: Mapping[str, str] | None = None) -> FileIO:
    """The file system of `path`, which is a location or what `forebay.base.locations.location` makes one of.

    `options` are a catalog's, for S3 and compatible stores: `s3.endpoint` (with http:// or https://), `s3.access-key`,
    `s3.secret-key`, `s3.session-token`, `s3.region`, `s3.conditional-put`. Raises `InvalidRequest` for an unknown
    scheme.
    """
    place = location(path)
    if is_local(place):
        return LocalFileIO()
    scheme = place.partition("://")[0]
    if scheme in ("s3", "s3a", "s3n", "oss"):
        return S3FileIO(options or {}, scheme)
    # Of the URI pyarrow sees the store alone: it would decode the rest, which is a path and not encoded.
    root, _ = split_uri(place)
    try:
        filesystem, top = fs.FileSystem.from_uri(f"{root}/")
    except (ValueError, ImportError) as e:
        raise InvalidRequest(f"{place}: no file system serves '{scheme}://': {e}") from e
    except OSError as e:
        raise StorageFailure(f"cannot reach {place}: {e}") from e
    if top == "/":  # HDFS: paths inside begin with a slash
        return ArrowFileIO(filesystem, root)
    return ArrowFileIO(filesystem, f"{root}/", top=f"{top.rstrip('/')}/" if top else "")
