"""The git history of the sources: which commit they are at, and how many lines have changed since another one."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CODE = ("src", "tests", "tools", "examples", "Makefile", "pyproject.toml", "setup.py")
"""All that can change what a trial counts."""

DIRTY = "+"
"""The end of a commit's name where the sources had changes beside it."""


@dataclass(frozen=True)
class Change:
    """What has changed since a commit. `missing` says why that cannot be told; the lines are then 0."""

    vouched_lines: int = 0
    own_lines: int = 0
    missing: str = ""


class Repository:
    """The repository in a folder. Counts include changes that are not committed, as the next commit would have them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._reachable = cache(self._is_reachable)

    def _git(self, *arguments: str) -> str:
        """Output of git. Raises `CalledProcessError`."""
        command = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def is_available(self) -> bool:
        """Whether this is a git repository, and git is installed."""
        try:
            return Path(self._git("rev-parse", "--show-toplevel").strip()).resolve() == self.root.resolve()
        except (OSError, subprocess.CalledProcessError):
            return False

    def is_shallow(self) -> bool:
        """Whether older commits were left out of the clone."""
        return self._git("rev-parse", "--is-shallow-repository").strip() == "true"

    def commit(self) -> str:
        """The short name of HEAD, which ends with "+" if the code has changes that are not committed."""
        return self._git("rev-parse", "--short", "HEAD").strip() + (DIRTY if self.changes() else "")

    def changes(self) -> list[str]:
        """Files of the code with changes that are not committed, as `git status` shows them."""
        return self._git("status", "--porcelain", "--", *CODE).splitlines()

    def code(self) -> str:
        """A digest of the code: two commits between which no code has changed have the same."""
        digest = hashlib.sha256()
        for path in CODE:
            try:
                digest.update(self._git("rev-parse", f"HEAD:{path}").encode())
            except subprocess.CalledProcessError:
                digest.update(b"none")
        changes = self.changes()
        if changes:
            digest.update("\n".join(changes).encode())
            digest.update(self._git("diff", "HEAD", "--", *CODE).encode())
            for name in self._untracked(CODE):
                digest.update((self.root / name).read_bytes())
        return digest.hexdigest()[:16]

    def since(self, commit: str, vouched: Sequence[str], own: Sequence[str]) -> Change:
        """The lines that were added or removed below these paths since a commit."""
        if commit.endswith(DIRTY):
            return Change(missing=f"it ran on changes that were not committed ({commit})")
        if not self._reachable(commit):
            return Change(missing=f"commit {commit} is not in this history")
        return Change(self._lines(commit, vouched), self._lines(commit, own))

    def oldest(self, commits: Sequence[str]) -> str:
        """Of commits of this history the one with the fewest before it."""
        return min(commits, key=lambda commit: int(self._git("rev-list", "--count", commit.removesuffix(DIRTY))))

    def _is_reachable(self, commit: str) -> bool:
        try:
            self._git("merge-base", "--is-ancestor", commit, "HEAD")
        except subprocess.CalledProcessError:
            return False
        return True

    def _lines(self, commit: str, paths: Sequence[str]) -> int:
        if not paths:
            return 0
        lines = 0
        for entry in self._git("diff", "--numstat", commit, "--", *paths).splitlines():
            added, removed, _ = entry.split("\t", 2)
            lines += 1 if added == "-" else int(added) + int(removed)  # a binary file counts as a line
        for name in self._untracked(paths):
            lines += (self.root / name).read_bytes().count(b"\n")
        return lines

    def _untracked(self, paths: Sequence[str]) -> list[str]:
        return self._git("ls-files", "--others", "--exclude-standard", "-z", "--", *paths).split("\0")[:-1]
