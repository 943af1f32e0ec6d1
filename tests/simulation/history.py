"""One history of the whole server, from a seed."""

from __future__ import annotations

import gc
import itertools
import os
import zlib
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from forebay.client.admin import lake_history
from forebay.kv.checkpoint import KvFolder
from forebay.log import recovery
from forebay.log.commit_times import CommitTimes
from forebay.log.log_ends import LogEndEvidence
from forebay.log.scan import CorruptBatch
from forebay.log.segment import LogSegment
from forebay.log.tablet import LogTablet
from forebay.log.writer_state import WriterStates
from forebay.server import metadata_store
from forebay.server.journal.followed_logs import FollowedLogs
from forebay.server.journal.store_gate import LeaseGate, StoreGate
from forebay.server.metadata_store import StoredTransaction
from forebay.server.transactions.commit_conditions import UnchangedKeys
from forebay.server.transactions.manager import TransactionManager
from forebay.server.transactions.stages import StageFiles
from forebay.store import journal
from forebay.unionread import expired
from tests.simulation.checks import Checks
from tests.simulation.disk import SimFileSystem, SimVfs
from tests.simulation.faults import Faults
from tests.simulation.scheduler import Process
from tests.simulation.standby_reads import SimReads
from tests.simulation.workload import Workload
from tests.simulation.world import Damage, World

BLOCK_SECONDS_MAX = 0.05
"""How long the event loop may wait in one callback: others take their turns meanwhile, and a sync takes longer."""

ROTTEN_SHARE = 0.1
"""Histories in which bytes on the disk change behind the server's back."""


@dataclass(frozen=True)
class Outcome:
    seed: int
    digest: int
    counts: Counter[str]
    error: str | None
    seconds: float
    trace: list[str] | None


def run_history(seed: int, keep_trace: bool = False) -> Outcome:
    """Run the history of `seed`. `error` tells of a promise that was broken."""
    world = World(seed, keep_trace)
    error: str | None = None
    failure: BaseException | None = None
    with world:
        try:
            _run(world)
        except Exception as e:  # noqa: BLE001 - whatever it is, it is what this seed has found
            failure = e
            error = f"{type(e).__name__}: {e}"
        if error is None and world.complaints:
            text, failure = world.complaints[0]
            error = f"logged: {text}: {failure!r}"
    if keep_trace and failure is not None:
        import traceback

        world.sched.note("".join(traceback.format_exception(failure)))
    outcome = Outcome(seed, world.sched.digest, world.counts, error, world.sched.now, world.sched.trace)
    del world, failure
    if seed % 20 == 0:
        gc.collect()
    return outcome


def _replace(owner: Any, name: str, value: object) -> None:
    """Set an attribute that exists. A mutant that sets another one has no fault, so its histories prove nothing."""
    assert hasattr(owner, name), f"{owner!r} has no attribute {name!r} to replace"
    setattr(owner, name, value)


def _sync_nothing(world: World) -> None:
    _replace(LogSegment, "sync", lambda self: None)


def _forget_duplicates(world: World) -> None:
    _replace(LogTablet, "find_duplicate", lambda self, writer_id, sequence: None)
    _replace(WriterStates, "check", lambda self, *_: None)


def _trust_always(world: World) -> None:
    _replace(KvFolder, "is_trusted", lambda self, witnesses: self._fs.exists(self._engine_path))


def _do_not_make_stages_durable(world: World) -> None:
    _replace(StageFiles, "finish", lambda self, stage, requests: setattr(stage, "is_finished", True))


def _show_parts(world: World) -> None:
    _replace(TransactionManager, "_gates", lambda self, buckets, closed=(): nullcontext())
    _replace(TransactionManager, "_write", _write_without_gate)
    _replace(TransactionManager, "_note_unfinished", lambda self: None)


def _write_without_gate(self: TransactionManager, transaction: Any) -> None:
    for bucket in transaction.work:
        replica = self._write_bucket(transaction, bucket)
        if replica is not None:
            replica.show_decided()
            replica.log.release_time(transaction.held)
            self._replicas.end(replica)


def _check_no_conditions(world: World) -> None:
    _replace(UnchangedKeys, "check", lambda self, end: None)


def _let_time_go_on(world: World) -> None:
    _replace(CommitTimes, "hold", lambda self, held, last_ms: last_ms)
    _replace(CommitTimes, "settle", lambda self, timestamp_ms: True)
    timestamp = LogTablet._timestamp

    def own(self: LogTablet, now_ms: int, committed_ms: int | None = None) -> int:
        return timestamp(self, now_ms + zlib.crc32(self.folder.encode()) % 50)  # each log has a clock of its own

    _replace(LogTablet, "_timestamp", own)


def _share_directories(world: World) -> None:
    lock = SimFileSystem.lock

    def shared(self: SimFileSystem, path: str) -> Any:
        self._locks.pop(path, None)
        return lock(self, path)

    SimFileSystem.lock = shared  # type: ignore[method-assign]


