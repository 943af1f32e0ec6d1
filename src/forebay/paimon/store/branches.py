"""Branches: separate histories over the same data files (`branch/branch-<name>/`).

A branch starts with the schemas of the table, or with a tagged snapshot, and is written like a table. Fast-forward
replaces the history of main: from the branch's first ones on, main's snapshots, schemas and tags are deleted and
replaced by the branch's.
"""

from __future__ import annotations

from forebay.base.errors import AlreadyExists, InvalidRequest, NotFound
from forebay.paimon.format.snapshot_json import format_snapshot
from forebay.paimon.io.file_io import FileIO
from forebay.paimon.store.paths import LATEST, MAIN_BRANCH, PathFactory, check_branch_name
from forebay.paimon.store.schemas import SchemaManager
from forebay.paimon.store.snapshots import SnapshotManager
from forebay.paimon.store.tags import TagManager

_PREFIX = "branch-"


class BranchManager:
    """The branches of a table. Not for concurrent use: there must be no commit to main meanwhile."""

    def __init__(self, io: FileIO, paths: PathFactory) -> None:
        self._io = io
        self._main = paths if paths.branch == MAIN_BRANCH else paths.on_branch(MAIN_BRANCH)

    def names(self) -> list[str]:
        """The names of the branches except main, sorted."""
        names = (
            status.path.rstrip("/").rpartition("/")[2]
            for status in self._io.list(self._main.branches_directory)
            if status.is_directory
        )
        return sorted(name[len(_PREFIX) :] for name in names if name.startswith(_PREFIX))

    def exists(self, name: str) -> bool:
        return SchemaManager(self._io, self._main.on_branch(name)).latest_id() is not None

    def create(self, name: str, tag: str | None = None, ignore_existing: bool = False) -> None:
        """Create a branch, empty with the current schema, or starting with the snapshot of `tag`.

        Raises `AlreadyExists`, and `NotFound` if there is no such tag.
        """
        check_branch_name(name)
        if self.exists(name):
            if ignore_existing:
                return
            raise AlreadyExists(f"there is a branch '{name}' already")
        branch = self._main.on_branch(name)
        schemas = SchemaManager(self._io, self._main)
        if tag is None:
            last_schema = schemas.latest().id
        else:
            snapshot = TagManager(self._io, self._main).tag(tag).snapshot
            self._io.write(branch.tag(tag), self._io.read(self._main.tag(tag)))
            self._io.write(branch.snapshot(snapshot.id), format_snapshot(snapshot))
            last_schema = snapshot.schema_id
        # The latest schema is written last: the branch exists only with it.
        for schema_id in schemas.ids():
            if schema_id <= last_schema:
                self._io.write(branch.schema(schema_id), self._io.read(self._main.schema(schema_id)))

    def drop(self, name: str) -> None:
        """Delete a branch. Data files that only it refers to become orphans. Raises `NotFound`."""
        self._require(name)
        self._io.delete_directory(self._main.branch_directory(name))

    def rename(self, name: str, new_name: str) -> None:
        """Rename a branch. Raises `NotFound`, or `AlreadyExists` if `new_name` is taken."""
        self._require(name)
        check_branch_name(new_name)
        if self.exists(new_name):
            raise AlreadyExists(f"there is a branch '{new_name}' already")
        self._io.rename(self._main.branch_directory(name), self._main.branch_directory(new_name))

    def fast_forward(self, name: str) -> None:
        """Replace the history of main with that of branch `name`. Raises `InvalidRequest` if it has no snapshots."""
        self._require(name)
        branch, main = self._main.on_branch(name), self._main
        branch_snapshots = SnapshotManager(self._io, branch)
        earliest_id = branch_snapshots.earliest_id()
        if earliest_id is None:
            raise InvalidRequest(f"branch '{name}' has no snapshots, so main cannot be moved forward to it")
        first_schema = branch_snapshots.snapshot(earliest_id).schema_id
        snapshots = SnapshotManager(self._io, main)
        schemas = SchemaManager(self._io, main)
        tags = TagManager(self._io, main)
        snapshots.files.delete_hint(LATEST)
        # From the last to the first, so that a crash always leaves a history without gaps.
        for snapshot_id in sorted((i for i in snapshots.ids() if i >= earliest_id), reverse=True):
            snapshots.delete(snapshot_id)
        for tag in tags.tags():
            if tag.snapshot.id >= earliest_id:
                tags.delete(tag.name)
        for schema_id in reversed([i for i in schemas.ids() if i >= first_schema]):
            schemas.delete(schema_id)
        for schema_id in SchemaManager(self._io, branch).ids():
            self._copy(branch.schema(schema_id), main.schema(schema_id))
        for tag_name in TagManager(self._io, branch).names():
            self._copy(branch.tag(tag_name), main.tag(tag_name))
        for snapshot_id in branch_snapshots.ids():
            self._copy(branch.snapshot(snapshot_id), main.snapshot(snapshot_id))
        latest = branch_snapshots.latest_id()
        if latest is not None:
            snapshots.write_latest_hint(latest)

    def _copy(self, source: str, target: str) -> None:
        self._io.write(target, self._io.read(source))

    def _require(self, name: str) -> None:
        if name == MAIN_BRANCH or not self.exists(name):
            raise NotFound(f"there is no branch '{name}'; branches are {', '.join(self.names()) or 'none'}")
