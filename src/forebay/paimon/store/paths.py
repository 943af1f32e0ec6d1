"""Names and locations of a table's files.

    <table>/schema/schema-<id>              <table>/[<partition>/]bucket-<b>/data-<uuid>-<n>.parquet
    <table>/snapshot/snapshot-<id>          <table>/manifest/{manifest,manifest-list,index-manifest}-<uuid>-<n>
    <table>/snapshot/{LATEST,EARLIEST}      <table>/index/index-<uuid>-<n>
    <table>/changelog/changelog-<id>        <table>/statistics/stat-<uuid>-<n>
    <table>/tag/tag-<name>                  <table>/consumer/consumer-<id>

A branch has its own schema, snapshot, changelog, tag and consumer directories in `<table>/branch/branch-<name>/`; data
files and manifests are shared with the main branch.

Names come from snapshots, manifests and users. Each is one step below its directory, or is refused; only the external
path of a file says itself where the file is.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Iterable
from functools import cached_property

from forebay.base.ambient import SYSTEM_IDS, IdSource
from forebay.base.errors import CorruptData, InvalidRequest
from forebay.base.locations import below, check_name, check_path, child, is_local, local_path, location
from forebay.paimon.format.binary_row import row_layout
from forebay.paimon.format.file_meta import DataFileMeta, IndexFileMeta
from forebay.paimon.format.partition_path import partition_path, partition_spec
from forebay.paimon.format.schema import DataField, TableSchema
from forebay.paimon.options import POSTPONE_BUCKET, CoreOptions

MAIN_BRANCH = "main"
BUCKET_PREFIX = "bucket-"
LATEST, EARLIEST = "LATEST", "EARLIEST"

_TEXT_FORMATS = ("csv", "json", "text")
_EXTENSIONS = {"gzip": "gz", "zstd": "zst", "snappy": "snappy", "lz4": "lz4", "bzip2": "bz2", "deflate": "deflate"}


def join(*parts: str) -> str:
    """The path joined from `parts`; empty ones are omitted."""
    return "/".join(part.rstrip("/") for part in parts if part)


def new_uuid(ids: IdSource) -> str:
    """A random UUID in its usual textual form."""
    return str(uuid.UUID(hex=ids.token_hex(), version=4))


class PathFactory:
    """The locations of the files of one table or branch. Thread-safe; generated names are unique."""

    def __init__(
        self,
        root: str,
        partition_fields: Iterable[DataField] = (),
        options: CoreOptions | None = None,
        branch: str = MAIN_BRANCH,
        ids: IdSource = SYSTEM_IDS,
    ) -> None:
        self.root = location(root, "the directory of a table")
        self.partition_fields = tuple(partition_fields)
        self.options = options or CoreOptions()
        self.branch = branch or MAIN_BRANCH
        self.ids = ids
        self._layout = row_layout(self.partition_fields)
        self._uuid = new_uuid(ids)
        self._counters = {kind: itertools.count() for kind in ("manifest", "list", "index-manifest", "index", "stat")}
        self._partitions: dict[bytes, str] = {}
        self._lock = threading.Lock()

        self.branches_directory = join(self.root, "branch")
        self.branch_root = self.root if self.branch == MAIN_BRANCH else self.branch_directory(self.branch)
        self.schema_directory = join(self.branch_root, "schema")
        self.snapshot_directory = join(self.branch_root, "snapshot")
        self.changelog_directory = join(self.branch_root, "changelog")
        self.tag_directory = join(self.branch_root, "tag")
        self.consumer_directory = join(self.branch_root, "consumer")
        # Shared by all branches:
        self.manifest_directory = join(self.root, "manifest")
        self.index_directory = join(self.root, "index")
        self.statistics_directory = join(self.root, "statistics")

    @classmethod
    def of(cls, root: str, schema: TableSchema, branch: str | None = None, ids: IdSource = SYSTEM_IDS) -> PathFactory:
        """The paths of a table with `schema`; the default branch is the schema's option."""
        options = CoreOptions(schema.options)
        return cls(root, schema.partition_fields, options, branch or options.branch, ids)

    def on_branch(self, branch: str) -> PathFactory:
        """The paths of another branch of the same table."""
        return PathFactory(self.root, self.partition_fields, self.options, branch, self.ids)

    # ---- metadata of the branch ------------------------------------------------------------------------------------

    def branch_directory(self, name: str) -> str:
        return child(self.branches_directory, f"branch-{name}", "branch")

    def schema(self, schema_id: int) -> str:
        return f"{self.schema_directory}/schema-{schema_id}"

    def snapshot(self, snapshot_id: int) -> str:
        return join(self.snapshot_directory, f"snapshot-{snapshot_id}")

    def hint(self, directory: str, name: str) -> str:
        """The path of the hint file `name` (LATEST or EARLIEST) in a directory of snapshots or changelogs."""
        return join(directory, name)

    def changelog(self, snapshot_id: int) -> str:
        return join(self.changelog_directory, f"changelog-{snapshot_id}")

    def tag(self, name: str) -> str:
        return child(self.tag_directory, f"tag-{name}", "tag")

    def consumer(self, consumer_id: str) -> str:
        return child(self.consumer_directory, f"consumer-{consumer_id}", "consumer")

    # ---- manifests, index files, statistics: shared by all branches ------------------------------------------------

    def manifest(self, name: str) -> str:
        """A manifest, manifest list or index manifest by its name."""
        return child(self.manifest_directory, name, "manifest", CorruptData)

    def new_manifest_name(self) -> str:
        return self._new_name("manifest-", "manifest")

    def new_manifest_list_name(self) -> str:
        return self._new_name("manifest-list-", "list")

    def new_index_manifest_name(self) -> str:
        return self._new_name("index-manifest-", "index-manifest")

    def index_file(self, index: IndexFileMeta, partition: bytes, bucket: int) -> str:
        """The path of an index file of a bucket."""
        if index.external_path is not None:
            return _external(index.external_path)
        in_bucket = self.options.index_file_in_data_file_dir
        directory = self.bucket_directory(partition, bucket) if in_bucket else self.index_directory
        return child(directory, index.file_name, "index file", CorruptData)

    def new_index_file_name(self) -> str:
        return self._new_name("index-", "index")

    def statistics(self, name: str) -> str:
        return child(self.statistics_directory, name, "statistics file", CorruptData)

    def new_statistics_name(self) -> str:
        return self._new_name("stat-", "stat")

    def _new_name(self, prefix: str, kind: str) -> str:
        return f"{prefix}{self._uuid}-{next(self._counters[kind])}"

    # ---- data files ------------------------------------------------------------------------------------------------

    @cached_property
    def data_root(self) -> str:
        return below(self.root, self.options.data_file_path_directory or "", "option 'data-file.path-directory'")

    def partition_values(self, partition: bytes) -> dict[str, str]:
        """The names and written values of a partition."""
        return partition_spec(
            self.partition_fields,
            self._layout.decode(partition),
            self.options.partition_default_name,
            self.options.partition_legacy_name,
        )

    def partition_directory(self, partition: bytes) -> str:
        """A partition's directory relative to the data root; empty in a table without partitions."""
        if not self.partition_fields:
            return ""
        directory = self._partitions.get(partition)
        if directory is None:
            directory = partition_path(self.partition_values(partition))
            with self._lock:
                self._partitions[partition] = directory
        return directory

    def bucket_directory(self, partition: bytes, bucket: int) -> str:
        name = BUCKET_PREFIX + ("postpone" if bucket == POSTPONE_BUCKET else str(bucket))
        return join(self.data_root, self.partition_directory(partition), name)

    def data_file(self, partition: bytes, bucket: int, file: DataFileMeta) -> str:
        """The path of a data or changelog file."""
        if file.external_path:
            return _external(file.external_path)
        return child(self.bucket_directory(partition, bucket), file.file_name, "data file", CorruptData)

    def data_file_and_companions(self, partition: bytes, bucket: int, file: DataFileMeta) -> list[str]:
        """The paths of a data file and its extra files, which are deleted together."""
        path = self.data_file(partition, bucket, file)
        directory = path.rpartition("/")[0]
        return [path, *(child(directory, extra, "extra file", CorruptData) for extra in file.extra_files)]

    def data_file_names(self) -> DataFileNames:
        """A generator of names for one writer, with one UUID and a counter."""
        return DataFileNames(self.options, new_uuid(self.ids))


