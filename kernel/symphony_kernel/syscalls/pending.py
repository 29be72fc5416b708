"""Calls that take their turn: what a syscall becomes when it touches the content of a file.

A call whose files have nothing queued is done at once and never becomes an object. Others wait in
their files' queues (`kvfs.file_queue`), and a pred stays there until the scheduler has computed it.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from mypy_extensions import mypyc_attr

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.grammar.matcher import Constraint, GrammarMatcher
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.file_queue import FileOperation, drop, finish, submit
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.processes.table import Instance, ProcessTable, RequestQueue
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.generate_options import GenerateOptions
from symphony_kernel.protocol.limits import (
    FILE_TEXTS_MAX,
    INSTANCE_CALLS_PENDING_MAX,
    LIP_CALL_BYTES_MAX,
    SINCE_TOKENS_MAX,
)
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions
from symphony_kernel.request import Request
from symphony_kernel.syscalls.run_ahead import RunAhead
from symphony_kernel.syscalls.validation import tree_depths

Result: TypeAlias = int | bytes
Action: TypeAlias = Callable[[], Result | None]  # None: the answer comes from elsewhere, later

_U32: Final = np.dtype("<u4")
_SAMPLED: Final = (Get.ARGMAX, Get.SAMPLE)


class PredObserver(Protocol):
    """Who hears of each pred's end, before anything follows from it."""

    depth: int  # > 0 while the kernel handles what this observer has recorded

    def done(self, request: int, value: int) -> None:
        """A work (its number) has ended with an errno, or 0, or a generation's token."""


class Call(NamedTuple):
    """Who called, and the number under which the answer is expected (0: nowhere)."""

    caller: Instance
    seq: int


@dataclass(slots=True)
class CallContext:
    """What calls need when their turn comes. `reply` takes (caller, seq, result)."""

    kvfs: KVFS
    processes: ProcessTable
    scheduler: RequestQueue
    entries_max: int  # of any file
    reply: Callable[[Instance, int, Result], None]
    draw_seed: Callable[[], int]
    observer: PredObserver | None = None
    failed: int = 0  # calls answered with an errno
    made: int = 0  # works
    untold: list["Generation"] = field(default_factory=list)  # that have given records since `tell`
    positions: Int32 = field(init=False)  # [entries_max], 0, 1, ..: slices of it are constants

    def __post_init__(self) -> None:
        self.positions = np.arange(self.entries_max, dtype=np.int32)
        self.positions.flags.writeable = False

    def in_order(
        self,
        call: Call,
        files: tuple[KVFile, ...],
        action: Action,
        sticky: KVFile | None = None,
        size: int = 0,
        new: bool = False,
        behind: bool = False,
    ) -> Result | None:
        """Do `action` when every call before it on `files` has finished; None: it has to wait.

        `size` is in bytes, of arguments kept until then. A failure becomes the answer of `sticky`
        until it is closed; `new` says that the call made this file, `behind` that it waits even for
        a generation.

        Raises:
            SyscallError: what `action` raises when it is done now, or EAGAIN, EBUSY.
        """
        try:
            for file in files:
                if file.queue:
                    if not behind:
                        self.check_file(*files)
                    self.check_room(call.caller, size)
                    submit(FileCall(self, call, files, size, action, sticky, new))
                    return None
            return action()
        except SyscallError as error:
            if sticky is not None:
                sticky.error = error.errno
            raise

    def check_room(self, caller: Instance, size: int) -> None:
        """Check that one more call with arguments of `size` bytes may wait; SyscallError EAGAIN."""
        if len(caller.operations) >= INSTANCE_CALLS_PENDING_MAX:
            raise SyscallError(Errno.EAGAIN, f"{len(caller.operations)} calls wait")
        if caller.run.call_bytes + size > LIP_CALL_BYTES_MAX:
            raise SyscallError(Errno.EAGAIN, f"{caller.run.call_bytes} bytes of calls wait")

    def check_file(self, *files: KVFile) -> None:
        """Check that no generation goes on in these files; SyscallError EBUSY."""
        for file in files:
            if file.generating:
                raise SyscallError(Errno.EBUSY, "a generation goes on in this file")

    def tell(self) -> None:
        """Reply with what generations have given since the last time: one reply each."""
        untold, self.untold = self.untold, []
        for generation in untold:
            generation.tell()

    def answer(self, caller: Instance, seq: int, result: Result) -> None:
        """Reply, if the call wants one and its caller is still there."""
        if type(result) is int and result < 0:
            self.failed += 1
        if seq and not caller.ended:
            self.reply(caller, seq, result)


