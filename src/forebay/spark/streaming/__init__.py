"""Streaming reads: the reader that Spark calls, and the planners that decide the offsets of micro-batches.

    reader.py          translates Spark's calls, limits and JSON offsets into those of a planner; decides nothing else
    planner.py         decides whether a micro-batch is due (`minRowsPerTrigger`), and asks the side where it ends
    live_planner.py    a cluster's table: the first offset, the end of each micro-batch in log offsets of buckets
                       (`forebay.unionread.streaming` computes them), and the tasks between two offsets
    lake_planner.py    a Paimon table: the same in snapshots and their files (`PaimonOffset`)

Spark runs the reader and its planner in one Python process for each running query.
"""
