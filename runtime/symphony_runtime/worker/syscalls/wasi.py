"""The WASI calls that toolchains import by themselves; they carry no authority.

Results are WASI's own positive errnos, not the ABI's.
"""

import struct
from collections.abc import Callable

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    IOVECS_MAX,
    MESSAGE_BYTES_MAX,
    RANDOM_BYTES_MAX,
    SEND_AT_ONCE_BYTES_MAX,
)

from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.run import TRAPPED, Ending

SUCCESS, BADF, FAULT, INVAL, TOO_BIG = 0, 8, 21, 28, 1
_STDOUT, _STDERR = 1, 2
_LOG_INFO = 1
_REALTIME, _MONOTONIC = 0, 1
_NANOSECONDS_A_MS = 1_000_000
_LIBRARY = "~lib/"  # prefix of places that are not in the program's own sources
_MESSAGE_MAX = 512  # characters of an abort's message in the reason


def _checked(call: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return a call that turns SyscallErrors into WASI's errnos."""

    def checked(instance: Instance, *args: int) -> int | None:
        try:
            return call(instance, *args)
        except SyscallError as error:
            return FAULT if error.errno is Errno.EFAULT else INVAL

    return checked


@_checked
def fd_write(instance: Instance, fd: int, iovs: int, count: int, written: int) -> int | None:
    """Write to descriptor 1 (`send`) or 2 (`log`); no other is open."""
    if fd not in (_STDOUT, _STDERR):
        return BADF
    if count > IOVECS_MAX:
        return INVAL
    instance.fiber.check(written, 4)
    words = struct.unpack(f"<{2 * count}I", instance.fiber.read(iovs, 8 * count))
    parts = list(zip(words[::2], words[1::2], strict=True))
    size = sum(length for _, length in parts)
    if size > MESSAGE_BYTES_MAX:
        return TOO_BIG
    for pointer, length in parts:
        instance.fiber.check(pointer, length)

    def read() -> bytes:
        return b"".join(instance.fiber.read(pointer, length) for pointer, length in parts)

    instance.fiber.write(written, struct.pack("<I", size))
    if fd == _STDOUT and instance.parent is None and size > SEND_AT_ONCE_BYTES_MAX:
        instance.send_large(size, read, result=SUCCESS)
        return None
    if fd == _STDOUT and size:
        return instance.send(read(), result=SUCCESS)
    if size:
        instance.write_log(_LOG_INFO, read())
    return SUCCESS


def bad_fd(instance: Instance, *args: int) -> int:  # noqa: ARG001
    """Answer EBADF: there are no files."""
    return BADF


@_checked
def none_sizes_get(instance: Instance, count: int, size: int) -> int:
    instance.fiber.check(count, 4)
    instance.fiber.write(size, bytes(4))
    instance.fiber.write(count, bytes(4))
    return SUCCESS


@_checked
def none_get(instance: Instance, pointers: int, data: int) -> int:
    """Report no arguments and no environment."""
    instance.fiber.check(pointers, 0)
    instance.fiber.check(data, 0)
    return SUCCESS


@_checked
def clock_time_get(instance: Instance, clock: int, precision: int, out: int) -> int:  # noqa: ARG001
    """Write the wall clock or the program's clock: ns, in whole milliseconds."""
    instance.fiber.check(out, 8)
    if clock not in (_REALTIME, _MONOTONIC):
        return INVAL
    milliseconds = instance.services.unix_ms() if clock == _REALTIME else instance.elapsed_ms()
    instance.fiber.write(out, struct.pack("<Q", milliseconds * _NANOSECONDS_A_MS))
    return SUCCESS


@_checked
def random_get(instance: Instance, pointer: int, length: int) -> int:
    instance.fiber.check(pointer, length)
    if length > RANDOM_BYTES_MAX:
        return INVAL
    instance.fiber.write(pointer, instance.services.random(length))
    return SUCCESS


def sched_yield(instance: Instance) -> int:  # noqa: ARG001
    """Do nothing: a program that computes for long is preempted anyway."""
    return SUCCESS


def abort(instance: Instance, message: int, file: int, line: int, column: int) -> int:
    """End the program with its own message: AssemblyScript's `env.abort`."""
    text, place = _script_text(instance, message), _script_text(instance, file)
    reason = f"abort: {text or 'no message'}"
    where = instance.fiber.trap_after_call()
    if place and not (where and place.startswith(_LIBRARY)):
        reason += f" at {place}:{line}:{column}"
    raise Ending(TRAPPED, f"{reason} (in {where})" if where else reason)


def _script_text(instance: Instance, pointer: int) -> str:
    """Return an AssemblyScript string, empty if there is none.

    It is UTF-16; the 4 bytes before it are its length in bytes.
    """
    if not 4 <= pointer < instance.fiber.size:
        return ""
    (length,) = struct.unpack("<I", instance.fiber.read(pointer - 4, 4))
    length = min(length & ~1, 2 * _MESSAGE_MAX, (instance.fiber.size - pointer) & ~1)
    return instance.fiber.read(pointer, length).decode("utf-16-le", "replace")