@mypyc_attr(allow_interpreted_subclasses=True)
class _Pending(FileOperation):
    """A call in its files' queues, counted among its caller's."""

    __slots__ = ("caller", "seq", "size", "turns")

    def __init__(
        self, turns: CallContext, call: Call, files: tuple[KVFile, ...], size: int
    ) -> None:
        self.files = files
        self.started = False
        self._waits = 0
        self.turns = turns
        caller, seq = call
        self.caller = caller
        self.seq = seq
        self.size = size  # bytes of arguments that it keeps
        caller.run.call_bytes += size
        caller.operations[self] = None
        if seq:
            caller.pending[seq] = self
        for file in files:
            file.references += 1

    def finished(self) -> None:
        """Leave the caller and let go of the files."""
        caller = self.caller
        caller.run.call_bytes -= self.size
        del caller.operations[self]
        if self.seq:
            del caller.pending[self.seq]
        release = self.turns.kvfs.let_go
        for file in self.files:
            release(file)


@mypyc_attr(allow_interpreted_subclasses=True)
class FileCall(_Pending):
    """A call that has finished as soon as its turn comes."""

    __slots__ = ("action", "new", "sticky")

    def __init__(
        self,
        turns: CallContext,
        call: Call,
        files: tuple[KVFile, ...],
        size: int,
        action: Action,
        sticky: KVFile | None,
        new: bool,
    ) -> None:
        super().__init__(turns, call, files, size)
        self.action = action
        self.sticky = sticky
        self.new = new

    def start(self) -> bool:
        """Do it and answer."""
        if self.caller.ended:
            return True
        result: Result | None
        try:
            result = self.action()
        except SyscallError as error:
            result = -error.errno
            if self.sticky is not None:
                self.sticky.error = error.errno
        if result is not None:
            self.turns.answer(self.caller, self.seq, result)
        return True

    def finished(self) -> None:
        """Leave; a new file that was not filled says so to whom it was granted."""
        if self.new and self.sticky is not None and self.caller.ended:
            self.sticky.error = Errno.ECANCELED
        super().finished()


