"""Tickets: work that a program has started and whose result it has not taken."""

from collections.abc import Callable

from symphony_kernel.protocol.errno import Errno, SyscallError

from symphony_runtime.worker.limit_pool import LimitLease, LimitPool

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


class Stream(Ticket):
    """A generation's ticket: records come as steps end, and are taken as the program likes.

    `result` holds the records that can be taken now; behind them stands `end`, which is None while
    the generation goes on, then b"", or the errno that ended it. Records can be taken as soon as
    there are as many as a lot has, or the end is there. `drop` (set for all its life) says that the
    program is done with it.
    """

    __slots__ = ("_credit_at", "_gathered", "_lot_bytes", "_record", "_untold", "end")

    def __init__(self, number: int, record: int, ahead: int, lot: int) -> None:
        super().__init__(number)
        self.end: bytes | int | None = None
        self._gathered = b""  # fewer than a lot
        self._lot_bytes = lot * record
        self._record = record  # bytes of one
        self._untold = 0  # records taken of which the kernel has not heard
        self._credit_at = ahead // 2 + 1  # it hears of so many at a time: never so late as to stop

    @property
    def ended(self) -> bool:
        """Whether the generation has ended and its last record is taken."""
        return self.end is not None and self.result is self.end

    def add(self, reply: bytes | int) -> bool:
        """Take a reply of the kernel; return whether it was the last one."""
        ready = self.result
        assert not isinstance(ready, int), "nothing comes behind the end"
        if not reply or isinstance(reply, int):
            self.end = reply
            self.result = (ready or b"") + self._gathered or reply
            self._gathered = b""
            return True
        gathered = self._gathered + reply
        if len(gathered) < self._lot_bytes:
            self._gathered = gathered
        else:
            self._gathered = b""
            self.result = gathered if ready is None else ready + gathered
        return False

    def take(self, capacity: int) -> bytes:
        """Return the records that fit; those that do not stay."""
        assert isinstance(self.result, bytes)
        taken = self.result[: capacity - capacity % self._record]
        self._untold += len(taken) // self._record
        rest = self.result[len(taken) :]
        self.result = rest or self.end
        return taken

    def let_go(self) -> None:
        """Other calls may use the file again."""
        if self.drop is not None:
            self.drop()
            self.drop = None

    def credit(self) -> int:
        """Return how many records to tell the kernel of now; it hears of each once."""
        if self._untold < self._credit_at or self.end is not None:
            return 0
        untold, self._untold = self._untold, 0
        return untold


class Tickets:
    """An instance's tickets by number; numbers also name its kernel calls (`Calls`' seq).

    What the instances of a run may have together is in the pools.
    """

    __slots__ = ("_count", "_last", "_results", "held", "live")

    def __init__(self, tickets: LimitPool, results: LimitPool) -> None:
        self.live: dict[int, Ticket] = {}
        self.held = 0  # sum over the live tickets
        self._last = 0
        self._count = LimitLease(tickets, self.live.__len__)
        self._results = LimitLease(results, lambda: self.held)

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
        live = self.live
        number = self._last + 1
        if len(live) >= self._count.room or self.held + held > self._results.room:
            self._make_room(held)
        if number > NUMBER_MAX or number in live:
            number = self.number()
        self._last = number
        ticket = live[number] = Ticket(number)
        ticket.held = held
        self.held += held
        return ticket

    def issue_stream(self, record: int, ahead: int, lot: int = 1) -> Stream:
        """Return a new ticket for records of so many bytes; EAGAIN, ENOMEM as `issue`.

        It is ready when it has a lot of them.
        """
        held = (ahead + 1) * record
        self._make_room(held)
        ticket = Stream(self.number(), record, ahead, lot)
        ticket.held = held
        self.held += held
        self.live[ticket.number] = ticket
        return ticket

    def _make_room(self, held: int) -> None:
        if len(self.live) >= self._count.room:
            self._count.extend(len(self.live) + 1)
        if self.held + held > self._results.room:
            self._results.extend(self.held + held)

    def close(self) -> None:
        """The instance has ended: no ticket is live any more."""
        self.live.clear()
        self._count.give_back()
        self._results.give_back()

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
