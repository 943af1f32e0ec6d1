"""SQL in Python, without a JVM: DuckDB over scans of live tables and lakes (`forebay.sql`, `Connection.sql`).

    run.py         `sql`: a statement -> its result
    statement.py   what a statement is, by DuckDB's own parser: its kind, the tables that it names, an INSERT's target
    tables.py      names of tables -> pinned scans, as views of DuckDB
    changelog.py   the scan of a live table's changelog
    isolated.py    statements of others, in processes with limits of memory and time
    worker.py      such a process
    frames.py      what crosses the pipes between the two

Each table that a statement names is pinned before the statement runs (`Scan.pinned`), so it is one state however often
the statement reads it. DuckDB pushes columns and filters into these scans (`forebay.api.duckdb`).
"""
