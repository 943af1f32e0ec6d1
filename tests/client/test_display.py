"""The representation of a connection, a table and listings in a terminal and in a notebook."""

from __future__ import annotations

import pickle
from html.parser import HTMLParser

import pyarrow as pa
import pytest

import forebay.client
from forebay.client.connection import Connection, connect
from forebay.client.display import Listing, grid, table_html
from forebay.client.reading.live_cursor import bucket_scan
from forebay.client.results import ConfigEntry
from forebay.client.settings import make_settings
from forebay.metadata.table import Column, Schema, TableDescriptor, TableInfo, TablePath
from forebay.metadata.types import int_, string
from tests.client.conftest import MakeTable


class Cells(HTMLParser):
    """The texts of the cells; and a check that every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_table_shows_path_columns_keys_buckets_and_properties(make_table: MakeTable) -> None:
    table = make_table(
        {"day": pa.date32(), "id": pa.int64(), "v": pa.string()},
        primary_key=["day", "id"],
        partition_keys=["day"],
        buckets=3,
        comment="what it is for",
        options={"table.kv.format": "COMPACTED", "team": "blue"},
    )
    cells = Cells(table._repr_html_())
    told = " ".join(cells.texts)
    for text in (
        str(table.path),
        "primary-key table",
        "DATE",
        "BIGINT",
        "3 in each partition",
        "what it is for",
        "COMPACTED",
        "team",
        "blue",
    ):
        assert text in told
    assert repr(table) == (
        f"<forebay.Table {table.path}, primary key (day, id), partitioned by (day), 3 buckets, columns day, id, v>"
    )


def test_nothing_that_users_named_is_taken_for_html() -> None:
    nasty = "<script>alert('1')</script>&\""
    info = TableInfo(
        TablePath("d", "t"),
        1,
        1,
        TableDescriptor(
            Schema.of([Column("a", int_(), nasty), Column("b", string())]),
            bucket_count=1,
            comment=nasty,
            custom_properties={nasty: nasty},
        ),
    )
    cells = Cells(table_html(info))
    assert "log table" in " ".join(cells.texts)
    assert cells.tags == {"div", "b", "i", "table", "tr", "th", "td"}
    assert cells.texts.count(nasty) == 4


def test_the_package_has_the_names_that_it_says_and_no_others() -> None:
    assert forebay.client.connect is connect
    with pytest.raises(AttributeError, match=r"module 'forebay\.client' has no attribute 'disconnect'"):
        _ = forebay.client.disconnect


def test_a_connection_shows_its_servers_and_no_password(bootstrap: str, conn: Connection) -> None:
    cells = Cells(conn._repr_html_())
    assert "coordinator" in cells.texts
    assert "tablet" in cells.texts
    secret = Connection(make_settings(bootstrap, "alice", "very secret"))
    assert "very secret" not in secret._repr_html_() + repr(secret)
    assert "not connected yet" in secret._repr_html_()


def test_a_reading_shows_what_it_reads_and_takes_no_rows(make_table: MakeTable) -> None:
    table = make_table({"id": pa.int64(), "v": pa.string()}, primary_key=["id"], buckets=2)
    table.upsert([{"id": 1, "v": "a"}])
    scan, log = table.scan(columns=["v"]), table.changes(stop="latest")
    assert "int" not in Cells(scan._repr_html_()).texts
    reader = scan.reader()
    assert repr(scan) == f"<forebay.LiveTableScan of {table.path}, source live, columns v>"
    assert repr(reader) == f"<forebay.TableReader of {table.path}, 0 of 2 buckets read, columns v, not begun>"
    assert repr(log) == f"<forebay.LogReader of {table.path}, 2 buckets, up to fixed offsets>"
    assert reader.read_all().num_rows == 1
    assert log.to_arrow().num_rows == 1
    assert repr(reader) == f"<forebay.TableReader of {table.path}, 2 of 2 buckets read, columns v, read>"
    assert repr(log).endswith(", finished>")
    one = bucket_scan(table.connection, table.info, 0)
    assert repr(one).endswith("0 rows read>")
    list(one)
    assert repr(one).endswith("finished>")
    rows = make_table({"id": pa.int64()})
    where = f"{rows.path}, 1 buckets, up to fixed offsets"
    assert repr(rows.scan().reader()) == f"<forebay.LogRowReader of {where}, columns id, not begun>"


def test_listings_are_lists_that_a_notebook_shows_as_tables(conn: Connection, make_table: MakeTable) -> None:
    table = make_table({"a": pa.int64(), "p": pa.string()}, partition_keys=["p"])
    for name in ("x", "y"):
        table.create_partition({"p": name})
    partitions = table.partitions()
    assert isinstance(partitions, Listing)
    assert pickle.loads(pickle.dumps(partitions)) == list(partitions)
    assert {"partition_id", "spec"} <= set(Cells(partitions._repr_html_()).texts)
    assert "127.0.0.1" in Cells(Listing(conn.admin.server_nodes())._repr_html_()).texts
    assert Cells(Listing([ConfigEntry("k", None, "s")])._repr_html_()).texts == ["key", "value", "source", "k", "s"]
    assert Cells(Listing[str]()._repr_html_()).texts == []
    assert "and 50 more" in grid(("n",), [(n,) for n in range(250)])
    assert repr(conn.admin).startswith("<forebay.Admin of <forebay.Connection")
