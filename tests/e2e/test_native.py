"""A real server computes with the native kernels where there are any, or says that it does not."""

from pathlib import Path

from tests.support.executor.native import native_library
from tests.support.server.server import RunningServer, running_server

SLOWER = "torch computes several times slower"


def test_server_with_native_kernels_uses_them(server: RunningServer) -> None:
    native_library()
    assert SLOWER not in server.log.read_text()


def test_server_without_native_kernels_says_so(tmp_path: Path) -> None:
    switch = {"SYMPHONY_NATIVE": "0"}
    with running_server(tmp_path, executor="torch", environment=switch) as server:
        assert SLOWER in server.log.read_text()
