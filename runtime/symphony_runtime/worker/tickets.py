"""Tickets: work that a program has started and whose result it has not taken."""

from collections.abc import Callable

from symphony_kernel.protocol.errno import Errno, SyscallError

from symphony_runtime.worker.limit_pool import LimitLease, LimitPool

NUMBER_MAX = (1 << 31) - 1


class Ticket:
    """One piece of work; `result` is None, then bytes or a negative errno.

    `drop` cancels the work; None if there is nothing to cancel. `held` is the bytes that the result
    takes, or will take at most.
    """

    __slots__ = ("drop", "held", "number", "result")

    def __init__(self, number: int) -> None:
        self.number = number
        self.result: bytes | int | None = None
        self.drop: Callable[[], None] | None = None
        self.held = 0


class Stream(Ticket):
    """A generation's ticket: records come as steps end, and the program takes them.

    `result` holds the records that can be taken now. Behind them is `end`: None while the
    generation continues, then b"", or the errno that ended it. Records can be taken once there is a
    batch of them, or the end. `drop`, always set, unlocks the file.
    """

    __slots__ = ("_batch_bytes", "_credit_at", "_gathered", "_record", "_unreported", "end")

    def __init__(self, number: int, record: int, ahead: int, batch: int) -> None:
        super().__init__(number)
        self.end: bytes | int | None = None
        self._gathered = b""  # less than a batch
        self._batch_bytes = batch * record
        self._record = record  # bytes
        self._unreported = 0  # taken records that the kernel does not know of
        self._credit_at = ahead // 2 + 1  # reported at half of `ahead`, before the kernel stops

    @property
    def ended(self) -> bool:
        """Whether the generation has ended and its last record is taken."""
        return self.end is not None and self.result is self.end

    def add_reply(self, reply: bytes | int) -> bool:
        """Add a reply of the kernel; return whether it was the last one."""
        ready = self.result
        assert not isinstance(ready, int), "a reply after the end"
        if not reply or isinstance(reply, int):
            self.end = reply
            self.result = (ready or b"") + self._gathered or reply
            self._gathered = b""
            return True
        gathered = self._gathered + reply
        if len(gathered) < self._batch_bytes:
            self._gathered = gathered
        else:
            self._gathered = b""
            self.result = gathered if ready is None else ready + gathered
        return False

    def take_records(self, capacity: int) -> bytes:
        """Return the records that fit; the others stay."""
        assert isinstance(self.result, bytes)
        taken = self.result[: capacity - capacity % self._record]
        self._unreported += len(taken) // self._record
        rest = self.result[len(taken) :]
        self.result = rest or self.end
        return taken

    def release_file(self) -> None:
        """Let other calls use the file again."""
        if self.drop is not None:
            self.drop()
            self.drop = None

    def take_credit(self) -> int:
        """Return how many taken records to report to the kernel now."""
        if self._unreported < self._credit_at or self.end is not None:
            return 0
        unreported, self._unreported = self._unreported, 0
        return unreported


class Tickets:
    """An instance's tickets by number; numbers also name its kernel calls.

    The two pools bound the tickets and result bytes of all instances of the run.
    """

    __slots__ = ("_count", "_last", "_results", "held", "live")

    def __init__(self, tickets: LimitPool, results: LimitPool) -> None:
        self.live: dict[int, Ticket] = {}
        self.held = 0  # sum over the live tickets
        self._last = 0
        self._count = LimitLease(tickets, self.live.__len__)
        self._results = LimitLease(results, lambda: self.held)

    def number(self) -> int:
        """Return a positive i32 that names no live ticket."""
        number = self._last % NUMBER_MAX + 1
        while number in self.live:
            number = number % NUMBER_MAX + 1
        self._last = number
        return number

    def issue(self, held: int = 0) -> Ticket:
        """Return a new ticket that promises at most `held` bytes.

        Raise EAGAIN if too many are live, ENOMEM if their results could take too many bytes.
        """
        live = self.live
        number = self._last + 1
        if len(live) >= self._count.granted or self.held + held > self._results.granted:
            self._reserve(held)
        if number > NUMBER_MAX or number in live:
            number = self.number()
        self._last = number
        ticket = live[number] = Ticket(number)
        ticket.held = held
        self.held += held
        return ticket

    def issue_stream(self, record: int, ahead: int, batch: int = 1) -> Stream:
        """Return a ticket for records of `record` bytes; it is ready at a batch of them.

        Raise EAGAIN, ENOMEM as `issue`.
        """
        held = (ahead + 1) * record
        self._reserve(held)
        ticket = Stream(self.number(), record, ahead, batch)
        ticket.held = held
        self.held += held
        self.live[ticket.number] = ticket
        return ticket

    def _reserve(self, held: int) -> None:
        if len(self.live) >= self._count.granted:
            self._count.extend(len(self.live) + 1)
        if self.held + held > self._results.granted:
            self._results.extend(self.held + held)

    def close(self) -> None:
        """Forget all tickets, at the instance's end."""
        self.live.clear()
        self._count.release()
        self._results.release()

    def get(self, number: int) -> Ticket:
        """Return a live ticket. Raise EBADF."""
        ticket = self.live.get(number)
        if ticket is None:
            raise SyscallError(Errno.EBADF)
        return ticket

    def free(self, ticket: Ticket) -> None:
        del self.live[ticket.number]
        self.held -= ticket.held
