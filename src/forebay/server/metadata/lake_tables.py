"""The lake side of the catalog: lake tables are created and altered before their stream tables.

The lake goes first and the store second, so a stream table never promises a lake table that does not exist. If the
server crashes in between, the lake is one step ahead; repeating the request finds that step done
(`LakeCatalog.create_table`, `alter_table`). A dropped table's lake table stays, as on a Fluss cluster: it is the
history of the data.

The lake is opened in the background after the start (`LakeTables.load`), because importing its package takes seconds,
or by the first request that needs it, in the thread that changes metadata. The rules are those of Fluss
(`CoordinatorService`, `MetadataManager`, `LakeCatalogDynamicLoader`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from forebay.base import threads
from forebay.base.errors import ErrorCode, InternalError, InvalidRequest, NotFound
from forebay.lake.formats import create_lake_storage
from forebay.lake.public_options import public_options
from forebay.lake.secret_mask import SecretMask
from forebay.lake.storage import LakeCatalog, LakeStorage
from forebay.metadata.table import TableDescriptor, TableInfo, TablePath
from forebay.server.lake.lake_snapshots import LakeSnapshots
from forebay.server.lake.lake_tiering import TieringManager

_LOGGER = logging.getLogger(__name__)

LakeStorageFactory = Callable[[str, Mapping[str, str]], LakeStorage]

_ENABLED, _FORMAT = "table.datalake.enabled", "table.datalake.format"


@dataclass(frozen=True)
class LakeSettings:
    """`datalake.format`, whether tables may be tiered, and the format's own options (`datalake.<format>.*`).

    `public` are further option names that clients may see (`datalake.public-options`).
    """

    format: str | None = None
    enabled: bool = False
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    public: tuple[str, ...] = ()

    @property
    def public_options(self) -> dict[str, str]:
        """Return the options as clients see them."""
        return public_options(self.options, self.public)


class LakeTables:
    """The catalog's interface to the lake. Changes are made one at a time, by the catalog."""

    def __init__(
        self,
        settings: LakeSettings | None = None,
        tiering: TieringManager | None = None,
        snapshots: LakeSnapshots | None = None,
        create_storage: LakeStorageFactory = create_lake_storage,
    ) -> None:
        """`tiering` and `snapshots` are notified of created and dropped tables."""
        self._settings = settings or LakeSettings()
        self._tiering = tiering
        self._snapshots = snapshots
        self._create_storage = create_storage
        self._lock = threads.lock()
        self._opened: LakeCatalog | None = None
        self._public_options = self._settings.public_options
        self._mask = SecretMask(self._settings.options, self._settings.public)

    # ---- what a table may ask for -----------------------------------------------------------------------------------

    def with_format(self, descriptor: TableDescriptor) -> TableDescriptor:
        """Return a new table's descriptor with the lake format recorded, which determines keys and buckets."""
        if self._settings.format is None or descriptor.lake_format is not None:
            return descriptor
        return replace(descriptor, properties={**descriptor.properties, _FORMAT: self._settings.format})

    def check(self, descriptor: TableDescriptor) -> None:
        """Raise `InvalidRequest` for a lake table that this server's lake cannot hold."""
        if not descriptor.lake_enabled:
            return
        if not self._settings.enabled:
            raise InvalidRequest(
                f"'{_ENABLED}' is true, and this server has no lake: set 'datalake.format' and the format's options "
                "(docs/server.md)",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            )
        if descriptor.lake_format != self._settings.format:
            raise InvalidRequest(
                f"'{_FORMAT}' is '{descriptor.lake_format}', and this server's lake is '{self._settings.format}' "
                f"('datalake.format'); they must be the same where '{_ENABLED}' is true",
                ErrorCode.INVALID_CONFIG_EXCEPTION,
            )

    def for_alter(self, path: TablePath, current: TableDescriptor, altered: TableDescriptor) -> TableDescriptor:
        """Return `altered`, with the lake format recorded if tiering is switched on for a table without one.

        Raises `InvalidRequest` (INVALID_ALTER_TABLE) where that is not possible.
        """
        if not altered.lake_enabled or current.lake_enabled:
            return altered
        if not self._settings.enabled:
            raise InvalidRequest(
                f"table {path} cannot be tiered: this server has no lake ('datalake.format', docs/server.md)",
                ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
            )
        if current.lake_format is None and (current.has_primary_key or current.bucket_keys):
            raise InvalidRequest(
                f"table {path} cannot be tiered: it was created while the server had no lake, so its rows are in other "
                "buckets than the lake's would; copy it into a new table",
                ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
            )
        altered = self.with_format(altered)
        self.check(altered)
        return altered

    # ---- the lake's tables ------------------------------------------------------------------------------------------

    def create(self, path: TablePath, descriptor: TableDescriptor) -> None:
        """Create the lake table of a table that is about to be created. Raises the lake's errors."""
        if descriptor.lake_enabled:
            with self._without_secrets():
                self._catalog().create_table(path, descriptor, creating=True)

    def alter(self, path: TablePath, current: TableDescriptor, expected: TableDescriptor) -> None:
        """Alter the lake table of a table that is about to be altered, to match `expected`.

        A table that was once tiered is kept up to date while tiering is off: it may be tiered again.
        """
        if current == expected or not (expected.lake_enabled or _ENABLED in current.properties):
            return
        if not self._settings.enabled:
            if expected.lake_enabled:
                raise InvalidRequest(
                    f"lake table {path} cannot be altered: this server has no lake any more ('datalake.format'); "
                    f"switch '{_ENABLED}' off, or give the server its lake",
                    ErrorCode.INVALID_ALTER_TABLE_EXCEPTION,
                )
            return
        with self._without_secrets():
            self._alter(path, current, expected)

    def _alter(self, path: TablePath, current: TableDescriptor, expected: TableDescriptor) -> None:
        catalog = self._catalog()
        if expected.lake_enabled and not current.lake_enabled:
            catalog.create_table(path, expected, creating=False)
            if _ENABLED not in current.properties:
                return
        try:
            catalog.alter_table(path, current, expected)
        except NotFound as e:
            if expected.lake_enabled:
                raise NotFound(
                    f"the lake table of {path} is gone, so it cannot be altered; was it dropped in the lake? Switch "
                    f"'{_ENABLED}' off and on to recreate it ({e.message})",
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                ) from e

    @contextmanager
    def _without_secrets(self) -> Iterator[None]:
        """Remove the lake's secrets from errors of the body, which go to clients and into the log."""
        try:
            yield
        except Exception as e:
            cleaned = self._mask.cleaned(e)
            if cleaned is e:
                raise
            raise cleaned from None

    def load(self) -> None:
        """Open the lake ahead of the first request that needs it. Failures are logged, and reported to that request."""
        if not self._settings.enabled:
            return
        try:
            with self._without_secrets():
                self._catalog()
        except Exception as e:  # noqa: BLE001 - a lake may raise anything, and streams are served without it
            _LOGGER.warning("the lake cannot be opened; requests for lake tables will retry: %s", e)

    def _catalog(self) -> LakeCatalog:
        with self._lock:
            if self._opened is None:
                if self._settings.format is None:
                    raise InternalError("a lake table passed the checks of a server without a lake")
                self._opened = self._create_storage(self._settings.format, self._settings.options).create_catalog()
            return self._opened

    # ---- the clients' view ------------------------------------------------------------------------------------------

    def described(self, descriptor: TableDescriptor) -> TableDescriptor:
        """Return the descriptor as clients see it: lake tables have their lake's public options (`lake_options`)."""
        if not descriptor.lake_enabled or self._settings.format is None:
            return descriptor
        prefix = f"table.datalake.{self._settings.format}."
        lake_options = {prefix + key: value for key, value in self._public_options.items()}
        return replace(descriptor, properties={**descriptor.properties, **lake_options})

    # ---- scheduling of tiering --------------------------------------------------------------------------------------

    def opened(self, tables: Iterable[TableInfo]) -> None:
        """Schedule the tables that existed when the server started."""
        last_rounds_ms = {} if self._snapshots is None else self._snapshots.last_rounds_ms()
        for info in tables:
            if not info.lake_enabled:
                continue
            if not self._settings.enabled:
                _LOGGER.warning("table %s is not tiered: this server has no lake ('datalake.format')", info.path)
                continue
            self._schedule(info, last_rounds_ms.get(info.table_id))

    def created(self, info: TableInfo) -> None:
        """Schedule the tiering of a table that was created."""
        if info.lake_enabled:
            self._schedule(info)

    def altered(self, before: TableInfo, after: TableInfo) -> None:
        """Start, stop or adjust the tiering of a table that has been altered. No effect on a server without tiering."""
        if self._tiering is None:
            return
        if before.lake_enabled and not after.lake_enabled:
            self._tiering.remove(after.table_id)
        elif after.lake_enabled and not before.lake_enabled:
            self._schedule(after)
        elif after.lake_enabled and _freshness_ms(before) != _freshness_ms(after):
            self._tiering.set_freshness(after.table_id, _freshness_ms(after))

    def dropped(self, info: TableInfo) -> None:
        """Forget the schedule and the lake snapshots of a table that was dropped."""
        if self._tiering is not None:
            self._tiering.remove(info.table_id)
        if self._snapshots is not None:
            self._snapshots.forget(info.table_id)

    def _schedule(self, info: TableInfo, last_round_ms: int | None = None) -> None:
        if self._tiering is not None:
            self._tiering.add(info.table_id, info.path, _freshness_ms(info), last_round_ms)

    def close(self) -> None:
        """Release the lake's connections."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()


def _freshness_ms(info: TableInfo) -> int:
    freshness: int = info.descriptor.option("table.datalake.freshness")
    return freshness