@mypyc_attr(allow_interpreted_subclasses=True)
class Pred(_Pending):
    """A pred: first in its file's queue until the scheduler is done with it."""

    __slots__ = ("constraint", "count", "options", "positions", "request", "token", "tokens")

    def __init__(
        self,
        turns: CallContext,
        caller: Instance,
        seq: int,
        file: KVFile,
        tokens: UInt32 | None,
        positions: Int32 | None,
        options: PredOptions,
        size: int,
        token: int = -1,
    ) -> None:
        # First, since it may be that there is none.
        self.constraint = caller.constraint(options.constraint) if options.constraint else None
        # All of `_Pending`, too: each token makes one of these.
        self.files = (file,)
        self.started = False
        self._waits = 0
        self.turns = turns
        self.caller = caller
        self.seq = seq
        self.size = size
        caller.run.call_bytes += size
        caller.operations[self] = None
        if seq:
            caller.pending[seq] = self
        file.references += 1
        self.tokens = tokens  # [n]; None: `token` alone, at the file's end, and no tree
        self.token = token
        self.count = 1 if tokens is None else len(tokens)
        self.positions = positions  # [n], or None: those after the file's end
        self.options = options
        self.request: Request | None = None

    def begin(self) -> None:
        """Take its place in the file's queue."""
        submit(self)

    @property
    def submitted(self) -> Request | None:
        """The work that the scheduler has now."""
        return self.request

    def cancel(self) -> None:
        """Drop it, wherever it is; it is answered with ECANCELED."""
        if self.request is not None:
            self.turns.scheduler.cancel(self.request)
            return
        caller, seq = self.caller, self.seq
        drop(self)
        self.turns.answer(caller, seq, -Errno.ECANCELED)

    def start(self) -> bool:
        """Hand it to the scheduler."""
        if self.caller.ended:
            return True
        try:
            self.request = self._request()
        except SyscallError as error:
            self.turns.answer(self.caller, self.seq, -error.errno)
            return True
        self.turns.scheduler.submit(self.request)
        return False

    def finished(self) -> None:
        """Leave; the circle with its work is broken, so that no token leaves garbage to collect."""
        if self.constraint is not None:  # a work may be listed for a while: its grammar must not be
            self.constraint = None
            if self.request is not None:
                self.request.matcher = None
        self.request = None
        # As `_Pending`'s, with the one file that it has.
        caller, file = self.caller, self.files[0]
        caller.run.call_bytes -= self.size
        del caller.operations[self]
        if self.seq:
            del caller.pending[self.seq]
        if file.references > 1:
            file.references -= 1
        else:
            self.turns.kvfs.release(file)

    def _request(self) -> Request:
        file, caller, turns, options = self.files[0], self.caller, self.turns, self.options
        n, length, tokens, positions = self.count, file.length, self.tokens, self.positions
        if file.error is not None:
            raise SyscallError(file.error)
        if length + n > turns.entries_max:
            raise SyscallError(Errno.EFBIG, f"{length} entries, {n} more")
        if options.parents is not None and options.keep:
            assert tokens is not None
            file.prepare_tree(tokens, options.parents)
        turns.processes.charge_tokens(caller, n)
        turns.made += 1
        run = caller.run
        if positions is None and tokens is not None:
            positions = turns.positions[length : length + n]
            if options.parents is not None:
                positions = tree_depths(options.parents) + np.int32(length)
        return Request(  # by position: names cost as much again
            caller.id,
            run.root,
            caller.tenant.name,
            self.seq,
            file,
            tokens,
            positions,
            options,
            self._done if turns.observer is None else self._witnessed,
            0 if options.sampling is None else self._seed(),
            run.weight,
            turns.made,
            None,
            None if self.constraint is None else self._matcher(file, self.constraint),
            self.token,
            length,
        )

    def _matcher(self, file: KVFile, constraint: Constraint) -> GrammarMatcher:
        """Return what guides the work: the text begins behind it, unless it has begun before."""
        end = file.length + self.count
        known = (file.texts or {}).get(constraint.number, end)
        base = self.options.since
        if base is None:
            base = known
        elif base > end:
            raise SyscallError(Errno.EINVAL, f"since is at most {end} here")
        elif end - base > SINCE_TOKENS_MAX and base != known:
            raise SyscallError(Errno.EFBIG, f"a text begins with at most {SINCE_TOKENS_MAX} tokens")
        return GrammarMatcher(constraint, file, base, kept=self.options.keep)

    def _seed(self) -> int:
        sampling = self.options.sampling
        assert sampling is not None
        return self.turns.draw_seed() if sampling.seed is None else sampling.seed

    def _witnessed(self, result: bytes | int) -> None:
        observer, request = self.turns.observer, self.request
        assert request is not None
        if observer is None:
            self._done(result)
            return
        observer.done(request.number, result if isinstance(result, int) else self._value(result))
        observer.depth += 1
        self._done(result)
        observer.depth -= 1

    def _note_text(self) -> None:
        """The first time that a constraint has been used on a file says where its text begins."""
        if self.constraint is not None and self.options.keep:
            assert self.request is not None
            assert self.request.matcher is not None
            file = self.files[0]
            texts = file.texts = file.texts or {}
            texts[self.constraint.number] = self.request.matcher.base
            if len(texts) > FILE_TEXTS_MAX:
                del texts[next(iter(texts))]

    def _value(self, result: bytes) -> int:  # noqa: ARG002 - what it says is the worker's alone
        """Return what of a result decides what comes after it."""
        return 0

    def _done(self, result: bytes | int) -> None:
        if isinstance(result, bytes):
            if self.constraint is not None:
                self._note_text()
            options, usage, n = self.options, self.caller.usage, self.count
            if n > 1:
                usage.prompt_tokens += n
            if options is DEFAULT:
                usage.completion_tokens += 1
            elif options.get in _SAMPLED:
                usage.completion_tokens += options.places(n)
        self.turns.answer(self.caller, self.seq, result)
        finish(self)


