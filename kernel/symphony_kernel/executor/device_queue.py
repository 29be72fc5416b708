"""What a step comes to, without a task or a thread pool in between.

An executor's thread takes one work after the other; what came of it goes to the event loop in one
hop. Whoever waits may await an outcome, or name a callback, which then runs in that very hop.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from symphony_kernel.protocol.limits import DELIVERY_MS_DEFAULT

T = TypeVar("T")


class StepFuture(Generic[T]):
    """A value to come, or what went wrong; of one event loop. It is finished once.

    `began` and `ended` are monotonic seconds between which a device computed it; 0.0: unknown.
    """

    __slots__ = ("_then", "began", "done", "ended", "error", "value")

    def __init__(self) -> None:
        self._then: Callable[[StepFuture[T]], None] | None = None
        self.done = False
        self.value: T
        self.error: BaseException | None = None
        self.began = self.ended = 0.0

    def then(self, callback: Callable[["StepFuture[T]"], None]) -> None:
        """Name who is called when it is finished: at once if it is already; only one may be."""
        assert self._then is None
        self._then = callback
        if self.done:
            callback(self)

    def finish(self, value: T) -> None:
        """It has come to this value."""
        self.settle(value, None)
        self.tell()

    def fail(self, error: BaseException) -> None:
        """It has gone wrong."""
        self.error = error
        self.done = True
        self.tell()

    def settle(self, value: T, error: BaseException | None) -> None:
        """It has come to this value, unless to an error; `tell` follows."""
        self.value, self.error = value, error
        self.done = True

    def tell(self) -> None:
        """Call who is called when it is finished."""
        if self._then is not None:
            self._then(self)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the value."""
        if not self.done:
            future = asyncio.get_running_loop().create_future()

            def ended(_: "StepFuture[T]") -> None:
                if not future.done():  # whoever waited may have been cancelled
                    future.set_result(None)

            self.then(ended)
            yield from future
        if self.error is not None:
            raise self.error
        return self.value


class _Job:
    """What the thread has to do, and who hears of it: an outcome on its loop, or an event."""

    __slots__ = (
        "_begun", "began", "begin", "ended", "error", "heard", "loop", "lot", "value", "work",
    )  # fmt: skip

    def __init__(
        self,
        work: Callable[[], Any],
        heard: StepFuture[Any] | threading.Event,
        loop: asyncio.AbstractEventLoop | None = None,
        begin: Callable[[], bool] | None = None,
        lot: bool = False,
    ) -> None:
        self.work, self.heard, self.loop, self.begin = work, heard, loop, begin
        self.lot = lot  # its end may be told of late
        self.value: Any = None
        self.error: BaseException | None = None
        self.began = self.ended = 0.0
        self._begun: bool | None = None  # None: nobody has asked

    def begins(self) -> bool:
        """Begin, if it follows the work before; return whether it does, and goes on from that."""
        if self._begun is None:
            try:
                self._begun = self.begin is not None and self.begin()
            except BaseException as raised:  # whoever waits for it hears of it
                self._begun, self.error = False, raised
        return self._begun

    def run(self) -> None:
        """Do it."""
        self.began = time.monotonic()
        self.begins()
        if self.error is None:
            try:
                self.value = self.work()
            except BaseException as raised:  # whoever waits for it hears of it
                self.error = raised
        self.ended = time.monotonic()


def _tell(works: list[_Job]) -> None:
    """Let those who wait hear of their works' ends, when all of them can be known."""
    told = []
    for work in works:
        outcome = work.heard
        assert isinstance(outcome, StepFuture)
        outcome.began, outcome.ended = work.began, work.ended
        outcome.settle(work.value, work.error)
        told.append(outcome)
    for outcome in told:
        outcome.tell()


