"""Random histories of UPDATE, DELETE, MERGE and INSERT on each kind of table, against the same on plain rows."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.spark.merge_sources import source
from tests.spark.paimon.table_kinds import KINDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

Sql = Callable[[str], list[tuple[Any, ...]]]
Row = tuple[int, str | None, float | None]
Model = dict[int, Row]
Condition = tuple[str, Callable[[Model, Row], bool]]

STATEMENTS, IDS = 14, 40
COLUMNS = "(id BIGINT NOT NULL, name STRING, amount DOUBLE)"
LIVE = "'primary.key'='id', 'bucket.num'='3'"
# A table with sequence.field keeps the newer version of a row, so there amounts must not become less.
TABLES = {"live": LIVE, **{kind: options for kind, options in KINDS.items() if kind != "sequence"}}


def is_more(amount: float | None, than: float) -> bool:
    """SQL's >, by which NaN is greater than all numbers."""
    return amount is not None and (math.isnan(amount) or amount > than)


def any_condition(chance: random.Random) -> Condition:
    m, r, x = chance.randint(2, 5), chance.randint(0, 1), chance.choice([-3.0, 0.0, 2.5, 7.0])
    name = chance.choice(["a", "b", "c"])
    return chance.choice(
        [
            (f"t.id % {m} = {r}", lambda _, row: row[0] % m == r),
            (f"t.amount > {x}", lambda _, row: is_more(row[2], x)),
            ("t.name IS NULL", lambda _, row: row[1] is None),
            (f"t.name = '{name}' OR t.id < 5", lambda _, row: row[1] == name or row[0] < 5),
            (
                f"t.id IN (SELECT id + 1 FROM {{db}}.t WHERE id % {m} = 0)",
                lambda model, row: row[0] - 1 in model and (row[0] - 1) % m == 0,
            ),
            (
                "t.id = (SELECT max(id) FROM {db}.t)",
                lambda model, row: row[0] == max(model, default=None),  # type: ignore[type-var]
            ),
            (
                f"EXISTS (SELECT 1 FROM {{db}}.t o WHERE o.name = t.name AND o.id = t.id + {m})",
                lambda model, row: row[1] is not None and row[0] + m in model and model[row[0] + m][1] == row[1],
            ),
        ]
    )


def any_row(chance: random.Random, number: int) -> Row:
    return (number, chance.choice(["a", "b", "c", None]), chance.choice([1.5, 4.0, -2.0, None]))


def insert(chance: random.Random, model: Model) -> str:
    new = [any_row(chance, i) for i in chance.sample(range(IDS), 8) if i not in model]
    model.update({row[0]: row for row in new})
    return f"INSERT INTO {{db}}.t SELECT * FROM {source(*new)}" if new else "SELECT 1"


def update(chance: random.Random, model: Model) -> str:
    text, holds = any_condition(chance)
    value = chance.choice(["coalesce(amount, 1) + 1", "id / 2", "CAST('NaN' AS DOUBLE)"])
    for row in [row for row in model.values() if holds(dict(model), row)]:
        amount = (row[2] if row[2] is not None else 1.0) + 1 if "coalesce" in value else row[0] / 2
        model[row[0]] = (row[0], f"{row[1] or 'x'}"[:1], math.nan if "NaN" in value else amount)
    return f"UPDATE {{db}}.t AS t SET amount = {value}, name = substr(coalesce(name, 'x'), 1, 1) WHERE {text}"


def delete(chance: random.Random, model: Model) -> str:
    text, holds = any_condition(chance)
    before = dict(model)
    for row in before.values():
        if holds(before, row) and row[0] % 3:
            del model[row[0]]
    return f"DELETE FROM {{db}}.t AS t WHERE ({text}) AND t.id % 3 <> 0"


def merge(chance: random.Random, model: Model) -> str:
    given = {i: any_row(chance, i) for i in chance.sample(range(IDS), 9)}
    r = chance.randint(0, 2)
    by_source = chance.random() < 0.5
    there = dict(model)
    for i, row in there.items():
        other = given.get(i)
        if other is None:
            if by_source and i % 5 == r:
                del model[i]
        elif i % 4 == r:
            del model[i]
        elif other[2] is not None:
            model[i] = (i, other[1] if other[1] is not None else row[1], other[2])
    model.update({i: row for i, row in given.items() if i not in there and row[1] is not None})
    clause = f"WHEN NOT MATCHED BY SOURCE AND t.id % 5 = {r} THEN DELETE" if by_source else ""
    return f"""MERGE INTO {{db}}.t AS t USING {source(*given.values())} ON t.id = s.id
               WHEN MATCHED AND t.id % 4 = {r} THEN DELETE
               WHEN MATCHED AND s.amount IS NOT NULL THEN UPDATE SET name = coalesce(s.name, t.name), amount = s.amount
               WHEN NOT MATCHED AND s.name IS NOT NULL THEN INSERT * {clause}"""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", TABLES)
def test_tables_and_plain_rows_stay_the_same(sql: Sql, lake_sql: Sql, kind: str, seed: int) -> None:
    run = sql if kind == "live" else lake_sql
    chance = random.Random(f"{kind} {seed}")
    options = TABLES[kind]
    run(f"CREATE TABLE {{db}}.t {COLUMNS} " + (f"TBLPROPERTIES ({options})" if options else ""))
    model: Model = {}
    done = [insert(chance, model)]
    run(done[0])
    for _ in range(STATEMENTS):
        done.append(chance.choice([insert, update, update, delete, merge, merge])(chance, model))
        run(done[-1])
        found = run("SELECT * FROM {db}.t ORDER BY id")
        assert repr(found) == repr([model[i] for i in sorted(model)]), "\n".join(done)
