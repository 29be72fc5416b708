"""A lane of copies that are made as late as possible: a stream on a CPU, for tests.

Each copy waits in a queue until an event behind it, or the lane, is waited for. So what
reads pages, or writes over them, without that wait is wrong in every run, not in some. The
computing stream does all at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from symphony_kernel.executor.cuda.lanes import ENDED, Event, Lane
from torch import Tensor

MILLISECONDS = 2.0  # between two events


class DelayedLane(Lane):
    """A lane whose copies are queued."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._queue: list[Callable[[], object]] = []
        self.given = 0  # copies, and waits for another lane
        self.made = 0  # of them
        self.current = False  # whether the lane's stream is the current one

    @contextmanager
    def copying(self) -> Iterator[None]:
        self.current = True
        yield
        self.current = False

    def copy(self, target: Tensor, source: Tensor) -> None:
        assert self.current
        self.put(lambda: target.copy_(source))

    def mark(self) -> Event:
        return _Mark(self, self.given) if self.current else ENDED

    def wait_for(self, other: Lane | None = None) -> None:
        if isinstance(other, DelayedLane):
            until = other.given
            self.put(lambda: other.run(until))

    def join(self) -> None:
        assert not self.current
        self.run(self.given)

    def put(self, work: Callable[[], object]) -> None:
        self._queue.append(work)
        self.given += 1

    def run(self, until: int) -> None:
        while self.made < until:
            self.made += 1
            self._queue.pop(0)()


class _Mark:
    def __init__(self, lane: DelayedLane, place: int) -> None:
        self._lane, self._place = lane, place

    def query(self) -> bool:
        return self._lane.made >= self._place

    def synchronize(self) -> None:
        self._lane.run(self._place)

    def wait(self) -> None:
        if not self._lane.current:  # a lane has its own copies in order
            self._lane.run(self._place)

    def elapsed_time(self, end_event: Any) -> float:
        assert self.query()
        assert end_event.query()
        return MILLISECONDS
