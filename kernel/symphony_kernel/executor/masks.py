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

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Results, Row, UInt32
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import MASKS_MS_MAX

_log = logging.getLogger(__name__)
_STACK_BYTES = 64 << 20  # a deep grammar's; touched as needed
_ALL = np.uint32(0xFFFFFFFF)
_LATER = SyscallError(Errno.EAGAIN, "its mask is not there yet")
_NOTHING = SyscallError(Errno.EINVAL, "no token may come next")


class RowMasks(dict[int, UInt32]):
    """By their numbers, rows that have a mask, [ceil(vocab_size / 32)] each.

    They lie one behind the other in `words`, in this order.
    """

    def __init__(self, rows: list[int], masks: list[UInt32], words: UInt32) -> None:
        super().__init__(zip(rows, masks, strict=False))
        self.words = words


class Masks:
    """Makes the masks of one step at a time. Its thread starts with the first."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._make_room(0)
        self._steps: SimpleQueue[Sequence[Row] | None] = SimpleQueue()
        self._ready = threading.Event()
        self._errors: list[SyscallError | None] = []
        self._fault: BaseException | None = None
        self._guided: list[int] = []
        self._thread: threading.Thread | None = None

    def begin(self, rows: Sequence[Row], guided: list[int]) -> None:
        """Make the masks of a step's rows with these numbers; they have a guide and one place."""
        if len(guided) > len(self._masks):
            self._make_room(1 << (len(guided) - 1).bit_length())
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
        return RowMasks(self._guided, self._each, self._masks)

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

    def _make_room(self, rows: int) -> None:
        self._masks: UInt32 = np.zeros((rows, -(-self._vocab_size // 32)), np.uint32)
        # To ask NumPy for a row, or where it is, takes as long as much of what is done with it.
        self._each: list[UInt32] = list(self._masks)
        first, stride = self._masks.ctypes.data, self._masks.strides[0]
        self._addresses = [first + row * stride for row in range(rows)]

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
        for row, mask, address in zip(rows, self._each, self._addresses, strict=False):
            if errors and now > until:
                errors.append(_LATER)
            else:
                errors.append(_made(row, mask, self._vocab_size, now, address))
                assert row.guide is not None
                now = max(now, row.guide.ended)  # a fault has not told
        some: list[int] = np.bitwise_or.reduce(self._masks[: len(rows)], axis=1).tolist()
        if errors.count(None) < len(rows) or not all(some):
            for index, mask in enumerate(self._each[: len(rows)]):
                errors[index] = _settled(mask, errors[index], some[index] != 0)
        return errors


def fill(row: Row, mask: UInt32, vocab_size: int) -> SyscallError | None:
    """Make one row's mask; its options' `allow` counts, too. What breaks is this row's EIO."""
    error = _made(row, mask, vocab_size, None, mask.ctypes.data)
    return _settled(mask, error, bool(mask.any()))


def _made(
    row: Row, mask: UInt32, vocab_size: int, began: float | None, address: int
) -> SyscallError | None:
    """Make a mask, or what is not to be looked at. `began` is now, of the thread's time."""
    assert row.guide is not None
    try:
        error = row.guide.fill(row.start, row.tokens, mask, began, address)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # a panic of llguidance's is no Exception
        _log.exception("a mask could not be made")
        return SyscallError(Errno.EIO, "its mask could not be made")
    if error is None and row.options.allow is not None:
        allow = np.frombuffer(row.options.allow, np.uint8)
        if len(allow) == -(-vocab_size // 8):  # else whoever answers says so
            mask.view(np.uint8)[: len(allow)] &= allow
    return error


def _settled(mask: UInt32, error: SyscallError | None, some: bool) -> SyscallError | None:
    """Return what is wrong with a mask that allows `some` token; a row with an error may have any.

    So nobody needs to know of errors who chooses tokens.
    """
    if error is None and not some:
        error = _NOTHING
    if error is not None:
        mask[:] = _ALL
    return error


def allowed(mask: UInt32, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Return [vocab_size]: whether a mask allows each token."""
    bits = np.unpackbits(mask.view(np.uint8), count=vocab_size, bitorder="little")
    return bits.view(np.bool_)
