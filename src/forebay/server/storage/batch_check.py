"""Checks of the log batches in a request against the schemas of the table, before any of them is written.

Checksums are verified elsewhere: by `forebay.log.tablet.parse_request` before batches are appended, and by the
transaction manager before they are staged. Here only batches that fail a check have theirs verified, so that damage is
reported as damage.
"""

from __future__ import annotations

from forebay.base.errors import CorruptData, ErrorCode, InvalidRequest, NotFound
from forebay.codec.log.header import LogBatchHeader, iter_headers, verify_crc
from forebay.codec.log.log_batch import decode_row_batch, validate_arrow_body
from forebay.codec.rows.row_codec import row_codec
from forebay.codec.rows.row_format import RowFormat
from forebay.metadata.table_options import LogFormat
from forebay.server.metadata.catalog import LiveTable


def check_log_batches(table: LiveTable, records: bytes | memoryview) -> list[tuple[int, LogBatchHeader]]:
    """Check that log batches are readable under the schemas that they name. Returns their positions and headers.

    Raises `NotFound`, `CorruptData`, `InvalidRequest`.
    """
    info = table.info
    log_format = info.descriptor.log_format
    headers = list(iter_headers(records))
    for position, header in headers:
        if not 0 < header.schema_id <= info.schema_id:
            verify_crc(records, position, header)  # the schema id of a damaged batch means nothing
            raise NotFound(
                f"the batch has schema {header.schema_id}, but the latest schema of {info.path} is {info.schema_id}",
                ErrorCode.SCHEMA_NOT_EXIST,
            )
        if not header.append_only:
            raise CorruptData(
                f"a batch for log table {info.path} has change types; it may hold appends only",
                ErrorCode.CORRUPT_RECORD_EXCEPTION,
            )
        columns = table.schema_by_id(header.schema_id).columns
        try:
            if log_format is LogFormat.ARROW:
                validate_arrow_body(records, position, header, columns)
            else:
                rows, _ = decode_row_batch(records, position, header)
                row_codec(columns, RowFormat(log_format.value)).decode(rows)
        except CorruptData as e:
            verify_crc(records, position, header)
            # The bytes arrived as they were sent, so resending them is useless; clients retry after CORRUPT_*.
            raise InvalidRequest(
                f"the batch does not fit log table {info.path}, whose log format is {log_format.value}: {e.message}",
                ErrorCode.INVALID_TABLE_EXCEPTION,
            ) from e
    return headers
