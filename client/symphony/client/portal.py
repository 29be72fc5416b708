"""The way from synchronous code to the asynchronous client, which runs in a thread of its own.

    the user's threads              the portal's thread: an event loop
    ------------------              ----------------------------------
    portal.call(f)        ------->  await f(client)
    result, or exception  <-------

The caller's thread may have a running event loop, as a notebook has. After a fork the child opens
connections of its own, and leaves the parent's alone.
"""

import asyncio
import io
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, BinaryIO, TypeVar, cast

from symphony.client.async_client import AsyncClient
from symphony.client.errors import ClientError

T = TypeVar("T")
_CLOSE_SECONDS_MAX = 10.0
_CANCEL_SECONDS_MAX = 1.0
_END = object()
_FILE_BUFFER_BYTES = 256 << 10
_of_parents: list[object] = []  # loops and connections of a process that has forked this one


class Portal:
    """A thread with an asynchronous client, from its first use until it is closed."""

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        """`make` returns a client; it is called in each process that uses this."""
        self._make = make
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._closed = False

    @property
    def client(self) -> AsyncClient:
        return self._start().client

    def call(self, act: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Return what `act` returns of the client."""
        running = self._start()
        return running.run(act(running.client))

    def iterate(self, act: Callable[[AsyncClient], AsyncIterator[T]]) -> Iterator[T]:
        """Yield what an asynchronous iterator yields, each when it is asked for."""
        running = self._start()
        items = act(running.client)
        try:
            while (item := running.run(anext(items, _END))) is not _END:
                yield cast(T, item)
        finally:
            if isinstance(items, AsyncGenerator) and running.is_here():
                running.run(items.aclose())

    @contextmanager
    def entered(self, act: Callable[[AsyncClient], AbstractAsyncContextManager[T]]) -> Iterator[T]:
        """Enter an asynchronous context manager."""
        running = self._start()
        manager = act(running.client)
        try:
            yield running.run(manager.__aenter__())
        finally:
            if running.is_here():
                running.run(manager.__aexit__(None, None, None))

    def file(self, act: Callable[[AsyncClient], AsyncIterator[bytes]]) -> BinaryIO:
        """Return a file that reads the pieces that an asynchronous iterator yields."""
        return cast(
            BinaryIO, io.BufferedReader(_Pieces(self.iterate(act)), buffer_size=_FILE_BUFFER_BYTES)
        )

    def close(self) -> None:
        """Close all connections and end the thread."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is not None:
            running.close()

    def _start(self) -> "_Running":
        with self._lock:
            if self._closed:
                raise ClientError("this client is closed")
            if self._running is not None and self._running.pid != os.getpid():
                self._running.leave()
                self._running = None
            if self._running is None:
                self._running = _Running(self._make)
            return self._running


class _Running:
    """A client in its thread, in the process `pid`."""

    def __init__(self, make: Callable[[], AsyncClient]) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_serve, args=(self._loop,), name="symphony-client", daemon=True
        )
        self._thread.start()
        self.client = make()
        self.run(self.client.__aenter__())
        # A client that is dropped, or not closed at the end, leaves nothing behind.
        self._end = weakref.finalize(self, _end, self.client, self._loop, self._thread, self.pid)

    def is_here(self) -> bool:
        """Return whether the thread is this process's, and runs."""
        return self.pid == os.getpid() and self._thread.is_alive()

    def run(self, act: Awaitable[T]) -> T:
        """Wait until an awaitable is done in the thread; return its result."""
        if not self.is_here():
            raise ClientError("it belongs to another process, or to a client that is closed")
        over = threading.Event()
        future = asyncio.run_coroutine_threadsafe(_awaited(act, over), self._loop)
        try:
            return future.result()
        except BaseException:
            if future.cancel():  # it was interrupted, as by Ctrl-C
                over.wait(_CANCEL_SECONDS_MAX)
            raise

    def close(self) -> None:
        self._end()

    def leave(self) -> None:
        """Forget what belongs to the parent process, without touching its connections."""
        self._end.detach()
        _of_parents.append((self._loop, self.client, self._thread))


class _Pieces(io.RawIOBase):
    """A file of what an iterator yields."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(buffer), len(self._rest))
        buffer[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            cast(Any, self._pieces).close()
        super().close()


async def _awaited(act: Awaitable[T], over: threading.Event) -> T:
    try:
        return await act
    finally:
        over.set()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def _end(
    client: AsyncClient, loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int
) -> None:
    if pid != os.getpid() or not thread.is_alive():
        return
    closing = asyncio.run_coroutine_threadsafe(client.__aexit__(None, None, None), loop)
    closing.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    if threading.current_thread() is not thread:  # the garbage collector runs in any thread
        thread.join(_CLOSE_SECONDS_MAX)