class DeviceThread:
    """One thread that does one work after the other, all within `context`.

    A work that follows the one before it begins without a word from the loop; while such follow
    each other, the loop is woken once for several, at most `hold_seconds` late.
    """

    def __init__(
        self,
        begin: Callable[[], None] = lambda: None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        hold_seconds: float = DELIVERY_MS_DEFAULT / 1000,
    ) -> None:
        """Start it; it enters `context`, and `begin` runs on it first."""
        self._works: SimpleQueue[_Job | None] = SimpleQueue()
        self._hold_seconds = hold_seconds
        # Has the next work write to an eventfd once it computes; None: it cannot.
        self.ring: Callable[[int], None] | None = None
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop: asyncio.AbstractEventLoop | None = None  # that hears the bell
        self._ended: deque[list[_Job]] = deque()  # that the loop is to hear of
        self._thread = threading.Thread(
            target=self._run, args=(begin, context), name="executor", daemon=True
        )
        self._thread.start()

    def start(
        self,
        work: Callable[[], T],
        begin: Callable[[], bool] | None = None,
        lot: bool = True,
    ) -> StepFuture[T]:
        """Queue a work of the running event loop.

        With `begin` it follows the one before: that is called on the thread, once, when the other
        has ended and before anybody hears of it; `work` comes in any case. Without `lot` its end is
        told of at once.
        """
        outcome: StepFuture[T] = StepFuture()
        loop = asyncio.get_running_loop()
        if begin is not None and loop is not self._loop:
            self._attach(loop)
        self._works.put(_Job(work, outcome, loop, begin, lot and begin is not None))
        return outcome

    def call(self, work: Callable[[], T]) -> T:
        """Do a work and wait for it, on any other thread."""
        ended = threading.Event()
        item = _Job(work, ended)
        self._works.put(item)
        ended.wait()
        if item.error is not None:
            raise item.error
        result: T = item.value
        return result

    def stop(self) -> None:
        """End it after what is queued; returns when it has ended."""
        self._works.put(None)
        self._thread.join()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._bell)
        os.close(self._bell)

    def _run(self, begin: Callable[[], None], context: Callable[[], Any]) -> None:
        with context():
            begin()
            while (work := self._works.get()) is not None:
                if not self._course(work):
                    return
                del work  # what a step held must not live until the next one comes

    def _course(self, work: _Job) -> bool:
        """Do a work and all that is there behind it; return whether more may come."""
        ended: list[_Job] = []  # that nobody has heard of
        while True:
            work.run()
            if self._ended and work.loop is not None:  # the step has not rung, or nobody has heard
                work.loop.call_soon_threadsafe(self._hear)
            ended.append(work)
            try:
                following = self._works.get_nowait()
            except Empty:
                self._announce(ended)
                return True
            if following is None or not following.begins():
                self._announce(ended)
                ended = []
            elif not self._may_hold(ended):
                self._announce(ended, self.ring)
                ended = []
            if following is None:
                return False
            work = following

    def _announce(self, works: list[_Job], ring: Callable[[int], None] | None = None) -> None:
        """Let those hear who wait for works that have ended: one loop, or one event.

        With `ring` the loop is woken up by the next step: this thread would be put aside for the
        loop's, and the step wait for it.
        """
        first = works[0]
        if first.loop is None:
            assert isinstance(first.heard, threading.Event)
            first.heard.set()
            return
        self._ended.append(works)
        if ring is not None:
            ring(self._bell)
        else:
            first.loop.call_soon_threadsafe(self._hear)

    def _hear(self) -> None:
        """On the loop: let outcomes be known."""
        while self._ended:
            _tell(self._ended.popleft())

    def _hear_bell(self) -> None:
        os.eventfd_read(self._bell)
        self._hear()

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the running loop hear the bell."""
        self._loop = loop
        loop.add_reader(self._bell, self._hear_bell)

    def _may_hold(self, ended: list[_Job]) -> bool:
        """Whether the first of these would not wait for too long until another step's end."""
        first, last = ended[0], ended[-1]
        until = last.ended + (last.ended - last.began)
        return first.lot and last.lot and until - first.ended <= self._hold_seconds
