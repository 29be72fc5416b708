"""Process calls: input, messages, clocks, tickets and channels."""

import struct
from functools import partial
from typing import Any

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    MESSAGE_BYTES_MAX,
    RANDOM_BYTES_MAX,
    SEND_AT_ONCE_BYTES_MAX,
    WAIT_TICKETS_MAX,
)
from symphony_kernel.protocol.messages import Op

from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.run import EXITED, Ending
from symphony_runtime.worker.syscalls import validation
from symphony_runtime.worker.tickets import Stream, Ticket

_LOG_LEVEL_MAX = 3
_TAKEN = int(Op.TAKEN)
_SLEEP_MS_MAX = 1 << 40  # beyond any run's wall time, and exact as a float
_u32 = struct.Struct("<I").unpack


def input_read(instance: Instance, pointer: int, capacity: int) -> int:
    instance.fiber.check(pointer, capacity)
    return validation.put(instance, pointer, capacity, instance.input)


def send(instance: Instance, pointer: int, length: int) -> int | None:
    """Send a message to the user; suspends while a connected reader or the gateway is behind."""
    if SEND_AT_ONCE_BYTES_MAX < length <= MESSAGE_BYTES_MAX and instance.parent is None:
        instance.fiber.check(pointer, length)
        instance.send_large(length, partial(instance.fiber.read, pointer, length))
        return None
    return instance.send(validation.message(instance, pointer, length))


def recv(instance: Instance) -> int:
    """Return a ticket for the user's next message."""
    ticket = instance.tickets.issue()
    if instance.inbox:
        data = instance.inbox.popleft()
        instance.complete(ticket, data)
        instance.services.notify_received(instance.id, len(data))
    elif instance.input_closed:
        instance.complete(ticket, -Errno.EPIPE)
    else:
        instance.receivers.append(ticket)
        ticket.drop = lambda: instance.receivers.remove(ticket)
    return ticket.number


def log(instance: Instance, level: int, pointer: int, length: int) -> int:
    instance.fiber.check(pointer, length)
    if level > _LOG_LEVEL_MAX:
        raise SyscallError(Errno.EINVAL, f"level {level}")
    instance.write_log(
        level, instance.fiber.read(pointer, min(length, instance.run.log_bytes_max + 1))
    )
    return 0


def exit_(instance: Instance, code: int) -> int:  # noqa: ARG001
    raise Ending(EXITED, code=code - (1 << 32) if code >= 1 << 31 else code)


def clock_ms(instance: Instance) -> int:
    return instance.elapsed_ms()


def unix_ms(instance: Instance) -> int:
    return instance.services.unix_ms()


def random(instance: Instance, pointer: int, length: int) -> int:
    """Fill memory with random bytes."""
    instance.fiber.check(pointer, length)
    if length > RANDOM_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"{length} bytes, limit {RANDOM_BYTES_MAX}")
    instance.fiber.write(pointer, instance.services.random(length))
    return 0


def sleep(instance: Instance, milliseconds: int) -> int:
    """Return a ticket that is ready after this time."""
    if milliseconds < 0:
        raise SyscallError(Errno.EINVAL, "a negative time")
    ticket = instance.tickets.issue()
    timer = instance.add_timer(
        min(milliseconds, _SLEEP_MS_MAX), lambda: instance.complete(ticket, b"")
    )
    ticket.drop = lambda: instance.cancel_timer(timer)
    return ticket.number


# --- Tickets -------------------------------------------------------------------------------------
def wait(instance: Instance, pointer: int, count: int, timeout_ms: int) -> int | None:
    """Return the index of the first ready ticket of the list, or ETIMEDOUT."""
    if count > WAIT_TICKETS_MAX or timeout_ms < -1 or (not count and timeout_ms < 0):
        instance.fiber.check(pointer, 4 * count)
        raise SyscallError(Errno.EINVAL, f"{count} tickets, {timeout_ms} ms")
    data = instance.fiber.read(pointer, 4 * count)
    live = instance.tickets.live
    if count == 1:
        (number,) = _u32(data)
        ticket = live.get(number)
        if ticket is None:
            raise SyscallError(Errno.EBADF)
        if ticket.result is not None:
            return 0
        waited = {number: 0}
    else:
        numbers = struct.unpack(f"<{count}I", data)
        if not all(map(live.__contains__, numbers)):
            raise SyscallError(Errno.EBADF)
        for index, number in enumerate(numbers):
            if live[number].result is not None:
                return index
        waited = dict(zip(reversed(numbers), range(count - 1, -1, -1), strict=True))
    return _wait_for(instance, waited, timeout_ms)


