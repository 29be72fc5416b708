"""A real PostgreSQL beside SQLite, for what holds of both."""

from collections.abc import Iterator

import pytest

from tests.support.postgres import Cluster, running_cluster


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A cluster for all tests that want one."""
    with running_cluster() as cluster:
        if cluster is None:
            pytest.skip("no PostgreSQL that runs here: neither the wheel's nor the system's")
        yield cluster


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Where a store is: "" for SQLite, and the URL of an empty PostgreSQL."""
    if request.param == "sqlite":
        return ""
    cluster: Cluster = request.getfixturevalue("postgres")
    return cluster.new_url()
