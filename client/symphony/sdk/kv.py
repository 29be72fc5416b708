"""KV files: the model's memory of a text, as a thing to open, fork, cut and name."""

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntFlag
from types import TracebackType
from typing import Any

import msgpack

from symphony.attached.calls import Ticket
from symphony.attached.errors import ENOENT
from symphony.attached.run import AttachedRun, current
from symphony.sdk.constraint import Constraint
from symphony.sdk.handle import Handle
from symphony.sdk.packing import TokenSet, numbers, spans, words
from symphony.sdk.pred import NONE, Pred, pass_options
from symphony.sdk.sampling import Sampling
from symphony.sdk.stream import Generation, Stream


class Rights(IntFlag):
    """What a handle may be used for. No call adds a right."""

    READ = 1  # forward passes, fork, extract, and reading
    APPEND = 2  # forward passes that are kept, and append
    TRUNCATE = 4
    SAVE = 8
    GRANT = 16  # giving it to a child
    ALL = 31


class Save(IntFlag):
    """What to do about a name that is taken, and who may see the file."""

    NEW = 0  # a new, private name, gone when the server restarts
    REPLACE = 1  # the name may be taken
    DURABLE = 2  # it survives a restart of the server
    PUBLIC = 4  # other tenants may open it


@dataclass(frozen=True, slots=True)
class Advice:
    """A wish about where a file's pages live."""

    hint: int
    argument: int = 0

    @classmethod
    def normal(cls) -> "Advice":
        return cls(0)

    @classmethod
    def keep(cls, milliseconds: int) -> "Advice":
        return cls(1, milliseconds)

    @classmethod
    def will_need(cls) -> "Advice":
        return cls(2)

    @classmethod
    def do_not_need(cls) -> "Advice":
        return cls(3)

    @classmethod
    def priority(cls, priority: int) -> "Advice":
        """From 0 to 7: the higher, the longer it stays."""
        return cls(4, priority)


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of a file. Times are in milliseconds since 1970."""

    len: int  # entries
    pages: int  # that it refers to
    shared: int  # of them with other files
    tier: str  # where they are, such as "device"
    rights: Rights
    path: str | None
    expires_ms: int | None
    cached: int  # entries that came from the prefix cache


@dataclass(frozen=True, slots=True)
class Listed:
    """A named file in a listing."""

    path: str
    len: int
    pages: int
    tier: str
    durable: bool
    public: bool
    expires_ms: int | None


class KvFile(Handle):
    """A KV file: an ordered list of entries (token, position, and K and V of every layer).

    `create`, `fork` and `extract` do not wait: a failure is the answer to later calls on the file.
    Calls on one file take effect in the order in which they were made. What returns a ticket has
    made its call; awaiting the ticket gives the result or the error. Leaving a `with` block closes
    the file, as its end does.
    """

    __slots__ = ("__weakref__", "_open")

    def __init__(self, run: AttachedRun, number: int) -> None:
        """Use `create`, `open` and their like."""
        super().__init__(run, number)
        self._open = True

    # -- Files ---------------------------------------------------------------------------------
    @classmethod
    def create(cls) -> "KvFile":
        """Make an empty file without a name."""
        return cls._posted(current(), "kv_create", {})

    @classmethod
    async def open(cls, path: str, rights: Rights = Rights.ALL) -> "KvFile":
        """Open a private view of a named file's content as it is now; ENOENT."""
        return await cls._made("kv_open", {"path": path, "rights": int(rights)})

    @classmethod
    async def granted(cls, name: str) -> "KvFile":
        """Return the file that was granted to this program under that name; ENOENT."""
        return await cls._made("kv_granted", {"name": name})

    @classmethod
    async def matching(cls, tokens: Sequence[int]) -> "KvFile | None":
        """Return a file with the longest prefix of `tokens` that a run of the tenant has offered.

        At least one token is left to compute.
        """
        try:
            return await cls._made("kv_match", {"tokens": words(tokens)})
        except ENOENT:
            return None

    @classmethod
    def inherited(cls) -> dict[str, "KvFile"]:
        """Return the files that an earlier client of this run has left open, by their labels.

        A file without a label is there by its number, such as "7". Each is given once.
        """
        run = current()
        left = run.take_left().items()
        return {label or str(number): cls(run, number) for number, label in left}

    def fork(self) -> "KvFile":
        """Make a copy that shares pages until either side writes."""
        return self._posted(self.run, "kv_fork", {"kv": self.number})

    def extract(self, ranges: Sequence[range | tuple[int, int]]) -> "KvFile":
        """Make a new file of the entries in the ranges; they keep their positions."""
        arguments = {"kv": self.number, "ranges": spans(ranges)}
        return self._posted(self.run, "kv_extract", arguments)

    @classmethod
    def _posted(cls, run: AttachedRun, name: str, arguments: dict[str, Any]) -> "KvFile":
        number = run.new_file()
        run.calls.post(name, {**arguments, "new": number})
        return cls(run, number)

    @classmethod
    async def _made(cls, name: str, arguments: dict[str, Any]) -> "KvFile":
        run = current()
        kv = cls(run, run.new_file())
        await run.calls.start(name, {**arguments, "new": kv.number})
        return kv

    def close(self) -> None:
        """Close the handle. A closed file may be closed again."""
        if self._open:
            self._open = False
            self.run.calls.post("kv_close", {"kv": self.number})

    def __enter__(self) -> "KvFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_open", False):
            self.run.calls.closing.append(self.number)

    def __repr__(self) -> str:
        return f"KvFile({self.number})"

    # -- Passes --------------------------------------------------------------------------------
    def pred(
        self,
        tokens: Sequence[int],
        *,
        positions: Sequence[int] | None = None,
        logit_bias: Mapping[int, float] | None = None,
        bias_mask: tuple[TokenSet, float] | None = None,
        repetition_penalty: tuple[TokenSet, float] | None = None,
        allowed_tokens: TokenSet | None = None,
        constraint: Constraint | None = None,
        constraint_since: int | None = None,
        parents: Sequence[int] | None = None,
        keep: bool = True,
        share: bool = False,
        adapter: str | None = None,
    ) -> Pred:
        """Begin a forward pass over tokens that come after the entries so far.

        `parents` makes the tokens a tree: each one's parent is an earlier one, by index, or -1 for
        the file's end. With `keep=False` nothing is appended. `adapter` names a LoRA adapter of
        the tenant, which computes the pass.
        """
        given: dict[str, Any] = {}
        if (
            logit_bias
            or bias_mask
            or repetition_penalty
            or allowed_tokens
            or constraint
            or (parents is not None or not keep or share or adapter)
        ):
            given = pass_options(
                logit_bias=logit_bias, bias_mask=bias_mask, repetition_penalty=repetition_penalty,
                allowed_tokens=allowed_tokens, constraint=constraint,
                constraint_since=constraint_since, parents=parents, keep=keep, share=share,
                adapter=adapter,
            )  # fmt: skip
        return Pred(self, tokens, positions, given)

    def prefill(self, tokens: Sequence[int]) -> Ticket[None]:
        """Append tokens: a pass of which nothing is asked."""
        arguments = {"kv": self.number, "tokens": words(tokens), "opts": NONE}
        return self.run.calls.start("pred", arguments, lambda _: None)

    def generate(self, prompt: Sequence[int], sampling: Sampling | None = None) -> Generation:
        """Begin a text behind the entries so far and `prompt`, which has a token at least.

        The first piece starts it. Then the server samples, appends and continues by itself.
        """
        return Generation(self, prompt, sampling or Sampling())

    def stream(self, prompt: Sequence[int], sampling: Sampling | None = None) -> Stream:
        """Start a stream of tokens there; the texts of `Sampling.stop` do not end it."""
        return Stream(self, prompt, sampling or Sampling())

    # -- What it holds -------------------------------------------------------------------------
    def append(self, source: "KvFile", start: int, end: int) -> Ticket[None]:
        """Put entries of another file at the end of this one."""
        return self._call("kv_append", {"source": source.number, "start": start, "end": end})

    def stat(self) -> Ticket[Stat]:
        """Ask what is known of the file."""
        return self._call("kv_stat", {}, _read_stat)

    def tokens(self, start: int, end: int) -> Ticket[builtins.list[int]]:
        """Ask for the tokens of a range of entries."""
        return self._call("kv_tokens", {"start": start, "count": max(end - start, 0)}, numbers)

    def save(self, path: str, how: Save = Save.NEW) -> Ticket[None]:
        """Name what the file holds now; EEXIST without `Save.REPLACE`."""
        return self._call("kv_save", {"path": path, "flags": int(how)})

    def offer(self) -> Ticket[int]:
        """Offer the file's whole pages to the tenant's other runs: how many entries these are."""
        return self._call("kv_offer", {})

    def advise(self, advice: Advice) -> Ticket[None]:
        """Wish where the file's pages live."""
        return self._call("kv_advise", {"hint": advice.hint, "arg": advice.argument})

    def grant(self, pid: int, rights: Rights, name: str) -> Ticket[None]:
        """Give a child a handle of its own with at most these rights."""
        return self._call("kv_grant", {"pid": pid, "rights": int(rights), "name": name})

    def label(self, text: str) -> Ticket[None]:
        """Name the handle for a client that takes the run up: `inherited` has it so."""
        return self._call("kv_label", {"label": text})

    # -- Names ---------------------------------------------------------------------------------
    @staticmethod
    async def remove(path: str) -> None:
        """Take a name away; files that were opened by it stay as they are."""
        await current().calls.start("kv_remove", {"path": path})

    @staticmethod
    async def list(prefix: str = "") -> "builtins.list[Listed]":
        """Return the named files whose names begin with `prefix`; EFBIG for too many."""
        return await current().calls.start("kv_list", {"prefix": prefix}, _read_listing)

    @staticmethod
    async def list_after(prefix: str, after: str, most: int) -> "builtins.list[Listed]":
        """Return at most so many of them, in order, from the first one behind `after`."""
        arguments = {"prefix": prefix, "after": after, "max": most}
        return await current().calls.start("kv_list", arguments, _read_listing)


def _read_stat(packed: bytes) -> Stat:
    said = msgpack.unpackb(packed)
    known = {name: said.get(name) for name in Stat.__slots__}
    return Stat(**{**known, "rights": Rights(said["rights"]), "cached": said.get("cached", 0)})


def _read_listing(packed: bytes) -> list[Listed]:
    return [
        Listed(**{name: each.get(name) for name in Listed.__slots__})
        for each in msgpack.unpackb(packed)
    ]
