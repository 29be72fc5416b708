"""One thread for torch: the machine is shared, and small tensors gain nothing from two."""

import pytest
import torch

from tests.support.native import native_library

torch.set_num_threads(1)


@pytest.fixture(params=["native", "torch"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let executors of the test compute with the native kernels, and then with torch."""
    kind = str(request.param)
    if kind == "native":
        native_library()
    monkeypatch.setenv("SYMPHONY_NATIVE", "1" if kind == "native" else "0")
    return kind
