"""Moving tables from one server to another: rows, order, lake history; interrupted anywhere, and rejected in time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay
from forebay.base.errors import (
    AlreadyExists,
    Conflict,
    CorruptData,
    ErrorCode,
    ForebayError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    Unavailable,
    UnsupportedOperation,
)
from forebay.cli.main import main
from forebay.client.cluster.cluster import ClusterClient
from forebay.client.connection import Connection
from forebay.client.table import Table
from forebay.codec._hash import checksums
from forebay.lake.formats import create_lake_storage
from forebay.lake.tiering import CommitterContext
from forebay.metadata import types
from forebay.metadata.table import Column, TableBucket, TablePath
from forebay.moving import move_database, move_table, plan_move
from forebay.moving.history import hand_over
from forebay.moving.plan import MARK, Side
from forebay.protocol.api import ServerNode
from forebay.server.embedded import EmbeddedServer
from forebay.tiering.now import tier_table
from tests.every_run import every_run

SCHEMA = {"k": pa.int32(), "p": pa.string(), "v": pa.string()}
LAKE = {"table.datalake.enabled": "true"}
PATH = TablePath("fluss", "t")


class Servers:
    """Two servers with one lake."""

    def __init__(self, here: Connection, there: Connection) -> None:
        self.here, self.there = here, there

    def make(self, *, keyed: bool = False, partitioned: bool = False, lake: bool = True, **options: Any) -> Table:
        """A table with 100 rows, of which half are in the lake."""
        key = ["k", "p"] if partitioned else ["k"]
        self.here.create_table(
            PATH,
            SCHEMA,
            primary_key=key if keyed else [],
            partition_keys=["p"] if partitioned else [],
            buckets=3,
            **{**options, "options": {**(LAKE if lake else {}), **options.get("options", {})}},
        )
        for partition in ("x", "y") if partitioned else ():
            self.here.table(PATH).create_partition({"p": partition})
        table = self.here.table(PATH)
        for first in range(0, 100, 10):
            write(table, *range(first, first + 10))
            if lake and first == 50:
                tier_table(self.here, PATH)
        return table


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(tmp_path / "lake")}
    with ExitStack() as stack:
        running = [stack.enter_context(EmbeddedServer(tmp_path / name, settings=settings)) for name in ("a", "b")]
        here, there = (stack.enter_context(forebay.connect(server.bootstrap_servers)) for server in running)
        yield Servers(here, there)


def write(table: Table, *keys: int, said: str = "v") -> None:
    rows = [{"k": k, "p": "xy"[k % 2], "v": f"{said}{k}"} for k in keys]
    (table.upsert if table.has_primary_key else table.append)(rows)


def bag(table: Table, source: str = "union") -> list[str]:
    return sorted(map(repr, table.refresh().scan(source=source).to_arrow().to_pylist()))


def log_of(table: Table) -> dict[tuple[Any, int], list[int]]:
    """The keys in each bucket's log, in order, by partition value and bucket."""
    found: dict[tuple[Any, int], list[int]] = {}
    for row in table.changes("earliest", "latest").to_arrow().to_pylist():
        partition = row["p"] if table.info.is_partitioned else None
        found.setdefault((partition, row["__bucket"]), []).append(row["k"])
    return found


