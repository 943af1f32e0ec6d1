"""Programs of users, for type checkers; tests/api/test_user_programs.py checks them, and they are never run."""

import datetime as dt

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

import forebay
import forebay.paimon
from forebay.paimon import Catalog

conn = forebay.connect("127.0.0.1:9123")
live = conn.create_table("shop.orders", [("id", "BIGINT"), ("at", pa.timestamp("us"))], primary_key="id", buckets=4)
conn.create_table("shop.a", {"id": forebay.types.bigint(), "v": "STRING NOT NULL"}, options={"table.log.ttl": "7 d"})
conn.create_table("shop.b", pa.schema([("id", pa.int64())]), partition_keys=["id"])
conn.create_table("shop.c", pd.DataFrame({"id": [1]}))
live.upsert([{"id": 1}])
live.upsert(pa.table({"id": [1]}), columns=["id"])
live.upsert(pd.DataFrame({"id": [1]}))
live.upsert(live.scan())
live.delete([1, 2])
live.alter(add_columns={"note": "STRING"}).refresh()
rows: pa.Table = live.scan(["id"], "id > 5 AND at IS NOT NULL", 10).to_arrow()
live.scan(filter=forebay.col("id") > 5, source="union").count()
live.scan(filter=pc.field("id") > 5).head(3)
live.lookup([1, 2], missing="drop")
with live.snapshot(lease=dt.timedelta(minutes=1)) as snapshot, live.changes(snapshot.log_offsets, "latest") as changes:
    for batch in changes:
        print(batch.num_rows)
with live.writer() as writer:
    writer.upsert({"id": 1})

catalog = Catalog.open("/lake")
lake = catalog.create_table("shop.orders", [("id", "BIGINT")], primary_key=["id"], options={"bucket": 2})
print(lake.upsert([{"id": 1}]).snapshot, lake.scan(as_of=dt.datetime.now()).to_pandas(), lake.changes("full"))
lake.expire_snapshots(older_than=dt.timedelta(days=1))
lake.create_tag("before", retain="30 d")
