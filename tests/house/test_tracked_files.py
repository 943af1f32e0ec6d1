"""What may be tracked: no large file but the pictures of the documents, and no build product."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FILE_BYTES_MAX = 500_000
"""A file beyond this stays in each clone for ever: it is a product of a build, or data that a program can generate."""

PICTURES = Path("docs/pictures")


def too_large(root: Path, names: list[str]) -> list[str]:
    """Names and sizes of the files beyond the limit, pictures of the documents left out."""
    sizes = {name: (root / name).lstat().st_size for name in names if (root / name).is_file()}
    return [
        f"{name} has {size:,} bytes"
        for name, size in sizes.items()
        if size > FILE_BYTES_MAX and PICTURES not in Path(name).parents
    ]


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """The files that git tracks."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no git repository: which files are tracked is not known")
    return listed.stdout.split("\0")[:-1]


def test_no_tracked_file_is_large_except_pictures_of_the_documents(tracked: list[str]) -> None:
    assert too_large(ROOT, tracked) == []


def test_no_wheel_and_no_compiled_module_is_tracked(tracked: list[str]) -> None:
    assert [name for name in tracked if name.endswith((".whl", ".so", ".pyc", ".jar", ".class"))] == []


def test_a_large_file_is_named_with_its_size_and_a_picture_is_not(tmp_path: Path) -> None:
    (tmp_path / PICTURES).mkdir(parents=True)
    names = ["tool.whl", "docs/pictures/screen.png", "docs/page.md"]
    for name in names:
        (tmp_path / name).write_bytes(bytes(FILE_BYTES_MAX + (name != "docs/page.md")))
    assert too_large(tmp_path, [*names, "deleted.txt"]) == ["tool.whl has 500,001 bytes"]
