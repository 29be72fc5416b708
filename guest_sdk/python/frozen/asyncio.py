"""Tasks of one program, side by side: the names of CPython's asyncio that make sense on a server.

A task goes on until it awaits something that is not there yet. When no task can go on, the program
waits for all tickets that tasks await, at once.
"""

import _lip
from collections import deque

FIRST_COMPLETED = "FIRST_COMPLETED"
FIRST_EXCEPTION = "FIRST_EXCEPTION"
ALL_COMPLETED = "ALL_COMPLETED"


class CancelledError(BaseException):
    """The task was cancelled."""


class TimeoutError(Exception):
    """It took too long."""


class InvalidStateError(Exception):
    """The future has no result yet."""


class Future:
    """Something that comes; await it for its result."""

    def __init__(self):
        self._state = 0  # 1: there is a result, 2: an exception
        self._value = None
        self._waiters = []  # tasks
        self._callbacks = []

    def done(self):
        return self._state != 0

    def cancelled(self):
        return self._state == 2 and isinstance(self._value, CancelledError)

    def result(self):
        if self._state == 2:
            raise self._value
        if self._state == 0:
            raise InvalidStateError("no result yet")
        return self._value

    def exception(self):
        if self._state == 0:
            raise InvalidStateError("no result yet")
        return self._value if self._state == 2 else None

    def set_result(self, value):
        self._finish(1, value)

    def set_exception(self, error):
        self._finish(2, error)

    def add_done_callback(self, callback):
        if self._state:
            callback(self)
        else:
            self._callbacks.append(callback)

    def cancel(self, msg=None):
        if self._state:
            return False
        self._finish(2, CancelledError())
        return True

    def _finish(self, state, value):
        if self._state:
            return
        self._state, self._value = state, value
        waiters, self._waiters = self._waiters, []
        for task in waiters:
            task._awaited = None
            _ready.append(task)
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)

    def __await__(self):
        if not self._state:
            yield self
        return self.result()

    __iter__ = __await__


class Ticket(Future):
    """A call under way; awaiting it gives its result, or raises the errno's exception.

    Cancelling it drops the work.
    """

    def __init__(self, call, number, decode=None, live=False):
        super().__init__()
        self._call, self._number, self._decode = call, number, decode
        self._live = live  # there are more results behind this one

    def cancel(self, msg=None):
        if self._state:
            return False
        _lip.cancel(self._number)
        return super().cancel(msg)

    def add_done_callback(self, callback):
        super().add_done_callback(callback)
        if not self._state:
            _tickets[self._number] = self

    def _answer(self, result):
        if isinstance(result, int):
            from symphony.errors import call_error

            self._finish(2, call_error(self._call, -result))
            return
        try:
            self._finish(1, result if self._decode is None else self._decode(result))
        except Exception as error:
            self._finish(2, error)

    def _wanted(self):
        return not self._state and (self._waiters or self._callbacks)

    def __del__(self):
        if not self._state and not self._live:
            _lip.cancel(self._number)


class Done(Future):
    """What is there already."""

    def __init__(self, value=None):
        super().__init__()
        self._state, self._value = 1, value


class Task(Future):
    """A coroutine that runs side by side with others."""

    def __init__(self, coroutine):
        super().__init__()
        self._coroutine = coroutine
        self._awaited = None
        self._cancelling = False
        self._seen = False
        _ready.append(self)

    def cancel(self, msg=None):
        if self._state:
            return False
        awaited, self._cancelling = self._awaited, True
        if awaited is not None:
            self._awaited = None
            if self in awaited._waiters:
                awaited._waiters.remove(self)
            if not awaited._waiters:
                awaited.cancel()
            _ready.append(self)
        return True

    def result(self):
        self._seen = True
        return super().result()

    def exception(self):
        self._seen = True
        return super().exception()

    def _step(self):
        global _current
        if self._state:
            return
        _current = self
        try:
            if self._cancelling:
                self._cancelling = False
                awaited = self._coroutine.throw(CancelledError())
            else:
                awaited = self._coroutine.send(None)
        except StopIteration as ended:
            self._finish(1, ended.value)
        except BaseException as error:
            self._seen = self._seen or bool(self._waiters) or bool(self._callbacks)
            self._finish(2, error)
        else:
            self._wait(awaited)
        finally:
            _current = None

    def _wait(self, awaited):
        if awaited is None:
            _ready.append(self)
        elif not isinstance(awaited, Future):
            self._coroutine.throw(TypeError("this cannot be awaited"))
        elif awaited._state or self._cancelling:
            _ready.append(self)
        else:
            self._awaited = awaited
            awaited._waiters.append(self)
            if isinstance(awaited, Ticket):
                _tickets[awaited._number] = awaited


_ready = deque((), 1 << 16, 1)
_tickets = {}
_current = None


def _turn():
    """Let every task go on that can; then wait for tickets. False: nothing can come any more."""
    while _ready:
        _ready.popleft()._step()
        if not _ready:
            break
    if _ready:
        return True
    waiting = [ticket for ticket in _tickets.values() if ticket._wanted()]
    _tickets.clear()
    if not waiting:
        return False
    results = _lip.wait([ticket._number for ticket in waiting], -1)
    for ticket, result in zip(waiting, results):
        if result is None:
            _tickets[ticket._number] = ticket
        else:
            ticket._answer(result)
    return True


def run(coroutine):
    """Run a coroutine to its end, and return its result. Tasks that are left are cancelled."""
    if _current is not None:
        raise RuntimeError("asyncio.run() inside of a task: await the coroutine")
    task = ensure_future(coroutine)
    while not task.done():
        if not _turn() and not task.done():
            raise RuntimeError("every task waits for another: nothing can come any more")
    return task.result()