@pytest.mark.parametrize("lake", [True, False])
@pytest.mark.parametrize(("keyed", "partitioned"), [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.one_in(2)
def test_rows_order_and_definition_arrive(servers: Servers, keyed: bool, partitioned: bool, lake: bool) -> None:
    options = {"comment": "kept", "options": {"owner": "me"}}
    table = servers.make(keyed=keyed, partitioned=partitioned, lake=lake, **options)
    report = move_table(servers.here, servers.there, PATH)
    moved = servers.there.table(PATH)
    assert report.rows.rows == 100
    assert bag(moved) == bag(table)
    assert bag(moved, "live") == bag(table, "live")
    assert (moved.info.descriptor.comment, moved.info.bucket_count) == ("kept", 3)
    assert moved.info.descriptor.custom_properties.keys() == {"owner", MARK}
    assert moved.info.lake_enabled == lake
    if not keyed:
        assert log_of(moved) == log_of(table)
        assert report.log_records == 100


@pytest.mark.parametrize("keyed", [False, True])
def test_the_target_continues_tiering_where_the_source_stopped_and_the_source_is_fenced_off(
    servers: Servers, keyed: bool
) -> None:
    table = servers.make(keyed=keyed)
    report = move_table(servers.here, servers.there, PATH)
    moved = servers.there.table(PATH)
    write(moved, *range(90, 120), said="new")
    expected = bag(moved)
    assert tier_table(servers.there, PATH).snapshot_id > (report.lake_snapshot or 0)
    assert bag(moved) == expected
    write(table, 200)
    with pytest.raises(Conflict):
        tier_table(servers.here, PATH)
    assert bag(moved) == expected


def test_a_table_moves_back_and_its_history_with_it(servers: Servers) -> None:
    table = servers.make()
    move_table(servers.here, servers.there, PATH, drop_source=True)
    write(servers.there.table(PATH), 100)
    move_table(servers.there, servers.here, PATH, drop_source=True)
    back = servers.here.table(PATH)
    assert len(bag(back)) == 101
    assert not servers.there.table_exists(PATH)
    write(back, 101)
    tier_table(servers.here, PATH)
    assert len(bag(back)) == 102
    assert back.info.table_id != table.info.table_id


class Killed(BaseException):
    """The end of a process, as far as the servers see it."""


STEPS = (
    "tiering", "creating the table", "copying", "comparing logs", "handing the lake table over",
    "switching the lake on", "comparing rows", "dropping the source's table",
)  # fmt: skip


@pytest.mark.parametrize(
    ("step", "keyed"),
    every_run(
        [(step, keyed) for step in STEPS for keyed in (False, True)],
        lambda case: case[1] == bool(tuple(STEPS).index(case[0]) % 2),
    ),
)
def test_a_move_that_is_killed_continues_and_doubles_nothing(servers: Servers, step: str, keyed: bool) -> None:
    expected = bag(servers.make(keyed=keyed, partitioned=True))
    seen = []

    def kill(_path: TablePath, at: str, _rows: int) -> None:
        seen.append(at)
        if at == step:
            raise Killed

    try:
        move_table(servers.here, servers.there, PATH, drop_source=True, on_progress=kill)
    except Killed:
        report = move_table(servers.here, servers.there, PATH, drop_source=True)
        assert report.rows.rows == 100
    else:
        assert keyed
        assert step not in seen
    moved = servers.there.table(PATH)
    assert bag(moved) == expected == bag(moved, "live")
    assert not servers.here.table_exists(PATH)


def test_a_target_that_was_not_told_of_its_lake_snapshot_is_told_by_the_next_run(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bag(servers.make())

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("forebay.moving.history._register", killed)
        with pytest.raises(Killed):
            move_table(servers.here, servers.there, PATH)
    move_table(servers.here, servers.there, PATH)
    assert bag(servers.there.table(PATH)) == expected


def test_a_target_that_refuses_the_lake_table_gives_it_back_and_may_be_tried_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = servers.make()

    def refuse(*_: Any, **__: Any) -> None:
        raise InvalidRequest("no lake today")

    with monkeypatch.context() as patch:
        patch.setattr("forebay.client.table.Table.alter", refuse)
        with pytest.raises(InvalidRequest, match="no lake today") as refused:
            move_table(servers.here, servers.there, PATH)
    assert any("given back" in note for note in refused.value.__notes__)
    write(table, *range(100, 110))
    tier_table(servers.here, PATH)
    expected = bag(table)
    assert len(expected) == 110
    move_table(servers.here, servers.there, PATH)
    assert bag(servers.there.table(PATH)) == expected


@pytest.mark.parametrize("keyed", [False, True])
def test_a_writer_that_was_not_stopped_fails_the_move_and_the_next_one_has_its_rows(
    servers: Servers, keyed: bool
) -> None:
    table = servers.make(keyed=keyed)

    def write_more(_path: TablePath, step: str, rows: int) -> None:
        if step == "copying" and rows == 100:
            write(table, 500)

    with pytest.raises(Conflict, match="written to while"):
        move_table(servers.here, servers.there, PATH, on_progress=write_more)
    assert not servers.there.table(PATH).info.lake_enabled
    tier_table(servers.here, PATH)  # the lake is still the source's
    report = move_table(servers.here, servers.there, PATH)
    assert report.rows.rows == 101
    assert bag(servers.there.table(PATH)) == bag(table)


def test_rows_that_were_written_to_the_target_are_found(servers: Servers) -> None:
    servers.make(keyed=True, lake=False)
    move_table(servers.here, servers.there, PATH)
    write(servers.there.table(PATH), 1000)
    with pytest.raises(CorruptData, match="101 rows"):
        move_table(servers.here, servers.there, PATH, drop_source=True)
    assert servers.here.table_exists(PATH)


def test_a_log_of_the_target_in_another_order_is_found(servers: Servers) -> None:
    servers.make(lake=False)
    plan = plan_move(servers.here, servers.there, PATH)
    servers.there.admin.create_table_as(PATH, plan.descriptor)
    write(servers.there.table(PATH), *range(5, 0, -1))
    with pytest.raises(CorruptData, match="the log of bucket"):
        move_table(servers.here, servers.there, PATH)


def test_a_log_of_the_target_that_is_longer_is_no_copy(servers: Servers) -> None:
    servers.make(lake=False, partitioned=True)
    plan = plan_move(servers.here, servers.there, PATH)
    servers.there.admin.create_table_as(PATH, plan.descriptor)
    target = servers.there.table(PATH)
    for partition in ("x", "y"):
        servers.there.table(PATH).create_partition({"p": partition})
    write(target, *range(0, 400, 2))  # partition x alone
    with pytest.raises(
        InvalidRequest, match=r"bucket \d of partition 'x' of table fluss\.t has offsets 0 to \d+ on the"
    ):
        move_table(servers.here, servers.there, PATH)
    assert servers.here.table_exists(PATH)


def test_a_table_of_the_target_that_is_something_else_is_left_alone(servers: Servers) -> None:
    servers.make(lake=False)
    servers.there.create_table(PATH, SCHEMA)
    with pytest.raises(AlreadyExists, match="something else"):
        move_table(servers.here, servers.there, PATH)


def test_a_lake_table_that_is_tiered_meanwhile_is_not_handed_over(servers: Servers, tmp_path: Path) -> None:
    table = servers.make()
    plan = plan_move(servers.here, servers.there, PATH)
    servers.there.admin.create_table_as(PATH, plan.descriptor)
    target = Side.of(servers.there, PATH)
    known = plan.source.lake_snapshot
    assert known is not None
    storage = create_lake_storage("paimon", {"warehouse": str(tmp_path / "lake")})
    context = CommitterContext(table.refresh().info, 1 << 40, known.snapshot_id)
    newest = storage.create_tiering_factory().create_committer(context).commit([], {}).snapshot_id
    words = f"of fluss.t is {newest}, and its cluster knows {known.snapshot_id}: bring it up to date first"
    with pytest.raises(Conflict, match=re.escape(words)):
        hand_over(storage, plan.source, target, target.ends)
    assert target.lake_snapshot is None


def test_a_lake_snapshot_without_the_log_is_enough_where_it_is_requested(servers: Servers) -> None:
    expected = bag(servers.make())
    report = move_table(servers.here, servers.there, PATH, with_log=False)
    moved = servers.there.table(PATH)
    assert (report.log_records, bag(moved), bag(moved, "live")) == (0, expected, [])
    write(moved, 100)
    tier_table(servers.there, PATH)
    assert len(bag(moved)) == 101


def steps(servers: Servers, **options: Any) -> list[str]:
    return [line.strip() for line in str(plan_move(servers.here, servers.there, PATH, **options)).splitlines()]


def test_a_plan_says_what_is_to_be_done_and_does_nothing(servers: Servers) -> None:
    servers.make(keyed=True, partitioned=True)
    assert steps(servers) == [
        "table fluss.t: 6 buckets, 100 records in their logs",
        "1. tier what the lake lacks on the source (40 log offsets)",
        "2. create the table on the target, without a lake",
        "3. create partitions that are missing there, of 2",
        "4. upsert all rows",
        "5. hand the lake table over: one lake snapshot with the target's offsets",
        "6. switch the lake on for the table on the target",
        "7. compare counts and checksums of both sides",
    ]
    assert not servers.there.table_exists(PATH)


def test_a_plan_says_that_a_move_continues_with_what_the_target_has(servers: Servers) -> None:
    servers.make(lake=False)
    move_table(servers.here, servers.there, PATH)
    logs = "append the logs, bucket by bucket in their order"
    for with_log in (True, False):  # without a lake, the log is all there is
        assert steps(servers, with_log=with_log) == [
            "table fluss.t: 3 buckets, 100 records in their logs",
            "1. continue with the table on the target, whose logs have 100 records",
            f"2. {logs}",
            "3. compare counts and checksums of both sides",
        ]


def test_a_plan_without_the_log_of_a_tiered_table_appends_nothing(servers: Servers) -> None:
    servers.make()
    logs = "append the logs, bucket by bucket in their order"
    assert [sum(logs in step for step in steps(servers, with_log=with_log)) for with_log in (True, False)] == [1, 0]


def test_properties_that_the_target_does_not_know_are_left_out(servers: Servers) -> None:
    options = {"options": {"table.log.ttl": "1 d", "owner": "me", "kept": "yes"}}
    servers.make(lake=False, **options)
    plan = plan_move(servers.here, servers.there, PATH, leave_out=["table.log.ttl", "owner"])
    assert "table.log.ttl" not in plan.descriptor.properties
    assert plan.descriptor.custom_properties.keys() == {"kept", MARK}
    assert plan_move(servers.here, servers.there, PATH).descriptor.properties["table.log.ttl"] == "1 d"
    with pytest.raises(InvalidRequest, match=r"table fluss\.t has no property 'a', 'b' to leave out"):
        plan_move(servers.here, servers.there, PATH, leave_out=["b", "owner", "a"])


def test_a_target_that_was_altered_or_has_other_buckets_is_refused(servers: Servers) -> None:
    table = servers.make(lake=False)
    plan = plan_move(servers.here, servers.there, PATH)
    servers.there.admin.create_table_as(PATH, replace(plan.descriptor, bucket_count=2))
    with pytest.raises(InvalidRequest, match=r"table fluss\.t has 2 buckets on the target"):
        plan_move(servers.here, servers.there, PATH)
    servers.there.drop_table(PATH)
    servers.there.admin.create_table_as(PATH, plan.descriptor)
    table.connection.table(PATH).alter(add_columns=[Column("w", types.int_())])
    with pytest.raises(InvalidRequest, match=r"its columns are k, p, v, w, and on the target k, p, v; drop it"):
        plan_move(servers.here, servers.there, PATH)


def test_a_copy_of_another_table_is_refused_by_its_name(servers: Servers) -> None:
    servers.make(lake=False)
    plan = plan_move(servers.here, servers.there, PATH)
    servers.there.admin.create_table_as(PATH, replace(plan.descriptor, custom_properties={MARK: "db.other, table 9"}))
    with pytest.raises(AlreadyExists, match=r"is a copy of db\.other, table 9; drop it there first"):
        plan_move(servers.here, servers.there, PATH)


def test_lake_tables_of_formats_that_cannot_be_handed_over_are_refused(servers: Servers, tmp_path: Path) -> None:
    settings = {"datalake.format": "iceberg", "datalake.iceberg.warehouse": str(tmp_path / "iceberg")}
    with (
        EmbeddedServer(tmp_path / "c", settings=settings) as server,
        forebay.connect(server.bootstrap_servers) as here,
    ):
        here.create_table(PATH, SCHEMA, options=LAKE)
        with pytest.raises(UnsupportedOperation, match="its lake table in format 'iceberg': only those of 'paimon'"):
            plan_move(here, servers.there, PATH)
        here.table(PATH).alter(set={"table.datalake.enabled": "false"})
        assert not plan_move(here, servers.there, PATH).with_lake


def test_a_table_that_was_recreated_is_distinguished_from_the_one_that_is_moved(servers: Servers) -> None:
    servers.make(lake=False)
    side = plan_move(servers.here, servers.there, PATH).source
    assert side.again().info.table_id == side.info.table_id
    servers.here.drop_table(PATH)
    servers.here.create_table(PATH, SCHEMA)
    with pytest.raises(NotFound, match=r"table fluss\.t was dropped while it was being moved"):
        side.again()


def test_columns_that_the_server_numbers_are_refused(servers: Servers) -> None:
    servers.here.create_table(PATH, {"k": pa.int32(), "n": pa.int64()}, primary_key=["k"], auto_increment="n")
    with pytest.raises(UnsupportedOperation, match="'n' is numbered"):
        plan_move(servers.here, servers.there, PATH)


def test_lakes_in_two_places_are_refused_before_anything_is_done(servers: Servers, tmp_path: Path) -> None:
    servers.make()
    settings = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(tmp_path / "elsewhere")}
    with (
        EmbeddedServer(tmp_path / "c", settings=settings) as other,
        forebay.connect(other.bootstrap_servers) as there,
    ):
        with pytest.raises(InvalidRequest, match="elsewhere"):
            move_table(servers.here, there, PATH)
        assert not there.table_exists(PATH)


def test_a_database_moves_from_the_terminal(servers: Servers, capsys: pytest.CaptureFixture[str]) -> None:
    table = servers.make(lake=False)
    addresses = [c.cluster.view.coordinator for c in (servers.here, servers.there)]
    here, there = (f"{node.host}:{node.port}" for node in addresses if node is not None)
    assert main(["move", "--from", here, "--to", there, "--database", "fluss", "--dry-run"]) == 0
    assert "append the logs" in capsys.readouterr().out
    assert main(["move", "--from", here, "--to", there, "--database", "fluss"]) == 0
    assert "fluss.t: 100 rows, checksum" in capsys.readouterr().out
    assert bag(servers.there.table(PATH)) == bag(table)
    assert main(["move", "--from", here, "--to", there]) == 1
    assert "--table" in capsys.readouterr().err
    assert [report.rows.rows for report in move_database(servers.here, servers.there, "fluss")] == [100]


def test_a_table_whose_bucket_has_no_leader_is_named_and_moved_by_the_same_command_later(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other tables of the command are moved, and each step waits longer than other operations do."""
    table = servers.make(lake=False)
    servers.here.create_table("fluss.u", {"a": "INT"}, buckets=1).append([{"a": 1}])
    addresses = [c.cluster.view.coordinator for c in (servers.here, servers.there)]
    here, there = (f"{node.host}:{node.port}" for node in addresses if node is not None)
    command = ["move", "--from", here, "--to", there, "--database", "fluss"]
    leader, waits = ClusterClient.leader, set[float]()

    def no_leader(cluster: ClusterClient, path: TablePath, bucket: TableBucket) -> ServerNode:
        if path != table.path:
            return leader(cluster, path, bucket)
        waits.add(cluster.retry_seconds)
        # With a code that is not retried, so that the test does not wait.
        raise Unavailable(f"bucket {bucket.bucket} of {path} has no leader", ErrorCode.CLIENT_ERROR)

    with monkeypatch.context() as patch:
        patch.setattr(ClusterClient, "leader", no_leader)
        assert main(command) == 1
    printed = capsys.readouterr()
    assert waits == {600.0}
    assert "table fluss.t was not moved: bucket" in printed.err
    assert "1 of 2 tables were not moved: fluss.t." in printed.err
    assert "Run the same command again" in printed.err
    assert "fluss.u: 1 rows" in printed.out
    assert len(bag(table)) == 100  # the source is usable
    assert main(command) == 0
    assert bag(servers.there.table(PATH)) == bag(table)


@pytest.mark.parametrize("error", [Unavailable, OutcomeUnknown])
def test_a_lake_of_which_it_is_not_known_whether_it_is_on_is_not_given_back(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, error: type[ForebayError]
) -> None:
    expected = bag(servers.make())
    alter = Table.alter

    def lost(table: Table, **changes: Any) -> None:
        alter(table, **changes)
        raise error("no answer")

    with monkeypatch.context() as patch:
        patch.setattr("forebay.client.table.Table.alter", lost)
        with pytest.raises(error, match="no answer"):
            move_table(servers.here, servers.there, PATH)
    move_table(servers.here, servers.there, PATH)
    assert bag(servers.there.table(PATH)) == expected


def test_checksums_see_every_change_and_the_ordered_one_sees_the_order() -> None:
    def of(*values: bytes, first: int = 0) -> tuple[int, int]:
        return checksums(pa.array(values, pa.binary()).__arrow_c_array__()[1], first)

    assert of(b"a", b"b")[0] == of(b"b", b"a")[0]
    assert of(b"a", b"b")[1] != of(b"b", b"a")[1]
    assert of(b"a", b"b")[1] == (of(b"a")[1] + of(b"b", first=1)[1]) % (1 << 64)
    singles = [b"", b"\0", b"\0\0", b"a", b"a\0", bytes(8), bytes(9), b"12345678", b"123456789"]
    assert len({of(value)[0] for value in singles}) == len(singles)
    whole = pa.array([b"x", b"a", b"b", b"y"], pa.binary())
    assert checksums(whole.slice(1, 2).__arrow_c_array__()[1], 0) == of(b"a", b"b")
