"""A request: one `pred` on its way through the scheduler, and its file's protocol.

`syscalls` makes a Request when the pred is at the head of its file's FIFO and passes it to
`Scheduler.submit`. From then until `done` only the scheduler reserves and commits entries of the
file. A pred is atomic: its entries exist once all of it has been computed, or none of them do.
"""

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.kvfs.pages.prompt_pages import PromptPages
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.pred_options import PredOptions

if TYPE_CHECKING:
    from symphony_kernel.grammar.matcher import GrammarMatcher


class RequestFile(Protocol):
    """The part of `kvfs.file.KVFile` that the scheduler uses."""

    computed_at: float  # when its last pred ended, in clock seconds; 0.0 before the first

    @property
    def length(self) -> int:
        """Entries that exist."""

    @property
    def error(self) -> Errno | None:
        """Why every call on the file fails, since its content was lost; None: none fails."""

    def reserve(self, n: int) -> None:
        """Make room for n entries after the present ones.

        Raises SyscallError: ENOMEM (no free pages) or EDQUOT, and nothing has changed.
        """

    def block_table(self, entries: int) -> Int32:
        """Return the frames of the first `entries` entries, with reserved ones (a view)."""

    def commit(
        self, tokens: UInt32, positions: Int32, parents: Sequence[int] | None = None
    ) -> None:
        """Make the reserved entries exist, with these tokens.

        `parents` ([n]): not each of them saw all before it.
        """

    def commit_one(self, token: int, position: int) -> None:
        """Make the reserved entry after the present ones exist, with this token."""

    def unreserve(self) -> None:
        """Give back the room after the present entries."""


class Continuation(Protocol):
    """How a generation's request continues: it is submitted again when it has ended."""

    @property
    def stop(self) -> Container[int]:
        """Tokens after which it does not continue."""

    def continues(self, steps: int) -> bool:
        """Whether it surely continues after `steps` more tokens, except those of `stop`."""

    def ends(self, steps: int) -> bool:
        """Whether it certainly ends within `steps` more tokens."""

    def position(self, entry: int) -> Int32:
        """Return the position ([1]) of its file's entry with that number."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Request:
    """One pred: what is to be computed, and how far it has come.

    `done` is called once, from the event loop: with the result's bytes, or with a negative errno
    (EIO, ENOMEM, EDQUOT, ECANCELED). The file is then already committed or unreserved. It is not
    called for a request that `Scheduler.drop_requests` drops.
    """

    # No dataclass: each token makes one, and mypyc does not compile a dataclass's methods.
    __slots__ = (
        "_positions", "_tokens", "computed", "continuation", "count", "done", "file", "finished",
        "instance", "matcher", "number", "options", "placed", "position", "prompt", "recompute",
        "recomputes", "reserved", "result", "root", "seed", "seq", "shared", "shares", "tenant",
        "token", "weight",
    )  # fmt: skip

    def __init__(
        self,
        instance: int,
        root: int,
        tenant: str,
        seq: int,
        file: RequestFile,
        tokens: UInt32 | None,
        positions: Int32 | None,
        options: PredOptions,
        done: Callable[[bytes | int], None],
        seed: int = 0,
        weight: float = 1.0,
        number: int = 0,
        continuation: Continuation | None = None,
        matcher: "GrammarMatcher | None" = None,
        token: int = -1,
        position: int = 0,
    ) -> None:
        """`tokens` None: the only token is `token`, at `position`, and it is no tree."""
        self.instance = instance
        self.root = root  # the run: it shares one queue with its children
        self.tenant = tenant
        self.seq = seq
        self.file = file
        # Most have one token, which was predicted: no array of it is needed.
        self._tokens = tokens
        self._positions = positions
        self.token = token  # -1: `tokens` says which
        self.position = position
        self.options = options
        self.done = done
        self.seed = seed  # u64, with Get.SAMPLE: the options' seed, or one drawn for this call
        self.weight = weight  # of the run among its tenant's
        self.number = number  # counts all requests ever made
        self.continuation = continuation  # of a generation
        self.matcher = matcher  # of a constrained pred
        self.shares = False  # it may take pages of the prefix cache, and offers its own
        self.shared = 0  # tokens that it has taken from there
        self.prompt: PromptPages | None = None  # made when it first looks
        # --- Only the scheduler uses what follows ---
        self.reserved = False  # the file has room for all n tokens
        self.count = 1 if tokens is None else len(tokens)
        self.placed = 0  # tokens that are in steps, computed already or not
        self.computed = 0  # tokens of steps that have ended
        self.finished = False  # done, cancelled or dropped: a step's result is ignored
        self.recompute: Request | None = None  # that must be computed before this one
        self.recomputes = False  # it is a recompute: it appends nothing and has no reply
        self.result: bytearray | None = None  # of a chunked pred

    def renew(self, token: UInt32, position: Int32) -> None:
        """Become the next pred, of one token ([1], [1]): a generation's next step."""
        self._tokens, self._positions, self.count = token, position, 1
        self.token = -1
        self.placed = self.computed = 0
        self.reserved = self.finished = False
        self.result = None

    @property
    def tokens(self) -> UInt32:
        """Its tokens ([n], n > 0), ids below the vocabulary's size."""
        # Not kept, since a snapshot holds the fields and a recovered kernel may not have made it.
        return np.array([self.token], np.uint32) if self._tokens is None else self._tokens

    @property
    def positions(self) -> Int32:
        return np.array([self.position], np.int32) if self._positions is None else self._positions

    def commit(self) -> None:
        if self.token >= 0:
            self.file.commit_one(self.token, self.position)
        else:
            self.file.commit(self.tokens, self.positions, self.options.parents)

    def describe(self) -> str:
        return (
            f"pred {self.number} of instance {self.instance}: {self.count} tokens, {self.placed} "
            f"placed, {self.computed} computed, behind {self.file.length}"
            f"{', reserved' * self.reserved}{', finished' * self.finished}"
        )

    @property
    def remaining(self) -> int:
        """Tokens that are in no step yet."""
        return self.count - self.placed
