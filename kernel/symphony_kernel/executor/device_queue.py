"""The device's thread, its queue, and the futures of its results.

The thread runs one job after the other. A job's result reaches the event loop in one hop, without
a task or a thread pool in between. A caller awaits the future or names a callback, which then runs
in that same hop.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from symphony_kernel.protocol.limits import DELIVERY_MS_DEFAULT

T = TypeVar("T")


class StepFuture(Generic[T]):
    """A result or an error to come, of one event loop. It completes once.

    `began` and `ended` are monotonic seconds between which a device computed it; 0.0: unknown.
    """

    __slots__ = ("_callback", "began", "done", "ended", "error", "value")

    def __init__(self) -> None:
        self._callback: Callable[[StepFuture[T]], None] | None = None
        self.done = False
        self.value: T
        self.error: BaseException | None = None
        self.began = self.ended = 0.0

    def then(self, callback: Callable[["StepFuture[T]"], None]) -> None:
        """Set the only callback; if the future is done, call it at once."""
        assert self._callback is None
        self._callback = callback
        if self.done:
            callback(self)

    def set_result(self, value: T) -> None:
        self.complete(value, None)
        self.notify()

    def set_exception(self, error: BaseException) -> None:
        self.error = error
        self.done = True
        self.notify()

    def complete(self, value: T, error: BaseException | None) -> None:
        """Store the result or the error; the caller calls `notify` afterwards."""
        self.value, self.error = value, error
        self.done = True

    def notify(self) -> None:
        if self._callback is not None:
            self._callback(self)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done:
            future = asyncio.get_running_loop().create_future()

            def wake(_: "StepFuture[T]") -> None:
                if not future.done():  # the waiting task may have been cancelled
                    future.set_result(None)

            self.then(wake)
            yield from future
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(eq=False, slots=True)
class _Job:
    """A job; `waiter` is a future on `loop`, or a blocked thread's event."""

    work: Callable[[], Any]
    waiter: StepFuture[Any] | threading.Event
    loop: asyncio.AbstractEventLoop | None = None
    begin: Callable[[], bool] | None = None
    may_batch_delivery: bool = False
    value: Any = None
    error: BaseException | None = None
    began: float = 0.0
    ended: float = 0.0
    _begun: bool | None = None  # None: `begin` has not been called

    def try_begin(self) -> bool:
        """Begin behind the job before, once; return whether this job follows it."""
        if self._begun is None:
            try:
                self._begun = self.begin is not None and self.begin()
            except BaseException as raised:  # raised again where the job is awaited
                self._begun, self.error = False, raised
        return self._begun

    def run(self) -> None:
        self.began = time.monotonic()
        self.try_begin()
        if self.error is None:
            try:
                self.value = self.work()
            except BaseException as raised:  # raised again where the job is awaited
                self.error = raised
        self.ended = time.monotonic()


class DeviceThread:
    """One thread that runs one job after the other, all within `context`.

    A job may follow the job before it: then it begins without help from the loop. While such jobs
    follow each other, one wake-up of the loop delivers several of their results, at most
    `hold_seconds` late.
    """

    def __init__(
        self,
        setup: Callable[[], None] = lambda: None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
        hold_seconds: float = DELIVERY_MS_DEFAULT / 1000,
    ) -> None:
        """Start the thread; it enters `context` and runs `setup` first."""
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._hold_seconds = hold_seconds
        # Makes the next step write to an eventfd once it computes; None: the device cannot.
        self.ring: Callable[[int], None] | None = None
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop: asyncio.AbstractEventLoop | None = None  # the loop that reads the bell
        self._ended: deque[list[_Job]] = deque()  # not delivered to the loop yet
        self._thread = threading.Thread(
            target=self._run, args=(setup, context), name="executor", daemon=True
        )
        self._thread.start()

    def start(
        self,
        work: Callable[[], T],
        begin: Callable[[], bool] | None = None,
        may_batch_delivery: bool = True,
    ) -> StepFuture[T]:
        """Queue a job of the running event loop.

        With `begin` the job follows the one before. The thread calls `begin` once, when that job
        has ended and before its result is delivered; `work` runs in any case. Without
        `may_batch_delivery` the job's result is delivered at once.
        """
        future: StepFuture[T] = StepFuture()
        loop = asyncio.get_running_loop()
        if begin is not None and loop is not self._loop:
            self._loop = loop
            loop.add_reader(self._bell, self._on_bell)
        self._jobs.put(_Job(work, future, loop, begin, may_batch_delivery and begin is not None))
        return future

    def call(self, work: Callable[[], T]) -> T:
        """Run a job and wait for it, on any other thread."""
        ended = threading.Event()
        job = _Job(work, ended)
        self._jobs.put(job)
        ended.wait()
        if job.error is not None:
            raise job.error
        result: T = job.value
        return result

    def stop(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._bell)
        os.close(self._bell)

    def _run(self, setup: Callable[[], None], context: Callable[[], Any]) -> None:
        with context():
            setup()
            while (job := self._jobs.get()) is not None:
                if not self._run_queued(job):
                    return
                del job  # a step's objects must not live until the next step comes

    def _run_queued(self, job: _Job) -> bool:
        """Run a job and all that are queued behind it; return False at the thread's end."""
        ended: list[_Job] = []  # not delivered yet
        while True:
            job.run()
            if self._ended and job.loop is not None:  # the bell did not ring, or was not heard
                job.loop.call_soon_threadsafe(self._deliver_ended)
            ended.append(job)
            try:
                following = self._jobs.get_nowait()
            except Empty:
                self._deliver(ended)
                return True
            if following is None or not following.try_begin():
                self._deliver(ended)
                ended = []
            elif not self._may_hold(ended):
                self._deliver(ended, self.ring)
                ended = []
            if following is None:
                return False
            job = following

    def _deliver(self, jobs: list[_Job], ring: Callable[[int], None] | None = None) -> None:
        """Deliver the results of ended jobs to their loop, or set their event.

        With `ring` the next step wakes the loop. If this thread woke it, the system could run the
        loop's thread in its place, and the step would wait.
        """
        first = jobs[0]
        if first.loop is None:
            assert isinstance(first.waiter, threading.Event)
            first.waiter.set()
            return
        self._ended.append(jobs)
        if ring is not None:
            ring(self._bell)
        else:
            first.loop.call_soon_threadsafe(self._deliver_ended)

    def _deliver_ended(self) -> None:  # on the loop
        """Complete the futures of jobs that were delivered together, then run their callbacks."""
        while self._ended:
            completed = []
            for job in self._ended.popleft():
                future = job.waiter
                assert isinstance(future, StepFuture)
                future.began, future.ended = job.began, job.ended
                future.complete(job.value, job.error)
                completed.append(future)
            for future in completed:
                future.notify()

    def _on_bell(self) -> None:
        os.eventfd_read(self._bell)
        self._deliver_ended()

    def _may_hold(self, ended: list[_Job]) -> bool:
        """Return whether the oldest of these results may wait until the next step's end."""
        first, last = ended[0], ended[-1]
        until = last.ended + (last.ended - last.began)
        held = first.may_batch_delivery and last.may_batch_delivery
        return held and until - first.ended <= self._hold_seconds
