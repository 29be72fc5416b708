from collections.abc import Iterator

import pytest

from tests.support.server.server import RunningServer, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of the module's own: its tests add tenants and programs."""
    with running_server(tmp_path_factory.mktemp("server"), executor="torch") as running:
        yield running
