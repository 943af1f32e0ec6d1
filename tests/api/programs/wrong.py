"""Mistakes that a type checker must report: each line that ends in `# wrong` is one."""

import forebay
from forebay.paimon import Catalog

conn = forebay.connect("127.0.0.1:9123")
conn.create_table("shop.a", 5)  # wrong
conn.create_table("shop.a", {"id": int})  # wrong
conn.create_table("shop.a", {"id": "BIGINT"}, primary_keys=["id"])  # wrong
live = conn.table("shop.orders")
live.upsert(5)  # wrong
live.upsert("rows")  # wrong
live.append([1, 2])  # wrong
live.scan(limit="3")  # wrong
live.scan(filter=5)  # wrong
live.lookup([1], missing="maybe")  # wrong
live.snapshot(lease=[1])  # wrong
live.union_scan()  # wrong
lake = Catalog.open("/lake").table("shop.orders")
lake.write([{"id": 1}])  # wrong
lake.append(5)  # wrong
lake.scan(as_of=1.5)  # wrong
lake.create_tag("before", retain=[1])  # wrong
lake.expire_snapshots(older_than_ms=5)  # wrong
