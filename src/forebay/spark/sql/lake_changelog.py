"""`CHANGES` of lake tables. A version is a snapshot's number, or a tag."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.paimon.read.commit_changes import check_has_changes
from forebay.paimon.table import Table
from forebay.spark.context import PaimonContext
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.lake_options import FORMAT_NAME, READ_CHANGELOG, paimon_read_options
from forebay.spark.reading.lake_changes import LakeChangesScan
from forebay.spark.reading.plan import CHANGES_RANGE, Pushdown, ScanPlan
from forebay.spark.reading.scan import Readable
from forebay.spark.sql.changelogs import ChangelogProxy, range_of
from forebay.spark.sql.lake_tables import stream_source


class LakeChangelog(ChangelogProxy):
    """The changes of a lake table, or of a branch of one, in a range."""

    _context: PaimonContext

    def __init__(self, context: PaimonContext, name: str, table: Table, asked: JavaObject) -> None:
        """Raises `UnsupportedOperation` and `InvalidRequest` for changes that such a table does not have."""

        def version(text: str) -> int:
            tag = table.context.tags.find(text)
            if tag is None and not text.isdigit():
                raise InvalidRequest(f"'{text}' is no version of table {name}: neither a snapshot's number nor a tag")
            return int(text) if tag is None else tag.snapshot.id

        try:
            check_has_changes(table.context)
        except UnsupportedOperation as e:
            raise UnsupportedOperation(f"{name} has no CHANGES: {e.message}") from e
        wanted = range_of(name, asked.range(), version)
        schema = table.context.schema
        self._table = table
        self._scan = LakeChangesScan(table.context, name, range=wanted)
        super().__init__(context, name, asked, wanted, self._scan.schema, schema.primary_keys)
        if self._is_net and schema.has_primary_key:
            if table.context.options.changelog_producer == "input":
                raise UnsupportedOperation(
                    f"{self._name} have no deduplicationMode = netChanges: with changelog-producer input they are what "
                    "writers said, and not what was there before"
                )
            self._scan = LakeChangesScan(table.context, name, range=wanted, is_net=True)

    def _readable(self, options: Mapping[str, str]) -> Readable:
        given = paimon_read_options(options)
        if given.table or given.changelog:
            named = next(iter(given.table), READ_CHANGELOG)
            raise InvalidRequest(f"{self._name} have no option '{named}': the range says what is read")
        context, scan = self._context, self._scan

        def plan(wanted: Pushdown, schema: StructType) -> ScanPlan:
            given.refuse_for_batches()
            return scan.plan(context.cores, wanted, schema)

        def stream() -> Mapping[str, str]:
            self._check_streamed()
            source = stream_source(context, self._table, None, options)
            return {**source, CHANGES_RANGE: self._range.beginning()}

        return Readable(self._name, scan.schema, scan.columns, plan, scan.partition_keys, None, stream, FORMAT_NAME)
