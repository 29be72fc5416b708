"""Lanes of copies: on a CPU at once, on a GPU next to the stream that computes."""

from typing import Any

import pytest
import torch
from symphony_kernel.executor.cuda.lanes import ENDED, Buffer, Lane

from tests.support.executor.cuda import ON_GPU


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_copy_has_been_made_when_its_event_has_passed(device: str) -> None:
    lane, buffer = Lane(torch.device(device)), Buffer(torch.zeros(2, 3, device=device))
    with lane.copying():
        began = lane.mark()
        lane.copy(buffer.pages, torch.ones(2, 3))
        lane.copy(buffer.host, buffer.pages)
        ended = lane.mark()
    ended.synchronize()
    assert ended.query()
    assert torch.equal(buffer.host, torch.ones(2, 3))
    assert began.elapsed_time(ended) >= 0.0
    assert buffer.host.is_pinned() == (device == "cuda")


def test_buffers_take_turns_and_are_free_at_first() -> None:
    lane = Lane(torch.device("cpu"))
    lane.buffers = [Buffer(torch.zeros(1)) for _ in range(2)]
    taken = [lane.next_buffer() for _ in range(4)]
    assert taken[:2] == taken[2:]
    assert taken[0] is not taken[1]
    assert all(each.used is each.copied is ENDED for each in taken)


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=ON_GPU)])
def test_lane_copies_while_the_other_stream_computes(device: str) -> None:
    lane, source = Lane(torch.device(device)), torch.ones(8, device=device)
    target = torch.zeros(8, pin_memory=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call] # as torch's own tests do
    behind: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    behind.record()
    with lane.copying():
        lane.copy(target, source)
        lane.mark().synchronize()
    assert not behind.query(), "the copy waited for the other stream"
    assert torch.equal(target, torch.ones(8))
