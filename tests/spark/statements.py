"""The statement matrix: what each statement does on each kind of table, in Spark SQL.

Every statement runs on tables of its own, of five columns (`id`, `name`, `amount`, `day`, `tags`) and four rows, in two
shapes: plain, and partitioned by `day`. A statement works, and then the table's rows afterwards (or its answer) are
those that are written here; or it is refused, with a message that says what to do, and nothing has changed.

    python -m tests.spark.statements      # the table of docs/spark/statements.md
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

KINDS = ("log", "pk", "lake_append", "lake_pk")
TITLES = {
    "log": "log table",
    "pk": "primary-key table",
    "lake_append": "lake append table",
    "lake_pk": "lake primary-key table",
}
COLUMNS = "id BIGINT NOT NULL, name STRING, amount BIGINT, day STRING NOT NULL, tags ARRAY<STRING>"
CREATE = {
    "log": "CREATE TABLE {t} (%s) %s TBLPROPERTIES ('bucket.num' = '2')",
    "pk": "CREATE TABLE {t} (%s) %s TBLPROPERTIES ('primary.key' = '%s', 'bucket.num' = '2')",
    "lake_append": "CREATE TABLE {t} (%s) %s",
    "lake_pk": "CREATE TABLE {t} (%s) %s TBLPROPERTIES ('primary-key' = '%s', 'bucket' = '2')",
}
ROWS = {1: ("a", 10), 2: ("b", 20), 3: ("c", 30), 4: (None, None)}
"""(name, amount) by id; the day of a row is d<id % 2>."""
FILL = "INSERT INTO {t} VALUES " + ", ".join(
    f"({i}, {'NULL' if name is None else repr(name)}, {'NULL' if amount is None else amount}, 'd{i % 2}', array('x'))"
    for i, (name, amount) in ROWS.items()
)

Rows = list[tuple[Any, ...]]


def create(kind: str, partitioned: bool) -> str:
    """CREATE TABLE of a kind; `{t}` is its name."""
    parts = [COLUMNS, "PARTITIONED BY (day)" if partitioned else ""]
    if kind in ("pk", "lake_pk"):
        parts.append("id,day" if partitioned else "id")
    return CREATE[kind] % tuple(parts)


@dataclass(frozen=True)
class Refused:
    """Refused, with a message in which this is found."""

    says: str


Outcome = Refused | Callable[[dict[int, tuple[Any, Any]]], Any] | None
"""A change of `ROWS` that is then the table's content; None for no change."""


@dataclass(frozen=True)
class Statement:
    """A statement; `{t}` is the table, `{s}` another one with (id 2, 'B', 200) and (id 9, 'n', 90)."""

    sql: str
    outcome: Outcome = None
    answer: Any = None
    """What it returns; None if that is not compared."""
    partitioned: bool = False
    per_kind: dict[str, Outcome] = field(default_factory=dict)
    keeps_doubles: bool = False
    """Whether tables without a key get rows in addition to those of the same id."""

    def expected(self, kind: str) -> Outcome:
        return self.per_kind.get(kind, self.outcome)


def put(*rows: tuple[int, Any, Any]) -> Callable[[dict[int, tuple[Any, Any]]], None]:
    def change(content: dict[int, tuple[Any, Any]]) -> None:
        content.update({i: (name, amount) for i, name, amount in rows})

    return change


def only(*rows: tuple[int, Any, Any]) -> Callable[[dict[int, tuple[Any, Any]]], None]:
    def change(content: dict[int, tuple[Any, Any]]) -> None:
        content.clear()
        content.update({i: (name, amount) for i, name, amount in rows})

    return change


def drop(*ids: int) -> Callable[[dict[int, tuple[Any, Any]]], None]:
    def change(content: dict[int, tuple[Any, Any]]) -> None:
        for i in ids:
            content.pop(i, None)

    return change


def _on(outcome: Outcome, *kinds: str) -> dict[str, Outcome]:
    return dict.fromkeys(kinds, outcome)


def gone(content: dict[int, tuple[Any, Any]]) -> None:
    """The table is not there any more."""
    content.clear()


LOG_GROWS = Refused(r"log table|a log (table )?cannot")

