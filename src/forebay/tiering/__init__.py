"""From stream to lake, round by round.

A table with `table.datalake.enabled` has its newest rows in the stream and its history in the lake. A tiering worker
asks the cluster whose turn it is, moves what the log has and the lake has not, and commits it as one lake snapshot.

    control.py  RoundControl: cut a round short, give it up, follow it
    splits.py   what a worker does with one bucket: log -> Arrow -> lake files
    runner.py   who does it: threads here; Spark tasks are in forebay.spark.tiering
    round.py    one round: plan, write, commit to the lake, tell the cluster
    report.py   RoundReport: a round in figures
    service.py  TieringService: heartbeats, several tables at once, failures
    status.py   what a person sees of a service
    lag.py      table_lag: how far a lake is behind, measured now
    now.py      tier_now: bring tables up to date at once, without waiting for their turn

Words: a *round* is one table's; a *split* is one bucket's part of it. Prior art: Apache Fluss's tiering service, which
is a Flink job.
"""
