"""What a user says becomes one absolute location; names from data stay in their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.base.errors import ForebayError, InvalidRequest
from forebay.base.locations import (
    below,
    check_path,
    check_steps,
    child,
    is_local,
    local_folder,
    local_path,
    located,
    location,
)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("/data/lake", "/data/lake"),
        ("file:/data/lake", "/data/lake"),
        ("file:///data/lake", "/data/lake"),
        ("file:////data/lake", "/data/lake"),
        ("FILE:///data/lake", "/data/lake"),
        ("file://localhost/data/lake", "/data/lake"),
        (Path("/data/lake"), "/data/lake"),
        ("/data//lake///", "/data/lake"),
        ("//data/lake", "/data/lake"),
        ("/data/./x/../lake", "/data/lake"),
        ("file:/data/a%20b", "/data/a%20b"),
        ("file:///data/50%25/%2e%2e/x", "/data/50%25/%2e%2e/x"),
        ("/data/a%20b", "/data/a%20b"),
        ("file:/data/a b", "/data/a b"),
        ("file:///data/ü/日本", "/data/ü/日本"),
        ("file:/data/q?x=1#f", "/data/q?x=1#f"),
        ("/data/with:colon", "/data/with:colon"),
        ("/", "/"),
        ("file:///", "/"),
        ("s3://bucket/lake", "s3://bucket/lake"),
        ("S3://Bucket/lake/", "s3://Bucket/lake"),
        ("s3://bucket//lake//x", "s3://bucket/lake/x"),
        ("s3://bucket/a/../lake/./x", "s3://bucket/lake/x"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a%20b", "s3://bucket/a%20b"),
        ("hdfs://host:9000/lake", "hdfs://host:9000/lake"),
        ("hdfs:///lake", "hdfs:///lake"),
    ],
)
def test_each_spelling_of_a_place_becomes_one_location(given: str | Path, place: str) -> None:
    assert location(given) == place
    assert location(place) == place


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("file://host/data/lake", "host 'host'"),
        ("file://lake", "host 'lake'"),
        ("file:lake", "no absolute path"),
        ("file:", "no absolute path"),
        ("file://localhost", "no absolute path"),
        ("s3:/bucket/lake", r"lacks '//'.*'./s3:/bucket/lake'"),
        ("with:colon", "'./with:colon'"),
        ("s3://", "names no place"),
        ("s3://bucket/../other", "leaves its store"),
        ("", "is empty"),
        ("  ", "is empty"),
        ("/data/a\0b", "NUL"),
        ("s3://bucket/a\0b", "NUL"),
        (Path("s3://bucket/lake"), "write the URI 's3:...' as text"),
        (Path("file:///lake"), "write the URI 'file:...' as text"),
        (7, "write a path or a URI"),
        (b"/data", "write a path or a URI"),
    ],
)
def test_what_names_no_place_is_refused_by_name(given: object, says: str) -> None:
    with pytest.raises(InvalidRequest, match=f"option 'warehouse'.*{says}"):
        location(given, "option 'warehouse'")  # type: ignore[arg-type]


def test_a_relative_place_stays_where_it_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = location("lake"), location(Path("lake")), location("./lake/"), location("with space/../lake")
    monkeypatch.chdir("/")
    assert set(said) == {str(tmp_path / "lake")}


def test_the_home_folder_may_be_said_as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/")
    assert (location("~/lake"), location("~")) == (f"{tmp_path}/lake", str(tmp_path))
    assert (location("~lake"), location("/a/~"), location("file:/~")) == ("/~lake", "/a/~", "/~")


def test_a_working_directory_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InvalidRequest, match="working directory does not exist"):
        location("lake")


def test_symbolic_links_stay_in_a_location(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    assert location(tmp_path / "link" / "lake") == f"{tmp_path}/link/lake"


def test_a_folder_of_this_machine_is_the_one_that_the_system_means(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/b")
    assert local_folder(f"{tmp_path}/link/../data", "the data directory") == f"{tmp_path}/a/data"
    assert local_folder(f"file:{tmp_path}/data", "the data directory") == f"{tmp_path}/data"
    with pytest.raises(InvalidRequest, match="must be a folder of this machine"):
        local_folder("s3://bucket/data", "the data directory")


def test_options_of_catalogs_mean_the_same_in_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert located({"warehouse": "lake", "uri": "jdbc:sqlite:c.db?x=1", "metastore": "jdbc"}) == {
        "warehouse": f"{tmp_path}/lake", "uri": f"jdbc:sqlite:{tmp_path}/c.db?x=1", "metastore": "jdbc",
    }  # fmt: skip
    assert located({"warehouse": "prod", "metastore": "rest"})["warehouse"] == "prod"
    assert located({"warehouse": "prod", "type": "REST"})["warehouse"] == "prod"
    assert located({"uri": "jdbc:sqlite::memory:"}) == {"uri": "jdbc:sqlite::memory:"}
    assert located({}) == {}


# ---- names from data ------------------------------------------------------------------------------------------------

STEPS = st.sampled_from(
    ["", ".", "..", "...", "a", "b%2Fc", "%2e%2e", "~", "a\\..\\b", "\0", "é", " ", "-", "s3:", "file:"]
)
PATHS = st.lists(STEPS, max_size=6).map("/".join) | st.text(max_size=12)


def _is_below(path: str, root: str) -> bool:
    return os.path.normpath(path).startswith(root + "/")


@given(PATHS)
@example("../../outside")
@example("/etc/passwd")
def test_a_name_is_directly_in_its_folder_or_refused(name: str) -> None:
    try:
        path = child("/data/lake", name)
    except ForebayError:
        return
    assert os.path.dirname(os.path.normpath(path)) == "/data/lake"
    assert os.path.basename(path) == name
    assert check_path(path) == path


@given(PATHS)
@example("a/../../b")
def test_a_relative_path_is_below_its_folder_or_refused(given_path: str) -> None:
    try:
        path = below("/data/lake", given_path)
    except ForebayError:
        return
    assert path == "/data/lake" or _is_below(path, "/data/lake")
    assert location(path) == path


@given(PATHS, st.sampled_from(["/data/lake", "file:/data/lake", "file:///data/lake", "file://localhost/data/lake"]))
@example("../x", "/data/lake")
@example("%2e%2e/%2e%2e/x", "file:/data/lake")
def test_what_a_local_file_system_opens_below_a_folder_is_below_it(end: str, root: str) -> None:
    try:
        path = local_path(f"{root}/{end}")
    except InvalidRequest:
        return
    assert path.startswith("/data/lake/")
    assert _is_below(path, "/data/lake") or end == ""
    assert path.endswith(end)


@given(PATHS)
def test_what_an_object_store_opens_below_a_folder_is_below_it(end: str) -> None:
    try:
        path = check_path(f"s3://bucket/lake/{end}")
    except InvalidRequest:
        return
    assert _is_below("/" + path.removeprefix("s3://"), "/bucket/lake") or end == ""


@pytest.mark.parametrize("path", ["lake/x", "", "a", "file://host/x", "s3://b/x", "file:x", "../x", "."])
def test_a_local_file_system_opens_no_other_path(path: str) -> None:
    with pytest.raises(InvalidRequest):
        local_path(path)


@pytest.mark.parametrize("path", ["..", "../a", "a/..", "a/../b", "./a", ".", "a//b", "//a", "a\0"])
def test_relative_steps_are_refused_also_at_the_ends(path: str) -> None:
    with pytest.raises(InvalidRequest):
        check_steps(path)


@pytest.mark.parametrize("path", ["a/..b", ".tmp", "..a", "/a/.b.tmp", "a/b../c", "..."])
def test_dots_within_names_are_names(path: str) -> None:
    assert check_steps(path) == path


@given(PATHS)
def test_a_location_is_absolute_and_stays_what_it_is(said: str) -> None:
    try:
        place = location(said)
    except InvalidRequest:
        return
    assert location(place) == place
    assert check_path(place) == place
    assert is_local(place) == place.startswith("/")
