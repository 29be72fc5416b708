"""Attached programs for code that is not async: a notebook's cells, or a prompt.

    with symphony.sync.attach() as sym:
        text = sym.Session("def add(a, b):")
        print(text.reply(sym.Sampling(max_tokens=16)).text)

`sym` has the names of `symphony`. What is awaited there is waited for here, and what is iterated
with `async for` is iterated with `for`. One event loop in a thread of its own makes all calls; a
function that the SDK calls, such as `fan_out`'s branch, is still async.
"""

import asyncio
import atexit
import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Any, TypeVar

from symphony.attached import run as runs

T = TypeVar("T")
_PACKAGE = "symphony."
_SDK = "symphony"  # whose names come with their first use


class _Loop:
    """An event loop in a thread, which the first use starts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Callable[[], Any], context: contextvars.Context) -> Any:
        """Call `work` in the loop's thread, await what it returns if it can be awaited."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        loop = self._started()

        async def perform() -> Any:
            result = work()
            awaited = isinstance(result, asyncio.Future) or inspect.iscoroutine(result)
            return await result if awaited else result

        def begin() -> None:
            task = loop.create_task(perform(), context=context)
            task.add_done_callback(lambda _: _finish(task, done))
            done.add_done_callback(
                lambda _: loop.call_soon_threadsafe(task.cancel) if done.cancelled() else None
            )

        loop.call_soon_threadsafe(begin)
        try:
            return done.result()
        except KeyboardInterrupt:
            done.cancel()
            raise

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                serve = self._loop.run_forever
                thread = threading.Thread(target=serve, name="symphony", daemon=True)
                thread.start()
                atexit.register(_stop, self._loop, thread)
            return self._loop


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def _finish(task: "asyncio.Task[Any]", done: "concurrent.futures.Future[Any]") -> None:
    if done.cancelled():
        return
    if task.cancelled():
        done.set_exception(concurrent.futures.CancelledError())
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        done.set_result(task.result())


_loop = _Loop()


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in the thread's loop; return its result."""
    result: T = _loop.run(lambda: work, contextvars.copy_context())
    return result


class Synced:
    """A part of the SDK whose calls are waited for."""

    def __init__(self, inner: Any, context: contextvars.Context) -> None:
        self.__dict__["_inner"], self.__dict__["_context"] = inner, context

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if isinstance(found, ModuleType | type):
            return Synced(found, self._context)
        if callable(found) and not _is_part(found):
            return self._wait(found)
        return _wrapped(found, self._context)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wait(self._inner)(*args, **kwargs)

    def _wait(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def waiting(*args: Any, **kwargs: Any) -> Any:
            given = [_plain(each) for each in args]
            named = {name: _plain(each) for name, each in kwargs.items()}
            result = _loop.run(lambda: function(*given, **named), self._context)
            return _wrapped(result, self._context)

        return waiting

    def __iter__(self) -> Iterator[Any]:
        follow = self._inner.__aiter__()
        while True:
            try:
                yield _loop.run(follow.__anext__, self._context)
            except StopAsyncIteration:
                return

    def __enter__(self) -> "Synced":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._wait(self._inner.close)()

    def __repr__(self) -> str:
        return repr(self._inner)


def _is_part(value: Any) -> bool:
    """Return whether a value is an object of the SDK that has calls."""
    kind = type(value)
    parts = {"KvFile", "Session", "Pred", "PredMany", "Stream", "Generation", "Constraint",
             "Process", "Turns", "AttachedRun"}  # fmt: skip
    return kind.__module__.startswith(_PACKAGE) and kind.__name__ in parts


def _wrapped(value: Any, context: contextvars.Context) -> Any:
    if _is_part(value) or inspect.isasyncgen(value):
        return Synced(value, context)
    if isinstance(value, dict):
        return {name: _wrapped(each, context) for name, each in value.items()}
    if type(value) is list:
        return [_wrapped(each, context) for each in value]
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Synced):
        return value.__dict__["_inner"]
    if type(value) in (list, tuple):
        return type(value)(_plain(each) for each in value)
    return value


class attach:  # noqa: N801 - used as a function
    """Open a run, as `symphony.attach` does with the same arguments, for a `with` block.

    The block gets the SDK; its `run` is the run. `open()` and `close()` do without a block.
    """

    def __init__(self, run: str | None = None, **options: Any) -> None:
        self._opening = runs.attach(run, **options)
        self._context = contextvars.copy_context()

    def open(self) -> Synced:
        """Open the run; return the SDK."""

        async def enter() -> runs.AttachedRun:
            return await self._opening.__aenter__()

        run = _loop.run(enter, self._context)
        sdk = Synced(import_module(_SDK), self._context)
        sdk.__dict__["run"] = Synced(run, self._context)
        return sdk

    def close(self) -> None:
        """Leave the run: it ends, or is parked."""

        async def leave() -> None:
            await self._opening.__aexit__(None, None, None)

        _loop.run(leave, self._context)

    def __enter__(self) -> Synced:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
