"""Process and tickets: input, messages, clocks, waiting."""

import struct
from functools import partial
from typing import Any

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import MESSAGE_BYTES_MAX, RANDOM_BYTES_MAX, WAIT_TICKETS_MAX
from symphony_kernel.protocol.messages import Op

from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.run import EXITED, Ending
from symphony_runtime.worker.syscalls import validation
from symphony_runtime.worker.tickets import Stream, Ticket

_LOG_LEVEL_MAX = 3
_TAKEN = int(Op.TAKEN)
_SLEEP_MS_MAX = 1 << 40  # beyond any run's wall time; a float of it is still exact
_u32 = struct.Struct("<I").unpack


def input_read(lip: Instance, pointer: int, capacity: int) -> int:
    """The run's input bytes."""
    lip.fiber.check(pointer, capacity)
    return validation.put(lip, pointer, capacity, lip.input)


def send(lip: Instance, pointer: int, length: int) -> int | None:
    """One message to the user; suspends while a connected reader is behind."""
    return lip.send(validation.message(lip, pointer, length))


def recv(lip: Instance) -> int:
    """A ticket for the user's next message."""
    ticket = lip.tickets.issue()
    if lip.inbox:
        data = lip.inbox.popleft()
        lip.complete(ticket, data)
        lip.services.received(lip.id, len(data))
    elif lip.input_closed:
        lip.complete(ticket, -Errno.EPIPE)
    else:
        lip.receivers.append(ticket)
        ticket.drop = lambda: lip.receivers.remove(ticket)
    return ticket.number


def log(lip: Instance, level: int, pointer: int, length: int) -> int:
    """A line kept with the run, as far as its log has room."""
    lip.fiber.check(pointer, length)
    if level > _LOG_LEVEL_MAX:
        raise SyscallError(Errno.EINVAL, f"level {level}")
    lip.write_log(level, lip.fiber.read(pointer, min(length, lip.run.log_bytes_max + 1)))
    return 0


def exit_(lip: Instance, code: int) -> int:  # noqa: ARG001
    """End the program with this code."""
    raise Ending(EXITED, code - (1 << 32) if code >= 1 << 31 else code)


def clock_ms(lip: Instance) -> int:
    """Milliseconds since the program started."""
    return lip.elapsed_ms()


def unix_ms(lip: Instance) -> int:
    """Milliseconds since 1970."""
    return lip.services.unix_ms()


def random(lip: Instance, pointer: int, length: int) -> int:
    """Fill memory with random bytes."""
    lip.fiber.check(pointer, length)
    if length > RANDOM_BYTES_MAX:
        raise SyscallError(Errno.EFBIG, f"{length} bytes, limit {RANDOM_BYTES_MAX}")
    lip.fiber.write(pointer, lip.services.random(length))
    return 0


def sleep(lip: Instance, milliseconds: int) -> int:
    """A ticket that is ready after this time."""
    if milliseconds < 0:
        raise SyscallError(Errno.EINVAL, "a negative time")
    ticket = lip.tickets.issue()
    timer = lip.timer(min(milliseconds, _SLEEP_MS_MAX), lambda: lip.complete(ticket, b""))
    ticket.drop = lambda: lip.drop_timer(timer)
    return ticket.number


# --- Tickets -------------------------------------------------------------------------------------
def wait(lip: Instance, pointer: int, count: int, timeout_ms: int) -> int | None:
    """The index of the first ready ticket of the list, or ETIMEDOUT."""
    if count > WAIT_TICKETS_MAX or timeout_ms < -1 or (not count and timeout_ms < 0):
        lip.fiber.check(pointer, 4 * count)
        raise SyscallError(Errno.EINVAL, f"{count} tickets, {timeout_ms} ms")
    data = lip.fiber.read(pointer, 4 * count)
    live = lip.tickets.live
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
    return _wait_for(lip, waited, timeout_ms)


def claim(lip: Instance, number: int, pointer: int, capacity: int, timeout_ms: int) -> int | None:
    """`wait` for one ticket and `take` it, in one call."""
    lip.fiber.check(pointer, capacity)
    if timeout_ms < -1:
        raise SyscallError(Errno.EINVAL, f"{timeout_ms} ms")
    ticket = lip.tickets.live.get(number)
    if ticket is None:
        raise SyscallError(Errno.EBADF)
    if ticket.result is not None:
        return _take(lip, ticket, pointer, capacity)
    if timeout_ms:
        lip.claimed = partial(_take, lip, ticket, pointer, capacity)
    return _wait_for(lip, {number: 0}, timeout_ms)


