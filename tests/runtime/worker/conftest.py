from contextlib import AbstractAsyncContextManager

import pytest

from tests.support.worker.rig import WorkerRig, worker_rig


@pytest.fixture
def rig() -> AbstractAsyncContextManager[WorkerRig]:
    return worker_rig(30)
