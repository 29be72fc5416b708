"""Pages of a pool in the GPU's layout: on the CPU, and on a GPU where there is one."""

from typing import Any

import numpy as np
import pytest
import torch
from symphony_kernel.executor.base import Int32, KVArray
from symphony_kernel.executor.cuda.lanes import Ended, Lane
from symphony_kernel.executor.cuda.pages import CudaPages
from symphony_kernel.executor.models.config import ModelConfig, Rope
from symphony_kernel.executor.reference.pages import TorchPages
from symphony_kernel.protocol.limits import PAGE_TOKENS
from torch import Tensor

from tests.support.executor.cuda import ON_GPU
from tests.support.executor.delayed_lane import MILLISECONDS, DelayedLane

PAGES, HOST_SLOTS = 40, 24
CONFIG = ModelConfig(
    vocab_size=8, hidden_size=8, intermediate_size=8, layers=3, heads=4,
    kv_heads=2, head_dim=4, max_context=64, norm_epsilon=1e-5, tied=True, qkv_bias=False,
    output_bias=False, mlp_bias=False, qk_norm=False, windows=(None,) * 3, ropes=(Rope(),) * 3,
    dtype="float32", bos=None, eos=(),
)  # fmt: skip


def numbers(*given: int) -> Int32:
    return np.array(given, np.int32)


class RandomPages(CudaPages):
    """Pages of random bits, which remember what they were at first."""

    def __init__(self, device: str, dtype: torch.dtype, lane: type[Lane] = Lane) -> None:
        shape = (CONFIG.layers, PAGES + 1, 2, PAGE_TOKENS, CONFIG.kv_heads, CONFIG.head_dim)
        self.pool: Tensor = torch.randn(shape, device=device).to(dtype)
        page_bytes = self.pool[:, 0].nbytes
        # Most moves here take several buffers.
        super().__init__(CONFIG, self.pool, 4 * page_bytes, lane)
        assert self.layout.page_bytes == page_bytes
        self.open_host(HOST_SLOTS)
        self.before = self.read_frames(np.arange(PAGES, dtype=np.int32))

    def were(self, *given: int) -> KVArray:
        return self.before[:, :, list(given)]

    def check_frames(self, frames: Int32, *were: int) -> None:
        """Check that these frames have what those had at first."""
        np.testing.assert_array_equal(self.read_frames(frames), self.were(*were))

    def check_host(self, slots: Int32, *were: int) -> None:
        """Check that these slots of the host have what those frames had at first."""
        np.testing.assert_array_equal(self.read_host(slots), self.were(*were))


@pytest.fixture(params=["cpu", "cpu, delayed", pytest.param("cuda", marks=ON_GPU)])
def pages(request: pytest.FixtureRequest) -> RandomPages:
    if request.param == "cpu, delayed":
        return RandomPages("cpu", torch.float32, DelayedLane)
    return RandomPages(request.param, torch.float32)


def test_frames_are_read_in_the_canonical_layout(pages: RandomPages) -> None:
    values = pages.read_frames(numbers(7, 3))
    assert values.shape == pages.layout.shape(2)
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, pages.pool[:, [7, 3]].transpose(1, 2).cpu().numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_page_of_the_torch_network_is_the_same_page(dtype: torch.dtype) -> None:
    pages = RandomPages("cpu", dtype)
    shape = (CONFIG.layers, PAGES * PAGE_TOKENS, 2, CONFIG.kv_heads, CONFIG.head_dim)
    plain = TorchPages(CONFIG, torch.zeros(shape, dtype=dtype))
    plain.open_host(HOST_SLOTS)
    assert plain.layout == pages.layout
    mine, theirs = numbers(5, 0, 9), numbers(1, 39, 2)
    plain.write_frames(theirs, pages.read_frames(mine))
    np.testing.assert_array_equal(plain.read_frames(theirs), pages.were(5, 0, 9))
    pages.write_frames(mine[::-1], plain.read_frames(theirs))
    pages.check_frames(mine, 9, 0, 5)
    plain.write_host(theirs[:1], pages.were(0))
    pages.write_host(mine[:1], plain.read_host(theirs[:1]))
    pages.check_host(mine[:1], 0)


