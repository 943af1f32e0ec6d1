"""LMDB's file examined without LMDB: its contents, and that damage is found before LMDB would abort the process.

LMDB_FLIPS sets the number of damaged files to try (0, for CI: few).
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.base.errors import CorruptData
from forebay.fs.local import LocalFileSystem
from forebay.kv import _digest
from forebay.kv.checkpoint import KvFolder
from forebay.kv.engine import EngineState
from forebay.kv.file_checksums import first_difference, list_files, sync_files
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
from forebay.kv.lmdb.lmdb_file import LmdbFile, check_engine_files
from tests.patience import PATIENCE

FLIPS = int(os.environ.get("LMDB_FLIPS", "0")) or 60
SEED = int(os.environ.get("LMDB_SEED", random.SystemRandom().randrange(1 << 32)))
FS = LocalFileSystem()
Model = dict[bytes, bytes]

USE = """
import sys
from pathlib import Path
from forebay.kv.engine import EngineState
from forebay.kv.lmdb.lmdb_engine import LmdbEngine
for folder in sys.argv[1:]:
    print(folder, flush=True)
    engine = LmdbEngine(Path(folder))
    snapshot = engine.snapshot()
    list(snapshot.values())
    snapshot.close()
    for number in range(20):
        keys = [b"%04d" % k for k in range(number, 3000, 20)]
        engine.multi_get(keys)
        engine.apply({key: bytes(200) if number % 2 else None for key in keys}, EngineState(number + 1))
    engine.apply({b"large": bytes(50_000)}, EngineState(99))
    engine.close()
