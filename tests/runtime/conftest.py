from collections.abc import Iterator

import pytest
from symphony_runtime.engine.hostcalls.compiled_calls import CompiledHostCalls

from tests.support.server.server import RunningServer, running_server
from tests.support.worker import hostcalls


@pytest.fixture(scope="session")
def simulated_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """One real server with a simulated executor, for commands to talk to."""
    with running_server(tmp_path_factory.mktemp("simulated")) as server:
        yield server


@pytest.fixture(params=["ctypes", "compiled"])
def crossing(request: pytest.FixtureRequest) -> CompiledHostCalls | None:
    """Both ways that guests' calls cross; `None`: through ctypes."""
    return hostcalls.compiled() if request.param == "compiled" else None
