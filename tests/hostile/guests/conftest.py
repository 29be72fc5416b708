"""What hostile guests share."""

import pytest
from symphony_runtime.engine.hostcalls.compiled_calls import CompiledHostCalls

from tests.support.worker import hostcalls


@pytest.fixture(params=["ctypes", "compiled"])
def crossing(request: pytest.FixtureRequest) -> CompiledHostCalls | None:
    """Both ways that guests' calls cross: what looks at their pointers is written twice."""
    return hostcalls.compiled() if request.param == "compiled" else None
