"""Reads of a simulated standby, and the client that makes them: it sees the server's state at some offsets."""

from __future__ import annotations

from forebay.base.errors import ForebayError, NotFound
from forebay.client.connection import Connection
from forebay.server.config import server_config
from forebay.server.journal.followed_logs import FollowedLogs
from forebay.server.standby.boundary import Boundary
from forebay.server.standby.standby_server import StandbyServer
from tests.simulation.disk import SimFileSystem, SimVfs
from tests.simulation.scheduler import Process, SimClock, SimLoop
from tests.simulation.workload import KV, LOG, View, Workload, note_log_row
from tests.simulation.world import Damage, World

PORT = 9500


class SimReads:
    """The reads of one standby (`forebay.server.standby.standby.Reads`)."""

    def __init__(self, world: World, load: Workload, standby: Process, number: int, fs: SimFileSystem, vfs: SimVfs,
                 logs: FollowedLogs) -> None:  # fmt: skip
        self._world, self._load, self._standby = world, load, standby
        self._port = PORT + 2 * number
        self._loop = SimLoop(world.sched, standby, world.network)
        self._offered: Boundary | None = None
        config = server_config(
            "/data", coordinator_port=self._port, tablet_port=self._port + 1, settings=world.settings
        )
        assert world.store is not None
        clock = SimClock(world.sched, standby)
        self._server = StandbyServer(config, world.store, logs, world._injected(fs, clock, vfs))
        self._loop.run(self._server.start())
        client = Process(f"reader of standby {number}")
        world.sched.spawn(client, self._read, client, name=client.name)

    def offer(self, boundary: Boundary | None, current_at: float) -> None:
        if boundary is not None:
            self._offered = boundary.after(self._offered)
        try:
            if self._offered is not None:
                self._server.advance(self._offered)
            self._offered, self._server.current_at = None, current_at
        except ForebayError as e:
            self._load.judge(e, "reads of a standby go on")

    @property
    def number(self) -> int:
        return 0 if self._server.boundary is None else self._server.boundary.number

    def stop(self) -> None:
        self._loop.run(self._server.stop())

    # ---- the client -------------------------------------------------------------------------------------------------

    def _read(self, client: Process) -> None:
        world, rng = self._world, self._world.rng
        connection = world.connect(client, f"127.0.0.1:{self._port}")
        while not self._standby.dead and self._standby.tasks:
            world.sched.sleep(rng.random())
            try:
                rng.choice((self._scan, self._snapshot, self._log))(connection)
                world.count("reads of a standby")
            except NotFound:
                continue  # it has not repeated that there is such a table
            except ForebayError as e:
                self._load.judge(e, client.name)

    def _scan(self, connection: Connection) -> None:
        scan = connection.table(KV).scan().reader()
        rows = scan.read_all().to_pylist()
        self._load.seen.views.append(View("standby scan", self._by_key(rows), dict(scan.log_offsets)))

    def _snapshot(self, connection: Connection) -> None:
        with connection.table(KV).snapshot() as snapshot:
            rows = snapshot.scan().to_arrow().to_pylist()
            self._load.seen.views.append(View("standby snapshot", self._by_key(rows), dict(snapshot.log_offsets)))

    def _by_key(self, rows: list[dict[str, object]]) -> dict[int, str]:
        found = {row["id"]: row["name"] for row in rows}
        if len(found) != len(rows):
            raise Damage(f"a key comes twice from a standby: {rows}")
        for row in rows:
            self._load.seen.check_extra(KV, row)
        return found  # type: ignore[return-value]

    def _log(self, connection: Connection) -> None:
        path = self._world.rng.choice((KV, LOG))
        include = ("change_type", "offset", "timestamp", "bucket")
        changes = connection.table(path).changes(start="earliest", stop="latest", include=include).to_arrow()
        for row in changes.to_pylist():
            note_log_row(self._load.seen, path, row)
