"""The texts of `forebay paimon ACTION --help` besides the arguments: descriptions and examples."""

from __future__ import annotations

EPILOG = """\
A table is named database.table, in the catalog given by -w and --option, or by its directory:

  forebay paimon describe -w /lake                           # lists the tables
  forebay paimon describe -w /lake sales.orders
  forebay paimon scan /lake/sales.db/orders -c id,amount --where 'amount >= 100' -n 20
  forebay paimon scan '/lake/sales.db/orders$branch_test'    # a branch
  forebay paimon scan '/lake/sales.db/orders$files'          # a system table
  forebay paimon compact -w /lake sales.orders --full
  forebay paimon describe --option metastore=jdbc --option uri=jdbc:sqlite:/lake/catalog.db -w /lake sales.orders

`forebay paimon ACTION --help` explains an action. Exit codes: 0 done, 1 refused or failed (the message says why),
2 wrong usage, 130 interrupted.
"""

ACTIONS = {
    "describe": """\
Without a table, the tables of the catalog are listed.

  forebay paimon describe -w /lake sales.orders
  forebay paimon describe /lake/sales.db/orders -o json
""",
    "scan": """\
Rows are printed as they are read; -n stops early. A table's history can be read while its snapshots are kept.
System tables are snapshots, schemas, options, manifests, files, partitions, buckets, tags, branches, consumers,
statistics, audit_log, binlog and ro.

  forebay paimon scan -w /lake sales.orders -c id,amount --where 'amount >= 100' --where "item = 'tea'"
  forebay paimon scan -w /lake sales.orders --at 2026-01-31T12:00 -o csv
  forebay paimon scan -w /lake sales.orders --set incremental-between=5,9      # the changes after snapshot 5
  forebay paimon scan -w /lake 'sales.orders$files' -c file_path,record_count
""",
    "snapshots": """\
Each commit creates a snapshot. "change" is the number of records that it added or removed.

  forebay paimon snapshots -w /lake sales.orders -n 5
""",
    "compact": """\
Readers and writers continue; they see the table before or after the compaction. Without --full, only what is due by
the table's options is compacted. Works on `write-only` tables, which leave compaction to this command.

  forebay paimon compact -w /lake sales.orders
  forebay paimon compact -w /lake sales.orders --full -p day=2026-01-31
  forebay paimon compact -w /lake sales.visits --order-by customer,day --strategy zorder
""",
    "expire": """\
Arguments that are not given default to the table's options (snapshot.num-retained.min and .max,
snapshot.time-retained). A snapshot expires if it is older than the time AND more than the minimum number are left, or
if there are more than the maximum. Tags, and snapshots that consumers have not read yet, are kept. Expired tags, and
changelogs that outlived their snapshots, are deleted according to the options.

  forebay paimon expire -w /lake sales.orders
  forebay paimon expire -w /lake sales.orders --retain-min 1 --retain-max 10 --older-than '3 d'
  forebay paimon expire -w /lake sales.visits --partitions '30 d'
""",
    "rescale": """\
New partitions get the new number immediately. Existing ones are rewritten one after the other, each in a separate
commit; until then, writing to them is refused. So the command may be stopped, and run again.

  forebay paimon rescale -w /lake sales.orders 8
  forebay paimon rescale -w /lake sales.orders 8 -p day=2026-01-31
""",
    "orphans": """\
Orphans are left behind by killed programs and failed commits. Nothing is deleted without --delete.

  forebay paimon orphans -w /lake sales.orders
  forebay paimon orphans -w /lake sales.orders --delete --older-than '3 d'
""",
    "manifests": """\
Every commit adds a manifest, a list of the files that it added and removed. Commits merge them according to the table's
options; this merges everything that can be merged, now, in a snapshot without data changes.

  forebay paimon manifests -w /lake sales.orders
""",
    "analyze": """\
Reads the whole table. Query planners (Paimon's in Spark) find the statistics in the latest snapshot.

  forebay paimon analyze -w /lake sales.orders
  forebay paimon analyze -w /lake sales.orders -c customer,amount
""",
    "purge": """\
Deletes rows, branches, tags, consumers and old snapshots, and all unreferenced files regardless of their age: there
must be no concurrent writer. The schema and an empty snapshot remain.

  forebay paimon purge -w /lake sales.orders --dry-run
  forebay paimon purge -w /lake sales.orders --yes
""",
    "tag": """\
A tag keeps a snapshot from expiring. Read it with `scan --tag`.

  forebay paimon tag -w /lake sales.orders
  forebay paimon tag -w /lake sales.orders end-of-year --at 2025-12-31T23:59 --keep '400 d'
  forebay paimon tag -w /lake sales.orders end-of-year --delete
""",
    "branch": """\
A branch is a separate history: what is written to it is not visible in the table until it is fast-forwarded.

  forebay paimon branch -w /lake sales.orders test --tag end-of-year
  forebay paimon scan -w /lake 'sales.orders$branch_test'
  forebay paimon branch -w /lake sales.orders test --fast-forward
""",
    "rollback": """\
All later snapshots and tags are deleted; there must be no concurrent commit. It cannot be undone.

  forebay paimon rollback -w /lake sales.orders --snapshot 7 --dry-run
  forebay paimon rollback -w /lake sales.orders --snapshot 7
  forebay paimon rollback -w /lake sales.orders --at 2026-01-31T12:00
""",
    "consumer": """\
A streaming reader with a consumer-id records its progress, so that expiry keeps what it has not read yet.

  forebay paimon consumer -w /lake sales.orders
  forebay paimon consumer -w /lake sales.orders reports --next 12
  forebay paimon consumer -w /lake sales.orders reports --delete
""",
}
"""Descriptions and examples by action."""
