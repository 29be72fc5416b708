"""What hostile guests and clients share: one real server."""

from collections.abc import Iterator

import pytest

from tests.support.server import RunningServer, running_server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """All processes of a server with a simulated model, for cases that leave it as it was."""
    with running_server(tmp_path_factory.mktemp("hostile")) as running:
        yield running
