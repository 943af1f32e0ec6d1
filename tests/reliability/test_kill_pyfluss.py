"""`kill -9` under pyfluss: our server keeps what it has acknowledged. KILL_ROUNDS sets the number of kills."""

from __future__ import annotations

import os

import pytest

from forebay.testing.server import ServerProcess
from forebay.verify import verify_directory
from tests import results
from tests.reliability.load import SETTINGS
from tests.reliability.strangers import SEED, check_strangers

pytestmark = pytest.mark.foreign

ROUNDS = int(os.environ.get("KILL_ROUNDS", "2"))


@pytest.mark.timeout(300 + 10 * ROUNDS)
def test_what_pyfluss_was_told_survives_kills(tmp_path):
    print(f"seed {SEED}, {ROUNDS} kills")
    with ServerProcess(tmp_path / "data", settings=SETTINGS) as server:
        figures = check_strangers(server, server.bootstrap_servers, ROUNDS)
        server.kill()
    offline = verify_directory(tmp_path / "data")
    assert offline.faults == []
    results.write_if_wanted("kill-trials.pyfluss", {"kills": ROUNDS, **figures, "seed": SEED})