def test_pages_from_the_host_are_as_they_were_saved(pages: RandomPages) -> None:
    # Scattered, in runs, and more than a buffer takes.
    frames = numbers(31, 4, 5, 6, 0, 17, 2, 3, 20, 39, 8)
    slots = numbers(9, 10, 11, 0, 1, 2, 23, 5, 4, 12, 20)
    pages.save(frames, slots)
    pages.pool.fill_(0)
    assert pages.settle() >= 0
    pages.check_host(slots, *frames)
    back = numbers(*range(10, 21))
    pages.load(slots, back)
    pages.settle()
    pages.check_frames(back, *frames)
    assert not pages.read_frames(numbers(9, 21)).any()


def test_page_that_is_loaded_during_its_save_is_the_saved_one(pages: RandomPages) -> None:
    # The slots had other pages, the frames are overwritten, and nothing is settled in between.
    pages.write_host(numbers(3, 4), pages.were(20, 21))
    for _ in range(3):
        pages.save(numbers(1, 2), numbers(3, 4))
        pages.write_frames(numbers(1, 2), pages.were(30, 31))
        pages.load(numbers(4, 3), numbers(6, 7))
        pages.check_frames(numbers(6, 7), 2, 1)
        pages.settle()
        pages.write_frames(numbers(1, 2), pages.were(1, 2))


def test_slot_is_free_again_in_the_step_that_loads_it(pages: RandomPages) -> None:
    pages.save(numbers(1), numbers(0))
    pages.settle()
    pages.load(numbers(0), numbers(8))
    pages.save(numbers(2), numbers(0))
    pages.settle()
    pages.check_frames(numbers(8), 1)
    pages.check_host(numbers(0), 2)


def test_load_of_one_slot_fills_several_frames_or_none(pages: RandomPages) -> None:
    pages.write_host(numbers(5), pages.were(1))
    pages.load(numbers(5, 5, 5), numbers(7, 8, 9))
    pages.save(numbers(), numbers())
    pages.load(numbers(), numbers())
    pages.settle()
    pages.check_frames(numbers(7, 8, 9), 1, 1, 1)
    assert pages.read_frames(numbers()).shape == pages.layout.shape(0)


def test_host_page_gives_the_bytes_of_a_slot(pages: RandomPages) -> None:
    pages.write_host(numbers(2), pages.were(3))
    assert len(pages.host_page(2)) == pages.layout.page_bytes
    pages.host_page(5)[:] = pages.host_page(2)
    pages.check_host(numbers(5), 3)


def test_host_that_is_open_has_one_size_and_no_other_slots(pages: RandomPages) -> None:
    pages.open_host(HOST_SLOTS)
    with pytest.raises(AssertionError):
        pages.open_host(HOST_SLOTS + 1)
    for slots in (numbers(-1), numbers(HOST_SLOTS)):
        with pytest.raises(AssertionError):
            pages.load(slots, numbers(0))
    pages.close()


def test_host_of_too_many_slots_is_a_memory_error() -> None:
    other = CudaPages(CONFIG, RandomPages("cpu", torch.float32).pool)
    with pytest.raises(MemoryError, match="on the host"):
        other.open_host(1 << 50)


@pytest.fixture
def delayed() -> RandomPages:
    """Pages whose link has been measured, so that `settle` waits for nothing."""
    pages = RandomPages("cpu", torch.float32, DelayedLane)
    pages.save(numbers(0), numbers(23))
    assert pages.settle() == MILLISECONDS / 1000
    return pages


def test_step_does_not_wait_for_its_moves_but_who_wants_their_slots(delayed: RandomPages) -> None:
    lane = delayed._leaving
    assert isinstance(lane, DelayedLane)
    delayed.save(numbers(1, 2), numbers(10, 11))
    delayed.save(numbers(3), numbers(12))
    before = lane.made
    assert delayed.settle() == pytest.approx(3 * MILLISECONDS / 1000), "by the first move"
    delayed.host_page(20)
    assert lane.made == before, "no reader wants these slots yet"
    wanted = bytes(delayed.host_page(11))
    assert wanted == delayed.pool[:, 2].contiguous().numpy().tobytes()
    assert before < lane.made < lane.given, "the later move is still on its way"
    delayed.check_host(numbers(12), 3)


