"""A stop that cannot write its last files."""

from __future__ import annotations

import pytest

from forebay.base.errors import StorageFailure
from forebay.fs.local import LocalFileSystem
from forebay.server.embedded import EmbeddedServer
from forebay.server.server import Injected


class _FailingAtTheEnd(LocalFileSystem):
    failing = False

    def write_atomic(self, path, data):
        if self.failing:
            raise StorageFailure(f"cannot write {path}")
        super().write_atomic(path, data)


def test_a_stop_that_fails_gives_the_data_directory_back(tmp_path):
    fs = _FailingAtTheEnd()
    server = EmbeddedServer(tmp_path / "data", injected=Injected(fs=fs)).start()
    fs.failing = True
    with pytest.raises(StorageFailure, match="cannot write"):
        server.stop()
    fs.failing = False
    with EmbeddedServer(tmp_path / "data", injected=Injected(fs=fs)) as again:
        assert again.bootstrap_servers
