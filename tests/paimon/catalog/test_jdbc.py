"""The JDBC catalog in SQLite and, if a server can be started, in PostgreSQL; its locks; concurrent pypaimon."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from forebay.base.ambient import ManualClock
from forebay.base.errors import (
    AccessDenied,
    AlreadyExists,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    StorageFailure,
    Unavailable,
    UnsupportedOperation,
)
from forebay.paimon.catalog.catalog import Catalog
from forebay.paimon.catalog.database import Database
from forebay.paimon.catalog.filesystem import FileSystemCatalog
from forebay.paimon.catalog.jdbc import JdbcCatalog, JdbcLock
from forebay.paimon.io.arrow_file_io import ArrowFileIO
from forebay.paimon.io.local import LocalFileIO
from tests.every_run import every_run
from tests.paimon.lake import put, rows_of
from tests.paimon.oracle import ask
from tests.patience import PATIENCE

COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.string())])


@contextlib.contextmanager
def _postgresql() -> Iterator[str]:
    """The URI of a fresh server. Skips where there is no server to start, or no pg8000."""
    pytest.importorskip("pg8000", reason="needs the package pg8000")
    found = shutil.which("initdb") or next((str(p) for p in Path("/usr/lib/postgresql").glob("*/bin/initdb")), None)
    if found is None:
        pytest.skip("no PostgreSQL is installed here")
    user = None
    if os.getuid() == 0:  # the server refuses to run as root
        try:
            user = pwd.getpwnam("postgres").pw_name
        except KeyError:
            pytest.skip("running as root, and there is no user postgres to run the server")
    with tempfile.TemporaryDirectory() as folder:
        if user is not None:
            shutil.chown(folder, user)

        def run(program: str, *arguments: str) -> None:
            command = [str(Path(found).with_name(program)), *arguments]
            subprocess.run(command, check=True, user=user, capture_output=True, timeout=PATIENCE, cwd=folder)

        data = f"{folder}/data"
        run("initdb", "-D", data, "-U", "lake", "-A", "trust", "--no-sync")
        try:
            run("pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", f"-h '' -k {folder}", "start")
            yield f"jdbc:postgresql:///postgres?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-m", "immediate", "stop")


@pytest.fixture(scope="module")
def postgresql() -> Iterator[str]:
    with _postgresql() as uri:
        yield uri


@pytest.fixture(params=every_run(["sqlite", "postgresql"], lambda name: name == "sqlite"))
def options(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    lake = {"metastore": "jdbc", "warehouse": str(tmp_path / "lake"), "catalog-key": tmp_path.name}
    if request.param == "sqlite":
        return {**lake, "uri": f"jdbc:sqlite:{tmp_path}/catalog.db"}
    return {**lake, "uri": request.getfixturevalue("postgresql"), "jdbc.user": "lake"}


def _catalog(options: dict[str, str]) -> JdbcCatalog:
    catalog = Catalog.open(options)
    assert isinstance(catalog, JdbcCatalog)
    return catalog


def test_databases_and_tables_come_and_go(options: dict[str, str]) -> None:
    catalog = _catalog(options)
    assert catalog.list_databases() == []
    catalog.create_database("a")
    assert catalog.warehouse_exists()  # its databases are shown before there is a directory
    catalog.create_database("b")
    with pytest.raises(AlreadyExists, match="database 'a'"):
        catalog.create_database("a")
    catalog.create_database("a", ignore_if_exists=True)
    table = catalog.create_table("a.t", COLUMNS, primary_key=["id"], options={"bucket": "1"})
    put(table, [{"id": 1, "v": "x"}])
    again = _catalog(options)
    assert (again.list_databases(), again.list_tables("a"), again.list_tables("b")) == (["a", "b"], ["t"], [])
    assert rows_of(again.table("a.t")) == [(1, "x")]
    with pytest.raises(AlreadyExists, match=r"a\.t"):
        again.create_table("a.t", COLUMNS)
    assert again.create_table("a.t", COLUMNS, ignore_if_exists=True).schema.names == ("id", "v")
    with pytest.raises(InvalidRequest, match="has tables"):
        again.drop_database("a")
    again.rename_table("a.t", "b.u")
    assert (again.table_exists("a.t"), rows_of(again.table("b.u"))) == (False, [(1, "x")])
    with pytest.raises(NotFound, match=r"a\.t"):
        catalog.table("a.t")
    again.drop_table("b.u")
    with pytest.raises(NotFound):
        again.drop_table("b.u")
    again.drop_table("b.u", ignore_if_not_exists=True)
    again.drop_database("a")
    again.drop_database("a", ignore_if_not_exists=True)
    with pytest.raises(NotFound, match="'a'"):
        again.drop_database("a")
    with pytest.raises(NotFound):
        again.list_tables("a")
    assert again.list_databases() == ["b"]


def test_a_database_is_kept_with_its_comment_and_options(options: dict[str, str]) -> None:
    catalog = _catalog(options)
    catalog.create_database("a", comment="why", options={"owner": "me", "hidden": True})
    assert (catalog.database_exists("a"), catalog.database_exists("b")) == (True, False)
    kept = Database.open(options["uri"], options).rows(
        "SELECT property_key, property_value FROM paimon_database_properties WHERE catalog_key = ? "
        "AND database_name = ?",
        options["catalog-key"],
        "a",
    )
    assert dict(kept) == {
        "exists": "true", "location": f"{options['warehouse']}/a.db", "comment": "why", "owner": "me", "hidden": "true",
    }  # fmt: skip


def test_dropping_a_database_with_its_tables_deletes_their_files(options: dict[str, str]) -> None:
    catalog = _catalog(options)
    catalog.create_database("a")
    root = Path(catalog.table_path("a.t"))
    catalog.create_table("a.t", COLUMNS)
    catalog.drop_database("a", cascade=True)
    assert (catalog.list_databases(), root.exists()) == ([], False)


def test_a_table_is_renamed_only_to_a_free_name_and_back_if_its_files_cannot_move(options: dict[str, str]) -> None:
    catalog = _catalog(options)
    catalog.create_database("a")
    for name in ("a.t", "a.u"):
        catalog.create_table(name, COLUMNS)
    with pytest.raises(AlreadyExists, match=r"a\.u"):
        catalog.rename_table("a.t", "a.u")
    with pytest.raises(NotFound):
        catalog.rename_table("a.t", "elsewhere.t")
    Path(catalog.table_path("a.left")).mkdir()
    with pytest.raises(Exception, match="left"):
        catalog.rename_table("a.t", "a.left")
    assert catalog.list_tables("a") == ["t", "u"]


def test_files_that_are_not_registered_are_not_taken_for_a_table(options: dict[str, str]) -> None:
    catalog = _catalog(options)
    catalog.create_database("a")
    Catalog.open(options["warehouse"]).create_database("a")
    Catalog.open(options["warehouse"]).create_table("a.t", COLUMNS)
    with pytest.raises(NotFound):
        catalog.table("a.t")
    with pytest.raises(InvalidRequest, match="not registered"):
        catalog.create_table("a.t", COLUMNS)


def test_catalogs_with_other_keys_do_not_see_each_other(options: dict[str, str]) -> None:
    _catalog(options).create_database("a")
    assert _catalog({**options, "catalog-key": "other"}).list_databases() == []


# ---- locks ----------------------------------------------------------------------------------------------------------


def _lock(options: dict[str, str], clock: ManualClock | None = None, wait_ms: int = 60_000) -> JdbcLock:
    _catalog(options)
    database = Database.open(options["uri"], options)
    return JdbcLock(database, f"{options['catalog-key']}.a.t", wait_ms, 8000, clock or ManualClock())


def test_a_lock_keeps_others_out_until_it_is_free(options: dict[str, str]) -> None:
    lock = _lock(options)
    with lock.hold(), pytest.raises(Unavailable, match="was not free"), lock.hold():
        pass
    with lock.hold():
        pass
    with pytest.raises(ValueError, match="inside"), lock.hold():
        raise ValueError("inside")
    with lock.hold():
        pass


def test_a_lock_whose_holder_died_is_taken_over_and_a_late_holder_is_told(options: dict[str, str]) -> None:
    lock = _lock(options)
    database = Database.open(options["uri"], options)
    age = "UPDATE paimon_distributed_locks SET acquired_at = '2001-01-01 00:00:00' WHERE lock_id = ?"

    def work_for_too_long() -> None:
        with lock.hold():
            database.change(age, f"{options['catalog-key']}.a.t")
            with lock.hold():
                pass

    with pytest.raises(OutcomeUnknown, match="expired while it was held"):
        work_for_too_long()


def test_locks_are_used_on_stores_that_need_them_and_where_they_are_requested(options: dict[str, str]) -> None:
    assert _catalog(options).lock_of("a.t") is None
    assert _catalog({**options, "lock.enabled": "true"}).lock_of("a.t") is not None
    memory = pa.fs._MockFileSystem()
    assert JdbcCatalog(ArrowFileIO(memory), "mock://lake", options).lock_of("a.t") is not None


class _PlainStore(LocalFileIO):
    """A store that replaces files at once, as object stores do, but cannot create one only if there is none."""

    supports_atomic_create = False

    def create(self, path: str, data: bytes) -> bool:
        if self.exists(path):
            return False
        time.sleep(0.005)  # a gap in which others may create it, too
        self.write(path, data)
        return True


@pytest.mark.slow
@pytest.mark.one_in(2)
def test_writers_on_a_store_without_atomic_create_lose_nothing_under_the_lock(options: dict[str, str]) -> None:
    given = {**options, "lock.enabled": "true", "lock-check-max-sleep": "20 ms"}
    store = _PlainStore(sync=False)
    catalog = JdbcCatalog(store, options["warehouse"], given)
    catalog.create_database("a")
    catalog.create_table("a.t", COLUMNS, options={"commit.max-retries": "1000", "commit.max-retry-wait": "20 ms"})
    with pytest.raises(UnsupportedOperation, match="could overwrite each other"):
        put(FileSystemCatalog(store, options["warehouse"]).table("a.t"), [{"id": 1, "v": ""}])
    failures: list[BaseException] = []

    def write(writer: int) -> None:
        try:
            table = JdbcCatalog(store, options["warehouse"], given).table("a.t")
            for i in range(6):
                put(table, [{"id": writer * 100 + i, "v": "x"}])
        except Exception as e:  # noqa: BLE001 - whatever it is, the test shows it
            failures.append(e)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert {row[0] for row in rows_of(catalog.table("a.t"), ["id"])} == {
        w * 100 + i for w in range(3) for i in range(6)
    }
    assert Database.open(given["uri"], given).rows("SELECT * FROM paimon_distributed_locks") == []


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uri", "error", "says"),
    [
        ("", InvalidRequest, "needs option 'uri'"),
        ("jdbc:sqlite::memory:", InvalidRequest, "name a file"),
        ("jdbc:oracle:thin:@x", UnsupportedOperation, "jdbc:postgresql"),
        ("jdbc:sqlite:/no/such/folder/catalog.db", Unavailable, "/no/such/folder"),
        ("jdbc:postgresql://host/db?currentSchema=x", UnsupportedOperation, "'currentSchema'"),
        ("jdbc:postgresql://host/db?sslmode=maybe", InvalidRequest, "sslmode 'maybe'"),
        ("jdbc:postgresql://127.0.0.1:1/db", Unavailable, "127.0.0.1/db"),
    ],
)
def test_a_catalog_that_cannot_be_opened_says_why(tmp_path: Path, uri: str, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        Catalog.open({"metastore": "jdbc", "warehouse": str(tmp_path), "uri": uri})


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pg8000.dbapi", None)
    with pytest.raises(UnsupportedOperation, match=r"pip install 'forebay\[postgresql\]'"):
        Database.open("jdbc:postgresql://host/db", {})


def test_a_file_that_is_no_database_is_a_storage_failure(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StorageFailure, match="not a database"):
        Catalog.open({"metastore": "jdbc", "warehouse": str(tmp_path), "uri": f"jdbc:sqlite:{tmp_path}/catalog.db"})


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("23505", AlreadyExists),
        ("28P01", AccessDenied),
        ("42501", AccessDenied),
        ("08006", Unavailable),
        ("53300", Unavailable),
        ("57P01", Unavailable),
        ("42601", StorageFailure),
    ],
)
def test_the_code_of_a_refusal_by_postgresql_says_what_kind_it_is(
    monkeypatch: pytest.MonkeyPatch, code: str, error: type
) -> None:
    pg8000 = pytest.importorskip("pg8000.dbapi", reason="needs the package pg8000")

    def refuse(**_: object) -> None:
        raise pg8000.DatabaseError({"C": code, "M": "no"})

    monkeypatch.setattr(pg8000, "connect", refuse)
    with pytest.raises(error, match=rf"host/db: no \({code}\)") as told:
        Database.open("jdbc:postgresql://host/db", {}).rows("SELECT 1")
    assert type(told.value) is error


@pytest.mark.parametrize("said", [("a text",), ()])
def test_a_refusal_by_postgresql_without_a_code_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch, said: tuple[str, ...]
) -> None:
    pg8000 = pytest.importorskip("pg8000.dbapi", reason="needs the package pg8000")

    def refuse(**_: object) -> None:
        raise pg8000.DatabaseError(*said)

    monkeypatch.setattr(pg8000, "connect", refuse)
    with pytest.raises(StorageFailure, match=rf"host/db: {''.join(said)} \(DatabaseError\)"):
        Database.open("jdbc:postgresql://host/db", {}).rows("SELECT 1")


@pytest.mark.parametrize(
    ("uri", "options", "wanted"),
    [
        ("//host/db", {}, {"host": "host", "port": 5432, "database": "db", "password": None}),
        ("//host:1/", {"jdbc.user": "u"}, {"port": 1, "user": "u", "database": "u"}),
        ("//a%40b:p%2F@host/d", {}, {"user": "a@b", "password": "p/", "database": "d"}),
        ("//x:y@host/d?user=u&password=p", {}, {"user": "u", "password": "p"}),
        ("//x:y@host/d?user=u&password=p", {"jdbc.user": "o", "jdbc.password": "q"}, {"user": "o", "password": "q"}),
        ("///d?host=/run/pg", {}, {"unix_sock": "/run/pg/.s.PGSQL.5432", "database": "d"}),
    ],
)
def test_where_postgresql_is_and_as_whom_it_is_asked(
    monkeypatch: pytest.MonkeyPatch, uri: str, options: dict[str, str], wanted: dict[str, object]
) -> None:
    pg8000 = pytest.importorskip("pg8000.dbapi", reason="needs the package pg8000")
    asked: list[dict[str, object]] = []

    def refuse(**given: object) -> None:
        asked.append(given)
        raise OSError("no server")

    monkeypatch.setattr(pg8000, "connect", refuse)
    with pytest.raises(Unavailable):
        Database.open(f"jdbc:postgresql:{uri}", options).rows("SELECT 1")
    assert {name: asked[0].get(name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ("", None),
        ("?sslmode=prefer", None),
        ("?ssl=true", (False, ssl.CERT_NONE)),
        ("?sslmode=require", (False, ssl.CERT_NONE)),
        ("?sslmode=verify-ca", (False, ssl.CERT_REQUIRED)),
        ("?sslmode=verify-full", (True, ssl.CERT_REQUIRED)),
    ],
)
def test_how_a_connection_to_postgresql_is_encrypted(
    monkeypatch: pytest.MonkeyPatch, parameters: str, wanted: tuple[bool, int] | None
) -> None:
    pg8000 = pytest.importorskip("pg8000.dbapi", reason="needs the package pg8000")
    asked: list[ssl.SSLContext | None] = []

    def refuse(*, ssl_context: ssl.SSLContext | None, **_: object) -> None:
        asked.append(ssl_context)
        raise OSError("no server")

    monkeypatch.setattr(pg8000, "connect", refuse)
    with pytest.raises(Unavailable, match="no server"):
        Database.open(f"jdbc:postgresql://host/db{parameters}", {}).rows("SELECT 1")
    (context,) = asked
    assert (context and (context.check_hostname, context.verify_mode)) == wanted


# ---- pypaimon -------------------------------------------------------------------------------------------------------

_PYPAIMON = """
import json, sys
import pyarrow as pa
from pypaimon import CatalogFactory, Schema
uri, warehouse = sys.argv[1:]
catalog = CatalogFactory.create({"metastore": "jdbc", "uri": uri, "warehouse": warehouse})
def rows(name):
    builder = catalog.get_table(name).new_read_builder()
    return sorted(builder.new_read().to_arrow(builder.new_scan().plan().splits()).to_pylist(), key=str)