class DataFileNames:
    """Generates names of data and changelog files: `<prefix><uuid>-<n>.<format>`. Thread-safe."""

    def __init__(self, options: CoreOptions, file_uuid: str) -> None:
        self._options = options
        self._uuid = file_uuid
        self._count = itertools.count()

    def data(self, file_format: str | None = None, compression: str | None = None) -> str:
        """The name of a new data file."""
        o = self._options
        return self._new(o.data_file_prefix, file_format or o.file_format, compression or o.file_compression)

    def changelog(self, file_format: str | None = None, compression: str | None = None) -> str:
        """The name of a new changelog file."""
        o = self._options
        file_format = file_format or o.changelog_file_format or o.file_format
        return self._new(
            o.changelog_file_prefix, file_format, compression or o.changelog_file_compression or o.file_compression
        )

    def _new(self, prefix: str, file_format: str, compression: str) -> str:
        short = _EXTENSIONS.get(compression.lower())
        extension = f".{file_format}"
        if short is not None and file_format in _TEXT_FORMATS:
            extension = f".{file_format}.{short}"
        elif short is not None and self._options.file_suffix_include_compression:
            extension = f".{short}.{file_format}"
        return check_name(f"{prefix}{self._uuid}-{next(self._count)}{extension}", "data file")


def _external(path: str) -> str:
    """The location of a file that lies where its entry says, as Java writes it: `file:/data/x`, not encoded."""
    try:
        return local_path(path) if is_local(path) else check_path(path)
    except InvalidRequest as e:
        raise CorruptData(f"the external path of a file is no location: {e.message}") from e


def check_branch_name(name: str) -> None:
    """Raise `InvalidRequest` for an invalid branch name."""
    if not name or not name.strip() or "/" in name or name == MAIN_BRANCH or name.isdigit():
        raise InvalidRequest(
            f"{name!r} cannot name a branch: it must not be blank, '{MAIN_BRANCH}' or a number, nor hold a slash"
        )
