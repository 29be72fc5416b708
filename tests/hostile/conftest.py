"""What hostile guests and clients share: one real server, or a worker of each test's own."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager

import pytest

from tests.support.server.late import Late
from tests.support.server.server import RunningServer, running_server
from tests.support.worker.rig import WorkerRig, worker_rig


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, late: Late) -> Iterator[RunningServer]:
    """All processes of a server with a simulated model, for cases that leave it as it was."""
    data_dir = tmp_path_factory.mktemp("hostile")
    with running_server(data_dir, environment=late.environment) as running:
        yield running


@pytest.fixture
def rig() -> AbstractAsyncContextManager[WorkerRig]:
    return worker_rig(120)
