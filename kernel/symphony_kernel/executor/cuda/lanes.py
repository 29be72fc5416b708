"""Streams beside the one that computes: copies of one direction, their buffers and their ends.

Every wait is by event: a stream waits for the copies in front of what it does, the host only where
it reads or writes what a copy uses. On a CPU there are no streams, and copies are made at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor


class Event(Protocol):
    """A place in a stream; what `torch.cuda.Event` has of it."""

    def query(self) -> bool:
        """Whether the stream has come there."""

    def synchronize(self) -> None:
        """Wait on the host until it has."""

    def wait(self) -> None:
        """Make later work of the current stream wait until it has."""

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from here to a later event; both have passed."""


class Ended:
    """The event of a CPU, which has nothing to wait for."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait(self) -> None: ...

    def elapsed_time(self, end_event: Any) -> float:  # noqa: ARG002
        return 0.0


ENDED = Ended()


class Buffer:
    """A staging buffer on the device: [pages, layers, words], and its like in pinned memory."""

    __slots__ = ("_host", "copied", "pages", "used")

    def __init__(self, pages: Tensor) -> None:
        self.pages = pages
        self.used: Event = ENDED  # the end of its last use
        self.copied: Event = ENDED  # the end of the last copy from or to `host`
        self._host: Tensor | None = None

    @property
    def host(self) -> Tensor:
        """Pinned memory of the same shape; its pages are on their way until `copied`."""
        if self._host is None:
            pinned = self.pages.is_cuda
            self._host = torch.empty(self.pages.shape, dtype=self.pages.dtype, pin_memory=pinned)
        return self._host


class Lane:
    """Copies of one direction: on a GPU on their own stream, elsewhere at once."""

    def __init__(self, device: torch.device) -> None:
        self.buffers: list[Buffer] = []
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._turn = 0

    def next_buffer(self) -> Buffer:
        self._turn = (self._turn + 1) % len(self.buffers)
        return self.buffers[self._turn]

    @contextmanager
    def copying(self) -> Iterator[None]:
        """Make the lane's stream the current one."""
        if self._stream is None:
            yield
            return
        with torch.cuda.stream(self._stream):
            yield

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy on the lane's stream, within `copying`."""
        target.copy_(source, non_blocking=True)

    def mark(self) -> Event:
        """Return the end of what the current stream has been given."""
        return ENDED if self._stream is None else _timed_event()

    def wait_for(self, other: "Lane | None" = None) -> None:
        """Make later copies wait for the queued work of a lane or the current stream."""
        if self._stream is None:
            return
        before = torch.cuda.current_stream(self._device) if other is None else other._stream  # noqa: SLF001 - of a lane
        assert before is not None
        self._stream.wait_stream(before)

    def join(self) -> None:
        """Make later work of the current stream wait for this lane's queued copies."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


def _timed_event() -> torch.cuda.Event:
    """Record an event, with a time, on the current stream."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
