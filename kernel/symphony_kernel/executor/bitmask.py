"""Bitmasks: which tokens may come next, for the constrained rows of a step.

   device's thread   begin(rows) ── the step computes ──────────── wait ── results from the logits
   masks' thread          └── fills the masks, row after row ──────┘

A mask depends only on the tokens before it, so it is usually ready before the logits are. When a
step's masks take too long, the remaining rows get EAGAIN and are repeated.
"""

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Results, Row, UInt32
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import MASKS_MS_MAX

_log = logging.getLogger(__name__)
_STACK_BYTES = 64 << 20  # for deep grammars; touched as needed
_ALL = np.uint32(0xFFFFFFFF)
_NOT_READY = SyscallError(Errno.EAGAIN, "the mask is not ready yet")
_NOTHING = SyscallError(Errno.EINVAL, "no token may come next")


RowMasks: TypeAlias = dict[int, UInt32]  # of constrained rows, [ceil(vocab_size / 32)] each


class BitmaskBuffers:
    """The masks of a step's constrained rows, one behind the other, in row order.

    Kept from step to step. Native code finds out whether the masks are ready at `ready_at`: the
    address of an int32, which is 0 until then.
    """

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self.ready = np.zeros(1, np.int32)
        self.ready_at = int(self.ready.ctypes.data)
        self.masks: UInt32 = np.zeros((0, self._words), np.uint32)
        # Asking NumPy for a row or its address takes as long as much of the work on it.
        self.each: list[UInt32] = []
        self.addresses: list[int] = []

    def reserve(self, rows: int) -> None:
        """Make space for `rows` masks; growing discards the present ones."""
        if rows <= len(self.each):
            return
        self.masks = np.zeros((1 << (rows - 1).bit_length(), self._words), np.uint32)
        self.each = list(self.masks)
        first, stride = int(self.masks.ctypes.data), self.masks.strides[0]
        self.addresses = [first + row * stride for row in range(len(self.each))]


@dataclass(slots=True)
class _Step:
    """A step's constrained rows, their tokens if these came later, and the buffers."""

    rows: list[Row]
    tokens: list[int] | None
    buffers: BitmaskBuffers


class Bitmasks:
    """Makes the masks of one step at a time. The thread starts with the first step."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._own = self._buffers = BitmaskBuffers(vocab_size)
        self._steps: SimpleQueue[_Step | None] = SimpleQueue()
        self._busy = threading.Lock()  # held until a step's masks are ready
        self._errors: dict[int, SyscallError] = {}  # by index among the constrained rows
        self._fault: BaseException | None = None
        self._constrained: list[int] = []
        self._thread: threading.Thread | None = None

    def begin(
        self,
        rows: Sequence[Row],
        constrained: list[int],
        tokens: list[int] | None = None,
        buffers: BitmaskBuffers | None = None,
    ) -> None:
        """Start to make the masks of the given rows, which have a matcher and one place.

        `tokens` has each row's only token, for a step that was given before its tokens were known.
        `buffers` has space for the masks.
        """
        if self._thread is None:  # before `_busy` is taken: the system may refuse a thread
            self._thread = self._start()
        if buffers is None:
            buffers = self._own
            buffers.reserve(len(constrained))
        self._busy.acquire()
        buffers.ready[0] = 0
        self._constrained, self._buffers = constrained, buffers
        late = None if tokens is None else [tokens[index] for index in constrained]
        self._steps.put(_Step([rows[index] for index in constrained], late, buffers))

    def wait(self) -> RowMasks:
        """Return the masks by row; they are valid until the next step begins.

        The mask of a row with an error allows all tokens.
        """
        self._wait_until_ready()
        return dict(zip(self._constrained, self._buffers.each, strict=False))

    def finish(self, results: Results | None) -> None:
        """Put the errors of constrained rows into the results; None: the step failed."""
        self._wait_until_ready()
        fault, self._fault = self._fault, None
        if results is None:
            return
        if fault is not None:
            raise fault
        for index, error in self._errors.items():
            results[self._constrained[index]] = error

    def close(self) -> None:
        if self._thread is not None:
            self._steps.put(None)
            self._thread.join()
            self._thread = None

    def _wait_until_ready(self) -> None:
        with self._busy:
            pass

    def _start(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="masks", daemon=True)
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
        return thread

    def _run(self) -> None:
        while (step := self._steps.get()) is not None:
            buffers = step.buffers
            try:
                self._errors = self._fill(step)
            except BaseException as raised:  # `finish` raises it
                self._fault = raised
                buffers.masks[:] = _ALL
            del step  # a step's objects must not live until the next step comes
            buffers.ready[0] = 1
            self._busy.release()

    def _fill(self, step: _Step) -> dict[int, SyscallError]:
        """Make masks until the step's time is spent, but always the first row's."""
        errors: dict[int, SyscallError] = {}
        rows, buffers = step.rows, step.buffers
        if step.tokens is not None:
            for row, token in zip(rows, np.array(step.tokens, np.uint32)[:, None], strict=True):
                row.tokens = token
        # Asking for the thread's time is a system call: the end of a row is the next row's start.
        now = time.thread_time()
        until = now + MASKS_MS_MAX / 1000
        for index, row in enumerate(rows):
            if index and now > until:
                errors[index] = _NOT_READY
                continue
            error = _fill_row(
                row, buffers.each[index], self._vocab_size, now, buffers.addresses[index]
            )
            if error is not None:
                errors[index] = error
            assert row.matcher is not None
            now = max(now, row.matcher.ended)  # a matcher that failed has not set it
        some: list[int] = np.bitwise_or.reduce(buffers.masks[: len(rows)], axis=1).tolist()
        if errors or not all(some):
            for index in range(len(rows)):
                error = _checked(buffers.each[index], errors.get(index), some[index] != 0)
                if error is not None:
                    errors[index] = error
        return errors


def fill_bitmask(row: Row, mask: UInt32, vocab_size: int) -> SyscallError | None:
    """Make one row's mask, within its options' `allow`; a fault is the row's EIO."""
    error = _fill_row(row, mask, vocab_size, None, mask.ctypes.data)
    return _checked(mask, error, bool(mask.any()))


def _fill_row(
    row: Row, mask: UInt32, vocab_size: int, began: float | None, address: int
) -> SyscallError | None:
    assert row.matcher is not None
    try:
        error = row.matcher.fill(row.start, row.tokens, mask, began, address)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # llguidance's panic is no Exception
        _log.exception("cannot make a bitmask")
        return SyscallError(Errno.EIO, "the mask could not be made")
    if error is None and row.options.allow is not None:
        allow = np.frombuffer(row.options.allow, np.uint8)
        if len(allow) == -(-vocab_size // 8):  # otherwise sampling reports the wrong size
            mask.view(np.uint8)[: len(allow)] &= allow
    return error


def _checked(mask: UInt32, error: SyscallError | None, some: bool) -> SyscallError | None:
    """Return the error of a mask, given whether it allows `some` token.

    The mask of a row with an error then allows all tokens, so that sampling need not know errors.
    """
    if error is None and not some:
        error = _NOTHING
    if error is not None:
        mask[:] = _ALL
    return error


def tokens_in(mask: bytes | UInt32, vocab_size: int) -> npt.NDArray[np.bool_]:
    """Return [vocab_size], whether a token's bit is set: bit t%8 of byte t//8."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=vocab_size, bitorder="little")
    return bits.view(np.bool_)