ours = rows("ours.t")
catalog.create_database("theirs", False)
columns = pa.schema([("id", pa.int64()), ("v", pa.string())])
catalog.create_table("theirs.t", Schema.from_pyarrow_schema(columns), False)
for name in ("ours.t", "theirs.t"):
    writing = catalog.get_table(name).new_batch_write_builder()
    write, commit = writing.new_write(), writing.new_commit()
    write.write_arrow(pa.table({"id": [2], "v": ["theirs"]}, schema=columns))
    commit.commit(write.prepare_commit())
    write.close(); commit.close()
print(json.dumps(ours))
"""


@pytest.mark.foreign
@pytest.mark.slow
def test_pypaimon_and_we_share_a_catalog(tmp_path: Path) -> None:
    uri, warehouse = f"jdbc:sqlite:{tmp_path}/catalog.db", str(tmp_path / "lake")
    catalog = _catalog({"metastore": "jdbc", "uri": uri, "warehouse": warehouse})
    catalog.create_database("ours")
    put(catalog.create_table("ours.t", COLUMNS), [{"id": 1, "v": "ours"}])
    assert ask(_PYPAIMON, uri, warehouse) == [{"id": 1, "v": "ours"}]
    assert catalog.list_databases() == ["ours", "theirs"]
    assert rows_of(catalog.table("ours.t")) == [(1, "ours"), (2, "theirs")]
    assert rows_of(catalog.table("theirs.t")) == [(2, "theirs")]
    with contextlib.closing(sqlite3.connect(tmp_path / "catalog.db")) as connection:
        assert connection.execute("SELECT count(*) FROM paimon_tables").fetchone() == (2,)
