"""pypaimon and its Rust engine merge level-0 files that we wrote, with the same rows as ours.

Options that they reject (sequence groups, retractions) are left out: the reference and Java's sources decide those.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from forebay.paimon.table import Table
from tests.paimon.lake import new_catalog, put
from tests.paimon.oracle import ask

pytestmark = [pytest.mark.foreign, pytest.mark.slow, pytest.mark.timeout(300)]

PROGRAM = (Path(__file__).parents[1] / "pypaimon_program.py").read_text()

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("d", pa.float64()),
        ("t", pa.string()),
        ("b", pa.bool_()),
        ("m", pa.decimal128(12, 2)),
        ("w", pa.decimal128(30, 2)),
        ("g", pa.int32()),
        ("l", pa.list_(pa.int32())),
    ]
)
AGGREGATION = {"merge-engine": "aggregation"}
PARTIAL = {"merge-engine": "partial-update"}

BOTH = ("python", "rust")
CASES: dict[str, tuple[dict[str, str], tuple[str, ...], bool]] = {
    "deduplicate": ({}, BOTH, True),
    "sequence": ({"sequence.field": "g"}, BOTH, True),
    "sequence-text-descending": ({"sequence.field": "t", "sequence.field.sort-order": "descending"}, ("rust",), False),
    "partial": (PARTIAL, BOTH, False),
    "partial-sequence": ({**PARTIAL, "sequence.field": "g"}, BOTH, False),
    "sums": (
        {
            **AGGREGATION,
            "fields.n.aggregate-function": "sum",
            "fields.d.aggregate-function": "max",
            "fields.t.aggregate-function": "min",
            "fields.b.aggregate-function": "bool_and",
            "fields.m.aggregate-function": "sum",
            "fields.w.aggregate-function": "sum",
            "fields.g.aggregate-function": "product",
            "fields.l.aggregate-function": "collect",
        },
        BOTH,
        False,
    ),
    "values": (
        {
            **AGGREGATION,
            "fields.n.aggregate-function": "first_value",
            "fields.d.aggregate-function": "first_non_null_value",
            "fields.t.aggregate-function": "listagg",
            "fields.b.aggregate-function": "bool_or",
            "fields.m.aggregate-function": "max",
            "fields.w.aggregate-function": "last_value",
            "fields.g.aggregate-function": "last_non_null_value",
        },
        BOTH,
        False,
    ),
}


def rows(rng: random.Random, count: int) -> pa.Table:
    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.25 else value

    found = []
    for _ in range(count):
        found.append(
            {
                "id": rng.randrange(40),
                "n": maybe(rng.randrange(-100, 100)),
                "d": maybe(rng.choice([-0.5, 0.25, 8.0])),
                "t": maybe(rng.choice(["a", "b", "é", "zz"])),
                "b": maybe(rng.random() < 0.5),
                "m": maybe(rng.randrange(100)),
                "w": maybe(rng.randrange(10**6)),
                "g": maybe(rng.randrange(1, 4)),
                "l": maybe([rng.randrange(9) for _ in range(rng.randrange(3))]),
            }
        )
    return pa.Table.from_pylist(found, schema=COLUMNS)


def read_by_pypaimon(warehouse: str, out: Path, rust: str) -> list[dict[str, Any]]:
    ask(PROGRAM, "read", warehouse, "db.t", str(out), rust)
    with pa.OSFile(str(out)) as source:
        found: list[dict[str, Any]] = pa.ipc.open_file(source).read_all().sort_by("id").to_pylist()
    return found


def ours(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan().to_arrow().sort_by("id").to_pylist()
    return found


@pytest.mark.parametrize(("case", "reader"), [(case, reader) for case in CASES for reader in CASES[case][1]])
def test_they_merge_what_we_wrote_as_we_do(tmp_path: Path, case: str, reader: str) -> None:
    options, _, deletes = CASES[case]
    sequence = [options["sequence.field"]] if "sequence.field" in options else []
    catalog = new_catalog(tmp_path)
    table = catalog.create_table("db.t", COLUMNS, primary_key=["id"], options={"bucket": "2", **options})
    rng = random.Random(case)
    for _ in range(6):
        put(table, rows(rng, 60))
    if deletes:
        table.delete(rows(rng, 20).select(["id", *sequence]).drop_null())
        put(table, rows(rng, 10))
    assert read_by_pypaimon(catalog.warehouse, tmp_path / "out", reader) == ours(table)
