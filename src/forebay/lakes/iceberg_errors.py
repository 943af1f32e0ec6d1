"""Translates errors of pyiceberg, catalogs and file systems to Forebay's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    UnauthorizedError,
    WaitingForLockException,
)
from requests.exceptions import ConnectionError as NoConnection
from requests.exceptions import RequestException
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from forebay.base.errors import AccessDenied, Conflict, CorruptData, ErrorCode, StorageFailure, Unavailable

try:
    from sqlalchemy.exc import SQLAlchemyError as SQLAlchemyError
except ModuleNotFoundError:  # only SQL catalogs need it

    class SQLAlchemyError(Exception):  # type: ignore[no-redef]
        """A placeholder that is never raised."""


NO_ANSWER = (
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    RequestException,
    SQLAlchemyError,
    OSError,
)
"""Errors of a catalog's commit after which the change may have been made nevertheless."""


def _unreached(error: Exception) -> str | None:
    """The address to which there was no connection, and why; None if the request may have been sent."""
    reason = getattr(error.args[0], "reason", None) if error.args else None
    if not isinstance(error, NoConnection) or not isinstance(reason, NewConnectionError | ConnectTimeoutError):
        return None
    pool, cause = error.args[0].pool, reason.__cause__
    why = cause.strerror if isinstance(cause, OSError) and cause.strerror else "no connection in time"
    return f"{pool.host}:{pool.port} cannot be reached ({why})"


@contextmanager
def lake_errors(what: str) -> Iterator[None]:
    """Translate foreign errors; `what` says where they happened."""
    try:
        yield
    except (UnauthorizedError, ForbiddenError, OAuthError, AuthorizationExpiredError) as e:
        raise AccessDenied(f"{what}: access was refused: {e}") from e
    except (CommitFailedException, WaitingForLockException) as e:
        raise Conflict(f"{what}: another writer has changed it in the meantime: {e}") from e
    except (RESTError, RequestException, SQLAlchemyError) as e:
        unreached = _unreached(e)
        if unreached is not None:  # which no client takes for an answer that was lost
            raise Unavailable(
                f"{what}: {unreached}, so the request was not sent. Is the catalog running, and is its address right?",
                ErrorCode.OPERATION_NOT_ATTEMPTED_EXCEPTION,
            ) from e
        raise Unavailable(f"{what}: the catalog did not answer: {e}") from e
    except pa.ArrowInvalid as e:
        raise CorruptData(f"{what}: a file is damaged: {e}") from e
    except OSError as e:
        raise StorageFailure(f"{what}: {e}") from e
