"""Arrow Flight SQL over `forebay.sql`: what ADBC, JDBC (DBeaver), SQLAlchemy and Superset connect to; `forebay flight`.

    server.py       `FlightSqlServer`: calls of Arrow Flight -> commands of Flight SQL -> answers
    commands.py     commands <-> bytes
    statements.py   statements by handles: kept for a while, run in turns, cancelled
    sessions.py     who calls: logins by user and password, tokens, options of a session
    catalog.py      answers about catalogs, databases, tables and keys
    sql_info.py     answers about the server and its types

pyarrow has Flight for Python, but of Flight SQL nothing: its commands are protobuf messages within Flight's calls.
A query has two calls: the first one describes it (its columns, and a ticket), the second one runs it and streams its
rows. So a table is pinned, and a query counts as running, only while its rows are read.
"""
