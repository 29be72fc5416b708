"""Pages beside a pool in the GPU's layout: on the CPU, and on a GPU where there is one."""

from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import Int32, KVArray
from symphony_kernel.executor.cuda.pages import CudaPages
from symphony_kernel.executor.models.config import ModelConfig, Rope
from symphony_kernel.executor.reference.pages import TorchPages
from symphony_kernel.protocol.limits import PAGE_TOKENS
from torch import Tensor

PAGES, HOST_SLOTS = 40, 24
CONFIG = ModelConfig(
    vocab_size=8, hidden_size=8, intermediate_size=8, layers=3, heads=4,
    kv_heads=2, head_dim=4, max_context=64, norm_epsilon=1e-5, tied=True, qkv_bias=False,
    output_bias=False, mlp_bias=False, qk_norm=False, windows=(None,) * 3, rope=Rope(),
    dtype="float32", bos=None, eos=(),
)  # fmt: skip
on_gpu = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    ],
)


def numbers(*given: int) -> Int32:
    return np.array(given, np.int32)


class RandomPages:
    """A pool with pages of random bits, and its pages as they were at first."""

    def __init__(self, device: str, dtype: torch.dtype, staged: int) -> None:
        shape = (CONFIG.layers, PAGES + 1, 2, PAGE_TOKENS, CONFIG.kv_heads, CONFIG.head_dim)
        self.pool: Tensor = torch.randn(shape, device=device).to(dtype)
        page_bytes = self.pool[:, 0].nbytes
        # A buffer of few pages: most moves here take several.
        self.pages = CudaPages(CONFIG, self.pool, staged * page_bytes)
        assert self.pages.layout.page_bytes == page_bytes
        self.pages.open_host(HOST_SLOTS)
        self.before = self.pages.read_frames(np.arange(PAGES, dtype=np.int32))

    def frames(self, *given: int) -> KVArray:
        return self.pages.read_frames(numbers(*given))


@pytest.fixture(params=["cpu", on_gpu])
def random_pages(request: pytest.FixtureRequest) -> RandomPages:
    return RandomPages(request.param, torch.float32, 4)