@mypyc_attr(allow_interpreted_subclasses=True)
class Generation(Pred):
    """A generation: a pred, and behind each token that it gives the next one, until its end.

    It is first in its file's queue all the time, and nothing waits behind it but what has failed:
    other calls on the file hear EBUSY. What it gives is told once a turn of the loop: records of
    steps that are told of together are one reply. The last reply is empty, or an errno.
    """

    __slots__ = ("asked", "last", "run_ahead", "untold")

    def __init__(
        self,
        turns: CallContext,
        caller: Instance,
        seq: int,
        file: KVFile,
        tokens: UInt32,
        options: GenerateOptions,
        size: int,
    ) -> None:
        super().__init__(turns, caller, seq, file, tokens, None, options.pred, size)
        self.asked = options
        self.run_ahead: RunAhead  # set when it starts
        self.last: UInt32 | None = None  # [1], the last one given, while its step is not launched
        self.untold = b""  # records given in this turn
        file.generating = True

    @property
    def submitted(self) -> Request | None:
        """The work that the scheduler has now; None while the program is too far behind."""
        return self.request if self.last is None else None

    def cancel(self) -> None:
        """End it now, wherever it is: nothing is appended any more."""
        if self.last is None:
            super().cancel()
        else:
            self._end(-Errno.ECANCELED)

    def taken(self, n: int) -> None:
        """The program has taken n records; SyscallError EINVAL when there were not so many."""
        if self.request is None or n > self.run_ahead.untaken:
            raise SyscallError(Errno.EINVAL, f"{n} records were not given")
        self.run_ahead.take(n)
        if self.last is not None:
            self._go_on()

    def tell(self) -> None:
        """Reply with the records that it has given and not told."""
        records, self.untold = self.untold, b""
        if records:
            self.turns.answer(self.caller, self.seq, records)

    def finished(self) -> None:
        """Leave; the file is free."""
        self.files[0].generating = False
        super().finished()

    def _request(self) -> Request:
        request = super()._request()
        room = self.turns.entries_max - self.files[0].length - self.count
        # The last token is not appended: it needs no room.
        self.run_ahead = RunAhead(self.asked, room + 1)
        if self.constraint is not None:  # behind the end of its text nothing comes
            self.run_ahead.stop |= self.constraint.ends
            assert request.matcher is not None
            request.matcher.kept = False
        request.continuation = self
        return request

    @property
    def stop(self) -> Container[int]:
        """Tokens behind which it does not go on."""
        return self.run_ahead.stop

    def goes_on(self, steps: int) -> bool:
        """Whether it will surely go on after so many tokens more, but for those of `stop`."""
        return self.run_ahead.goes_on(steps)

    def position(self, entry: int) -> Int32:
        """Return the position ([1]) of its file's entry with that number."""
        return self.turns.positions[entry : entry + 1]

    def _value(self, result: bytes) -> int:
        return int(np.frombuffer(result, _U32, 1)[0])

    def _done(self, result: bytes | int) -> None:
        if isinstance(result, int):
            self._end(result)
            return
        self._note_text()
        usage, request = self.caller.usage, self.request
        assert request is not None
        if request.count > 1:
            usage.prompt_tokens += request.count
        usage.completion_tokens += 1
        if not self.untold:
            self.turns.untold.append(self)
        self.untold += result
        if self.run_ahead.give(result):
            self._end(b"")
        else:
            self.last = np.frombuffer(result, _U32, 1)
            self._go_on()

    def _go_on(self) -> None:
        """Submit the step that appends the last token, unless the program is too far behind."""
        if self.run_ahead.stalled:
            return
        request, token = self.request, self.last
        assert request is not None
        assert token is not None
        try:
            self.turns.processes.charge_tokens(self.caller, 1)
        except SyscallError as error:
            self._end(-error.errno)
            return
        self.last = None
        length = self.files[0].length
        request.renew(token, self.turns.positions[length : length + 1])
        self.turns.scheduler.submit(request)

    def _end(self, result: bytes | int) -> None:
        self.files[0].unreserve()  # what was reserved for steps that do not come
        self.tell()
        self.turns.answer(self.caller, self.seq, result)
        finish(self)
