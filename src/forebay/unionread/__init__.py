"""A table whose history is in a lake and whose newest rows are in the stream, read as one.

    plan = plan_union(table, columns=["id"], filter=col("amount") > 5)      # where planning happens
    print(plan.explain())
    for split in plan.splits:                                               # each may go to another process
        for batch in plan.reader.read(split): ...

    planning.py    the lake snapshot, its log offsets, and the ends of the logs -> splits
    splits.py      what one task reads, as values that are sent to workers
    reading.py     how a worker reads a split: a split -> record batches
    open_lakes.py  the lakes that a connection has opened, and scans of their tables
    lake_side.py   the lake's half: columns, filters, and its batches in the stream's types
    tail.py        a range of changelog, folded to the newest change of each key
    merging.py     lake rows overridden by a tail
    scan.py        all of it as `table.scan(source="union")`
    plan.py        a plan, and its description in words
    streaming.py   the position of a stream, its lake snapshot, and its next micro-batch, as values

Rules (docs/design/0010-union-read.md). The readable lake snapshot records how far it holds each bucket's log; from
there on the log is read up to a stop offset that is fixed at planning. Filters never touch the changelog of a
primary-key table: a row that a filter drops there could be the one that overrides an older row of the lake. What the
lake skips never moves where the log begins. The end of a range is a position, so empty log batches do not matter. Batch
boundaries do not matter either, and the lake's half is never held in memory.
"""
