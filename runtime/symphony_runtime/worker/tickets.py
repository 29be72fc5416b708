"""Tickets: work that a program has started and whose result it has not taken."""

from collections.abc import Callable

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import RUN_RESULT_BYTES_MAX, RUN_TICKETS_MAX

NUMBER_MAX = (1 << 31) - 1


class Ticket:
    """One piece of work. `result` is None while it goes on, then bytes or a negative errno.

    `drop` ends the work early; None when there is nothing to end. `held` is the bytes that the
    result takes, or will at most take.
    """

    __slots__ = ("drop", "held", "number", "result")

    def __init__(self, number: int) -> None:
        self.number = number
        self.result: bytes | int | None = None
        self.drop: Callable[[], None] | None = None
        self.held = 0


class Tickets:
    """An instance's tickets by number; numbers also name its kernel calls (`Calls`' seq)."""

    __slots__ = ("_last", "held", "live")

    def __init__(self) -> None:
        self.live: dict[int, Ticket] = {}
        self.held = 0  # sum over the live tickets
        self._last = 0

    def __len__(self) -> int:
        return len(self.live)

    def number(self) -> int:
        """Return a positive i32 that names no live ticket."""
        number = self._last % NUMBER_MAX + 1
        while number in self.live:
            number = number % NUMBER_MAX + 1
        self._last = number
        return number

    def issue(self, held: int = 0) -> Ticket:
        """Return a new ticket that promises at most `held` bytes.

        EAGAIN when too many are live, ENOMEM when their results could take too much room.
        """
        if len(self.live) >= RUN_TICKETS_MAX:
            raise SyscallError(Errno.EAGAIN, f"{RUN_TICKETS_MAX} tickets are live")
        if self.held + held > RUN_RESULT_BYTES_MAX:
            raise SyscallError(Errno.ENOMEM, f"{RUN_RESULT_BYTES_MAX} bytes are not taken")
        ticket = Ticket(self.number())
        ticket.held = held
        self.held += held
        self.live[ticket.number] = ticket
        return ticket

    def get(self, number: int) -> Ticket:
        """Return a live ticket, or EBADF."""
        ticket = self.live.get(number)
        if ticket is None:
            raise SyscallError(Errno.EBADF)
        return ticket

    def free(self, ticket: Ticket) -> None:
        """Forget a ticket."""
        del self.live[ticket.number]
        self.held -= ticket.held
