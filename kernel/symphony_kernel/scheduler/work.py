"""Work: one `pred` on its way through the scheduler, and what the scheduler needs of its file.

`syscalls` makes a Work when the pred is at the head of its file's FIFO and hands it to
`Scheduler.submit`. From then until `done` the scheduler alone reserves and commits entries of the
file. A pred is atomic: its entries exist once all of it has been computed, or none of them do.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.options import PredOptions

if TYPE_CHECKING:
    from symphony_kernel.constraints.guides import Guide
    from symphony_kernel.scheduler.drafts import Course


class WorkFile(Protocol):
    """The part of `kvfs.files.KVFile` that the scheduler touches."""

    computed_at: float  # when its last pred ended, on the scheduler's clock; 0.0 before the first

    @property
    def length(self) -> int:
        """Entries that exist."""

    @property
    def error(self) -> Errno | None:
        """The file's answer to everything, since its content was lost; None: it is well."""

    def pages_needed(self, n: int) -> int:
        """Return how many free pages `reserve(n)` would take."""

    def reserve(self, n: int) -> None:
        """Make room for n entries after the present ones.

        Raises:
            SyscallError: ENOMEM (no free pages) or EDQUOT, and nothing has changed.
        """

    def block_table(self, entries: int) -> Int32:
        """Return the pages of the first `entries` entries, reserved ones included (a view)."""

    def commit(
        self, tokens: UInt32, positions: Int32, parents: Sequence[int] | None = None
    ) -> None:
        """Say that the reserved entries hold these tokens: they exist now.

        `parents` ([n]): not each of them saw all before it.
        """

    def unreserve(self) -> None:
        """Give back the room after the present entries."""


@dataclass(slots=True, eq=False)
class Work:
    """One pred: what is to be computed, and how far it has come.

    `done` is called once, from the event loop: with the result's bytes, or with a negative errno
    (EIO, ENOMEM, EDQUOT, ECANCELED); the file is then already committed or unreserved. It is not
    called for work that `Scheduler.forget` drops.
    """

    instance: int
    root: int  # the LIP: a run and its children share one queue
    tenant: str
    seq: int
    file: WorkFile
    tokens: UInt32  # [n], n > 0, ids below the vocabulary's size
    positions: Int32  # [n], below max_context
    options: PredOptions
    done: Callable[[bytes | int], None]
    seed: int = 0  # u64, with Get.SAMPLE: the options' seed, or one drawn for this call
    weight: float = 1.0  # of the LIP among its tenant's
    number: int = 0  # of those that were ever made
    course: "Course | None" = None  # of one that is submitted again as soon as it has ended
    guide: "Guide | None" = None  # of one under a constraint

    # --- Only the scheduler touches what follows ---
    reserved: bool = False  # the file has room for all n tokens
    count: int = field(init=False)  # of tokens
    placed: int = 0  # tokens that steps have got, whether computed already or not
    computed: int = 0  # tokens of steps that have ended
    passed: int = 0  # steps that were formed while it waited for pages
    finished: bool = False  # done, cancelled or forgotten: a step's result is dropped
    rebuild: "Work | None" = None  # what is computed again before this
    rebuilds: bool = False  # it is one: it appends nothing, and its end is nobody's answer
    result: bytearray | None = field(default=None, repr=False)  # of a chunked pred

    def __post_init__(self) -> None:
        self.count = len(self.tokens)

    def renew(self, token: UInt32, position: Int32) -> None:
        """Become a pred of one token ([1], [1]), behind this one: a generation's next step."""
        self.tokens, self.positions, self.count = token, position, 1
        self.placed = self.computed = self.passed = 0
        self.reserved = self.finished = False
        self.result = None

    def describe(self) -> str:
        """Return what it is and how far it has come, in words for the log of a fault."""
        return (
            f"pred {self.number} of instance {self.instance}: {self.count} tokens, {self.placed} "
            f"placed, {self.computed} computed, behind {self.file.length}"
            f"{', reserved' * self.reserved}{', finished' * self.finished}"
        )

    @property
    def remaining(self) -> int:
        """Tokens that no step has got yet."""
        return self.count - self.placed