"""


def write(engine: LmdbEngine, model: Model, rng: random.Random, transactions: int) -> None:
    """Values of all sizes under short and long keys; the digest is kept from what is written."""
    for _ in range(transactions):
        writes: dict[bytes, bytes | None] = {}
        for _ in range(rng.randrange(1, 200)):
            key = b"%04d" % rng.randrange(3000) if rng.random() < 0.97 else b"L" * 480 + rng.randbytes(1)
            size = rng.choice([1400, 6000, 30_000]) if rng.random() < 0.03 else rng.randrange(80)
            writes[key] = None if rng.random() < 0.3 else rng.randbytes(size)
        change, before = _digest.change(writes, model), len(model)
        for key, value in writes.items():
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        engine.apply(writes, engine.state.advanced(engine.state.applied_offset + 1, len(model) - before, change))


@pytest.fixture(params=[True, False], ids=["through the map", "by writes"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Model]:
    """A folder whose engine was not closed, and its rows."""
    model: Model = {}
    engine = LmdbEngine(tmp_path / "db", write_map=request.param)
    write(engine, model, random.Random(7), 40)
    shutil.copytree(tmp_path / "db", tmp_path / "copy")
    engine.close()
    return tmp_path / "copy", model


def test_the_walk_finds_the_rows_and_their_digest_is_that_of_what_was_written(written: tuple[Path, Model]) -> None:
    folder, model = written
    file = LmdbFile(FS, str(folder))
    content = file.check()
    assert (content.row_count, content.digest) == (len(model), _digest.of_pairs(model.keys(), model.values()))
    assert content.state.digest == content.digest
    assert dict(file.items()) == model
    assert file.state() == content.state
    file.close()


def test_a_new_and_an_emptied_file_are_sound(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db")
    assert check_engine_files(FS, str(tmp_path / "db")).row_count == 0  # type: ignore[union-attr]
    engine.apply({b"a": b"1"}, EngineState(1, 1))
    engine.apply({b"a": None}, EngineState(2, 0))
    assert check_engine_files(FS, str(tmp_path / "db")).state == EngineState(2, 0)  # type: ignore[union-attr]
    engine.close()


def damage(data: bytearray, rng: random.Random) -> None:
    """Flip a bit, zero a stretch, or overwrite bytes, half of the time near the beginning of a page."""
    place = rng.randrange(len(data))
    if rng.random() < 0.7:
        place = place // 4096 * 4096 + rng.randrange(min(160, len(data) - place // 4096 * 4096))
    if rng.random() < 0.15:
        place = rng.randrange(8192)
    kind = rng.random()
    if kind < 0.6:
        data[place] ^= 1 << rng.randrange(8)
    elif kind < 0.8:
        data[place : place + 8] = rng.randbytes(len(data[place : place + 8]))
    else:
        end = min(place + rng.choice([16, 512, 4096]), len(data))
        data[place:end] = bytes(end - place)


@pytest.mark.timeout(1200 + FLIPS)
def test_no_damage_that_the_walk_lets_pass_changes_a_row_or_ends_the_process(
    written: tuple[Path, Model], tmp_path: Path
) -> None:
    folder, model = written
    rng = random.Random(SEED)
    sound = bytearray((folder / "data.mdb").read_bytes())
    sound = sound[: sound.rstrip(b"\0").__len__() // 4096 * 4096 + 4096]
    passed, found = [], 0
    for number in range(FLIPS):
        data = bytearray(sound)
        damage(data, rng)
        target = tmp_path / f"damaged-{number}"
        target.mkdir()
        (target / "data.mdb").write_bytes(data)
        file = LmdbFile(FS, str(target))
        try:
            content = file.check()
            # A damaged meta page may make the one before count: a state that is whole, and older.
            if content.state.applied_offset == 40:
                assert dict(file.items()) == model, f"seed {SEED}, file {number}"
            else:
                assert content.state.applied_offset == 39
        except CorruptData:
            found += 1
            shutil.rmtree(target)
        else:
            passed.append(str(target))
        file.close()
    assert found > FLIPS / 10
    child = subprocess.run(
        [sys.executable, "-c", USE, *passed],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE + FLIPS,
    )
    assert child.returncode == 0, f"seed {SEED}: {child.returncode}, {child.stdout[-200:]} {child.stderr[-2000:]}"


_NUMBER, _FLAGS, _MAGIC, _VERSION = (0, "Q"), (10, "H"), (16, "I"), (20, "I")
_PAGE_BYTES, _FREE_FLAGS, _FREE_ROOT = (40, "I"), (44, "H"), (80, "Q")
_MAIN_KEY_BYTES, _MAIN_FLAGS, _MAIN_DEPTH = (88, "I"), (92, "H"), (94, "H")
_MAIN_ENTRIES, _MAIN_ROOT = (120, "Q"), (128, "Q")
_LAST_PAGE, _TRANSACTION = (136, "Q"), (144, "Q")
_NO_PAGE = 2**64 - 1


def _changed(folder: Path, page: int, field: tuple[int, str], change: Callable[[int], int]) -> None:
    """Change one number of a meta page."""
    path = folder / "data.mdb"
    data = bytearray(path.read_bytes())
    at, code = page * 4096 + field[0], f"={field[1]}"
    struct.pack_into(code, data, at, change(struct.unpack_from(code, data, at)[0]))
    path.write_bytes(data)


@pytest.mark.parametrize("page", [0, 1])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        (_NUMBER, 5),
        (_FLAGS, 0),
        (_MAGIC, 1),
        (_VERSION, 2),
        (_PAGE_BYTES, 512),
        (_PAGE_BYTES, 8192),
        (_FREE_FLAGS, 0),
        (_MAIN_KEY_BYTES, 8192),
        (_MAIN_FLAGS, 4),
    ],
)
def test_a_meta_page_with_one_wrong_number_is_none(
    page: int, field: tuple[int, str], value: int, tmp_path: Path
) -> None:
    LmdbEngine(tmp_path / "db").close()
    _changed(tmp_path / "db", page, field, lambda _: value)
    # With another page size in the first, the second is looked for elsewhere.
    position = 8192 if (page, field, value) == (0, _PAGE_BYTES, 8192) else page * 4096
    with pytest.raises(CorruptData, match=f"is damaged at byte {position}: there is no meta page of LMDB"):
        check_engine_files(FS, str(tmp_path / "db"))


@pytest.mark.parametrize(
    ("field", "change", "words"),
    [
        (_LAST_PAGE, lambda _: 0, "its last page number is 0"),
        (_LAST_PAGE, lambda last: last + 10**6, "bytes and should have"),
        (_MAIN_ENTRIES, lambda count: count + 1, "3 trees are named, and should be 4"),
        (_MAIN_DEPTH, lambda _: 0, "a tree has the depth 0"),
        (_MAIN_DEPTH, lambda _: 33, "a tree has the depth 33"),
        (_MAIN_ROOT, lambda _: _NO_PAGE, "a tree with entries has no root"),
        (_MAIN_ROOT, lambda _: 1, "page 1 is used twice|page 1 is named there"),
        (_MAIN_ROOT, lambda _: 10**6, "page 1000000 is named there, and the last one is"),
        (_FREE_ROOT, lambda _: _NO_PAGE, "a tree with entries has no root"),
    ],
)
def test_trees_that_a_meta_page_names_wrongly_are_damage(
    field: tuple[int, str], change: Callable[[int], int], words: str, tmp_path: Path
) -> None:
    engine = LmdbEngine(tmp_path / "db")
    for number in range(5):
        engine.apply({b"%d" % number: b"row"}, EngineState(number + 1))
    engine.close()
    _changed(tmp_path / "db", _newest(tmp_path / "db"), field, change)
    with pytest.raises(CorruptData, match=words):
        check_engine_files(FS, str(tmp_path / "db"))


def test_pages_that_are_free_are_listed_once_and_in_order(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db")
    for number in range(20):
        engine.apply({b"%d %d" % (number, key): bytes(100) for key in range(100)}, EngineState(number + 1))
    engine.close()
    folder, path = tmp_path / "db", tmp_path / "db" / "data.mdb"
    sound = path.read_bytes()
    (root,) = struct.unpack_from("=Q", sound, _newest(folder) * 4096 + _FREE_ROOT[0])
    flags, lower = struct.unpack_from("=HH", sound, root * 4096 + 10)
    assert flags & 2, "it is a leaf"
    places = struct.unpack_from(f"={(lower - 16) // 2}H", sound, root * 4096 + 16)
    lists = [root * 4096 + place + 8 + 8 for place in places]  # behind the head of a node, and the transaction's id
    at = next(at for at in lists if struct.unpack_from("=Q", sound, at)[0] >= 2)
    first, second = struct.unpack_from("=QQ", sound, at + 8)
    assert first > second
    for wrong in ((second, first), (first, first)):
        damaged = bytearray(sound)
        struct.pack_into("=QQ", damaged, at + 8, *wrong)
        path.write_bytes(damaged)
        with pytest.raises(CorruptData, match="a list of free pages is not in order"):
            check_engine_files(FS, str(folder))


def test_a_page_of_two_trees_is_damage_and_so_is_one_with_another_number(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db")
    for number in range(5):
        engine.apply({b"%d" % number: b"row"}, EngineState(number + 1))
    engine.close()
    folder, path = tmp_path / "db", tmp_path / "db" / "data.mdb"
    sound = path.read_bytes()
    newest = _newest(folder)
    (root,) = struct.unpack_from("=Q", sound, newest * 4096 + _MAIN_ROOT[0])
    _changed(folder, newest, _FREE_ROOT, lambda _: root)
    with pytest.raises(CorruptData, match=f"page {root} is used twice"):
        check_engine_files(FS, str(folder))
    path.write_bytes(sound)
    _changed(folder, root, _NUMBER, lambda number: number + 1)
    with pytest.raises(CorruptData, match=f"the page says that it is page {root + 1} and should be {root}"):
        check_engine_files(FS, str(folder))


@pytest.mark.parametrize(("one", "other"), [(0, 1), (2, 3), (-2, -1), (0, -1)])
def test_leaves_in_the_place_of_each_other_are_damage(one: int, other: int, tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db")
    engine.apply({b"k%05d" % number: bytes(100) for number in range(400)}, EngineState(1))
    engine.close()
    path = tmp_path / "db" / "data.mdb"
    data = bytearray(path.read_bytes())
    pages = [data[at : at + 4096] for at in range(0, len(data), 4096)]
    leaves = []
    for number, page in enumerate(pages):
        is_leaf = struct.unpack_from("=H", page, _FLAGS[0])[0] == 2
        if is_leaf and b"k0" in page[500:]:
            leaves.append((page[page.rindex(b"k0") :][:6], number))  # keys fill a leaf from its end
    leaves.sort()
    assert len(leaves) > 6
    first, second = leaves[one][1], leaves[other][1]
    for target, source in ((first, second), (second, first)):
        data[target * 4096 + 8 : target * 4096 + 4096] = pages[source][8:]
    path.write_bytes(data)
    with pytest.raises(CorruptData, match="its keys belong elsewhere in the tree"):
        check_engine_files(FS, str(tmp_path / "db"))


@pytest.mark.parametrize(("one", "other"), [(0, 1), (2, 3), (-2, -1), (0, -1)])
def test_branches_in_the_place_of_each_other_are_damage_of_the_first(one: int, other: int, tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "db")
    engine.apply({b"k%05d" % number + bytes(290): bytes(100) for number in range(800)}, EngineState(1))
    engine.close()
    path = tmp_path / "db" / "data.mdb"
    data = bytearray(path.read_bytes())
    flags = {at: struct.unpack_from("=H", data, at + _FLAGS[0])[0] for at in range(0, len(data), 4096)}
    branches = []
    for at in (at for at, kind in flags.items() if kind == 1):
        children = _digest.branch_page(bytes(data[at : at + 4096]), False)
        if all(flags[number * 4096] == 2 for _, number in children) and children[1][0].startswith(b"k0"):
            branches.append((children[1][0], at))
    branches.sort()
    assert len(branches) > 6
    first, second = branches[one][1], branches[other][1]
    pages = {at: bytes(data[at + 8 : at + 4096]) for at in (first, second)}
    data[first + 8 : first + 4096], data[second + 8 : second + 4096] = pages[second], pages[first]
    path.write_bytes(data)
    with pytest.raises(CorruptData, match=f"at byte {first}: its keys belong elsewhere in the tree"):
        check_engine_files(FS, str(tmp_path / "db"))


def test_no_file_of_a_state_stays_open_after_it_was_examined_copied_or_synced(tmp_path: Path) -> None:
    engine = LmdbEngine(tmp_path / "kv" / "db")
    engine.apply({b"a": bytes(5000)}, EngineState(1, 1))
    before = len(os.listdir("/proc/self/fd"))
    folder = KvFolder(FS, str(tmp_path / "kv"))
    folder.write_checkpoint(engine)
    assert len(os.listdir("/proc/self/fd")) == before
    db = str(tmp_path / "kv" / "db")
    check_engine_files(FS, db)
    sync_files(FS, db)
    assert first_difference(FS, db, list_files(FS, db)) is None
    engine.close()
    closed = len(os.listdir("/proc/self/fd"))
    folder.discard_engine()
    folder.open_engine(LmdbEngine, lambda _: frozenset()).close()  # from the copy
    _changed(tmp_path / "kv" / "db", 0, _MAGIC, lambda _: 1)
    with pytest.raises(CorruptData):
        check_engine_files(FS, db)
    assert len(os.listdir("/proc/self/fd")) == closed < before


def _newest(folder: Path) -> int:
    """The meta page that counts."""
    data = (folder / "data.mdb").read_bytes()
    return max((0, 1), key=lambda page: struct.unpack_from("=Q", data, page * 4096 + _TRANSACTION[0]))


@pytest.mark.parametrize("cut", [0, 10, 4096, 5000, 8192, 40_000], ids=lambda size: f"{size} bytes")
def test_a_file_that_is_cut_off_is_damaged(written: tuple[Path, Model], cut: int) -> None:
    os.truncate(written[0] / "data.mdb", cut)
    with pytest.raises(CorruptData, match=r"data\.mdb is damaged at byte"):
        check_engine_files(FS, str(written[0]))


# ---- what the server makes of it ------------------------------------------------------------------------------------


def same_cache(_folder: str) -> frozenset[str]:
    return frozenset({"the same"})


def flip_a_row(path: Path, row: bytes) -> None:
    data = path.read_bytes()
    assert row in data
    path.write_bytes(data.replace(row, bytes(reversed(row))))


@pytest.fixture
def bucket(tmp_path: Path) -> tuple[KvFolder, LmdbEngine, Callable[[], KvFolder]]:
    folder = KvFolder(FS, str(tmp_path / "kv-0"))
    engine = folder.open_engine(LmdbEngine, same_cache)
    assert isinstance(engine, LmdbEngine)
    engine.apply({b"a": b"first"}, EngineState().advanced(1, 1, _digest.of_pairs([b"a"], [b"first"])))
    folder.write_checkpoint(engine)
    engine.apply({b"b": b"second"}, engine.state.advanced(2, 1, _digest.of_pairs([b"b"], [b"second"])))
    return folder, engine, lambda: KvFolder(FS, str(tmp_path / "kv-0"))


def test_a_flipped_row_after_a_kill_is_noticed_and_the_state_is_restored(
    bucket: tuple[KvFolder, LmdbEngine, Callable[[], KvFolder]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, engine, again = bucket
    engine.close()  # not by the folder: as after a kill
    data = tmp_path / "kv-0" / "db" / "data.mdb"
    engine = again().open_engine(LmdbEngine, same_cache)
    assert engine.state.applied_offset == 2
    engine.close()
    flip_a_row(data, b"second")
    restored = again().open_engine(LmdbEngine, same_cache)
    assert (restored.state.applied_offset, restored.multi_get([b"a", b"b"])) == (1, [b"first", None])
    restored.close()
    assert f"{data} is damaged at byte 0: its rows have the digest" in caplog.text


def test_no_checkpoint_is_made_of_rows_that_are_damaged_and_the_next_start_restores_them(
    bucket: tuple[KvFolder, LmdbEngine, Callable[[], KvFolder]], tmp_path: Path
) -> None:
    folder, engine, again = bucket
    flip_a_row(tmp_path / "kv-0" / "db" / "data.mdb", b"second")
    with pytest.raises(CorruptData, match="its rows have the digest"):
        folder.write_checkpoint(engine)
    assert folder.retained_offset == 1
    assert min(path.name for path in (tmp_path / "kv-0").iterdir()) == f"checkpoint-{1:020d}"
    folder.close_engine(engine)
    restored = again().open_engine(LmdbEngine, same_cache)
    assert restored.state.applied_offset == 1
    restored.close()
