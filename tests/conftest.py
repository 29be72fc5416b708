"""What holds for every test: results do not depend on chance or on the machine's load.

And fixtures of several folders: PostgreSQL in addition to SQLite, and the watch for late imports.
"""

import asyncio
import gc
import inspect
import os
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.support.gateway.postgres import Cluster, running_cluster
from tests.support.requirements import MARK, check_marks, lacking, required
from tests.support.server.late import Late, watched

# SYMPHONY_EXPLORE=1 tries other examples than last time, and shrinks one that fails. The suite does
# not: shrinking can take longer than a test may, and the time limit would be a second failure.
_EXPLORES = bool(os.environ.get("SYMPHONY_EXPLORE"))
settings.register_profile(
    "suite",
    deadline=None,
    derandomize=not _EXPLORES,
    phases=list(Phase) if _EXPLORES else [Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("suite")

# All servers of the tests are on this machine: no client goes through a proxy.
for _name in ("http_proxy", "https_proxy", "all_proxy"):
    for _spelling in (_name, _name.upper()):
        os.environ.pop(_spelling, None)

# Triton reads this when it is first imported, which transformers may do. On a GPU it compiles.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a switch that names a need which no test has."""
    config.addinivalue_line(
        "markers", f"{MARK}(need, there, reason): see tests/support/requirements"
    )
    required()


def pytest_collectstart() -> None:
    """Collect no garbage until all tests are collected: next to all that this makes stays."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with this folder's own files: a long one at the end would leave one worker alone."""
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.parent != here)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave modules and tests, which stay to the end, out of all later garbage collections."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that lacks something here, or fail it where `SYMPHONY_REQUIRE` names that."""
    check_marks(item)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test in an event loop of its own. See `run_by` for other loops.

    What a fixture gives as an asynchronous context manager is entered in that loop.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def test() -> None:
        given: dict[str, Any] = {}
        async with AsyncExitStack() as stack:
            for name in inspect.signature(pyfuncitem.obj).parameters:
                given[name] = value = pyfuncitem.funcargs[name]
                if isinstance(value, AbstractAsyncContextManager):
                    given[name] = await stack.enter_async_context(value)
            await pyfuncitem.obj(**given)

    asyncio.run(test())
    return True


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A cluster for all tests that want one."""
    with running_cluster() as cluster:
        if cluster is None:
            lacking("postgresql", "neither the wheel's nor the system's PostgreSQL runs here")
        yield cluster


@pytest.fixture
def postgres_url(postgres: Cluster) -> str:
    """The URL of an empty PostgreSQL."""
    return postgres.new_url()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Where a store is: "" for SQLite, and the URL of an empty PostgreSQL."""
    if request.param == "sqlite":
        return ""
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture(scope="session")
def late(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Late]:
    """For a server whose contained processes are watched: give it this `environment`."""
    with watched(tmp_path_factory.mktemp("late") / "hook") as late:
        yield late


@pytest.fixture(autouse=True)
def _nothing_is_read_late(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test during which a watched process has read what it cannot in its containment."""
    late: Late | None = None
    if "late" in request.fixturenames:
        value = request.getfixturevalue("late")  # another test's parameter may have that name
        late = value if isinstance(value, Late) else None
    yield
    assert late is None or not late.attempts()
