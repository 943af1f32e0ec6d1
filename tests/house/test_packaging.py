"""The contents of a wheel and of the source distribution, and their metadata."""

from __future__ import annotations

import email.message
import email.parser
import os
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from pathlib import Path

import pytest
from tools.build_wheels import interpreter

import forebay

ROOT = Path(__file__).parents[2]
DIST_INFO = f"forebay-{forebay.__version__}.dist-info"
PACKAGES = ("forebay", "pyspark_forebay", "pyspark_forebay_paimon")


def _packed(folder: Path, command: list[str], **environment: str) -> Path:
    """The file that a command of setuptools makes, with everything else that it writes kept out of the checkout."""
    elsewhere = ["egg_info", "--egg-base", str(folder), "build", "--build-base", str(folder / "build")]
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", *elsewhere[: 3 if command[0] == "sdist" else 6], *command],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("dist/*")
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """A wheel but for its kernels, which take a minute to compile."""
    folder = tmp_path_factory.mktemp("wheel")
    command = ["bdist_wheel", "--dist-dir", str(folder / "dist"), "--bdist-dir", str(folder / "bdist")]
    url = "https://example.org/forebay"
    return zipfile.ZipFile(_packed(folder, command, FOREBAY_KERNELS="beside", FOREBAY_URL=url))


def test_a_wheel_has_what_is_needed_at_run_time_and_no_source_of_a_kernel(wheel: zipfile.ZipFile) -> None:
    packed = {name for name in wheel.namelist() if name.split("/")[0] in PACKAGES}
    left_out = (".pyx", ".pxd", ".so", ".pyc")  # the wheel of this test has no kernels
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for package in PACKAGES
        for path in (ROOT / "src" / package).rglob("*")
        if path.is_file() and path.suffix not in left_out
    }
    assert packed == wanted
    outside = {name.split("/")[0] for name in wheel.namelist()} - set(PACKAGES)
    assert outside == {DIST_INFO}


def test_the_metadata_say_what_it_is_for_whom_and_where(wheel: zipfile.ZipFile) -> None:
    metadata = email.parser.Parser().parsestr(wheel.read(f"{DIST_INFO}/METADATA").decode())
    urls = _urls(metadata)
    assert urls["Homepage"] == "https://example.org/forebay"
    assert urls["Changelog"] == "https://example.org/forebay/blob/HEAD/CHANGELOG.md"
    assert urls["Apache Fluss"] == "https://fluss.apache.org"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert "lakehouse" in metadata["Keywords"].split(",")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# Forebay\n")


def _urls(metadata: email.message.Message) -> dict[str, str]:
    return dict(line.split(", ") for line in metadata.get_all("Project-URL", []))


def test_the_source_distribution_has_all_that_the_kernels_are_compiled_from(tmp_path: Path) -> None:
    with tarfile.open(_packed(tmp_path, ["sdist", "--dist-dir", str(tmp_path / "dist")])) as made:
        packed = Counter(Path(name).suffix for name in made.getnames())
        names = {name.partition("/")[2] for name in made.getnames()}
    for suffix in (".pyx", ".pxd", ".pyi", ".proto", ".thrift"):
        assert packed[suffix] == sum(1 for _ in (ROOT / "src").rglob(f"*{suffix}")), suffix
    assert packed[".c"] == packed[".so"] == 0
    assert {"setup.py", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "docs/client.md"} <= names


def test_a_python_that_no_wheel_can_be_built_for_is_named_with_the_reason() -> None:
    assert interpreter("3.99") == "there is no python3.99 in PATH or in pyenv"
