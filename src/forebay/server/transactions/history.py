"""The histories of tables: what each transaction has written to a table, from its decision on.

Rows that clients write without a transaction are in no history.
"""

from __future__ import annotations

from collections import Counter

from forebay.codec.kv.kv_batch import record_count_of_kv
from forebay.codec.log.header import record_count_of_log
from forebay.metadata.table import TableBucket
from forebay.server.metadata.catalog import TableCatalog
from forebay.server.metadata_store import StoredCommit, StoredTransaction
from forebay.server.transactions.transaction import CommitAuthor


class RowCounter:
    """Counts the rows that a transaction writes to each table: a `forebay.server.transactions.stages.CountRows`."""

    def __init__(self, catalog: TableCatalog) -> None:
        self._catalog = catalog
        self.rows: Counter[int] = Counter()

    def __call__(self, bucket: TableBucket, first: bytes) -> None:
        """Count a staged batch with these first bytes. Rows of tables that were dropped are not counted."""
        table = self._catalog.table_by_id(bucket.table_id)
        if table is not None:
            count = record_count_of_kv if table.info.has_primary_key else record_count_of_log
            self.rows[bucket.table_id] += count(first)


def commits_of(decided: StoredTransaction, author: CommitAuthor, rows: RowCounter) -> list[StoredCommit]:
    """The commits of a transaction in the histories of its tables, which number them."""
    named = (decided.changed_ms, decided.transaction_id, decided.application, decided.version)
    return [StoredCommit(table_id, 0, *named, author.user, author.operation, n) for table_id, n in rows.rows.items()]
