"""Masks: which tokens may come next, for the rows of a step that a constraint guides.

    device's thread   begin(rows) ── the step computes ──────────── wait ── answers from the logits
    masks' thread          └── fills the masks, row after row ──────┘

A mask depends on nothing but the tokens before it, so it is there, mostly, before the logits are.
When a step's masks have taken too long the rows that are left have EAGAIN: they come again.
"""

import logging
import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Results, Row, UInt32
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import MASKS_MS_MAX

_log = logging.getLogger(__name__)
RowMasks: TypeAlias = dict[int, UInt32]  # of rows that have one, [ceil(vocab_size / 32)] each

_STACK_BYTES = 64 << 20  # a deep grammar's; touched as needed
_ALL = np.uint32(0xFFFFFFFF)
_LATER = SyscallError(Errno.EAGAIN, "its mask is not there yet")


class Masks:
    """Makes the masks of one step at a time. Its thread starts with the first."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._masks: UInt32 = np.zeros((0, -(-vocab_size // 32)), np.uint32)
        self._steps: SimpleQueue[Sequence[Row] | None] = SimpleQueue()
        self._ready = threading.Event()
        self._errors: list[SyscallError | None] = []
        self._fault: BaseException | None = None
        self._guided: list[int] = []
        self._thread: threading.Thread | None = None

    def begin(self, rows: Sequence[Row], guided: list[int]) -> None:
        """Make the masks of a step's rows with these numbers; they have a guide and one place."""
        if len(guided) > len(self._masks):
            room = 1 << (len(guided) - 1).bit_length()
            self._masks = np.zeros((room, self._masks.shape[1]), np.uint32)
        self._ready.clear()
        self._guided = guided
        self._steps.put([rows[index] for index in guided])
        if self._thread is None:
            self._thread = self._start()

    def wait(self) -> RowMasks:
        """Return the masks by row; they may be used until the next step begins.

        A row that has an error instead may have any token.
        """
        self._ready.wait()
        if self._fault is not None:
            raise self._fault
        return dict(zip(self._guided, self._masks, strict=False))

    def finish(self, results: Results | None) -> None:
        """The step has been answered, or has failed: put in what is wrong with rows of it."""
        self._ready.wait()
        self._fault = None
        if results is not None:
            for index, error in zip(self._guided, self._errors, strict=True):
                if error is not None:
                    results[index] = error

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._steps.put(None)
            self._thread.join()
            self._thread = None

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="masks", daemon=True)
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
        return thread

    def _run(self) -> None:
        while (rows := self._steps.get()) is not None:
            try:
                self._errors = self._fill(rows)
            except BaseException as raised:  # the step hears of it
                self._fault = raised
            del rows  # what a step held must not live until the next one comes
            self._ready.set()

    def _fill(self, rows: Sequence[Row]) -> list[SyscallError | None]:
        """Make masks, of the first row in any case, until it has been enough for one step."""
        errors: list[SyscallError | None] = []
        # Asking for the thread's time is a system call: the end of a row is the next one's begin.
        now = time.thread_time()
        until = now + MASKS_MS_MAX / 1000
        for row, mask in zip(rows, self._masks, strict=False):
            if errors and now > until:
                mask[:] = _ALL
                errors.append(_LATER)
            else:
                errors.append(fill(row, mask, self._vocab_size, now))
                assert row.guide is not None
                now = max(now, row.guide.ended)  # a fault has not told
        return errors


def fill(
    row: Row, mask: UInt32, vocab_size: int, began: float | None = None
) -> SyscallError | None:
    """Make one row's mask; its options' `allow` counts, too. What breaks is this row's EIO.

    `began` is now, of the thread's time in seconds, for who knows it.
    """
    assert row.guide is not None
    error: SyscallError | None
    try:
        error = row.guide.fill(row.start, row.tokens, mask, began)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic of llguidance's is no Exception
        _log.exception("a mask could not be made")
        error = SyscallError(Errno.EIO, "its mask could not be made")
    if error is None and row.options.allow is not None:
        allow = np.frombuffer(row.options.allow, np.uint8)
        if len(allow) == -(-vocab_size // 8):  # else whoever answers says so
            mask.view(np.uint8)[: len(allow)] &= allow
    if error is None and not mask.any():
        error = SyscallError(Errno.EINVAL, "no token may come next")
    if error is not None:
        mask[:] = _ALL
    return error


def allowed(mask: UInt32, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Return [vocab_size]: whether a mask allows each token."""
    bits = np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little")
    return bits.view(np.bool_)
