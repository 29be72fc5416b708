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
    architecture="llama", vocab_size=8, hidden_size=8, intermediate_size=8, layers=3, heads=4,
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


class House:
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
def house(request: pytest.FixtureRequest) -> House:
    return House(request.param, torch.float32, 4)


def test_a_page_s_layout_is_the_canonical_one(house: House) -> None:
    values = house.frames(7, 3)
    assert values.shape == house.pages.layout.shape(2)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, house.pool[:, [7, 3]].transpose(1, 2).cpu().numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_page_is_the_same_to_the_torch_network(dtype: torch.dtype) -> None:
    house = House("cpu", dtype, 4)
    shape = (CONFIG.layers, PAGES * PAGE_TOKENS, 2, CONFIG.kv_heads, CONFIG.head_dim)
    plain = TorchPages(CONFIG, torch.zeros(shape, dtype=dtype))
    plain.open_host(HOST_SLOTS)
    assert plain.layout == house.pages.layout
    mine, theirs = numbers(5, 0, 9), numbers(1, 39, 2)
    plain.write_frames(theirs, house.pages.read_frames(mine))
    np.testing.assert_array_equal(plain.read_frames(theirs), house.before[:, :, mine])
    house.pages.write_frames(mine[::-1], plain.read_frames(theirs))
    np.testing.assert_array_equal(house.frames(*mine), house.before[:, :, mine[::-1]])
    plain.write_host(theirs[:1], house.before[:, :, :1])
    house.pages.write_host(mine[:1], plain.read_host(theirs[:1]))
    np.testing.assert_array_equal(house.pages.read_host(mine[:1]), house.before[:, :, :1])


def test_pages_come_back_from_the_host_as_they_left(house: House) -> None:
    # Scattered, in runs, and more than a buffer takes.
    frames = numbers(31, 4, 5, 6, 0, 17, 2, 3, 20, 39, 8)
    slots = numbers(9, 10, 11, 0, 1, 2, 23, 5, 4, 12, 20)
    house.pages.save(frames, slots)
    house.pool.fill_(0)
    assert house.pages.settle() >= 0
    np.testing.assert_array_equal(house.pages.read_host(slots), house.before[:, :, frames])
    back = numbers(*range(10, 21))
    house.pages.load(slots, back)
    house.pages.settle()
    np.testing.assert_array_equal(house.frames(*back), house.before[:, :, frames])
    assert not house.frames(9, 21).any()


def test_what_is_loaded_while_it_is_saved_is_what_was_saved(house: House) -> None:
    # A slot that had something else before, a frame that is overwritten, and no word in between.
    house.pages.write_host(numbers(3, 4), house.before[:, :, [20, 21]])
    for _ in range(3):
        house.pages.save(numbers(1, 2), numbers(3, 4))
        house.pages.write_frames(numbers(1, 2), house.before[:, :, [30, 31]])
        house.pages.load(numbers(4, 3), numbers(6, 7))
        np.testing.assert_array_equal(house.frames(6, 7), house.before[:, :, [2, 1]])
        house.pages.settle()
        house.pages.write_frames(numbers(1, 2), house.before[:, :, [1, 2]])


def test_a_slot_may_be_used_again_by_the_step_that_has_loaded_it(house: House) -> None:
    house.pages.save(numbers(1), numbers(0))
    house.pages.settle()
    house.pages.load(numbers(0), numbers(8))
    house.pages.save(numbers(2), numbers(0))
    house.pages.settle()
    np.testing.assert_array_equal(house.frames(8), house.before[:, :, [1]])
    np.testing.assert_array_equal(house.pages.read_host(numbers(0)), house.before[:, :, [2]])


def test_one_slot_may_go_to_several_frames_and_nothing_nowhere(house: House) -> None:
    house.pages.write_host(numbers(5), house.before[:, :, [1]])
    house.pages.load(numbers(5, 5, 5), numbers(7, 8, 9))
    house.pages.save(numbers(), numbers())
    house.pages.load(numbers(), numbers())
    house.pages.settle()
    np.testing.assert_array_equal(house.frames(7, 8, 9), house.before[:, :, [1, 1, 1]])
    assert house.frames().shape == house.pages.layout.shape(0)


def test_a_host_slot_s_bytes_are_a_page(house: House) -> None:
    house.pages.write_host(numbers(2), house.before[:, :, [3]])
    assert len(house.pages.host_page(2)) == house.pages.layout.page_bytes
    house.pages.host_page(5)[:] = house.pages.host_page(2)
    np.testing.assert_array_equal(house.pages.read_host(numbers(5)), house.before[:, :, [3]])


def test_room_on_the_host_is_of_one_size(house: House) -> None:
    house.pages.open_host(HOST_SLOTS)
    with pytest.raises(AssertionError):
        house.pages.open_host(HOST_SLOTS + 1)
    wrong: list[Any] = [numbers(-1), numbers(HOST_SLOTS)]
    for slots in wrong:
        with pytest.raises(AssertionError):
            house.pages.load(slots, numbers(0))
    house.pages.close()


def test_too_much_room_is_a_memory_error() -> None:
    house = House("cpu", torch.float32, 4)
    other = CudaPages(CONFIG, house.pool)
    with pytest.raises(MemoryError, match="on the host"):
        other.open_host(1 << 50)
