"""The disk tier's file: slots of one size, used by a thread of its own.

The file is temporary: it has no name once it is open, and ends with the process.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from symphony_kernel.executor.device_queue import DeviceThread, StepFuture
from symphony_kernel.platform.disk_space import FreeSpace

PIECES_MAX: Final = 32  # slots of one write or read

T = TypeVar("T")
Piece = tuple[int, memoryview]  # a slot, and the bytes that go there or come from it


class Runner(Protocol):
    """Runs work elsewhere and reports its result on the event loop."""

    def start(self, work: Callable[[], T]) -> StepFuture[T]:
        """Run `work` after all work that was started before it."""

    def stop(self) -> None:
        """Wait for all work."""


class SpillFile:
    """A file in `directory` with `slots` slots of `slot_bytes` bytes; grows with use.

    It is written while `reserve_bytes` of the disk are free (`FreeSpace`). OSError.
    """

    def __init__(
        self,
        directory: Path,
        slots: int,
        slot_bytes: int,
        runner: Runner | None = None,
        reserve_bytes: int = 0,
    ) -> None:
        self._space = FreeSpace(directory, reserve_bytes)
        self.slots = slots
        self._slot_bytes = slot_bytes
        self._scratch = tempfile.TemporaryFile(buffering=0, dir=directory)  # noqa: SIM115
        self._file = self._scratch.fileno()
        self._runner = runner or DeviceThread()

    def has_room(self) -> bool:
        """Whether the disk has space for as many slots as are written at once."""
        with contextlib.suppress(OSError):
            self._space.check(PIECES_MAX * self._slot_bytes)
            return True
        return False

    def is_fair(self, slots: int) -> bool:
        """Whether a tenant with so many slots may have another one."""
        with contextlib.suppress(OSError):  # the directory is gone
            return self._space.allows(slots * self._slot_bytes, self._slot_bytes)
        return False

    def write(self, pieces: Sequence[Piece]) -> StepFuture[None]:
        """Write whole slots. After an OSError their content is undefined."""
        return self._runner.start(lambda: self._write(pieces))

    def read(self, pieces: Sequence[Piece]) -> StepFuture[None]:
        """Read whole slots that were written. After an OSError the result is undefined."""
        return self._runner.start(lambda: self._move(pieces, self._read_some))

    def close(self) -> None:
        """Wait for what is under way, and delete the file."""
        self._runner.stop()
        self._scratch.close()

    def _write(self, pieces: Sequence[Piece]) -> None:
        self._space.check(len(pieces) * self._slot_bytes)
        self._move(pieces, self._write_some)

    def _move(self, pieces: Sequence[Piece], move_some: Callable[[memoryview, int], int]) -> None:
        for slot, data in pieces:
            assert data.format == "B", "bytes are written and read"
            assert len(data) == self._slot_bytes, "whole slots are written and read"
            at = slot * self._slot_bytes
            while data:
                count = move_some(data, at)
                if not count:
                    raise OSError(f"slot {slot} of the disk tier ends early")
                data, at = data[count:], at + count

    def _write_some(self, data: memoryview, at: int) -> int:
        return os.pwrite(self._file, data, at)

    def _read_some(self, data: memoryview, at: int) -> int:
        return os.preadv(self._file, [data], at)