def claim(
    instance: Instance, number: int, pointer: int, capacity: int, timeout_ms: int
) -> int | None:
    """`wait` for one ticket and `take` it, in one call."""
    instance.fiber.check(pointer, capacity)
    if timeout_ms < -1:
        raise SyscallError(Errno.EINVAL, f"{timeout_ms} ms")
    ticket = instance.tickets.live.get(number)
    if ticket is None:
        raise SyscallError(Errno.EBADF)
    if ticket.result is not None:
        return _take(instance, ticket, pointer, capacity)
    if timeout_ms:
        instance.take_claimed = partial(_take, instance, ticket, pointer, capacity)
    return _wait_for(instance, {number: 0}, timeout_ms)


def _wait_for(instance: Instance, waited: dict[int, int], timeout_ms: int) -> int | None:
    if timeout_ms == 0:
        return -Errno.ETIMEDOUT
    instance.waited = waited
    if not instance.pending and instance.handles.rights:  # an idle wait, and it holds files
        instance.services.note_idle_wait(instance)
    if timeout_ms > 0:
        delay_ms = min(timeout_ms, _SLEEP_MS_MAX)
        instance.wait_timer = instance.call_after(delay_ms, instance.end_wait, -Errno.ETIMEDOUT)
    return None


def take(instance: Instance, number: int, pointer: int, capacity: int) -> int:
    """Write a ready ticket's result, or return its error; frees it if the result fits.

    For a generation: write the records that fit, and nothing at its end; only the end frees it.
    """
    instance.fiber.check(pointer, capacity)
    ticket = instance.tickets.live.get(number)
    if ticket is None:
        raise SyscallError(Errno.EBADF)
    return _take(instance, ticket, pointer, capacity)


def _take(instance: Instance, ticket: Ticket, pointer: int, capacity: int) -> int:
    """Take a live ticket's result into memory that was checked (memory never shrinks)."""
    result = ticket.result
    if result is None:
        return -Errno.EAGAIN
    if type(ticket) is Stream:
        return _take_records(instance, ticket, pointer, capacity)
    if isinstance(result, int):
        instance.tickets.free(ticket)
        return result
    length = len(result)
    if length <= capacity:
        instance.fiber.write(pointer, result)
        instance.tickets.free(ticket)
    return length


def _take_records(instance: Instance, stream: Stream, pointer: int, capacity: int) -> int:
    ready = stream.result
    if not ready or isinstance(ready, int):
        stream.release_file()
        instance.tickets.free(stream)
        return ready or 0
    taken = stream.take_records(capacity)
    if not taken:
        return len(ready)  # no record fits: return the length, as for any result
    instance.fiber.write(pointer, taken)
    credit = stream.take_credit()
    if credit:
        instance.services.kernel_call([instance.id, _TAKEN, 0, stream.number, credit])
    elif stream.ended:
        stream.release_file()
    return len(taken)


def last_error(instance: Instance, pointer: int, capacity: int) -> int:
    """Write the message of the last failed call that has one."""
    instance.fiber.check(pointer, capacity)
    return validation.put(instance, pointer, capacity, instance.last_error)


def cancel(instance: Instance, number: int) -> int | None:
    """Cancel a ticket's work, or drop its result."""
    ticket = instance.tickets.get(number)
    instance.tickets.free(ticket)
    if ticket.drop is not None:
        ticket.drop()
    if instance.pending.pop(number, None) is not None:
        return instance.post_call(0, Op.CANCEL, number)
    return 0


# --- Channels ------------------------------------------------------------------------------------
def channel_send(instance: Instance, name: int, name_len: int, pointer: int, length: int) -> None:
    """Put an item into a channel of the tenant; suspends."""
    args = {
        "instance": instance.id,
        "name": validation.name(instance, name, name_len),
        "item": validation.message(instance, pointer, length),
    }

    def on_answer(errno: int, value: Any) -> None:
        instance.note_refusal(errno, value)
        instance.resume(errno)

    instance.ask_gateway("channel_send", args, on_answer)


def channel_recv(instance: Instance, name: int, name_len: int) -> int | None:
    """Return a ticket for the next item of a channel of the tenant."""
    args = {"name": validation.name(instance, name, name_len)}
    return instance.ticket_of_gateway(
        "channel_recv", args, MESSAGE_BYTES_MAX, instance.note_refusal
    )
