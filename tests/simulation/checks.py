"""The invariants at the end, when all faults have stopped: see docs/simulation.md."""

from __future__ import annotations

from typing import Any

from forebay.base.errors import CorruptData, ForebayError, StorageFailure, Unavailable
from forebay.client.connection import Connection
from forebay.lake.tiering import offsets_name
from forebay.metadata.predicate import col
from forebay.metadata.table import TableBucket
from tests.simulation.histories import TooHard, is_linearizable
from tests.simulation.scheduler import Process
from tests.simulation.workload import KEYS, KV, LOG, Row, Workload, note_log_row
from tests.simulation.world import Damage, World

State = dict[int, str]
Log = dict[int, dict[int, Row]]


class Checks:
    def __init__(self, world: World, load: Workload, process: Process) -> None:
        self.world, self.load, self.seen = world, load, load.seen
        self.read = {
            staged.values[key]: value for staged in self.seen.transactions for key, value in (staged.read or {}).items()
        }
        """What the transaction that wrote a value had read of its key before, if it watched the table."""
        self.connection: Connection = world.connect(process, **{"client.retry-timeout": "20 s"})

    def run(self) -> None:
        try:
            self._run()
        except (CorruptData, StorageFailure, Unavailable) as e:
            if not self.world.damaged:
                raise Damage(f"reading at the end fails: {type(e).__name__}: {e}") from e
            self.world.count("damage that was told")
            self.world.note(f"told: {e}")
        except ForebayError as e:
            raise Damage(f"reading at the end fails: {type(e).__name__}: {e}") from e

    def _run(self) -> None:
        log = self.log_of(LOG)
        self.check_appends(log)
        changes = self.log_of(KV)
        folded = self.fold(changes)
        table = self.connection.table(KV)
        rows = table.scan().to_arrow().to_pylist()
        for row in rows:
            self.seen.check_extra(KV, row)
        scanned = {row["id"]: row["name"] for row in rows}
        self.same("full scan", scanned, "fold of the changelog", folded)
        named = table.scan(["name", "id"], col("id") >= 0).to_arrow().to_pylist()
        self.same("scan in Arrow", {row["id"]: row["name"] for row in named}, "fold of the changelog", folded)
        found = table.lookup([{"id": key} for key in range(KEYS)]).to_pylist()
        looked_up = {key: row["name"] for key, row in enumerate(found) if row["id"] is not None}
        self.same("lookups", looked_up, "fold of the changelog", folded)
        stats = self.connection.admin.table_stats(KV)
        if stats.row_count != len(folded):
            raise Damage(f"the table's count of rows is {stats.row_count}, there are {len(folded)}")
        if self.load.lake:
            union = {row["id"]: row["name"] for row in table.scan(source="union").to_arrow().to_pylist()}
            self.same("union read", union, "fold of the changelog", folded)
            self.check_lake(changes, log)
        for view in self.seen.views:
            offsets = {bucket.bucket: offset for bucket, offset in view.offsets.items()}
            if len(offsets) == 2:
                self.same(view.what, view.rows, f"fold up to {offsets}", self.fold(changes, offsets))
        for (path, bucket, offset), what in self.seen.log_rows.items():
            there = (changes if path == KV else log)[bucket]
            if offset not in there:
                raise Damage(f"{what} at offset {offset} of bucket {bucket} of {path} was read, and is gone")
        self.check_transactions(changes, log)
        self.load.partitions.check(self.connection)
        self.load.merging.check(self.connection)
        self.check_registers(folded)

    def same(self, what: str, one: Any, other_name: str, other: Any) -> None:
        if one != other:
            raise Damage(f"{what} differs from {other_name}: {one} against {other}")

    # ---- logs -------------------------------------------------------------------------------------------------------

    def log_of(self, path: str) -> Log:
        """All changes by bucket and offset. Offsets have no gap but those of empty batches."""
        table = self.connection.table(path)
        buckets: Log = {0: {}, 1: {}}
        starts = {TableBucket(table.info.table_id, bucket): 0 for bucket in buckets}
        reader = table.changes(starts, "latest")
        for batch in reader:
            for row in batch.to_pylist():
                rows, offset = buckets[row["__bucket"]], row["_log_offset"]
                if rows and offset <= max(rows):
                    raise Damage(f"offset {offset} of bucket {row['__bucket']} of {path} comes after {max(rows)}")
                rows[offset] = row
                note_log_row(self.seen, path, row)
        for bucket, rows in buckets.items():
            self._check_offsets(path, TableBucket(table.info.table_id, bucket), rows)
        return buckets

    def _check_offsets(self, path: str, bucket: TableBucket, rows: dict[int, Row]) -> None:
        server = self.world.server
        if server is None:
            if rows:
                raise Damage(f"bucket {bucket} of {path} was read, and there is no server")
            return
        with server.context.replicas.using(bucket) as replica:
            start = replica.log.local_start_offset  # what is before it is in the remote log
            headers = [header for header, _ in replica.log.iterate_batches(start)]
        expected, empty = start, set()
        for header in headers:
            if header.base_offset != expected:
                raise Damage(f"{path}, bucket {bucket.bucket}: a batch at {header.base_offset} after {expected - 1}")
            expected = header.next_offset
            if header.record_count == 0:
                empty.add(header.base_offset)
        local = {offset for offset in rows if offset >= start}
        if local | empty != set(range(start, expected)) or (path == LOG and empty):
            listed = f"rows at {sorted(local)}, empty {sorted(empty)} of {expected}"
            raise Damage(f"{path}, bucket {bucket.bucket}: {listed}")
        wrong = {o for p, b, o in self.seen.skipped if (p, b) == (path, bucket.bucket) and o >= start} - empty
        if wrong:
            raise Damage(f"{path}, bucket {bucket.bucket}: a reader has left out offsets {sorted(wrong)}")

    def check_appends(self, log: Log) -> None:
        numbers = [row["n"] for rows in log.values() for row in rows.values()]
        if len(set(numbers)) != len(numbers):
            raise Damage(f"rows of the log come twice: {sorted(n for n in set(numbers) if numbers.count(n) > 1)}")
        there = set(numbers) - {n for staged in self.seen.transactions for n in staged.numbers}
        lost = [n for n, outcome in self.seen.appended.items() if outcome == "acked" and n not in there]
        if lost:
            raise Damage(f"acknowledged rows are not in the log: {lost}")
        if not there <= set(self.seen.appended):
            raise Damage(f"rows of the log that nobody wrote: {there - set(self.seen.appended)}")

    def check_transactions(self, changes: Log, log: Log) -> None:
        """Of each transaction all rows are there, once, or none; so it is in each table snapshot."""
        appended = {
            row["n"]: (LOG, bucket, offset, row) for bucket, rows in log.items() for offset, row in rows.items()
        }
        numbers = [row["n"] for rows in log.values() for row in rows.values()]
        places: dict[str, list[tuple[int, int]]] = {}
        for bucket, rows in changes.items():
            for offset, row in rows.items():
                if row["_change_type"] in ("insert", "update_after"):
                    places.setdefault(row["name"], []).append((bucket, offset))
        there: dict[tuple[str, int], list[str]] = {}
        for staged in self.seen.transactions:
            found = [len(places.get(value, ())) for value in staged.values.values()]
            found += [numbers.count(n) for n in staged.numbers]
            wanted = {"committed": {1}, "dropped": {0}, "unknown": {0, 1}}[staged.outcome]
            if len(set(found)) != 1 or found[0] not in wanted:
                raise Damage(f"transaction {staged.who}, {staged.outcome}: its rows are there {found} times")
            if not found[0]:
                continue
            there.setdefault(staged.job, []).append(staged.who)
            of_kv = [(KV, *place, changes[place[0]][place[1]]) for v in staged.values.values() for place in places[v]]
            self.check_time(staged.who, [*of_kv, *(appended[n] for n in staged.numbers)])
            for view in self.seen.views:
                offsets = {bucket.bucket: offset for bucket, offset in view.offsets.items()}
                if not view.what.endswith("snapshot") or len(offsets) != 2:
                    continue
                seen = {
                    offset < offsets[bucket] for value in staged.values.values() for bucket, offset in places[value]
                }
                if len(seen) != 1:
                    raise Damage(f"{view.what} up to {offsets} has a part of transaction {staged.who}")
        self.check_jobs(there)

    def check_time(self, who: str, found: list[tuple[str, int, int, Row]]) -> None:
        """A transaction has one time in all logs, and what the logs held at a time has all of it, or nothing."""
        times = {row["_commit_timestamp"] for *_, row in found}
        if len(times) != 1:
            raise Damage(f"transaction {who} has more than one time: {sorted(times)}")
        for what, offsets in self.seen.cuts:
            if len({offset < offsets[path][bucket] for path, bucket, offset, _ in found}) != 1:
                raise Damage(f"{what}, {offsets}, has a part of transaction {who}")

    def check_jobs(self, there: dict[tuple[str, int], list[str]]) -> None:
        """Of the attempts at an application's version one counts at most, and one does if a client was told so."""
        for job, attempts in there.items():
            if len(attempts) > 1:
                raise Damage(f"version {job[1]} of application {job[0]!r} is there {len(attempts)} times: {attempts}")
        lost = sorted(self.seen.committed - there.keys())
        if lost:
            raise Damage(f"versions were told committed, and no attempt at them is there: {lost}")

    def fold(self, changes: Log, offsets: dict[int, int] | None = None) -> State:
        """The rows after the changes (below these offsets), each of which must fit what was before it."""
        state: State = {}
        for bucket, rows in changes.items():
            for offset, row in rows.items():
                if offsets is not None and offset >= offsets[bucket]:
                    break
                key, kind = row["id"], row["_change_type"]
                before = state.get(key)
                if kind in ("insert", "update_after") and before != self.read.get(row["name"], before):
                    raise Damage(f"{row} was written after {self.read[row['name']]!r} was read, over {before!r}")
                if kind == "insert" and before is not None:
                    raise Damage(f"changelog: {row} inserts a key that is there")
                if kind in ("update_before", "delete") and before != row["name"]:
                    raise Damage(f"changelog: {row} after {before!r}")
                if kind == "delete":
                    del state[key]
                elif kind != "update_before":
                    state[key] = row["name"]
        return state

    # ---- the lake ---------------------------------------------------------------------------------------------------

    def check_lake(self, changes: Log, log: Log) -> None:
        for path, listed in ((KV, changes), (LOG, log)):
            before = self.seen.lake_offsets.get(path, {})
            try:
                known = self.connection.admin.lake_snapshot(path)
            except ForebayError:
                if before:
                    raise
                continue
            offsets = {bucket.bucket: offset for bucket, offset in known.log_offsets.items()}
            self.load.check_lake_offsets(path, offsets, before)
            storage = self.world.create_storage("", {})
            table = storage.table(self.connection.table(path).path)
            newest = table.newest_tiered()
            name = None if newest is None else offsets_name(newest.properties)
            if path in self.seen.rolled_back and known.offsets_name != name:
                continue  # no round has come since; union reads are checked all the same
            parts = table.snapshot(known.snapshot_id).parts
            rows = [row for place in sorted(parts) for row in parts[place]]
            full = {bucket: offsets.get(bucket, 0) for bucket in listed}
            if path == KV:
                lake = {row["id"]: row["name"] for row in rows}
                self.same("lake snapshot", lake, f"fold up to {full}", self.fold(changes, full))
            else:
                below = {bucket: [row for o, row in of.items() if o < full[bucket]] for bucket, of in listed.items()}
                expected = sorted(row["n"] for rows_below in below.values() for row in rows_below)
                self.same("lake snapshot", sorted(row["n"] for row in rows), f"log up to {full}", expected)

    # ---- registers --------------------------------------------------------------------------------------------------

    def check_registers(self, folded: State) -> None:
        now = self.world.sched.now
        for key in range(KEYS):
            ops = list(self.seen.ops.get(key, ()))
            ops.append(type(ops[0])(False, folded.get(key), now, now, "end") if ops else _read(folded.get(key), now))
            self.world.counts["register operations"] += len(ops)
            try:
                good = is_linearizable(ops)
            except TooHard:
                self.world.count("registers too hard to judge")
                continue
            if not good:
                listed = "\n  ".join(str(op) for op in sorted(ops, key=lambda op: op.asked))
                raise Damage(f"what was seen of key {key} has no order:\n  {listed}")


def _read(value: Any, now: float) -> Any:
    from tests.simulation.histories import Op

    return Op(False, value, now, now, "end")
