"""What hostile guests share."""

import pytest
from symphony_runtime.worker.crossing import Crossing

from tests.support import crossings


@pytest.fixture(params=["ctypes", "compiled"])
def crossing(request: pytest.FixtureRequest) -> Crossing | None:
    """Both ways that guests' calls cross: what looks at their pointers is written twice."""
    return crossings.compiled() if request.param == "compiled" else None
