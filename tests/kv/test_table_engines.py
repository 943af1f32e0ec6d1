"""Which engine a bucket is opened with, and moving it from one to another."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, UnsupportedOperation
from forebay.fs.local import LocalFileSystem
from forebay.kv import _digest, engines
from forebay.kv.checkpoint import KvFolder
from forebay.kv.engine import EngineState
from forebay.kv.engines import AUTO, ENGINE_PROPERTY, ENGINES, TableEngine, check_engine, engine_in
from forebay.metadata import types
from forebay.metadata.table import Column, Schema, TableDescriptor

ROWS = {b"%04d" % i * (1 + 200 * (i % 7 == 0)): b"value %d" % i for i in range(300)}


def descriptor(engine: str | None = None, bucket_key: tuple[str, ...] = ("a", "b"), **options: str) -> TableDescriptor:
    schema = Schema.of([Column(name, types.int_()) for name in "abc"], ("a", "b"))
    custom = {} if engine is None else {ENGINE_PROPERTY: engine}
    properties = {"table.kv.format-version": "2", **{f"table.{k.replace('_', '.')}": v for k, v in options.items()}}
    return TableDescriptor(
        schema, bucket_keys=bucket_key, bucket_count=1, properties=properties, custom_properties=custom
    )


def opens(made: TableDescriptor, preferred: str = AUTO) -> TableEngine:
    return TableEngine(made, preferred, lambda: 0)


@pytest.mark.parametrize(
    ("made", "preferred", "expected"),
    [
        (descriptor(), AUTO, "hlog"),
        (descriptor(), "lmdb", "lmdb"),
        (descriptor("hlog"), "lmdb", "hlog"),
        (descriptor(" LMDB "), AUTO, "lmdb"),
        (descriptor("auto"), "lmdb", "lmdb"),
        (descriptor("no such engine"), AUTO, "hlog"),  # stored by an earlier version, which did not check it
        (descriptor("rocksdb"), AUTO, "hlog"),  # stored by an earlier version, which had it
        (descriptor(bucket_key=("a",)), AUTO, "lmdb"),  # prefix lookups
        (descriptor(bucket_key=("a",)), "hlog", "lmdb"),
        (descriptor(bucket_key=("b",)), AUTO, "hlog"),
    ],
)
def test_a_new_bucket_gets_the_engine_of_its_table_or_the_servers(
    made: TableDescriptor, preferred: str, expected: str, tmp_path: Path
) -> None:
    engine = opens(made, preferred)(tmp_path / "db")
    assert engine.name == expected
    engine.close()
    assert engine_in(tmp_path / "db") == expected


def test_where_space_cannot_be_promised_a_bucket_gets_lmdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "allocates_in_place", lambda directory: False)
    for made in (descriptor(), descriptor("hlog")):
        engine = opens(made)(tmp_path / "db")
        assert engine.name == "lmdb"
        engine.close()


@pytest.mark.parametrize("found", ["hlog", "lmdb"])
def test_a_folder_is_opened_with_the_engine_that_wrote_it(found: str, tmp_path: Path) -> None:
    for preferred in (found, "lmdb", AUTO):
        engine = opens(descriptor(), preferred)(tmp_path / "db")
        assert engine.name == found
        engine.close()


@pytest.mark.parametrize(("found", "wanted"), [*permutations(["hlog", "lmdb"], 2)])
def test_a_bucket_is_moved_when_its_table_names_another_engine(found: str, wanted: str, tmp_path: Path) -> None:
    folder = KvFolder(LocalFileSystem(), str(tmp_path / "kv-0"))
    source = folder.open_engine(opens(descriptor(found)), lambda _: frozenset({"a witness"}))
    source.apply(ROWS, EngineState(300, 300, 5, 9, _digest.of_pairs(list(ROWS), list(ROWS.values()))))
    target_factory = opens(descriptor(wanted))
    assert target_factory.is_other_than(source, tmp_path)
    assert not opens(descriptor(found)).is_other_than(source, tmp_path)
    assert not opens(descriptor()).is_other_than(source, tmp_path)
    folder.park_engine(source)
    for is_parked in (True, False):  # moved, and opened again after a kill
        target = folder.open_engine(target_factory, lambda _: frozenset({"a witness"}), is_parked=is_parked)
        assert target.name == wanted
        assert dict(target.items()) == ROWS
        digest = None if wanted == "hlog" else _digest.of_pairs(list(ROWS), list(ROWS.values()))
        assert target.state == EngineState(300, 300, 5, 9, digest)
        target.close()
    assert sorted(path.name for path in (tmp_path / "kv-0").iterdir()) == ["db", "trust"]


def test_the_digest_is_not_made_up_where_puts_do_not_keep_it(tmp_path: Path) -> None:
    source = opens(descriptor("hlog", changelog_image="wal"))(tmp_path / "db")
    source.apply(ROWS, EngineState(300, -1))
    source.close()
    target = opens(descriptor("lmdb", changelog_image="wal"))(tmp_path / "db")
    assert target.state == EngineState(300, -1)
    target.close()


def test_a_bucket_that_cannot_be_moved_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    source = opens(descriptor("lmdb"))(tmp_path / "db")
    source.apply(ROWS, EngineState(300, 300))
    source.close()
    full = replace(descriptor("hlog"))
    with caplog.at_level(logging.WARNING):
        engine = TableEngine(full, AUTO, lambda: 1 << 60)(tmp_path / "db")
    assert engine.name == "lmdb"
    assert dict(engine.items()) == ROWS
    engine.close()
    assert "stays with the key-value engine 'lmdb' and is not moved to 'hlog': the disk of" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


def test_damage_that_is_met_while_moving_is_damage(tmp_path: Path) -> None:
    source = opens(descriptor("hlog"))(tmp_path / "db")
    source.apply(ROWS, EngineState(300, 300))
    source.close()
    (tmp_path / "db" / "head").write_bytes(b"")
    with pytest.raises(CorruptData, match="'head' has 0 bytes"):
        opens(descriptor("lmdb"))(tmp_path / "db")


def test_files_of_rocksdb_are_refused(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "CURRENT").write_text("MANIFEST-000004\n")
    for made in (descriptor(), descriptor("lmdb"), descriptor("rocksdb")):
        with pytest.raises(UnsupportedOperation, match=f"{tmp_path}/db was written by RocksDB.*forebay convert-state"):
            opens(made)(tmp_path / "db")
    assert [path.name for path in (tmp_path / "db").iterdir()] == ["CURRENT"]


def test_what_a_table_may_name() -> None:
    for name in (*ENGINES, AUTO, " HLOG "):
        check_engine(descriptor(name))
    check_engine(descriptor())
    check_engine(descriptor("lmdb", bucket_key=("a",)))
    with pytest.raises(InvalidRequest, match="choose 'auto', 'hlog' or 'lmdb'") as unknown:
        check_engine(descriptor("leveldb"))
    with pytest.raises(InvalidRequest, match=r"'rocksdb' is no longer a key-value engine.*forebay convert-state"):
        check_engine(descriptor("rocksdb"))
    with pytest.raises(InvalidRequest, match=r"the bucket key of this table \(a\)") as ordered:
        check_engine(descriptor("hlog", bucket_key=("a",)))
    assert {unknown.value.code, ordered.value.code} == {ErrorCode.INVALID_CONFIG_EXCEPTION}
