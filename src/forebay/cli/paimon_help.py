"""What `forebay paimon ACTION --help` says beside the arguments: what happens, and examples."""

from __future__ import annotations

EPILOG = """\
A table is named database.table, in the catalog that -w and -o say, or by its directory:

  forebay paimon describe -w /lake                           # which tables are there?
  forebay paimon describe -w /lake sales.orders
  forebay paimon scan /lake/sales.db/orders -c id,amount --where 'amount >= 100' -n 20
  forebay paimon scan '/lake/sales.db/orders$branch_test'    # a branch
  forebay paimon scan '/lake/sales.db/orders$files'          # a system table
  forebay paimon compact -w /lake sales.orders --full
  forebay paimon describe -o metastore=jdbc -o uri=jdbc:sqlite:/lake/catalog.db -w /lake sales.orders

`forebay paimon ACTION --help` explains an action. Exit codes: 0 done, 1 refused or failed (the message says why),
2 wrong usage, 130 interrupted.
"""

ACTIONS = {
    "describe": """\
Without a table, the tables of the catalog are listed.

  forebay paimon describe -w /lake sales.orders
  forebay paimon describe /lake/sales.db/orders --json
""",
    "scan": """\
Rows come as they are read; -n stops early. A table's history can be read for as long as its snapshots are kept.
System tables are snapshots, schemas, options, manifests, files, partitions, buckets, tags, branches, consumers,
statistics, audit_log, binlog and ro.

  forebay paimon scan -w /lake sales.orders -c id,amount --where 'amount >= 100' --where "item = 'tea'"
  forebay paimon scan -w /lake sales.orders --at 2026-01-31T12:00 -f csv
  forebay paimon scan -w /lake sales.orders --set incremental-between=5,9      # what changed behind snapshot 5
  forebay paimon scan -w /lake 'sales.orders$files' -c file_path,record_count
""",
    "snapshots": """\
Each commit makes a snapshot. "change" is how many records it added, or took away.

  forebay paimon snapshots -w /lake sales.orders -n 5
""",
    "compact": """\
Readers and writers continue; they see the table before or after the compaction. Without --full, only what the table's
options consider due. Works on `write-only` tables: it is the job that they leave compaction to.

  forebay paimon compact -w /lake sales.orders
  forebay paimon compact -w /lake sales.orders --full -p day=2026-01-31
  forebay paimon compact -w /lake sales.visits --order-by customer,day --strategy zorder
""",
    "expire": """\
What is not said is as the table's options say (snapshot.num-retained.min and .max, snapshot.time-retained). A snapshot
goes if it is older than the time AND more than the least number are left, or if more than the most are there. Tags,
and what consumers have not read yet, stay. Tags whose time is over, and changelogs that outlived their snapshots, go
as the options say.

  forebay paimon expire -w /lake sales.orders
  forebay paimon expire -w /lake sales.orders --retain-min 1 --retain-max 10 --older-than '3 d'
  forebay paimon expire -w /lake sales.visits --partitions '30 d'
""",
    "rescale": """\
New partitions get the new number at once. Those that exist are rewritten one after the other, each in a commit of its
own; until then, writing to them is refused. So the command may be stopped, and run again.

  forebay paimon rescale -w /lake sales.orders 8
  forebay paimon rescale -w /lake sales.orders 8 -p day=2026-01-31
""",
    "orphans": """\
They are left by programs that were killed, and by commits that failed. Nothing is deleted without --delete.

  forebay paimon orphans -w /lake sales.orders
  forebay paimon orphans -w /lake sales.orders --delete --older-than '3 d'
""",
    "manifests": """\
Every commit adds a manifest, a list of the files that it added and took away. Commits merge them as the table's options
say; this merges all that can be merged, now. It makes a snapshot that changes no data.

  forebay paimon manifests -w /lake sales.orders
""",
    "analyze": """\
Reads the whole table. Planners of queries (Paimon's in Spark) find the statistics in the latest snapshot.

  forebay paimon analyze -w /lake sales.orders
  forebay paimon analyze -w /lake sales.orders -c customer,amount
""",
    "purge": """\
Deletes rows, branches, tags, consumers and old snapshots, and every unreferenced file, however young: there must be no
concurrent writer. The schema and an empty snapshot stay.

  forebay paimon purge -w /lake sales.orders --dry-run
  forebay paimon purge -w /lake sales.orders --yes
""",
    "tag": """\
A tag keeps a snapshot: expiry leaves it alone. Read it with `read --tag`.

  forebay paimon tag -w /lake sales.orders
  forebay paimon tag -w /lake sales.orders end-of-year --at 2025-12-31T23:59 --keep '400 d'
  forebay paimon tag -w /lake sales.orders end-of-year --delete
""",
    "branch": """\
A branch is a history of its own: what is written to it is not seen in the table, until it is fast-forwarded.

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
A streaming reader with a consumer-id notes how far it is, so that expiry leaves what it has not read yet.

  forebay paimon consumer -w /lake sales.orders
  forebay paimon consumer -w /lake sales.orders reports --next 12
  forebay paimon consumer -w /lake sales.orders reports --delete
""",
}
"""By action: what is worth knowing, and examples."""