def _wait_for(lip: Instance, waited: dict[int, int], timeout_ms: int) -> int | None:
    if timeout_ms == 0:
        return -Errno.ETIMEDOUT
    lip.waited = waited
    if not lip.pending and lip.handles.rights:  # for the outside, and it holds files
        lip.services.waits_outside(lip)
    if timeout_ms > 0:
        delay_ms = min(timeout_ms, _SLEEP_MS_MAX)
        lip.wait_timer = lip.call_after(delay_ms, lip.wake, -Errno.ETIMEDOUT)
    return None


def take(lip: Instance, number: int, pointer: int, capacity: int) -> int:
    """The result of a ready ticket, or its work's error; frees it unless it did not fit.

    Of a generation the records that fit, and nothing at its end; only the end frees it.
    """
    lip.fiber.check(pointer, capacity)
    ticket = lip.tickets.live.get(number)
    if ticket is None:
        raise SyscallError(Errno.EBADF)
    return _take(lip, ticket, pointer, capacity)


def _take(lip: Instance, ticket: Ticket, pointer: int, capacity: int) -> int:
    """Take a live ticket's result into checked memory, which never gets smaller."""
    result = ticket.result
    if result is None:
        return -Errno.EAGAIN
    if type(ticket) is Stream:
        return _take_records(lip, ticket, pointer, capacity)
    if isinstance(result, int):
        lip.tickets.free(ticket)
        return result
    length = len(result)
    if length <= capacity:
        lip.fiber.write(pointer, result)
        lip.tickets.free(ticket)
    return length


def _take_records(lip: Instance, stream: Stream, pointer: int, capacity: int) -> int:
    ready = stream.result
    if not ready or isinstance(ready, int):
        stream.let_go()
        lip.tickets.free(stream)
        return ready or 0
    taken = stream.take(capacity)
    if not taken:
        return len(ready)  # not even one fits: as with any result that does not
    lip.fiber.write(pointer, taken)
    credit = stream.credit()
    if credit:
        lip.services.kernel_call([lip.id, _TAKEN, 0, stream.number, credit])
    elif stream.ended:
        stream.let_go()
    return len(taken)


def last_error(lip: Instance, pointer: int, capacity: int) -> int:
    """What was wrong, in words, with the last call that failed and has any."""
    lip.fiber.check(pointer, capacity)
    return validation.put(lip, pointer, capacity, lip.last_error)


def cancel(lip: Instance, number: int) -> int | None:
    """Drop a ticket's work, or its result."""
    ticket = lip.tickets.get(number)
    lip.tickets.free(ticket)
    if ticket.drop is not None:
        ticket.drop()
    if lip.pending.pop(number, None) is not None:
        return lip.post(0, Op.CANCEL, number)
    return 0


# --- Channels ------------------------------------------------------------------------------------
def channel_send(lip: Instance, name: int, name_len: int, pointer: int, length: int) -> None:
    """Put an item into a tenant's queue; suspends."""
    args = {
        "instance": lip.id,
        "name": validation.name(lip, name, name_len),
        "item": validation.message(lip, pointer, length),
    }

    def on_answer(errno: int, value: Any) -> None:
        lip.note_refusal(errno, value)
        lip.resume(errno)

    lip.ask_gateway("channel_send", args, on_answer)


def channel_recv(lip: Instance, name: int, name_len: int) -> int | None:
    """A ticket for the next item of a tenant's queue."""
    args: dict[str, Any] = {"instance": lip.id, "name": validation.name(lip, name, name_len)}
    ticket = lip.tickets.issue(held=MESSAGE_BYTES_MAX)
    seq = lip.ask_gateway("channel_recv", args, _completes(lip, ticket))
    ticket.drop = lambda: lip.unask_gateway(seq)
    return lip.pace(ticket.number)


def _completes(lip: Instance, ticket: Ticket) -> Any:
    def on_answer(errno: int, value: Any) -> None:
        lip.note_refusal(errno, value)
        lip.complete(ticket, errno if errno < 0 else value)

    return on_answer
