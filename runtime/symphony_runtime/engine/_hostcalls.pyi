"""Types of `hostcalls.c`, which `make install` builds."""

from collections.abc import Callable
from typing import Any, Final, NoReturn

ARGUMENTS_MAX: Final[int]
layout: Final[tuple[int, ...]]

# What `Guest.poll` returns.
PREEMPTED: Final[int]
CALLED: Final[int]
ENDED: Final[int]

class HostCalls:
    """What all guests of one engine share: the engine's functions and the guest that runs."""

    def __init__(
        self,
        engine: tuple[int, ...],
        board: Any,
        imports: int,
        arm: Callable[[], None],
        fault: Callable[[], NoReturn],
        /,
    ) -> None: ...
    @property
    def callback_address(self) -> int: ...
    def import_address(self, index: int, /) -> int:
        """Return the environment that the engine passes to the callback for an import."""

class Guest:
    """One guest's record: its last call, the place of its result, and its memory.

    `call` is the index of the last call's import. `args` are its arguments: i32 unsigned, i64
    signed. `buffer_address` is the block that its futures point into. `base` and `size` describe
    linear memory in bytes. `context` and `future` belong to the engine; `Fiber` sets them.
    """

    base: int
    size: int
    context: int
    future: int

    def __init__(self, hostcalls: HostCalls, /) -> None: ...
    @property
    def call(self) -> int: ...
    @property
    def args(self) -> tuple[int, ...]: ...
    @property
    def buffer_address(self) -> int: ...
    def on_future_end(self) -> bool:
        """Handle the end of `future`; return whether the guest has ended. `Fiber` defines it."""

    def poll(self) -> int:
        """Run the guest until it makes a call, is preempted, or ends; it must be runnable.

        CALLED sets `call` and `args`, and requires a `resume` before the next poll.
        """

    def resume(self, result: int, wide: bool = False) -> None:
        """Give the pending call's result (an i64 if `wide`); the guest is runnable again."""

    def resume_void(self) -> None:
        """End the pending call of a function without results."""

    def detach(self) -> None:
        """Forget the engine's addresses, before or after its store is deleted."""

    # Memory, while a call is pending.
    def check(self, pointer: int, length: int, /) -> None:
        """Raise EFAULT unless [pointer, pointer + length) lies in memory."""

    def read(self, pointer: int, length: int, /) -> bytes:
        """Return a copy of guest memory. Raise EFAULT."""

    def write(self, pointer: int, data: bytes, /) -> None:
        """Copy `data` into guest memory. Raise EFAULT."""
