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
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeAlias

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


RowMasks: TypeAlias = dict[int, UInt32]  # of rows that have one, [ceil(vocab_size / 32)] each


class BitmaskBuffers:
    """Where the masks of a step's guided rows lie, one behind the other, in the order of the rows.

    Kept from step to step. Who answers without Python looks whether they are there at `there_at`:
    the address of an int32, which is 0 until then.
    """

    def __init__(self, vocab_size: int) -> None:
        self._words = -(-vocab_size // 32)
        self._there = np.zeros(1, np.int32)
        self.there_at = int(self._there.ctypes.data)
        self.masks: UInt32 = np.zeros((0, self._words), np.uint32)
        # To ask NumPy for a row, or where it is, takes as long as much of what is done with it.
        self.each: list[UInt32] = []
        self.addresses: list[int] = []

    def reserve(self, rows: int) -> None:
        """Have room for so many; what there was is lost if there was less."""
        if rows <= len(self.each):
            return
        self.masks = np.zeros((1 << (rows - 1).bit_length(), self._words), np.uint32)
        self.each = list(self.masks)
        first, stride = int(self.masks.ctypes.data), self.masks.strides[0]
        self.addresses = [first + row * stride for row in range(len(self.each))]

    def begin(self) -> None:
        """They are to be made."""
        self._there[0] = 0

    def end(self) -> None:
        """They are there."""
        self._there[0] = 1


@dataclass(slots=True)
class _Step:
    """A step's guided rows, their tokens where these came later, and where the masks belong."""

    rows: list[Row]
    tokens: list[int] | None
    room: BitmaskBuffers


class Bitmasks:
    """Makes the masks of one step at a time. Its thread starts with the first."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._own = self._room = BitmaskBuffers(vocab_size)
        self._steps: SimpleQueue[_Step | None] = SimpleQueue()
        self._busy = threading.Lock()  # taken until a step's masks are there
        self._errors: list[tuple[int, SyscallError]] = []  # by the place among the guided rows
        self._fault: BaseException | None = None
        self._guided: list[int] = []
        self._thread: threading.Thread | None = None

    def begin(
        self,
        rows: Sequence[Row],
        guided: list[int],
        tokens: list[int] | None = None,
        room: BitmaskBuffers | None = None,
    ) -> None:
        """Make the masks of a step's rows with these numbers; they have a guide and one place.

        `tokens` are the rows' only ones, for a step that was given before they were known, and
        `room` is for that many masks.
        """
        if self._thread is None:  # before anybody waits for it: the system may refuse one
            self._thread = self._start()
        if room is None:
            room = self._own
            room.reserve(len(guided))
        self._busy.acquire()
        room.begin()
        self._guided, self._room = guided, room
        late = None if tokens is None else [tokens[index] for index in guided]
        self._steps.put(_Step([rows[index] for index in guided], late, room))

    def wait(self) -> RowMasks:
        """Return the masks by row; they may be used until the next step begins.

        A row that has an error instead may have any token.
        """
        self._await()
        return dict(zip(self._guided, self._room.each, strict=False))

    def finish(self, results: Results | None) -> None:
        """The step has been answered, or has failed: put in what is wrong with rows of it."""
        self._await()
        fault, self._fault = self._fault, None
        if results is None:
            return
        if fault is not None:
            raise fault
        for index, error in self._errors:
            results[self._guided[index]] = error

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._steps.put(None)
            self._thread.join()
            self._thread = None

    def _await(self) -> None:
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
            room = step.room
            try:
                self._errors = self._fill(step)
            except BaseException as raised:  # the step hears of it, when it has been answered
                self._fault = raised
                room.masks[:] = _ALL
            del step  # what a step held must not live until the next one comes
            room.end()
            self._busy.release()

    def _fill(self, step: _Step) -> list[tuple[int, SyscallError]]:
        """Make masks, of the first row in any case, until it has been enough for one step."""
        errors: list[tuple[int, SyscallError]] = []
        rows, room = step.rows, step.room
        if step.tokens is not None:
            for row, token in zip(rows, np.array(step.tokens, np.uint32)[:, None], strict=True):
                row.tokens = token
        # Asking for the thread's time is a system call: the end of a row is the next one's begin.
        now = time.thread_time()
        until = now + MASKS_MS_MAX / 1000
        for index, row in enumerate(rows):
            if index and now > until:
                errors.append((index, _LATER))
                continue
            error = _made(row, room.each[index], self._vocab_size, now, room.addresses[index])
            if error is not None:
                errors.append((index, error))
            assert row.matcher is not None
            now = max(now, row.matcher.ended)  # a fault has not told
        some: list[int] = np.bitwise_or.reduce(room.masks[: len(rows)], axis=1).tolist()
        if errors or not all(some):
            wrong = dict(errors)
            settled = [
                (index, _settled(room.each[index], wrong.get(index), some[index] != 0))
                for index in range(len(rows))
            ]
            errors = [(index, error) for index, error in settled if error is not None]
        return errors


def fill(row: Row, mask: UInt32, vocab_size: int) -> SyscallError | None:
    """Make one row's mask; its options' `allow` counts, too. What breaks is this row's EIO."""
    error = _made(row, mask, vocab_size, None, mask.ctypes.data)
    return _settled(mask, error, bool(mask.any()))


def _made(
    row: Row, mask: UInt32, vocab_size: int, began: float | None, address: int
) -> SyscallError | None:
    """Make a mask, or what is not to be looked at. `began` is now, of the thread's time."""
    assert row.matcher is not None
    try:
        error = row.matcher.fill(row.start, row.tokens, mask, began, address)
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
