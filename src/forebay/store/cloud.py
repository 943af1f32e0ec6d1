"""Object stores of clouds, and what speaks their protocols: S3, Google Cloud Storage, Azure; through obstore.

Creation is `If-None-Match: *` (GCS: `x-goog-if-generation-match: 0`). Needs `pip install 'forebay[store]'`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from forebay.base.errors import InvalidRequest, StorageFailure, UnsupportedOperation
from forebay.base.locations import below
from forebay.store.objects import ObjectEntry, ObjectMissing

if TYPE_CHECKING:
    from typing_extensions import Buffer

SCHEMES = ("s3", "s3a", "gs", "az", "abfs", "abfss")

_REQUEST_SECONDS = 30
_RETRIES = 2
"""Of one request, by obstore. The journal repeats its own requests for as long as it may."""

_S3_OPTIONS = {
    "s3.endpoint": "endpoint",
    "s3.access-key": "access_key_id",
    "s3.secret-key": "secret_access_key",
    "s3.session-token": "session_token",
    "s3.region": "region",
}
"""Our options, which lakes have too, and obstore's names of them."""


class CloudStore:
    """The objects whose names begin with a URI such as `s3://bucket/folder`."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        """`options`: `s3.endpoint`, `s3.access-key` and so on; without them, the environment's (`AWS_...`).

        Raises `UnsupportedOperation` without the extra `store`, `InvalidRequest` for other options.
        """
        self.location = location
        self._client = _obstore()
        scheme = location.partition("://")[0]
        self._has_suffixes = not scheme.startswith("a")
        """Whether the end of an object can be asked for; not in Azure."""
        arguments: dict[str, Any] = {
            "config": _config(scheme, options),
            "client_options": {"timeout": timedelta(seconds=_REQUEST_SECONDS), "allow_http": True},
            "retry_config": {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_REQUEST_SECONDS)},
        }
        try:
            self._store = self._client.store.from_url(location, **arguments)
        except (self._client.exceptions.BaseError, ValueError) as e:
            raise InvalidRequest(f"cannot use the store {location}: {_first_line(e)}") from e

    def __repr__(self) -> str:
        return f"CloudStore({self.location!r})"

    def create(self, name: str, data: Buffer) -> bool:
        """See `ObjectStore.create`."""
        below(self.location, name)  # refuses steps that would leave the store
        with self._failures("create", name):
            try:
                self._client.put(self._store, name, self._client.Bytes(data), mode="create")  # no copy
            except (self._client.exceptions.AlreadyExistsError, self._client.exceptions.PreconditionError):
                return False
        return True

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        """See `ObjectStore.read`."""
        with self._failures("read", name):
            if end is not None:
                return bytes(self._client.get_range(self._store, name, start=start, end=end))
            if start < 0 and not self._has_suffixes:
                start = max(int(self._client.head(self._store, name)["size"]) + start, 0)
            part = {"suffix": -start} if start < 0 else {"offset": start}
            options = {"range": part} if start else {}
            return bytes(self._client.get(self._store, name, options=options).bytes())

    def upload(self, name: str, parts: Iterable[Buffer]) -> None:
        """See `ObjectStore.upload`."""
        below(self.location, name)
        with self._failures("upload", name):
            self._client.put(self._store, name, iter(parts))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """See `ObjectStore.list`."""
        # The service lists whole folders; names that begin like the last step are picked here.
        folder = prefix.rpartition("/")[0]
        with self._failures("list", prefix):
            for page in self._client.list(self._store, folder or None, offset=after or None):
                for entry in page:
                    if entry["path"].startswith(prefix):
                        yield ObjectEntry(entry["path"], entry["size"])

    def delete(self, names: Iterable[str]) -> None:
        """See `ObjectStore.delete`."""
        with self._failures("delete", "objects"):
            self._client.delete(self._store, list(names))

    @contextmanager
    def _failures(self, operation: str, name: str) -> Iterator[None]:
        errors = self._client.exceptions
        where = f"cannot {operation} {name} in {self.location}"
        try:
            yield
        except FileNotFoundError as e:
            raise ObjectMissing(f"there is no object {name} in {self.location}") from e
        except (errors.PermissionDeniedError, errors.UnauthenticatedError) as e:
            # It is this process that is denied, perhaps for a moment, and no client of a server.
            raise StorageFailure(
                f"{where}: the credentials of this process do not allow it (docs/store.md): {_first_line(e)}"
            ) from e
        except errors.NotSupportedError as e:
            raise UnsupportedOperation(f"{where}: {_first_line(e)}") from e
        except (errors.BaseError, OSError) as e:
            raise StorageFailure(f"{where}: {_first_line(e)}") from e


def _obstore() -> Any:
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as e:
        raise UnsupportedOperation("a store in a cloud needs the package obstore: pip install 'forebay[store]'") from e
    return obstore


def _config(scheme: str, options: Mapping[str, str]) -> dict[str, str]:
    config = {}
    for name, value in options.items():
        if not scheme.startswith("s3") or name not in _S3_OPTIONS:
            known = ", ".join(_S3_OPTIONS) if scheme.startswith("s3") else "none; the environment has the credentials"
            raise InvalidRequest(f"there is no option '{name}' of a store in {scheme}://; there are: {known}")
        config[_S3_OPTIONS[name]] = value
    return config


def _first_line(error: BaseException) -> str:
    """obstore's message without the source that it adds for debugging."""
    return str(error).partition("\n")[0]
