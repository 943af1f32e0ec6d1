"""`CHANGES` of live tables. A version is a log offset."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructType

from forebay.base.errors import InvalidRequest, UnsupportedOperation
from forebay.metadata.table import TableInfo
from forebay.spark.context import CatalogContext
from forebay.spark.jvm.gateway import JavaObject
from forebay.spark.options import STARTUP_MODE, STARTUP_TIMESTAMP, is_for_streams, read_options
from forebay.spark.reading.live_changes import scan_of
from forebay.spark.reading.plan import Pushdown, ScanPlan
from forebay.spark.reading.scan import Readable
from forebay.spark.sql.changelogs import ChangelogProxy, range_of
from forebay.spark.sql.live_tables import stream_source


class LiveChangelog(ChangelogProxy):
    """The changes of a live table in a range."""

    _context: CatalogContext

    def __init__(self, context: CatalogContext, info: TableInfo, asked: JavaObject) -> None:
        """Raises `UnsupportedOperation` and `InvalidRequest` for a range that such a table does not have."""

        def version(text: str) -> int:
            if info.is_partitioned or info.bucket_count > 1:
                raise UnsupportedOperation(
                    f"CHANGES FROM VERSION: table {info.path} has several buckets, each with versions of its own. Use "
                    f"CHANGES FROM TIMESTAMP, or {info.path}$changelog"
                )
            if not text.isdigit():
                raise InvalidRequest(f"'{text}' is no version of a live table: these are log offsets, from 0 on")
            return int(text)

        self._info = info
        wanted = range_of(info.path, asked.range(), version)
        schema = scan_of(info, read_options(context.settings, info.descriptor, {}), changes=wanted).schema
        super().__init__(context, context.full_name(info.path), asked, wanted, schema, info.schema.primary_key)

    def _readable(self, options: Mapping[str, str]) -> Readable:
        context, info = self._context, self._info
        # Spark says only later whether this is a stream, whose options a batch then refuses.
        now = {} if is_for_streams(options) else options
        scan = scan_of(info, read_options(context.settings, info.descriptor, now), changes=self._range)

        def plan(wanted: Pushdown, schema: StructType) -> ScanPlan:
            read_options(context.settings, info.descriptor, options)
            return scan.plan(context.connection, context.cores, wanted, schema)

        def stream() -> dict[str, str]:
            self._check_streamed()
            for name in options:
                if name.lower() in (STARTUP_MODE, STARTUP_TIMESTAMP):
                    raise InvalidRequest(f"{self._name}: leave '{name}' out, the range says where the stream begins")
            return stream_source(context, info, options, changes=self._range)

        return Readable(self._name, scan.schema, (), plan, stream=stream)