STATEMENTS: list[tuple[str, list[Statement]]] = [
    (
        "Reading",
        [
            Statement("SELECT count(*) FROM {t}", answer=[(4,)]),
            Statement("SELECT id FROM {t} WHERE id = 2", answer=[(2,)]),
            Statement("SELECT id FROM {t} WHERE id IN (1, 3, 99) ORDER BY id", answer=[(1,), (3,)]),
            Statement("SELECT id FROM {t} WHERE id = 2 AND name = 'x'", answer=[]),
            Statement("SELECT id FROM {t} WHERE name IS NULL", answer=[(4,)]),
            Statement("SELECT id FROM {t} WHERE name LIKE 'b%'", answer=[(2,)]),
            Statement("SELECT id FROM {t} WHERE upper(name) = 'C'", answer=[(3,)]),
            Statement("SELECT id FROM {t} WHERE NOT (amount > 10) ORDER BY id", answer=[(1,)]),
            Statement("SELECT id FROM {t} WHERE amount BETWEEN 15 AND 25", answer=[(2,)]),
            Statement("SELECT day, sum(amount) FROM {t} GROUP BY day ORDER BY day", answer=[("d0", 20), ("d1", 40)]),
            Statement("SELECT id FROM {t} WHERE day = 'd1' ORDER BY id", answer=[(1,), (3,)], partitioned=True),
            Statement("SELECT id FROM {t} ORDER BY id LIMIT 2", answer=[(1,), (2,)]),
            Statement("SELECT id FROM {t} ORDER BY id LIMIT 1 OFFSET 2", answer=[(3,)]),
            Statement("SELECT max(id), min(id) FROM {t}", answer=[(4, 1)]),
            Statement("SELECT DISTINCT day FROM {t} ORDER BY day", answer=[("d0",), ("d1",)]),
            Statement("SELECT id, tag FROM {t} LATERAL VIEW explode(tags) AS tag WHERE id = 1", answer=[(1, "x")]),
            Statement("SELECT t.id, s.amount FROM {t} t JOIN {s} s ON t.id = s.id", answer=[(2, 200)]),
            Statement("SELECT s.id FROM {s} s LEFT ANTI JOIN {t} t ON t.id = s.id", answer=[(9,)]),
            Statement("SELECT id FROM {t} WHERE id IN (SELECT id FROM {s})", answer=[(2,)]),
            Statement("SELECT id FROM {t} UNION SELECT id FROM {s} ORDER BY id", answer=[(1,), (2,), (3,), (4,), (9,)]),
            Statement("SELECT id, row_number() OVER (ORDER BY id DESC) FROM {t} ORDER BY 1 LIMIT 1", answer=[(1, 4)]),
            Statement("WITH q AS (SELECT * FROM {t}) SELECT count(*) FROM q", answer=[(4,)]),
            Statement("SELECT count(*) FROM {t} TABLESAMPLE (100 PERCENT)", answer=[(4,)]),
            Statement("FROM {t} |> WHERE id > 2 |> AGGREGATE count(*)", answer=[(2,)]),
            Statement("TABLE {t}"),
            Statement("EXPLAIN SELECT * FROM {t} WHERE id = 1"),
            Statement("CACHE TABLE cached_{n} AS SELECT * FROM {t}"),
            Statement("CREATE TEMPORARY VIEW view_{n} AS SELECT * FROM {t}"),
            Statement("CREATE VIEW {t}_view AS SELECT * FROM {t}", Refused("(?i)view|catalog")),
            Statement("SELECT count(*) FROM {t} VERSION AS OF 99", Refused("snapshot 99|has no commit 99")),
            Statement("SELECT count(*) FROM {t} VERSION AS OF 1", answer=[(4,)]),
            Statement(
                "SELECT count(*) FROM {t} TIMESTAMP AS OF '2001-01-01'",
                Refused("did not exist as of 2001"),
                per_kind=_on(Refused("(?i)snapshot|time|2001"), "lake_append", "lake_pk"),
            ),
            Statement("SELECT count(*) FROM {t} TIMESTAMP AS OF current_timestamp()", answer=[(4,)]),
            Statement(
                "SELECT _change_type, count(*) FROM {t} CHANGES FROM TIMESTAMP '2001-01-01' GROUP BY 1",
                answer=[("insert", 4)],
                per_kind=_on(Refused("has no CHANGES: .*'changelog-producer' to 'lookup'"), "lake_pk"),
            ),
            Statement(
                "SELECT id, _commit_version FROM {t} CHANGES FROM VERSION 0 TO VERSION 1 WHERE id > 3",
                Refused("several buckets|has no CHANGES"),
                answer=[(4, 1)],
                per_kind=_on(None, "lake_append"),
            ),
            Statement(
                "SELECT count(DISTINCT __bucket, _log_offset) FROM {t}",
                Refused("UNRESOLVED_COLUMN"),
                answer=[(4,)],
                per_kind=_on(None, "log"),
            ),
            Statement(
                "SELECT count(DISTINCT __bucket) < 4 FROM {t}",
                Refused("UNRESOLVED_COLUMN"),
                answer=[(True,)],
                per_kind=_on(None, "log", "pk"),
            ),
            Statement(
                "SELECT count(DISTINCT __paimon_file_path, __paimon_row_index) FROM {t}",
                Refused("UNRESOLVED_COLUMN"),
                answer=[(4,)],
                per_kind=_on(None, "lake_append"),
            ),
            Statement(
                "SELECT t.id FROM {t} t LEFT SEMI JOIN {s} s ON t.id = s.id AND s.amount > t.amount", answer=[(2,)]
            ),
            Statement("SELECT id FROM {t} WHERE array_contains(tags, 'x') AND id > 3", answer=[(4,)]),
            Statement("SELECT id FROM {t} WHERE id = 2 OR name = 'c' ORDER BY id", answer=[(2,), (3,)]),
            Statement("SELECT count(*), count(name), avg(amount) FROM {t}", answer=[(4, 3, 20.0)]),
            Statement("SELECT name FROM {t} ORDER BY name DESC NULLS FIRST LIMIT 2", answer=[(None,), ("c",)]),
            Statement("SELECT id FROM {t} WHERE nope = 1", Refused("UNRESOLVED_COLUMN")),
        ],
    ),
    (
        "Adding rows",
        [
            Statement("INSERT INTO {t} VALUES (9, 'z', 90, 'd1', NULL)", put((9, "z", 90))),
            Statement(
                "INSERT INTO {t} SELECT id + 10, name, amount, day, tags FROM {t} WHERE id = 1", put((11, "a", 10))
            ),
            Statement(
                "INSERT INTO {t} BY NAME SELECT 'd1' AS day, 9L AS id, 'z' AS name, 1L AS amount, array('x') AS tags",
                put((9, "z", 1)),
            ),
            Statement("INSERT INTO {t} (id, name, day) VALUES (9, 'z', 'd1')", put((9, "z", None))),
            Statement(
                "INSERT INTO {t} PARTITION (day = 'd1') VALUES (9, 'z', 90, NULL)", put((9, "z", 90)), partitioned=True
            ),
            Statement(
                "INSERT INTO {t} PARTITION (day) VALUES (9, 'z', 90, 'd7', NULL)", put((9, "z", 90)), partitioned=True
            ),
            Statement("FROM {s} INSERT INTO {t} SELECT id, name, amount, day, tags WHERE id = 9", put((9, "n", 90))),
            Statement("INSERT INTO {t} VALUES (NULL, 'z', 90, 'd1', NULL)", Refused("(?i)null")),
            Statement("INSERT INTO {t} VALUES ('x', 'z', 90, 'd1', NULL)", Refused("(?i)cast")),
            Statement("INSERT INTO {t} VALUES (9, 'z')", Refused("INSERT_COLUMN_ARITY_MISMATCH")),
            Statement("INSERT INTO {t} (id, nope) VALUES (9, 'z')", Refused("nope")),
            Statement("INSERT INTO {t} SELECT id, raise_error('no'), 1L, 'd1', NULL FROM range(9)", Refused("no")),
        ],
    ),
    (
        "Replacing rows",
        [
            Statement(
                "INSERT INTO {t} VALUES (2, 'B', 200, 'd0', NULL)",
                put((2, "B", 200)),
                keeps_doubles=True,
            ),
            Statement(
                "INSERT INTO {t} (id, name, day) VALUES (2, 'B', 'd0')",
                put((2, "B", 20)),
                per_kind={"lake_pk": put((2, "B", None)), **_on(None, "log", "lake_append")},
                keeps_doubles=True,
            ),
            Statement(
                "INSERT INTO {t} BY NAME SELECT 'd0' AS day, 2L AS id, 'B' AS name",
                put((2, "B", 20)),
                per_kind={"lake_pk": put((2, "B", None)), **_on(None, "log", "lake_append")},
                keeps_doubles=True,
            ),
            Statement(
                "INSERT INTO {t} WITH ('write.changes' = 'true') VALUES ('delete', 1, NULL, NULL, 'd1', NULL), "
                "('+U', 2, 'B', 200, 'd0', NULL)",
                only((2, "B", 200), (3, "c", 30), (4, None, None)),
                per_kind=_on(Refused("no primary key, so it takes inserts only"), "log", "lake_append"),
            ),
            Statement(
                "INSERT OVERWRITE {t} SELECT * FROM {s}", only((2, "B", 200), (9, "n", 90)), per_kind={"log": LOG_GROWS}
            ),
            Statement(
                "INSERT OVERWRITE {t} PARTITION (day = 'd1') SELECT 9, 'z', 90, NULL",
                only((2, "b", 20), (4, None, None), (9, "z", 90)),
                partitioned=True,
                per_kind={"log": LOG_GROWS},
            ),
            Statement(
                "INSERT INTO {t} REPLACE WHERE day = 'd1' SELECT 9, 'z', 90, 'd1', NULL",
                only((2, "b", 20), (4, None, None), (9, "z", 90)),
                partitioned=True,
                per_kind={"log": LOG_GROWS},
            ),
            Statement(
                "INSERT INTO {t} REPLACE WHERE id = 1 SELECT 9, 'z', 90, 'd1', NULL",
                only((2, "b", 20), (3, "c", 30), (4, None, None), (9, "z", 90)),
                per_kind={
                    "log": LOG_GROWS,
                    "pk": Refused("id = 9 is not one of them: select rows that match the condition"),
                    **_on(Refused("DELETE these rows, then INSERT others"), "lake_append", "lake_pk"),
                },
            ),
            Statement("TRUNCATE TABLE {t}", only(), per_kind={"log": LOG_GROWS}),
            Statement(
                "TRUNCATE TABLE {t} PARTITION (day = 'd1')",
                drop(1, 3),
                partitioned=True,
                per_kind={"log": Refused("drop|log table")},
            ),
            Statement(
                "CREATE OR REPLACE TABLE {t} AS SELECT * FROM {s}",
                only((2, "B", 200), (9, "n", 90)),
                per_kind={"log": Refused("cannot be replaced in one step: .*DROP TABLE")},
            ),
        ],
    ),
    (
        "Deleting and changing rows",
        [
            Statement("DELETE FROM {t} WHERE id = 2", drop(2), per_kind={"log": LOG_GROWS}),
            Statement("DELETE FROM {t} WHERE id IN (1, 2)", drop(1, 2), per_kind={"log": LOG_GROWS}),
            Statement("DELETE FROM {t} WHERE amount > 15", drop(2, 3), per_kind={"log": LOG_GROWS}),
            Statement("DELETE FROM {t} WHERE day = 'd1'", drop(1, 3), partitioned=True, per_kind={"log": LOG_GROWS}),
            Statement("DELETE FROM {t} WHERE upper(name) = 'C'", drop(3), per_kind={"log": LOG_GROWS}),
            Statement("DELETE FROM {t} WHERE id IN (SELECT id FROM {s})", drop(2), per_kind={"log": LOG_GROWS}),
            Statement("DELETE FROM {t}", only(), per_kind={"log": LOG_GROWS}),
            Statement("UPDATE {t} SET amount = 5 WHERE id = 1", put((1, "a", 5)), per_kind={"log": LOG_GROWS}),
            Statement(
                "UPDATE {t} SET amount = amount * 2, name = upper(name) WHERE amount > 15",
                put((2, "B", 40), (3, "C", 60)),
                per_kind={"log": LOG_GROWS},
            ),
            Statement(
                "UPDATE {t} SET name = 'z' WHERE id IN (SELECT id FROM {s})",
                put((2, "z", 20)),
                per_kind={"log": LOG_GROWS},
            ),
            Statement(
                "MERGE INTO {t} t USING {s} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET amount = s.amount "
                "WHEN NOT MATCHED THEN INSERT *",
                put((2, "b", 200), (9, "n", 90)),
                per_kind={"log": LOG_GROWS},
            ),
            Statement(
                "MERGE INTO {t} t USING {s} s ON t.id = s.id WHEN MATCHED THEN DELETE",
                drop(2),
                per_kind={"log": LOG_GROWS},
            ),
            Statement(
                "MERGE INTO {t} t USING {s} s ON t.id = s.id WHEN MATCHED THEN UPDATE SET * "
                "WHEN NOT MATCHED BY SOURCE THEN DELETE",
                only((2, "B", 200)),
                per_kind={"log": LOG_GROWS},
            ),
            Statement(
                "MERGE INTO {t} t USING (SELECT * FROM {s} UNION ALL SELECT * FROM {s}) s ON t.id = s.id "
                "WHEN MATCHED THEN UPDATE SET *",
                Refused("(?i)MERGE_CARDINALITY_VIOLATION|more than one|multiple"),
                per_kind={"log": LOG_GROWS},
            ),
        ],
    ),
    (
        "Defining tables",
        [
            Statement("DESCRIBE {t}"),
            Statement("DESCRIBE EXTENDED {t}"),
            Statement("DESCRIBE TABLE EXTENDED {t} AS JSON", Refused("(?i)json|v1|not supported")),
            Statement("DESCRIBE {t} id"),
            Statement("SHOW CREATE TABLE {t}"),
            Statement("SHOW COLUMNS IN {t}", answer=[("id",), ("name",), ("amount",), ("day",), ("tags",)]),
            Statement("SHOW TBLPROPERTIES {t}"),
            Statement("SHOW PARTITIONS {t}", answer=[("day=d0",), ("day=d1",)], partitioned=True),
            Statement("SHOW PARTITIONS {t}", Refused("(?i)partition")),
            Statement("SHOW TABLE EXTENDED IN {db} LIKE '*'"),
            Statement("ALTER TABLE {t} ADD COLUMN extra INT"),
            Statement("ALTER TABLE {t} ADD COLUMN extra INT NOT NULL", Refused("(?i)null")),
            Statement(
                "ALTER TABLE {t} RENAME COLUMN amount TO total",
                Refused("(?i)rename"),
                per_kind=_on(None, "lake_append", "lake_pk"),
            ),
            Statement(
                "ALTER TABLE {t} DROP COLUMN tags", Refused("(?i)drop"), per_kind=_on(None, "lake_append", "lake_pk")
            ),
            Statement(
                "ALTER TABLE {t} ALTER COLUMN amount COMMENT 'money'",
                Refused("(?i)comment"),
                per_kind=_on(None, "lake_append", "lake_pk"),
            ),
            Statement("ALTER TABLE {t} ALTER COLUMN name SET DEFAULT 'x'"),
            Statement("ALTER TABLE {t} ADD COLUMN extra INT DEFAULT 5", Refused("SET DEFAULT")),
            Statement("CREATE TABLE {t}_new (id INT, n INT DEFAULT 5)"),
            Statement("ALTER TABLE {t} ALTER COLUMN tags TYPE INT", Refused("(?i)type|cast")),
            Statement("ALTER TABLE {t} ALTER COLUMN name SET NOT NULL", Refused("(?i)null")),
            Statement(
                "ALTER TABLE {t} RENAME TO {t}_new", Refused("(?i)rename"), per_kind=_on(gone, "lake_append", "lake_pk")
            ),
            Statement("ALTER TABLE {t} ADD COLUMNS (extra INT, more STRING)"),
            Statement("ALTER TABLE {t} DROP PARTITION (day = 'd9')", Refused("(?i)partition"), partitioned=True),
            Statement(
                "ALTER TABLE {t} RENAME PARTITION (day = 'd1') TO PARTITION (day = 'd8')",
                Refused("(?i)rename"),
                partitioned=True,
            ),
            Statement("SHOW TABLES IN {db}"),
            Statement("SHOW VIEWS IN {db}", Refused("(?i)views")),
            Statement("SHOW NAMESPACES IN {db}", answer=[]),
            Statement("SHOW CREATE TABLE {t} AS SERDE", Refused("(?i)serde")),
            Statement("DESCRIBE QUERY SELECT id FROM {t}", answer=[("id", "bigint", None)]),
            Statement("DESCRIBE {t} nope", Refused("UNRESOLVED_COLUMN")),
            Statement("DESCRIBE EXTENDED {t} PARTITION (day = 'd1')", partitioned=True),
            Statement("DESCRIBE EXTENDED {t} PARTITION (day = 'd9')", Refused("(?i)partition"), partitioned=True),
            Statement("DESCRIBE DATABASE EXTENDED {db}"),
            Statement("DROP TABLE {t}", gone),
            Statement("DROP TABLE {t} PURGE", gone),
            Statement("ALTER TABLE {t} SET TBLPROPERTIES ('team' = 'blue')"),
            Statement("ALTER TABLE {t} UNSET TBLPROPERTIES ('team')"),
            Statement(
                "ALTER TABLE {t} ADD PARTITION (day = 'd7')",
                partitioned=True,
                per_kind=_on(Refused("as soon as rows are in it"), "lake_append", "lake_pk"),
            ),
            Statement("ALTER TABLE {t} DROP PARTITION (day = 'd1')", drop(1, 3), partitioned=True),
            Statement("ALTER TABLE {t} ADD CONSTRAINT c CHECK (id > 0)", Refused("(?i)constraint")),
            Statement("CREATE TABLE {t}_like LIKE {t}"),
            Statement("CREATE TABLE {t}_as AS SELECT id, name FROM {t}"),
            Statement("CREATE TABLE IF NOT EXISTS {t} (id INT)"),
            Statement("CREATE TABLE {t} (id INT)", Refused("TABLE_OR_VIEW_ALREADY_EXISTS|exists already")),
            Statement("ANALYZE TABLE {t} COMPUTE STATISTICS", Refused("(?i)analyze|statistics|not support")),
            Statement("REFRESH TABLE {t}"),
            Statement("COMMENT ON TABLE {t} IS 'a table'", per_kind=_on(Refused("(?i)comment"), "log", "pk")),
            Statement("SELECT count(*) FROM {t}_nope", Refused("TABLE_OR_VIEW_NOT_FOUND")),
            Statement("DROP TABLE {t}_nope", Refused("TABLE_OR_VIEW_NOT_FOUND")),
            Statement("DROP TABLE IF EXISTS {t}_nope"),
            Statement("CREATE INDEX i ON {t} (id)", Refused("(?i)index")),
            Statement("LOAD DATA INPATH '/nowhere' INTO TABLE {t}", Refused("(?i)load data|not supported")),
            Statement("MSCK REPAIR TABLE {t}", Refused("(?i)repair|not supported|v2")),
        ],
    ),
]


def content_after(statement: Statement, kind: str) -> list[tuple[Any, ...]] | None:
    """The rows (id, name, amount) after a statement; None where it is refused."""
    outcome = statement.expected(kind)
    if isinstance(outcome, Refused):
        return None
    before = dict(ROWS)
    after = dict(before)
    if outcome is not None:
        outcome(after)
    rows = [(i, *values) for i, values in after.items()]
    return sorted(rows, key=repr)


def page() -> str:
    """The matrix, as it stands in docs/spark/statements.md."""
    lines = []
    for title, statements in STATEMENTS:
        lines += ["", f"| {title} | {' | '.join(TITLES.values())} |", "|---|" + "---|" * len(KINDS)]
        for statement in statements:
            cells = ["refused" if isinstance(statement.expected(kind), Refused) else "works" for kind in KINDS]
            text = statement.sql.replace("|", "\\|")
            lines.append(f"| `{text}` | {' | '.join(cells)} |")
    return "\n".join(lines).strip()


if __name__ == "__main__":
    print(page())