def _trust_numbers(world: World) -> None:
    _replace(expired, "has_offsets", lambda *_: True)
    _replace(lake_history, "has_offsets", lambda *_: True)


def _look_once_before_a_wait(world: World) -> None:
    metadata_store._TABLES = metadata_store._TABLES.replace("CREATE UNIQUE INDEX", "CREATE INDEX")
    _replace(TransactionManager, "begin", _begin_after_one_look)


def _begin_after_one_look(
    self: TransactionManager, application: str, version: int, join: bool = False
) -> StoredTransaction:
    with self._beginning:
        decided, last, replaced = self._history_of(application)
        for transaction in decided:
            self._finish(transaction)
        if last is not None and version == last.version:
            return last
        for transaction in replaced:
            if join and transaction.stored.version == version:
                return transaction.stored
            self._end(transaction, "replaced")
        return self._begun(application, version)


def _take_damage_for_a_torn_write(world: World) -> None:
    global ROTTEN_SHARE
    ROTTEN_SHARE = 1.0  # it shows only where bytes change
    for name in ("end", "synced"):
        _replace(LogEndEvidence, name, property(lambda self: self.recovery_point or 0))
    _replace(recovery, "_require_torn", _require_torn_behind_the_recovery_point)


def _require_torn_behind_the_recovery_point(
    segment: LogSegment, problem: CorruptBatch, next_base: int | None, known: LogEndEvidence
) -> None:
    if known.clean or problem.offset < known.end:
        raise problem


def _answer_before_the_store(world: World) -> None:
    _replace(StoreGate, "is_open", property(lambda self: self.has_lease))


def _answer_without_the_lease(world: World) -> None:
    _replace(LeaseGate, "has_lease", property(lambda self: self._error is None))


def _do_not_notice_fences(world: World) -> None:
    _replace(journal, "create_once", lambda store, name, data: store.create(name, data) or True)


MUTANTS = {
    "sync": _sync_nothing,
    "duplicates": _forget_duplicates,
    "trust": _trust_always,
    "stages": _do_not_make_stages_durable,
    "parts": _show_parts,
    "conditions": _check_no_conditions,
    "lock": _share_directories,
    "numbers": _trust_numbers,
    "versions": _look_once_before_a_wait,
    "times": _let_time_go_on,
    "ends": _take_damage_for_a_torn_write,
    "answers": _answer_before_the_store,
    "lease": _answer_without_the_lease,
    "fences": _do_not_notice_fences,
}
"""Servers that break a promise: a simulation that finds nothing wrong with them would be worth nothing."""


def _run(world: World) -> None:
    sched, rng = world.sched, world.rng
    mutant = os.environ.get("SIM_MUTANT")
    if mutant:
        MUTANTS[mutant](world)
    world.rot = 1.5 if rng.random() < ROTTEN_SHARE and world.store is None else 0.0
    load = Workload(world, lake=rng.random() < 0.7, actors=rng.randint(2, 4), steps=rng.randint(6, 16))
    numbers = itertools.count()

    def make_reads(standby: Process, fs: SimFileSystem, vfs: SimVfs, logs: FollowedLogs) -> SimReads:
        return SimReads(world, load, standby, next(numbers), fs, vfs, logs)

    world.machines.make_reads = make_reads
    sched.spawn(world.control, world.supervise, name="supervisor")
    load.set_up()
    load.begin()
    if rng.random() < 0.5:
        load.drivers.begin()
    if load.lake:
        for _ in range(rng.choice((1, 1, 2))):
            load.begin_tiering()
        load.watch_lake()
    faults = Faults(world, load)
    sched.spawn(world.control, faults.misbehave, name="faults")
    done = []

    def finish(process: Process) -> None:
        while load.actors_left > 0 and not world.refused:
            sched.sleep(0.2)
        faults.heal()
        for standby in world.machines.standbys:
            sched.kill(standby)  # the checks look into the server, which has to be one and the same
        for _ in range(2):
            if world.is_stored and rng.random() < 0.5:
                world.machines.restore() if rng.random() < 0.3 else world.machines.lose()
            elif rng.random() < 0.6:
                world.fail_machine(rng.choice(("kill", "power", "remount")))
            else:
                world.stop_server()
            _wait_until_up(world)
            if world.refused:
                world.count("damage that was told")
                break
            world.note("checking")
            Checks(world, load, process).run()
        done.append(True)

    process = load.process("checker")
    sched.spawn(process, finish, process, name="checker")
    sched.run(lambda: bool(done))
    world.finished = True
    if sched.longest_block > BLOCK_SECONDS_MAX:
        raise Damage(f"a lock or the disk kept the event loop waiting for {sched.longest_block:.3f} s")


def _wait_until_up(world: World) -> None:
    deadline = world.sched.now + 120
    while not world.is_up and not world.refused:
        if world.sched.now > deadline:
            raise Damage("the server does not come back within 120 s")
        world.sched.sleep(0.2)
