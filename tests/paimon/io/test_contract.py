"""The contract of file systems, for all implementations."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyarrow import fs

from forebay.base.errors import Conflict, ForebayError, InvalidRequest, NotFound, StorageFailure
from forebay.paimon.io.arrow_file_io import ArrowFileIO
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.io.local import LocalFileIO
from forebay.paimon.io.opening import open_file_io
from tests.open_files import open_files
from tests.paimon.failing import FailingFileIO, FailPoint, SimulatedCrash

IMPLEMENTATIONS: dict[str, Callable[[], FileIO]] = {
    "local": LocalFileIO,
    "arrow over the local disk": lambda: ArrowFileIO(fs.LocalFileSystem()),
    "arrow with a prefix": lambda: ArrowFileIO(fs.LocalFileSystem(), "disk://"),
    "failing never": lambda: FailingFileIO(LocalFileIO(sync=False)),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[FileIO, str]:
    root = f"disk://{tmp_path}" if request.param == "arrow with a prefix" else str(tmp_path)
    return IMPLEMENTATIONS[request.param](), root


def _names(io: FileIO, path: str) -> list[str]:
    return sorted(status.path.rpartition("/")[2] for status in io.list(path))


def test_what_is_written_is_read_and_replaced(place: tuple[FileIO, str]) -> None:
    io, root = place
    io.write(f"{root}/a/b/f", b"one")
    assert io.read(f"{root}/a/b/f") == b"one"
    io.write(f"{root}/a/b/f", b"two")
    with io.open_input(f"{root}/a/b/f") as f:
        f.seek(1)
        assert f.read() == b"wo"
    assert _names(io, f"{root}/a/b") == ["f"]


def test_missing_files_are_not_found(place: tuple[FileIO, str]) -> None:
    io, root = place
    with pytest.raises(NotFound):
        io.read(f"{root}/none")
    with pytest.raises(NotFound):
        io.open_input(f"{root}/none/f")
    assert not io.exists(f"{root}/none")
    assert io.list(f"{root}/none") == []
    assert list(io.walk(f"{root}/none")) == []
    assert io.delete(f"{root}/none") is False
    io.delete_directory(f"{root}/none")


def test_create_never_touches_what_is_there(place: tuple[FileIO, str]) -> None:
    io, root = place
    assert io.create(f"{root}/d/f", b"one") is True
    assert io.create(f"{root}/d/f", b"two") is False
    assert io.read(f"{root}/d/f") == b"one"
    assert _names(io, f"{root}/d") == ["f"]


def test_an_output_appears_when_it_is_closed(place: tuple[FileIO, str]) -> None:
    io, root = place
    with io.open_output(f"{root}/d/f") as f:
        f.write(b"abc")
        f.write(b"def")
    assert io.read(f"{root}/d/f") == b"abcdef"


def test_listing_tells_sizes_and_directories(place: tuple[FileIO, str]) -> None:
    io, root = place
    io.write(f"{root}/d/f", b"abc")
    io.make_directory(f"{root}/d/e/g")
    found = {s.path.rpartition("/")[2]: (s.size, s.is_directory) for s in io.list(f"{root}/d")}
    assert found == {"f": (3, False), "e": (0, True)}
    assert all(s.path.startswith(root) for s in io.list(f"{root}/d"))
    io.write(f"{root}/d/e/h", b"x")
    assert sorted(s.path.removeprefix(root) for s in io.walk(root)) == ["/d/e/h", "/d/f"]
    (f,) = [s for s in io.walk(root) if s.path.endswith("/f")]
    assert f.modified_ms is not None
    assert f.modified_ms > 1_600_000_000_000


def test_files_and_directories_are_deleted(place: tuple[FileIO, str]) -> None:
    io, root = place
    io.write(f"{root}/d/e/f", b"x")
    assert io.delete(f"{root}/d/e/f") is True
    io.write(f"{root}/d/e/f", b"x")
    io.delete_directory(f"{root}/d")
    assert not io.exists(f"{root}/d")


def test_an_empty_directory_is_deleted_and_another_one_stays(place: tuple[FileIO, str]) -> None:
    io, root = place
    io.write(f"{root}/d/e/f", b"x")
    assert io.delete_empty_directory(f"{root}/d/e") is False
    assert io.read(f"{root}/d/e/f") == b"x"
    io.delete(f"{root}/d/e/f")
    assert io.delete_empty_directory(f"{root}/d/e") is True
    assert not io.exists(f"{root}/d/e")
    assert io.delete_empty_directory(f"{root}/d/e") is True


def test_rename_moves_but_never_onto_something(place: tuple[FileIO, str]) -> None:
    io, root = place
    io.write(f"{root}/a/f", b"one")
    io.rename(f"{root}/a/f", f"{root}/b/g")
    assert (io.read(f"{root}/b/g"), io.exists(f"{root}/a/f")) == (b"one", False)
    io.write(f"{root}/a/f", b"two")
    with pytest.raises(Conflict):
        io.rename(f"{root}/a/f", f"{root}/b/g")
    io.rename(f"{root}/a", f"{root}/c")
    assert io.read(f"{root}/c/f") == b"two"


EVIL = st.lists(
    st.sampled_from(["", ".", "..", "a", "%2e%2e", "a\\..\\b", "\0", "~", "file:", " ", "é"]), min_size=1, max_size=5
).map("/".join)


def _acts(io: FileIO, path: str, root: str) -> list[Callable[[], object]]:
    return [
        lambda: io.read(path), lambda: io.open_input(path), lambda: io.open_output(path), lambda: io.write(path, b"x"),
        lambda: io.create(path, b"x"), lambda: io.exists(path), lambda: list(io.list(path)),
        lambda: list(io.walk(path)), lambda: io.delete(path), lambda: io.delete_directory(path),
        lambda: io.delete_empty_directory(path),
        lambda: io.make_directory(path), lambda: io.rename(path, f"{root}/x"), lambda: io.rename(f"{root}/kept", path),
    ]  # fmt: skip


@pytest.mark.parametrize("way_out", ["..", "../x", ".", "a/../../x", "a//b", "./b", "a/.", "a\0b", "/etc/passwd"])
def test_no_path_leads_out_of_its_folder(place: tuple[FileIO, str], way_out: str) -> None:
    io, root = place
    io.write(f"{root}/kept", b"kept")
    for act in _acts(io, f"{root}/{way_out}", root):
        with pytest.raises(InvalidRequest, match="is not opened"):
            act()
    assert io.read(f"{root}/kept") == b"kept"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(EVIL | st.text(max_size=8))
@example("%2e%2e/%2e%2e/outside")
def test_what_is_written_below_a_folder_lies_below_it_and_is_not_decoded(
    place: tuple[FileIO, str], tmp_path: Path, name: str
) -> None:
    io, root = place
    before = {path.name for path in tmp_path.parent.iterdir()}
    shutil.rmtree(tmp_path / "d", ignore_errors=True)
    try:
        io.write(f"{root}/d/{name}", b"x")
    except (ForebayError, OSError, UnicodeEncodeError):
        written = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"x"]
        assert written == []
    else:
        assert (tmp_path / "d" / name).read_bytes() == b"x"
    assert {path.name for path in tmp_path.parent.iterdir()} == before


def test_paths_of_another_store_are_not_opened(place: tuple[FileIO, str]) -> None:
    io, _ = place
    for path in ("s3://b/x", "file://host/x", "relative/x", ""):
        with pytest.raises(ForebayError):
            io.read(path)


# ---- the local disk -------------------------------------------------------------------------------------------------


def test_of_many_creators_one_wins(tmp_path: Path) -> None:
    io = LocalFileIO()
    wins: list[int] = []
    start = threading.Barrier(8)

    def create(i: int) -> None:
        start.wait()
        if io.create(str(tmp_path / "f"), b"%d" % i):
            wins.append(i)

    threads = [threading.Thread(target=create, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == 1
    assert (tmp_path / "f").read_bytes() == b"%d" % wins[0]
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_an_output_that_is_not_closed_well_leaves_nothing(tmp_path: Path) -> None:
    io = LocalFileIO()

    def fail() -> None:
        with io.open_output(str(tmp_path / "f")) as f:
            f.write(b"half")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert not open_files(tmp_path)
    forgotten = io.open_output(str(tmp_path / "g"))
    forgotten.write(b"half")
    del forgotten
    assert list(tmp_path.iterdir()) == []


def test_file_uris_are_paths_and_it_pickles(tmp_path: Path) -> None:
    io: FileIO = pickle.loads(pickle.dumps(open_file_io("file:///tmp")))
    for number, start in enumerate(["file:", "file://", "file://localhost"]):
        io.write(f"{start}{tmp_path}/a%20b/{number}", b"x")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "a%20b", "a%20b/0", "a%20b/1", "a%20b/2",
    ]  # fmt: skip


def test_a_full_or_forbidden_disk_is_a_storage_failure(tmp_path: Path) -> None:
    io = LocalFileIO()
    (tmp_path / "f").write_bytes(b"x")
    with pytest.raises((StorageFailure, NotFound)):
        io.write(str(tmp_path / "f" / "g"), b"x")
    with pytest.raises(StorageFailure):
        io.read(str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("how", ["write", "open_output"])
def test_a_file_that_cannot_take_its_name_leaves_nothing(tmp_path: Path, how: str) -> None:
    io = LocalFileIO()
    (tmp_path / "f").mkdir()

    def make() -> None:
        if how == "write":
            io.write(str(tmp_path / "f"), b"x")
            return
        with io.open_output(str(tmp_path / "f")) as f:
            f.write(b"x")

    with pytest.raises(StorageFailure, match="cannot write"):
        make()
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("how", ["write", "create"])
def test_a_full_disk_keeps_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageFailure, match="no space left"):
        getattr(LocalFileIO(), how)(str(tmp_path / "f"), b"x")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "advises"), [(errno.EPERM, True), (errno.EOPNOTSUPP, True), (errno.EIO, False), (errno.EMLINK, False)]
)
def test_a_disk_without_hard_links_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, advises: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, "refused")

    for call in ("link", "replace", "unlink"):
        monkeypatch.setattr(os, call, refuse)
    with pytest.raises(StorageFailure) as created:
        LocalFileIO().create(str(tmp_path / "f"), b"x")
    with pytest.raises(StorageFailure) as written:
        LocalFileIO().write(str(tmp_path / "f"), b"x")
    with pytest.raises(StorageFailure) as deleted:
        LocalFileIO().delete(str(tmp_path / "f"))
    said = ["must support hard links" in str(e.value) for e in (created, written, deleted)]
    assert said == [advises, False, False]


def test_a_directory_that_others_empty_meanwhile_is_deleted_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d").mkdir()
    real, calls = shutil.rmtree, []

    def overtaken(path: str) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise FileNotFoundError(path)
        real(path)

    monkeypatch.setattr(shutil, "rmtree", overtaken)
    LocalFileIO().delete_directory(str(tmp_path / "d"))
    assert (list(tmp_path.iterdir()), len(calls)) == ([], 2)


# ---- choosing, failing ----------------------------------------------------------------------------------------------


def test_schemes_choose_the_file_system() -> None:
    assert isinstance(open_file_io("/tmp"), LocalFileIO)
    memory = open_file_io("mock:///x")
    assert isinstance(memory, ArrowFileIO)
    assert not memory.supports_atomic_create
    memory.write("mock:///x/f", b"1")
    assert [status.path for status in memory.list("mock:///x")] == ["mock:///x/f"]
    escaped = open_file_io("mock:///a%20b")
    escaped.write("mock:///a%20b/p=12%3A30/f", b"2")
    assert [status.path for status in escaped.walk("mock:///a%20b")] == ["mock:///a%20b/p=12%3A30/f"]
    assert escaped.read("mock:///a%20b/p=12%3A30/f") == b"2"
    with pytest.raises(InvalidRequest, match="nosuch"):
        open_file_io("nosuch://x")


def test_stores_with_conditional_writes_create_atomically(tmp_path: Path) -> None:
    calls: list[str] = []

    def put(path: str, data: bytes) -> bool:
        calls.append(path)
        return LocalFileIO().create(path, data)

    io = ArrowFileIO(fs.LocalFileSystem(), put_if_absent=put)
    assert io.supports_atomic_create
    assert io.create(str(tmp_path / "f"), b"x") is True
    assert io.create(str(tmp_path / "f"), b"y") is False
    assert calls == [str(tmp_path / "f")]


class Hdfs:
    """A local directory as HDFS: a rename never overwrites. `before_move` runs before each."""

    type_name = "hdfs"

    def __init__(self, before_move: Callable[[str], None] = lambda path: None) -> None:
        self.local, self.before_move = fs.LocalFileSystem(), before_move

    def __getattr__(self, name: str) -> Any:
        return getattr(self.local, name)

    def move(self, source: str, target: str) -> None:
        self.before_move(target)
        if Path(target).exists():
            raise FileExistsError(target)
        self.local.move(source, target)


def test_where_renames_never_overwrite_a_file_is_written_aside_and_renamed(tmp_path: Path) -> None:
    io = ArrowFileIO(Hdfs())
    assert io.supports_atomic_create
    assert io.create(str(tmp_path / "f"), b"one") is True
    assert io.create(str(tmp_path / "f"), b"two") is False

    def overtake(path: str) -> None:
        Path(path).write_bytes(b"theirs")

    overtaken = ArrowFileIO(Hdfs(overtake))
    assert overtaken.create(str(tmp_path / "g"), b"ours") is False
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {"f": b"one", "g": b"theirs"}

    def broken(path: str) -> None:
        raise OSError("no name node")

    with pytest.raises(StorageFailure, match="no name node"):
        ArrowFileIO(Hdfs(broken)).create(str(tmp_path / "h"), b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "g"]


def test_injected_failures_come_before_or_after_the_effect(tmp_path: Path) -> None:
    io = FailingFileIO(LocalFileIO(sync=False))
    io.fail_at("write", "/f")
    io.fail_at("write", "/g", after=True)
    for name in ("f", "g"):
        with pytest.raises(StorageFailure, match="injected"):
            io.write(str(tmp_path / name), b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["g"]
    assert (io.count, io.failures) == (2, 2)
    io.write(str(tmp_path / "f"), b"x")


@pytest.mark.parametrize("after", [False, True])
def test_after_an_injected_crash_nothing_works_any_more(tmp_path: Path, after: bool) -> None:
    io = FailingFileIO(LocalFileIO(sync=False))
    io.points.append(FailPoint("write", "/f", after, crash=True))
    io.write(str(tmp_path / "g"), b"x")
    with pytest.raises(SimulatedCrash):
        io.write(str(tmp_path / "f"), b"x")
    with pytest.raises(SimulatedCrash):
        io.read(str(tmp_path / "g"))
    assert (tmp_path / "f").exists() is after


def test_the_same_seed_fails_at_the_same_operations(tmp_path: Path) -> None:
    def outcome(seed: int) -> list[bool]:
        io = FailingFileIO(LocalFileIO(sync=False), seed=seed, rate=0.3)
        results = []
        for _ in range(50):
            try:
                io.exists(str(tmp_path))
                results.append(True)
            except StorageFailure:
                results.append(False)
        return results

    assert outcome(1) == outcome(1)
    assert outcome(1) != outcome(2)
    assert False in outcome(1)


def test_a_file_that_need_not_be_durable_is_written_all_the_same(place: tuple[FileIO, str]) -> None:
    io, root = place
    io.write(f"{root}/a/hint", b"1", durable=False)
    io.write(f"{root}/a/hint", b"2", durable=False)
    assert io.read(f"{root}/a/hint") == b"2"
    assert _names(io, f"{root}/a") == ["hint"]


def test_only_durable_files_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("forebay.paimon.io.local.os.fsync", synced.append)
    LocalFileIO().write(f"{tmp_path}/hint", b"1", durable=False)
    assert synced == []
    LocalFileIO().write(f"{tmp_path}/file", b"1")
    assert len(synced) == 2, "the file, and the directory with its name"


def test_names_and_contents_are_on_the_disk_before_they_are_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each step: what is synced, in which order, and how long it is then."""
    synced: list[tuple[str, int]] = []

    def note(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        hidden = path.name.startswith(".") and path.name.endswith(".tmp")
        synced.append(("file", os.fstat(descriptor).st_size) if hidden else (str(path.relative_to(tmp_path)), 0))

    def steps() -> list[tuple[str, int]]:
        found = synced.copy()
        synced.clear()
        return found

    monkeypatch.setattr("forebay.paimon.io.local.os.fsync", note)
    io = LocalFileIO()
    io.make_directory(f"{tmp_path}/a/b")
    assert steps() == [(".", 0), ("a", 0)]
    io.write(f"{tmp_path}/a/f", b"123")
    assert steps() == [("file", 3), ("a", 0)]
    io.create(f"{tmp_path}/a/g", b"1234")
    assert steps() == [("file", 4), ("a", 0)]
    with io.open_output(f"{tmp_path}/a/h") as output:
        output.write(b"12345")
    assert steps() == [("file", 5), ("a", 0)]
    io.rename(f"{tmp_path}/a/h", f"{tmp_path}/a/b/h")
    assert steps() == [("a/b", 0)]
    io.rename(f"{tmp_path}/a/b", f"{tmp_path}/c/d")
    assert steps() == [(".", 0), ("c", 0)]
    assert not open_files(tmp_path), "nothing stays open"
