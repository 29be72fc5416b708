from collections.abc import Iterator

import pytest

from tests.support.server.server import RunningServer, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One real server with a simulated executor, for all tests of clients."""
    with running_server(tmp_path_factory.mktemp("simulated")) as running:
        yield running