def test_slot_that_is_still_loaded_is_not_written_by_the_host(delayed: RandomPages) -> None:
    """As the disk tier writes a slot whose page has come to the device."""
    delayed.write_host(numbers(5), delayed.were(7))
    with delayed._moving(delayed._coming, numbers(5), saves=False):
        target = delayed._coming.buffers[0].pages
        delayed._coming.copy(target[0], delayed._host[5])
    delayed.host_page(5)[:] = bytes(delayed.layout.page_bytes)
    assert target[0].flatten().tolist() == delayed._frames[7].flatten().tolist()


def test_pages_are_read_while_others_leave(delayed: RandomPages) -> None:
    """For a journal: the read waits for its own pages alone, through two buffers in turn."""
    lane = delayed._leaving
    assert isinstance(lane, DelayedLane)
    frames = np.arange(PAGES - 1, -1, -1, dtype=np.int32)
    delayed.check_frames(frames, *frames.tolist())
    delayed.write_frames(frames[:11], delayed.were(*range(11)))
    delayed.check_frames(frames[:11], *range(11))
    assert all(buffer.host.shape == buffer.pages.shape for buffer in lane.buffers)


def test_pinned_memory_is_filled_again_when_its_copy_has_ended(delayed: RandomPages) -> None:
    """The computing stream waits for that copy, but the host would not."""
    waited: list[str] = []

    class Copied(Ended):
        def synchronize(self) -> None:
            waited.append("copied")

    for buffer in delayed._coming.buffers:
        buffer.copied = Copied()
    delayed.write_frames(numbers(*range(8)), delayed.were(*range(8)))
    assert len(waited) == len(delayed._coming.buffers)


def test_moves_in_any_order_give_what_they_give_without_streams() -> None:
    random = np.random.default_rng(7)
    both = [RandomPages("cpu", torch.float32, lane) for lane in (Lane, DelayedLane)]
    both[1].pool.copy_(both[0].pool)
    for pages in both:
        pages.write_host(np.arange(HOST_SLOTS, dtype=np.int32), both[0].were(*range(HOST_SLOTS)))
    for _ in range(300):
        what, count = random.integers(7), int(random.integers(1, 12))
        frames = random.permutation(PAGES)[:count].astype(np.int32)
        slots = random.permutation(HOST_SLOTS)[:count].astype(np.int32)
        values = random.standard_normal(both[0].layout.shape(count)).astype(np.float32)
        found = []
        for pages in both:
            if what == 0:
                pages.save(frames, slots)
            elif what == 1:
                pages.load(slots, frames)
            elif what == 2:
                pages.write_frames(frames, values)
            elif what == 3:
                pages.settle()
            elif what == 4:
                pages.host_page(int(slots[0]))[:8] = values.tobytes()[:8]
            elif what == 5:
                found.append(pages.read_frames(frames))
            else:
                found.append(pages.read_host(slots))
        if found:
            one, other = found
            np.testing.assert_array_equal(one, other)
    everything = np.arange(PAGES, dtype=np.int32)
    one, other = (pages.read_frames(everything) for pages in both)
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=ON_GPU)])
def test_reading_pages_does_not_wait_for_later_steps_of_a_gpu(device: str) -> None:
    pages = RandomPages(device, torch.float32)
    pages.read_frames(numbers(1))  # makes the buffers
    staged = pages._gather(numbers(3, 4))
    torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call] # a step of a second
    behind: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    behind.record()
    with pages._leaving.copying():
        pages._leaving.copy(staged.host[:2], staged.pages[:2])
        done = pages._leaving.mark()
    done.synchronize()
    assert not behind.query(), "the copy waited for the step"
    behind.synchronize()
    assert torch.equal(staged.host[:2], pages._frames[[3, 4]].cpu())