def test_a_page_s_layout_is_the_canonical_one(random_pages: RandomPages) -> None:
    values = random_pages.frames(7, 3)
    assert values.shape == random_pages.pages.layout.shape(2)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(
        values, random_pages.pool[:, [7, 3]].transpose(1, 2).cpu().numpy()
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_page_is_the_same_to_the_torch_network(dtype: torch.dtype) -> None:
    random_pages = RandomPages("cpu", dtype, 4)
    shape = (CONFIG.layers, PAGES * PAGE_TOKENS, 2, CONFIG.kv_heads, CONFIG.head_dim)
    plain = TorchPages(CONFIG, torch.zeros(shape, dtype=dtype))
    plain.open_host(HOST_SLOTS)
    assert plain.layout == random_pages.pages.layout
    mine, theirs = numbers(5, 0, 9), numbers(1, 39, 2)
    plain.write_frames(theirs, random_pages.pages.read_frames(mine))
    np.testing.assert_array_equal(plain.read_frames(theirs), random_pages.before[:, :, mine])
    random_pages.pages.write_frames(mine[::-1], plain.read_frames(theirs))
    np.testing.assert_array_equal(random_pages.frames(*mine), random_pages.before[:, :, mine[::-1]])
    plain.write_host(theirs[:1], random_pages.before[:, :, :1])
    random_pages.pages.write_host(mine[:1], plain.read_host(theirs[:1]))
    np.testing.assert_array_equal(
        random_pages.pages.read_host(mine[:1]), random_pages.before[:, :, :1]
    )


def test_pages_come_back_from_the_host_as_they_left(random_pages: RandomPages) -> None:
    # Scattered, in runs, and more than a buffer takes.
    frames = numbers(31, 4, 5, 6, 0, 17, 2, 3, 20, 39, 8)
    slots = numbers(9, 10, 11, 0, 1, 2, 23, 5, 4, 12, 20)
    random_pages.pages.save(frames, slots)
    random_pages.pool.fill_(0)
    assert random_pages.pages.settle() >= 0
    np.testing.assert_array_equal(
        random_pages.pages.read_host(slots), random_pages.before[:, :, frames]
    )
    back = numbers(*range(10, 21))
    random_pages.pages.load(slots, back)
    random_pages.pages.settle()
    np.testing.assert_array_equal(random_pages.frames(*back), random_pages.before[:, :, frames])
    assert not random_pages.frames(9, 21).any()


def test_what_is_loaded_while_it_is_saved_is_what_was_saved(random_pages: RandomPages) -> None:
    # A slot that had something else before, a frame that is overwritten, and no word in between.
    random_pages.pages.write_host(numbers(3, 4), random_pages.before[:, :, [20, 21]])
    for _ in range(3):
        random_pages.pages.save(numbers(1, 2), numbers(3, 4))
        random_pages.pages.write_frames(numbers(1, 2), random_pages.before[:, :, [30, 31]])
        random_pages.pages.load(numbers(4, 3), numbers(6, 7))
        np.testing.assert_array_equal(random_pages.frames(6, 7), random_pages.before[:, :, [2, 1]])
        random_pages.pages.settle()
        random_pages.pages.write_frames(numbers(1, 2), random_pages.before[:, :, [1, 2]])


def test_a_slot_may_be_used_again_by_the_step_that_has_loaded_it(random_pages: RandomPages) -> None:
    random_pages.pages.save(numbers(1), numbers(0))
    random_pages.pages.settle()
    random_pages.pages.load(numbers(0), numbers(8))
    random_pages.pages.save(numbers(2), numbers(0))
    random_pages.pages.settle()
    np.testing.assert_array_equal(random_pages.frames(8), random_pages.before[:, :, [1]])
    np.testing.assert_array_equal(
        random_pages.pages.read_host(numbers(0)), random_pages.before[:, :, [2]]
    )


def test_one_slot_may_go_to_several_frames_and_nothing_nowhere(random_pages: RandomPages) -> None:
    random_pages.pages.write_host(numbers(5), random_pages.before[:, :, [1]])
    random_pages.pages.load(numbers(5, 5, 5), numbers(7, 8, 9))
    random_pages.pages.save(numbers(), numbers())
    random_pages.pages.load(numbers(), numbers())
    random_pages.pages.settle()
    np.testing.assert_array_equal(
        random_pages.frames(7, 8, 9), random_pages.before[:, :, [1, 1, 1]]
    )
    assert random_pages.frames().shape == random_pages.pages.layout.shape(0)


def test_a_host_slot_s_bytes_are_a_page(random_pages: RandomPages) -> None:
    random_pages.pages.write_host(numbers(2), random_pages.before[:, :, [3]])
    assert len(random_pages.pages.host_page(2)) == random_pages.pages.layout.page_bytes
    random_pages.pages.host_page(5)[:] = random_pages.pages.host_page(2)
    np.testing.assert_array_equal(
        random_pages.pages.read_host(numbers(5)), random_pages.before[:, :, [3]]
    )


def test_room_on_the_host_is_of_one_size(random_pages: RandomPages) -> None:
    random_pages.pages.open_host(HOST_SLOTS)
    with pytest.raises(AssertionError):
        random_pages.pages.open_host(HOST_SLOTS + 1)
    wrong: list[Any] = [numbers(-1), numbers(HOST_SLOTS)]
    for slots in wrong:
        with pytest.raises(AssertionError):
            random_pages.pages.load(slots, numbers(0))
    random_pages.pages.close()


def test_too_much_room_is_a_memory_error() -> None:
    random_pages = RandomPages("cpu", torch.float32, 4)
    other = CudaPages(CONFIG, random_pages.pool)
    with pytest.raises(MemoryError, match="on the host"):
        other.open_host(1 << 50)
