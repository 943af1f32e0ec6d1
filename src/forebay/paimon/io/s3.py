"""S3 and compatible stores: data through pyarrow, commits through a conditional PUT (`If-None-Match: *`).

The conditional PUT needs boto3 (`pip install 'forebay[s3]'`). Without it, or if the store does not support it
(`s3.conditional-put` = false), tables can be read and data files written, but commits need a catalog's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyarrow import fs

from forebay.base.errors import InvalidRequest, StorageFailure
from forebay.base.quantity import parse_bool
from forebay.paimon.io.arrow_file_io import ArrowFileIO

_TAKEN = ("PreconditionFailed", "412")
"""Error codes of a conditional write to an existing key."""

_RACING = ("ConditionalRequestConflict", "409")
"""Error codes of a conditional write that runs at the same time as another one."""


class S3FileIO(ArrowFileIO):
    """Files of one S3 endpoint. `scheme` is the scheme of the paths: s3, s3a, oss."""

    def __init__(self, options: Mapping[str, str], scheme: str = "s3") -> None:
        self._options = dict(options)
        self._scheme = scheme
        self._client: Any = None
        is_conditional = parse_bool(options.get("s3.conditional-put", "true"))
        super().__init__(_filesystem(options), f"{scheme}://", self._put if is_conditional and _has_boto3() else None)

    @property
    def options(self) -> Mapping[str, str]:
        """The options that it was opened with, credentials among them."""
        return self._options

    def __reduce__(self) -> tuple[Any, ...]:
        return S3FileIO, (self._options, self._scheme)

    def _put(self, inside: str, data: bytes) -> bool:
        """Create the object `bucket/key`; False if it exists. Raises `StorageFailure` if the outcome is unknown."""
        from botocore.exceptions import BotoCoreError, ClientError  # boto3 is optional, and slow to import

        if self._client is None:
            self._client = _client(self._options)
        bucket, _, key = inside.partition("/")
        try:
            self._client.put_object(Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")
        except ClientError as e:
            code = str(e.response.get("Error", {}).get("Code", ""))
            if code in _TAKEN:
                return False
            racing = "another process is writing it right now; " if code in _RACING else ""
            raise StorageFailure(f"cannot create s3://{inside}: {racing}{e}") from e
        except BotoCoreError as e:
            raise StorageFailure(f"cannot create s3://{inside}: {e}") from e
        return True


def _has_boto3() -> bool:
    try:
        import boto3
    except ImportError:
        return False
    return boto3 is not None


def _check_credentials(options: Mapping[str, str]) -> None:
    """Raise `InvalidRequest` for incomplete credentials."""
    pair = ("s3.access-key", "s3.secret-key")
    names = [name for name in (*pair, "s3.session-token") if name in options]
    missing = [name for name in pair if name not in options]
    if names and missing:
        raise InvalidRequest(
            f"option {' and '.join(map(repr, names))} is given without {' and '.join(map(repr, missing))}: credentials "
            "of S3 are 's3.access-key' and 's3.secret-key', and 's3.session-token' where they are temporary"
        )


def _filesystem(options: Mapping[str, str]) -> fs.FileSystem:
    _check_credentials(options)
    arguments = {
        "endpoint_override": options.get("s3.endpoint"),
        "access_key": options.get("s3.access-key"),
        "secret_key": options.get("s3.secret-key"),
        "session_token": options.get("s3.session-token"),
        "region": options.get("s3.region"),
    }
    return fs.S3FileSystem(**{name: value for name, value in arguments.items() if value is not None})


def _client(options: Mapping[str, str]) -> Any:
    import boto3

    arguments = {
        "endpoint_url": options.get("s3.endpoint"),
        "aws_access_key_id": options.get("s3.access-key"),
        "aws_secret_access_key": options.get("s3.secret-key"),
        "aws_session_token": options.get("s3.session-token"),
        "region_name": options.get("s3.region"),
    }
    return boto3.client("s3", **{name: value for name, value in arguments.items() if value is not None})
