"""One thread for torch: the machine is shared, and small tensors gain nothing from two."""

from collections.abc import Iterator

import pytest
import torch

from tests.support.executor.models import Checkpoint, ExecutorRig, load, make_checkpoint
from tests.support.executor.native import native_library
from tests.support.requirements import lacking

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return make_checkpoint(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def dtype() -> str:
    """Give the type of `rig`'s numbers; tests that want others parametrize it."""
    return "fp32"


@pytest.fixture
def rig(llama: Checkpoint, network: str, dtype: str) -> Iterator[ExecutorRig]:
    rig = load(llama, dtype)
    assert network in type(rig.executor.network).__name__.lower()
    yield rig
    rig.close()


@pytest.fixture(params=["native", "torch"])
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let executors of the test compute with the native kernels, and then with torch."""
    kind = str(request.param)
    if kind == "native":
        native_library()
    monkeypatch.setenv("SYMPHONY_NATIVE", "1" if kind == "native" else "0")
    return kind


@pytest.fixture(params=["bf16", "fp32"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let native kernels multiply bfloat16 as pairs, and then as float32."""
    kind = str(request.param)
    if kind == "bf16" and not native_library().computes_bf16:
        lacking("bf16", "this processor does not multiply bfloat16")
    monkeypatch.setenv("SYMPHONY_PRODUCTS", kind)
    return kind
