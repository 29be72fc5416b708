import resource
from collections.abc import Iterator

import pytest
from symphony import AsyncClient

from tests.support.server.late import Late
from tests.support.server.server import RunningServer, example_tools, running_server


@pytest.fixture(scope="session", autouse=True)
def _many_connections() -> None:
    """A thousand clients in one process are more descriptors than some systems give at first."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, late: Late) -> Iterator[RunningServer]:
    """One real server for all tests that leave it as it was: the tiny model on the CPU.

    It has the tools of the examples.
    """
    data_dir = tmp_path_factory.mktemp("server")
    config = data_dir / "symphony.toml"
    config.write_text(example_tools())
    with running_server(
        data_dir, "--config", str(config), executor="torch", environment=late.environment
    ) as running:
        yield running


@pytest.fixture
def client(server: RunningServer) -> AsyncClient:
    """A client of that server; the test's event loop enters it."""
    return server.client()
