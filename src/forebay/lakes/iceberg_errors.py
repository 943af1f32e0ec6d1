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
from requests.exceptions import RequestException

from forebay.base.errors import AccessDenied, Conflict, CorruptData, StorageFailure, Unavailable

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


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Translate foreign errors; `what` says where they happened."""
    try:
        yield
    except (UnauthorizedError, ForbiddenError, OAuthError, AuthorizationExpiredError) as e:
        raise AccessDenied(f"{what}: access was refused: {e}") from e
    except (CommitFailedException, WaitingForLockException) as e:
        raise Conflict(f"{what}: another writer has changed it in the meantime: {e}") from e
    except (RESTError, RequestException, SQLAlchemyError) as e:
        raise Unavailable(f"{what}: the catalog did not answer: {e}") from e
    except pa.ArrowInvalid as e:
        raise CorruptData(f"{what}: a file is damaged: {e}") from e
    except OSError as e:
        raise StorageFailure(f"{what}: {e}") from e
