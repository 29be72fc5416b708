"""Threads for long texts: tokenizing, detokenizing, chat templates.

    instance --submit--> its tenant's queue --(virtual time)--> a thread for a slice --> instance

A text is processed in slices of about 10 ms. After each, the tenant with the least time goes first
(`virtual_time_queue`). Within a tenant the shorter text goes first. A text whose program has ended
is dropped at the end of the slice. A long piece that cannot be cut (`LARGE_PIECE_CHARS`) runs to
its end, half a second for the longest, so only one thread takes such pieces. A text counts as its
tenant's memory until it is done, and its time as the program's.
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

from symphony_kernel.protocol.errno import Errno, LimitError

from symphony_runtime.worker.fairness.run_queue import TenantShare
from symphony_runtime.worker.fairness.tenant_memory import NAME as MEMORY_TOTAL
from symphony_runtime.worker.fairness.tenant_memory import Resident
from symphony_runtime.worker.fairness.virtual_time_queue import Entry, VirtualTimeQueue
from symphony_runtime.worker.text.tokenizer import PIECE_CHARS, Pieces

THREADS = 2  # more would leave the programs no processor
SLICE_NS = 10_000_000
LARGE_PIECE_CHARS = 4 * PIECE_CHARS

OnDone = Callable[[bytes | Exception], None]


@dataclass(slots=True)
class TextWork:
    """The text of one call. `size`: its bytes; `large`: its next piece is a large one."""

    order: int
    instance: Resident
    pieces: Pieces
    size: int
    on_done: OnDone
    large: bool = False
    cancelled: bool = False


@dataclass(slots=True)
class Slice:
    """The result of a slice: its time, and the result of a text that is done."""

    spent_ns: int = 0
    next_chars: int = 0
    result: bytes | Exception | None = None


class TenantTexts(Entry):
    """A tenant's texts: (bytes, order, work), the shortest first."""

    __slots__ = ("active", "share", "works")

    def __init__(self, share: TenantShare) -> None:
        super().__init__()
        self.share = share
        self.active = 0  # running slices
        self.works: list[tuple[int, int, TextWork]] = []

    def waits(self) -> bool:
        """Return whether a text waits; drop those of programs that have ended."""
        while self.works and self.works[0][2].cancelled:
            heappop(self.works)
        return bool(self.works)


class TextPool:
    """All texts that wait or are processed. Only the worker's loop calls it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        charge: Callable[[Any, int], None],
        threads: int = THREADS,
    ) -> None:
        """`charge` is called with an instance and nanoseconds of a processor."""
        assert threads > 1, "one thread takes no large pieces"
        self._loop, self._charge, self._threads = loop, charge, threads
        self._executor = ThreadPoolExecutor(threads, "text")
        self._queue: VirtualTimeQueue[TenantTexts] = VirtualTimeQueue(SLICE_NS)
        self._order = count()
        self._active = 0  # running slices
        self._large = False  # one of them is a large piece
        self._works: dict[int, TextWork] = {}  # by instance, running ones included

    def __len__(self) -> int:
        return len(self._works)

    def submit(self, instance: Resident, pieces: Pieces, size: int, on_done: OnDone) -> None:
        """Process an instance's text; `on_done` gets the result, unless the instance ends.

        Raises LimitError: the tenant's texts and programs hold too much memory (ENOMEM).
        """
        share = instance.run.share
        if not share.memory.admits(size):
            raise LimitError(Errno.ENOMEM, MEMORY_TOTAL, f"a text: {share.memory.refusal()}")
        share.memory.add(size)
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
            instance.run.share.memory.add(-work.size)

    def serve(self) -> None:
        """Give texts to idle threads."""
        while self._active < self._threads:
            # A slice is charged at its end: tenants without a running slice go first.
            texts = self._queue.first(self._may_start_first) or self._queue.first(self._may_start)
            if texts is None:
                return
            _, _, work = heappop(texts.works)
            self._active += 1
            texts.active += 1
            self._large = self._large or work.large
            future = self._loop.run_in_executor(self._executor, run_slice, work.pieces)
            future.add_done_callback(partial(self._end_slice, texts, work))

    def close(self) -> None:
        """Cancel all texts; a slice that runs ends by itself."""
        for work in list(self._works.values()):
            self.cancel(work.instance)
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _may_start(self, texts: TenantTexts) -> bool:
        return not texts.share.throttled and not (self._large and texts.works[0][2].large)

    def _may_start_first(self, texts: TenantTexts) -> bool:
        return not texts.active and self._may_start(texts)

    def _enqueue(self, work: TextWork) -> None:
        share = work.instance.run.share
        texts = share.texts
        if texts is None:
            texts = share.texts = TenantTexts(share)
        assert isinstance(texts, TenantTexts)
        heappush(texts.works, (work.size, work.order, work))
        self._queue.add(texts)

    def _end_slice(
        self, texts: TenantTexts, work: TextWork, future: "asyncio.Future[Slice]"
    ) -> None:
        if future.cancelled():
            return  # the pool was closed
        done = future.result()
        self._active -= 1
        if work.large:
            self._large = False
        texts.active -= 1
        texts.used_ns += done.spent_ns
        self._charge(work.instance, done.spent_ns)
        if not work.cancelled:
            if done.result is None:
                work.large = done.next_chars > LARGE_PIECE_CHARS
                self._enqueue(work)
            else:
                self.cancel(work.instance)
                work.on_done(done.result)
        self.serve()


def run_slice(pieces: Pieces) -> Slice:
    """Process a text for a slice's time, and until its next piece is a large one."""
    done, began = Slice(), time.thread_time_ns()
    try:
        while done.spent_ns < SLICE_NS and done.next_chars <= LARGE_PIECE_CHARS:
            done.next_chars = next(pieces)
            done.spent_ns = time.thread_time_ns() - began
    except StopIteration as stop:
        done.result = stop.value
    except Exception as error:  # a SyscallError or a bug: `suspend_on_text` tells them apart
        done.result = error
    except BaseException as error:  # a panic of a Rust library
        done.result = RuntimeError(f"{type(error).__name__}: {error}")
    done.spent_ns = time.thread_time_ns() - began
    return done
