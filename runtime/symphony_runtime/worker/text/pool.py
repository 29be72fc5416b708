"""Threads for long texts: tokenizing, detokenizing and chat templates of all tenants.

    instance --submit--> its tenant's line --(virtual time)--> a thread for a slice --> instance

A text is worked on in slices of about 10 ms, after each of which the tenant goes first that had the
least time (`virtual_time_queue`). Within a tenant the shorter text goes first. A text whose program
has ended is dropped at the end of the slice. A piece that cannot be cut and is long
(`LARGE_PIECE_CHARS`) runs to its end, half a second for the longest; so all threads but one are
kept for others. A text counts as its tenant's memory until it is done, and the time that it takes
as the program's. What large pieces took goes back to the system when no text is left.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from symphony_kernel.platform.malloc import trim
from symphony_kernel.protocol.errno import Errno, LimitError

from symphony_runtime.worker.fairness.run_queue import TenantShare
from symphony_runtime.worker.fairness.tenant_memory import NAME as MEMORY_TOTAL
from symphony_runtime.worker.fairness.tenant_memory import Resident
from symphony_runtime.worker.fairness.virtual_time_queue import Entry, VirtualTimeQueue
from symphony_runtime.worker.text.tokenizer import PIECE_CHARS, Pieces

THREADS = 2  # more of them would leave the programs no processor
SLICE_NS = 10_000_000
LARGE_PIECE_CHARS = 4 * PIECE_CHARS

OnDone = Callable[[bytes | Exception], None]


@dataclass(slots=True)
class TextWork:
    """One call's text. `size`: bytes that it counts for; `large`: its next piece is a large one."""

    order: int
    instance: Resident
    pieces: Pieces
    size: int
    on_done: OnDone
    large: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class Slice:
    """What came of a slice: the time that it took, and the result of a text that is done."""

    spent_ns: int = 0
    next_chars: int = 0
    result: bytes | Exception | None = None


class TextLine(Entry):
    """A tenant's texts: (bytes, order, work), the shortest first."""

    __slots__ = ("active", "share", "works")

    def __init__(self, share: TenantShare) -> None:
        super().__init__()
        self.share = share
        self.active = 0  # slices under way
        self.works: list[tuple[int, int, TextWork]] = []

    def waits(self) -> bool:
        """Whether a text waits; those of programs that have ended are forgotten."""
        while self.works and self.works[0][2].cancelled:
            heappop(self.works)
        return bool(self.works)


class TextPool:
    """All texts that are worked on. Only the worker's loop touches it; threads have the slices."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        charge: Callable[[Any, int], None],
        threads: int = THREADS,
    ) -> None:
        """`charge`: an instance has used so many nanoseconds of a processor."""
        assert threads > 1, "one is kept for others than large pieces"
        self._loop, self._charge, self._threads = loop, charge, threads
        self._executor = ThreadPoolExecutor(threads, "text")
        self._queue: VirtualTimeQueue[TextLine] = VirtualTimeQueue(SLICE_NS)
        self._order = count()
        self._active = 0  # slices under way
        self._large = False  # one of them is a large piece
        self._swollen = False  # there was one since memory was given back
        self._works: dict[int, TextWork] = {}  # by instance, those under way included

    def __len__(self) -> int:
        """Texts that wait or are worked on."""
        return len(self._works)

    def submit(self, instance: Resident, pieces: Pieces, size: int, on_done: OnDone) -> None:
        """Work on an instance's text; `on_done` gets the result, unless the instance ends before.

        Raises:
            LimitError: the tenant's texts and programs hold too much memory (ENOMEM).
        """
        share = instance.run.share
        if not share.memory.admits(size):
            raise LimitError(Errno.ENOMEM, MEMORY_TOTAL, f"a text: {share.memory.refusal()}")
        share.memory.count(size)
        assert instance.id not in self._works, "a call suspends its instance"
        work = self._works[instance.id] = TextWork(
            next(self._order), instance, pieces, size, on_done
        )
        self._enqueue(work)
        self.serve()

    def cancel(self, instance: Resident) -> None:
        """Drop an instance's text."""
        work = self._works.pop(instance.id, None)
        if work is not None:
            work.cancelled = True
            instance.run.share.memory.count(-work.size)

    def serve(self) -> None:
        """Give texts to the threads that have none."""
        while self._active < self._threads:
            # A slice is charged when it is over: until then the others go first.
            line = self._queue.first(self._may_begin) or self._queue.first(self._may_go)
            if line is None:
                return
            _, _, work = heappop(line.works)
            self._active += 1
            line.active += 1
            self._large = self._large or work.large
            future = self._loop.run_in_executor(self._executor, run_slice, work.pieces)
            future.add_done_callback(partial(self._end_slice, line, work))

    def close(self) -> None:
        """Begin nothing any more; a piece that is under way ends."""
        for work in list(self._works.values()):
            self.cancel(work.instance)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _may_go(self, line: TextLine) -> bool:
        return not line.share.rests and not (self._large and line.works[0][2].large)

    def _may_begin(self, line: TextLine) -> bool:
        return not line.active and self._may_go(line)

    def _enqueue(self, work: TextWork) -> None:
        share = work.instance.run.share
        line = share.texts
        if line is None:
            line = share.texts = TextLine(share)
        assert isinstance(line, TextLine)
        heappush(line.works, (work.size, work.order, work))
        self._queue.add(line)

    def _end_slice(self, line: TextLine, work: TextWork, future: "asyncio.Future[Slice]") -> None:
        if future.cancelled():
            return  # the pool was closed
        done = future.result()
        self._active -= 1
        if work.large:
            self._large, self._swollen = False, True
        line.active -= 1
        line.charge(done.spent_ns)
        self._charge(work.instance, done.spent_ns)
        if not work.cancelled:
            if done.result is None:
                work.large = done.next_chars > LARGE_PIECE_CHARS
                self._enqueue(work)
            else:
                self.cancel(work.instance)
                work.on_done(done.result)
        self.serve()
        if self._swollen and not self._active and not self._works:
            self._swollen = False
            self._executor.submit(trim)


def run_slice(pieces: Pieces) -> Slice:
    """Work on a text for a slice's time, and until its next piece is a large one."""
    done, began = Slice(), time.thread_time_ns()
    try:
        while done.spent_ns < SLICE_NS and done.next_chars <= LARGE_PIECE_CHARS:
            done.next_chars = next(pieces)
            done.spent_ns = time.thread_time_ns() - began
    except StopIteration as stop:
        done.result = stop.value
    except Exception as error:  # ours, or a SyscallError: for the loop to tell apart
        done.result = error
    except BaseException as error:  # the panic of a Rust library
        done.result = RuntimeError(f"{type(error).__name__}: {error}")
    done.spent_ns = time.thread_time_ns() - began
    return done
