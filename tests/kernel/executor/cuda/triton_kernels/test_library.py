"""The network with Triton's kernels against plain torch's, on a CPU by Triton's interpreter.

A GPU runs all of `test_network.py` with them. The interpreter takes seconds for a step, so these
are a few small ones.
"""

import numpy as np
import pytest
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.cuda import CPU_WAYS, SIZES, TRITON_WAYS, Way, load_cuda
from tests.support.executor.models import (
    ALL_LOGITS,
    PAIR,
    Allows,
    Checkpoint,
    ExecutorRig,
    Float32,
    depths_of,
    make_checkpoint,
    make_row,
    random_tokens,
    relative_error,
)

TREE = [-1, 0, 0]
# Norms of heads, and a layer with a window next to one without.
SETTINGS = {
    **SIZES, "num_attention_heads": 2, "num_key_value_heads": 1, "use_sliding_window": True,
    "sliding_window": 6, "max_window_layers": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return make_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3", **SETTINGS)


@pytest.fixture(scope="module")
def expected(checkpoint: Checkpoint) -> list[list[Float32]]:
    rig = load_cuda(checkpoint, CPU_WAYS["torch"])
    found = drive(rig)
    rig.close()
    return found


def drive(rig: ExecutorRig) -> list[list[Float32]]:
    """Compute a chunk, a tree next to a decode, and decodes whose pages differ by step."""
    tables = [rig.table(20), rig.table(20)]
    steps = [rig.logits([make_row(random_tokens(9), tables[0], 0, ALL_LOGITS)])]
    positions = np.array(depths_of(TREE))
    tree = make_row(random_tokens(3, 5), tables[1], 0, positions=positions, parents=TREE)
    steps.append(rig.logits([make_row([3], tables[0], 9), tree]))
    steps.append(rig.logits([make_row([4], tables[1], 3), make_row([5], tables[0], 10)]))
    steps.append(rig.logits([make_row([6], tables[0], 11)]))
    return steps


@pytest.mark.parametrize("way", TRITON_WAYS.values(), ids=TRITON_WAYS)
def test_logits_of_every_kind_of_row_equal_torchs(
    checkpoint: Checkpoint, expected: list[list[Float32]], way: Way
) -> None:
    rig = load_cuda(checkpoint, way)
    found = drive(rig)
    rig.close()
    for step, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        for one, other in zip(mine, theirs, strict=True):
            assert relative_error(one, other) < way.tolerance, step


@pytest.mark.parametrize("way", [TRITON_WAYS["Triton, padded"]], ids=["padded"])
def test_tokens_of_free_constrained_and_detailed_rows_equal_torchs(
    checkpoint: Checkpoint, way: Way
) -> None:
    found = []
    for each in (CPU_WAYS["torch"], way):
        rig = load_cuda(checkpoint, each)
        sampled = PredOptions(get=Get.SAMPLE, sampling=Sampling(temperature=2.0, top_p=0.8))
        rows = [make_row([3], rig.table(1), options=PredOptions()) for _ in range(3)]
        rows[1].matcher = Allows([7, 20, 33])
        rows[2].options = PredOptions(logprobs=2)  # which the host answers from the logits
        rows.append(make_row([3], rig.table(1), options=sampled, seed=9))
        results = rig.run(rows)
        rig.close()
        assert all(isinstance(result, bytes) for result in results)
        found.append([np.frombuffer(r, PAIR) for r in results if isinstance(r, bytes)])
    for theirs, mine in zip(*found, strict=True):
        assert mine["token"].tolist() == theirs["token"].tolist()
        np.testing.assert_allclose(mine["value"], theirs["value"], atol=1e-4)
    assert int(found[1][1]["token"][0]) in {7, 20, 33}
