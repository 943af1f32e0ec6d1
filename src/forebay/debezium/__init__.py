"""Debezium's change events, in the JSON of Kafka Connect, as rows in Arrow columns.

    events.py    texts -> rows: the change type, the row's values, and which values the database did not log
    values.py    a value in Connect's JSON -> a value of a column's type
    marks.py     deletes as rows that say so, and the positions of events as a column
    columns.py   rows -> Arrow columns, and what is wrong with rows that do not fit

`forebay ingest` and Spark's `from_debezium` decode by these modules, so an event is the same row in both, or wrong for
the same reason (docs/how-to/kafka.md). Texts are parsed by json's C scanner, and a schema part that repeats is parsed
once; from there on, work is by column. Source: Debezium's documentation of its connectors ("Change events", "Data type
mappings").
"""
