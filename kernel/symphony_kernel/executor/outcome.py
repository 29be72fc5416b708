"""What a step comes to, without a task or a thread pool in between.

An executor's thread takes one work after the other; what came of it goes to the event loop in one
hop. Whoever waits may await an outcome, or name a callback, which then runs in that very hop.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Outcome(Generic[T]):
    """A value to come, or what went wrong; of one event loop. It is finished once.

    `began` and `ended` are monotonic seconds between which a device computed it; 0.0: unknown.
    """

    __slots__ = ("_then", "began", "done", "ended", "error", "value")

    def __init__(self) -> None:
        self._then: Callable[[Outcome[T]], None] | None = None
        self.done = False
        self.value: T
        self.error: BaseException | None = None
        self.began = self.ended = 0.0

    def then(self, callback: Callable[["Outcome[T]"], None]) -> None:
        """Name who is called when it is finished: at once if it is already; only one may be."""
        assert self._then is None
        self._then = callback
        if self.done:
            callback(self)

    def finish(self, value: T) -> None:
        """It has come to this value."""
        self.value = value
        self._end()

    def fail(self, error: BaseException) -> None:
        """It has gone wrong."""
        self.error = error
        self._end()

    def _end(self) -> None:
        self.done = True
        if self._then is not None:
            self._then(self)

    def __await__(self) -> Generator[Any, None, T]:
        """Wait for the value."""
        if not self.done:
            future = asyncio.get_running_loop().create_future()

            def ended(_: "Outcome[T]") -> None:
                if not future.done():  # whoever waited may have been cancelled
                    future.set_result(None)

            self.then(ended)
            yield from future
        if self.error is not None:
            raise self.error
        return self.value


_Work = tuple[Callable[[], Any], Callable[[Any, BaseException | None, float, float], None]]


class DeviceThread:
    """One thread that does one work after the other, all within `context`."""

    def __init__(
        self,
        begin: Callable[[], None] = lambda: None,
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """Start it; it enters `context`, and `begin` runs on it first."""
        self._works: SimpleQueue[_Work | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._run, args=(begin, context), name="executor", daemon=True
        )
        self._thread.start()

    def start(self, work: Callable[[], T]) -> Outcome[T]:
        """Queue a work of the running event loop."""
        outcome: Outcome[T] = Outcome()
        loop = asyncio.get_running_loop()

        def tell(value: Any, error: BaseException | None, began: float, ended: float) -> None:
            outcome.began, outcome.ended = began, ended
            if error is None:
                loop.call_soon_threadsafe(outcome.finish, value)
            else:
                loop.call_soon_threadsafe(outcome.fail, error)

        self._works.put((work, tell))
        return outcome

    def call(self, work: Callable[[], T]) -> T:
        """Do a work and wait for it, on any other thread."""
        ended = threading.Event()
        came: list[Any] = []

        def tell(value: Any, error: BaseException | None, _began: float, _ended: float) -> None:
            came.extend((value, error))
            ended.set()

        self._works.put((work, tell))
        ended.wait()
        value, error = came
        if error is not None:
            raise error
        result: T = value
        return result

    def stop(self) -> None:
        """End it after what is queued; returns when it has ended."""
        self._works.put(None)
        self._thread.join()

    def _run(self, begin: Callable[[], None], context: Callable[[], Any]) -> None:
        with context():
            begin()
            while (item := self._works.get()) is not None:
                self._do(*item)
                del item  # what a step held must not live until the next

    def _do(self, work: Callable[[], Any], tell: Callable[..., None]) -> None:
        value, error = None, None
        began = time.monotonic()
        try:
            value = work()
        except BaseException as raised:  # whoever waits for it hears of it
            error = raised
        tell(value, error, began, time.monotonic())
