"""From stream to lake, round by round.

A table with `table.datalake.enabled` has its newest rows in the stream and its history in the lake. A tiering worker
asks the cluster for the next table, moves the log records that the lake does not have, and commits them as one lake
snapshot.

    control.py  RoundControl: cut a round short, abandon it, follow its progress
    splits.py   a worker's task for one bucket: log -> Arrow -> lake files
    runner.py   where splits are written: threads here; Spark tasks are in forebay.spark.tiering
    round.py    one round: plan, write, commit to the lake, report to the cluster
    report.py   RoundReport: the figures of a round
    service.py  TieringService: heartbeats, several tables at once, failures
    status.py   a service's status, for users
    lag.py      table_lag: how far a lake lags behind its log, measured now
    now.py      tier_now: bring tables up to date immediately, ahead of the schedule

Words: a *round* is one table's; a *split* is one bucket's part of it. Prior art: Apache Fluss's tiering service, which
is a Flink job.
"""
