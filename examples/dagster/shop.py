"""Dagster assets in live tables and from a lake: `dagster dev -f examples/dagster/shop.py`.

`ForebayIOManager` is 30 lines to copy: an asset's value goes into the live table of its name (replaced by key where the
table has a primary key), and downstream assets get it as an Arrow table, with lake and stream as one.
"""

import os
from decimal import Decimal

import pyarrow as pa

import dagster as dg
import forebay


class Forebay(dg.ConfigurableResource):  # type: ignore[misc]  # dagster is not installed where types are checked
    """The cluster and the warehouse."""

    bootstrap_servers: str
    warehouse: str

    def sql(self, statement: str) -> pa.Table:
        """The rows of a statement over live tables and the lake."""
        return forebay.sql(statement, self.bootstrap_servers, self.warehouse).to_arrow()


class ForebayIOManager(dg.ConfigurableIOManager):  # type: ignore[misc]
    """Keeps assets in live tables: database and table are the last two parts of the asset's key."""

    bootstrap_servers: str

    def handle_output(self, context: dg.OutputContext, obj: pa.Table) -> None:
        """Write an asset, once for each run and partition: a step that Dagster retries adds nothing."""
        name = ".".join(context.asset_key.path[-2:])
        once = f"dagster/{context.run_id}/{name}/{context.partition_key if context.has_partition_key else ''}"
        with forebay.connect(self.bootstrap_servers) as connection:
            table = connection.table(name)
            with connection.transaction(once, 0) as transaction:
                write = transaction.upsert if table.has_primary_key else transaction.append
                write(table, obj)
        context.add_output_metadata({"rows": obj.num_rows, "table": name})

    def load_input(self, context: dg.InputContext) -> pa.Table:
        """The rows of an asset, lake and stream as one."""
        with forebay.connect(self.bootstrap_servers) as connection:
            return connection.table(".".join(context.asset_key.path[-2:])).scan(source="union").to_arrow()


@dg.asset(key_prefix="fluss", io_manager_key="live")
def orders() -> pa.Table:
    """New orders, from wherever they come."""
    return pa.table(
        {
            "id": [1, 2, 3],
            "item": pa.array([1, 2, 1], pa.int32()),
            "amount": pa.array([Decimal("2.50"), Decimal("3.00"), Decimal("4.00")], pa.decimal128(10, 2)),
        }
    )


@dg.asset(key_prefix="fluss", io_manager_key="live", deps=[orders])
def revenue(shop: Forebay) -> pa.Table:
    """Revenue by item: live orders joined with the lake's names, as of one instant."""
    return shop.sql(
        """SELECT item, name, count(*) AS orders, sum(amount)::DECIMAL(10, 2) AS amount
           FROM fluss.orders JOIN lake.shop.items USING (item) GROUP BY item, name"""
    )


@dg.asset_check(asset=revenue, blocking=True)
def every_order_counts(shop: Forebay) -> dg.AssetCheckResult:
    """The revenue has all orders."""
    counted = shop.sql("SELECT sum(orders) AS n FROM fluss.revenue")["n"][0].as_py()
    written = shop.sql("SELECT count(*) AS n FROM fluss.orders")["n"][0].as_py()
    return dg.AssetCheckResult(passed=counted == written, metadata={"orders": written})


@dg.asset
def best_seller(context: dg.AssetExecutionContext, revenue: pa.Table) -> str:
    """The item that sold best; the IO manager reads `revenue`."""
    best = revenue.sort_by([("amount", "descending")]).slice(0, 1).to_pylist()[0]["name"]
    context.log.info(f"best seller: {best}")
    return str(best)


SERVER = os.environ.get("FOREBAY_BOOTSTRAP_SERVERS", "127.0.0.1:9123")
defs = dg.Definitions(
    assets=[orders, revenue, best_seller],
    asset_checks=[every_order_counts],
    resources={
        "live": ForebayIOManager(bootstrap_servers=SERVER),
        "shop": Forebay(bootstrap_servers=SERVER, warehouse=os.environ.get("FOREBAY_WAREHOUSE", "lake")),
    },
)

if __name__ == "__main__":
    result = defs.resolve_implicit_global_asset_job_def().execute_in_process()
    print("best seller:", result.output_for_node("best_seller"))