def create_task(coroutine):
    """Begin a coroutine side by side with this one."""
    return Task(coroutine)


def ensure_future(awaitable):
    if isinstance(awaitable, Future):
        return awaitable
    if not hasattr(awaitable, "send"):
        awaitable = _awaiting(awaitable)
    return Task(awaitable)


async def _awaiting(awaitable):
    return await awaitable


def current_task():
    return _current


class _Pause:
    def __await__(self):
        yield None

    __iter__ = __await__


async def sleep(seconds, result=None):
    """Let others go on for so many seconds, by the server's clock."""
    if seconds <= 0:
        await _Pause()
    else:
        await Ticket("sleep", _lip.sleep(int(seconds * 1000 + 0.5)))
    return result


def gather(*awaitables, return_exceptions=False):
    """Await all of them side by side; their results in order. The first error is that of all."""
    return _Gather([ensure_future(each) for each in awaitables], return_exceptions)


class _Gather(Future):
    def __init__(self, works, return_exceptions):
        super().__init__()
        self._works, self._keep = works, return_exceptions
        self._left = len(works)
        for work in works:
            work.add_done_callback(self._one)
        if not works:
            self._finish(1, [])

    def _one(self, work):
        self._left -= 1
        if isinstance(work, Task):
            work._seen = True
        if work._state == 2 and not self._keep:
            self._finish(2, work._value)
        elif self._left == 0:
            self._finish(1, [each._value for each in self._works])

    def cancel(self, msg=None):
        if self._state:
            return False
        for work in self._works:
            work.cancel()
        return super().cancel(msg)


async def wait(awaitables, timeout=None, return_when=ALL_COMPLETED):
    """Wait for some; return the sets of those that are done and of those that are not."""
    works = [ensure_future(each) for each in awaitables]
    if not works:
        raise ValueError("nothing to wait for")
    clock = None if timeout is None else ensure_future(sleep(timeout))
    try:
        while not _enough(works, return_when) and not (clock is not None and clock.done()):
            changed = Future()

            def wake(_):
                changed.set_result(None)

            for work in works + ([] if clock is None else [clock]):
                if not work.done():
                    work.add_done_callback(wake)
            await changed
    finally:
        if clock is not None:
            clock.cancel()
    return {each for each in works if each.done()}, {each for each in works if not each.done()}


async def _quietly(work):
    try:
        await work
    except BaseException:
        pass


def _enough(works, return_when):
    done = [work for work in works if work.done()]
    if return_when == FIRST_COMPLETED:
        return bool(done)
    failed = return_when == FIRST_EXCEPTION and any(work._state == 2 for work in done)
    return failed or len(done) == len(works)


async def wait_for(awaitable, timeout):
    """Await it for at most so many seconds; TimeoutError, and it is cancelled."""
    work = ensure_future(awaitable)
    if timeout is None:
        return await work
    try:
        await wait([work], timeout)
    except CancelledError:
        work.cancel()
        raise
    if not work.done():
        work.cancel()
        await _quietly(work)
        if not work.done() or work.cancelled():
            raise TimeoutError()
    return work.result()


def as_completed(awaitables):
    """Give an awaitable for each, in the order in which they end."""
    left = [ensure_future(each) for each in awaitables]

    async def first():
        done, _ = await wait(left, return_when=FIRST_COMPLETED)
        for each in left:
            if each in done:
                left.remove(each)
                return each.result()

    for _ in range(len(left)):
        yield first()


class Event:
    """Something that happens once, or until it is cleared."""

    def __init__(self):
        self._set = False
        self._happens = Future()

    def is_set(self):
        return self._set

    def set(self):
        if not self._set:
            self._set = True
            self._happens.set_result(True)

    def clear(self):
        if self._set:
            self._set = False
            self._happens = Future()

    async def wait(self):
        if not self._set:
            await self._happens
        return True


class Semaphore:
    """At most so many at a time."""

    def __init__(self, value=1):
        self._value = value
        self._queue = deque((), 1 << 16, 1)

    def locked(self):
        return self._value == 0

    async def acquire(self):
        if self._value > 0:
            self._value -= 1
            return True
        turn = Future()
        self._queue.append(turn)
        await turn
        return True

    def release(self):
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._value += 1

    async def __aenter__(self):
        await self.acquire()

    async def __aexit__(self, kind, error, traceback):
        self.release()


class Lock(Semaphore):
    """One at a time."""

    def __init__(self):
        super().__init__(1)


class QueueEmpty(Exception):
    """Nothing is in the queue."""


class QueueFull(Exception):
    """The queue has no room."""


class Queue:
    """What some tasks put, and others get, in order."""

    def __init__(self, maxsize=0):
        self._items, self._most = [], maxsize
        self._changed = Event()

    def qsize(self):
        return len(self._items)

    def empty(self):
        return not self._items

    def full(self):
        return 0 < self._most <= len(self._items)

    def put_nowait(self, item):
        if self.full():
            raise QueueFull()
        self._items.append(item)
        self._change()

    def get_nowait(self):
        if not self._items:
            raise QueueEmpty()
        item = self._items.pop(0)
        self._change()
        return item

    async def put(self, item):
        while self.full():
            await self._changed.wait()
        self.put_nowait(item)

    async def get(self):
        while not self._items:
            await self._changed.wait()
        return self.get_nowait()

    def _change(self):
        self._changed.set()
        self._changed = Event()
