"""`make build` compiles what is stale, and nothing else."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from tools.build_kernels import SHARED, stale

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def tree(folder: Path) -> list[Path]:
    """Two kernels that are newer than their sources, a file that both use, and setup.py; oldest first."""
    names = ["setup.py", "src/a/one.pyx", "src/two.pyx", "src/a/both.pxd", f"src/a/one{SUFFIX}", f"src/two{SUFFIX}"]
    names.append(f"src/{SHARED}{SUFFIX}")
    paths = [folder / name for name in names]
    for seconds, path in enumerate(paths, 1):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (seconds, seconds))
    return paths


def test_kernels_that_are_newer_than_all_sources_are_left_alone(tmp_path: Path) -> None:
    tree(tmp_path)
    assert stale(tmp_path) == []


def test_a_kernel_is_compiled_that_is_missing_or_whose_source_changed(tmp_path: Path) -> None:
    _, one, two, _, _, kernel_two, _ = tree(tmp_path)
    os.utime(one, (100, 100))
    assert stale(tmp_path) == [one]
    kernel_two.unlink()
    assert stale(tmp_path) == [one, two]


def test_all_kernels_are_compiled_after_a_change_of_what_they_share(tmp_path: Path) -> None:
    setup, one, two, both, _, _, shared = tree(tmp_path)
    os.utime(both, (100, 100))
    assert stale(tmp_path) == [one, two]
    os.utime(both, (1, 1))
    os.utime(setup, (100, 100))
    assert stale(tmp_path) == [one, two]
    os.utime(setup, (1, 1))
    shared.unlink()
    assert stale(tmp_path) == [one, two]
