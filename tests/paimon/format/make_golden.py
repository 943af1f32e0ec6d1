"""Creates `golden/`: a small table written by pypaimon, without its data files.

Run it from the repository's root with `python -m tests.paimon.format.make_golden`; the files are committed, so that the
tests do not need pypaimon.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.paimon.oracle import ask

GOLDEN = Path(__file__).parent / "golden"
KEPT = ("schema", "snapshot", "manifest", "tag")

PROGRAM = """
import datetime, decimal, sys
import pyarrow as pa
from pypaimon import CatalogFactory, Schema

catalog = CatalogFactory.create({"warehouse": sys.argv[1]})
catalog.create_database("db", True)
utc = datetime.timezone.utc
schema = pa.schema([
    pa.field("dt", pa.date32(), nullable=False),
    pa.field("id", pa.int64(), nullable=False),
    ("b", pa.bool_()), ("i8", pa.int8()), ("i16", pa.int16()), ("i32", pa.int32()),
    ("f", pa.float32()), ("d", pa.float64()), ("s", pa.string()), ("y", pa.binary()),
    ("p5", pa.decimal128(5, 2)), ("p30", pa.decimal128(30, 4)),
    ("ts", pa.timestamp("us")), ("ts3", pa.timestamp("ms")), ("l", pa.list_(pa.int32())),
    ("m", pa.map_(pa.string(), pa.int64())), ("r", pa.struct([("x", pa.int32()), ("z", pa.string())])),
])
def row(i):
    return dict(dt=datetime.date(2024, 1, 1 + i % 2), id=i, b=i % 2 == 0, i8=i - 2, i16=-i, i32=i * 1000, f=i / 2,
        d=-i / 4, s="text number %d" % i, y=bytes([i, 255]), p5=decimal.Decimal(i) / 4, p30=decimal.Decimal(10**20 * i),
        ts=datetime.datetime(2024, 1, 1, 0, 0, i, 123456), ts3=datetime.datetime(2024, 1, 1, 0, i, 0, 5000),
        l=[i, None], m=[("k", i)], r=dict(x=i, z=None if i == 2 else "z%d" % i))
for name, keys, options in (
    ("pk", ["dt", "id"], {"bucket": "2", "metadata.stats-mode": "full"}),
    ("log", [], {"metadata.stats-mode": "full"}),
):
    catalog.create_table("db." + name, Schema.from_pyarrow_schema(
        schema, partition_keys=["dt"], primary_keys=keys, options=options, comment="made by pypaimon"), True)
    table = catalog.get_table("db." + name)
    for start in (0, 4):
        builder = table.new_batch_write_builder()
        write, commit = builder.new_write(), builder.new_commit()
        write.write_arrow(pa.Table.from_pylist([row(i) for i in range(start, start + 4)], schema=schema))
        commit.commit(write.prepare_commit())
        write.close(); commit.close()
    table.create_tag("t1", 1)
"""


def main() -> None:
    """Replace the golden files."""
    with tempfile.TemporaryDirectory() as warehouse:
        ask(PROGRAM, warehouse)
        shutil.rmtree(GOLDEN, ignore_errors=True)
        for name in ("pk", "log"):
            for part in KEPT:
                shutil.copytree(Path(warehouse) / "db.db" / name / part, GOLDEN / name / part)


if __name__ == "__main__":
    main()
