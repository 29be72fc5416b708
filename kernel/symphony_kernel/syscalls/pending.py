"""Pending calls: syscalls on the content of a file, which wait in its queue.

    a generation's step ends -> add_given(record) -> the same request is submitted again

A call whose files have nothing queued is done at once and never becomes an object. Others wait in
their files' queues (`kvfs.file_queue`). A pred stays there until the scheduler has computed it.

A generation is submitted again while its step completes, so the next batch is formed without the
worker. The worker gets each token and returns credit for those that its program has taken. A token
is appended by the step after the one that sampled it. With T tokens taken and G given, tokens up to
G - 1 may be in the file. The next step, which appends token G, waits until G - T <= ahead. So at
most `ahead` tokens are in the file that the program has not seen.
"""

import struct
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

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
    PAGE_TOKENS,
    SINCE_TOKENS_MAX,
)
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions
from symphony_kernel.request import Request
from symphony_kernel.syscalls.dispatch import SyscallObserver
from symphony_kernel.syscalls.validation import tree_depths

Result: TypeAlias = int | bytes
Action: TypeAlias = Callable[[], Result | None]  # None: the reply comes later

_U32: Final = np.dtype("<u4")
_SAMPLED: Final = (Get.ARGMAX, Get.SAMPLE)
_SHARING_FILE_MOST: Final = 32  # times a pred's tokens: on a longer file it shares nothing
_read_token = struct.Struct("<I").unpack_from


class Call(NamedTuple):
    """The caller, and the number under which it expects the reply (0: none)."""

    caller: Instance
    seq: int


@dataclass(slots=True)
class CallContext:
    """What pending calls share. `reply` takes (caller, seq, result)."""

    kvfs: KVFS
    processes: ProcessTable
    scheduler: RequestQueue
    entries_max: int  # of any file
    reply: Callable[[Instance, int, Result], None]
    draw_seed: Callable[[], int]
    observer: SyscallObserver | None = None
    failed: int = 0  # calls answered with an errno
    made: int = 0  # requests
    unsent: list["Generation"] = field(default_factory=list)  # with records that were not sent
    positions: Int32 = field(init=False)  # [entries_max], 0, 1, ..: slices of it are constants

    def __post_init__(self) -> None:
        self.positions = np.arange(self.entries_max, dtype=np.int32)
        self.positions.flags.writeable = False

    def run_in_order(
        self,
        call: Call,
        files: tuple[KVFile, ...],
        action: Action,
        sticky: KVFile | None = None,
        size: int = 0,
        new: bool = False,
        behind: bool = False,
    ) -> Result | None:
        """Do `action` after every earlier call on `files`; None: it has to wait.

        `size` is the bytes of arguments kept until then. A failure becomes the answer of `sticky`
        until it is closed. `new`: the call made this file. `behind`: it waits even for a
        generation.

        Raises SyscallError: what `action` raises when it is done now, or EAGAIN, EBUSY.
        """
        try:
            for file in files:
                if file.queue:
                    if not behind:
                        self.check_not_generating(*files)
                    self.check_call_budget(call.caller, size)
                    submit(FileCall(self, call, files, size, action, sticky, new))
                    return None
            return action()
        except SyscallError as error:
            if sticky is not None:
                sticky.error = error.errno
            raise

    def check_call_budget(self, caller: Instance, size: int) -> None:
        """Check that one more call with `size` bytes of arguments may wait; EAGAIN."""
        if len(caller.operations) >= INSTANCE_CALLS_PENDING_MAX:
            raise SyscallError(Errno.EAGAIN, f"{len(caller.operations)} calls wait")
        if caller.run.call_bytes + size > LIP_CALL_BYTES_MAX:
            raise SyscallError(Errno.EAGAIN, f"{caller.run.call_bytes} bytes of calls wait")

    def check_not_generating(self, *files: KVFile) -> None:
        """Check that no generation runs in these files; SyscallError EBUSY."""
        for file in files:
            if file.generating:
                raise SyscallError(Errno.EBUSY, "a generation runs in this file")

    def send_records(self) -> None:
        """Reply with the records of generations that were not sent: one reply each."""
        unsent, self.unsent = self.unsent, []
        for generation in unsent:
            generation.send_records()

    def answer(self, caller: Instance, seq: int, result: Result) -> None:
        if type(result) is int and result < 0:
            self.failed += 1
        if seq and not caller.ended:
            self.reply(caller, seq, result)


@mypyc_attr(allow_interpreted_subclasses=True)
class _QueuedCall(FileOperation):
    """A call in its files' queues, counted among its caller's."""

    __slots__ = ("caller", "context", "seq", "size")

    def __init__(
        self, context: CallContext, call: Call, files: tuple[KVFile, ...], size: int
    ) -> None:
        self.files = files
        self.started = False
        self._waits = 0
        self.context = context
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
        caller = self.caller
        caller.run.call_bytes -= self.size
        del caller.operations[self]
        if self.seq:
            del caller.pending[self.seq]
        release = self.context.kvfs.release_one
        for file in self.files:
            release(file)


@mypyc_attr(allow_interpreted_subclasses=True)
class FileCall(_QueuedCall):
    """A call that finishes as soon as it starts."""

    __slots__ = ("action", "new", "sticky")

    def __init__(
        self,
        context: CallContext,
        call: Call,
        files: tuple[KVFile, ...],
        size: int,
        action: Action,
        sticky: KVFile | None,
        new: bool,
    ) -> None:
        super().__init__(context, call, files, size)
        self.action = action
        self.sticky = sticky
        self.new = new

    def start(self) -> bool:
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
            self.context.answer(self.caller, self.seq, result)
        return True

    def finished(self) -> None:
        """Remove it; a new file that was not filled fails for those that were granted it."""
        if self.new and self.sticky is not None and self.caller.ended:
            self.sticky.error = Errno.ECANCELED
        super().finished()


@mypyc_attr(allow_interpreted_subclasses=True)
class Pred(_QueuedCall):
    """A pred: first in its file's queue until the scheduler has computed it."""

    __slots__ = ("constraint", "count", "options", "positions", "request", "token", "tokens")

    def __init__(
        self,
        context: CallContext,
        caller: Instance,
        seq: int,
        file: KVFile,
        tokens: UInt32 | None,
        positions: Int32 | None,
        options: PredOptions,
        size: int,
        token: int = -1,
    ) -> None:
        # First, since it raises an error if the handle is invalid.
        self.constraint = caller.constraint(options.constraint) if options.constraint else None
        # `_QueuedCall.__init__`, inlined: each token makes a Pred.
        self.files = (file,)
        self.started = False
        self._waits = 0
        self.context = context
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

    @property
    def submitted(self) -> Request | None:
        return self.request

    def cancel(self) -> None:
        if self.request is not None:
            self.context.scheduler.cancel(self.request)
            return
        caller, seq = self.caller, self.seq
        drop(self)
        self.context.answer(caller, seq, -Errno.ECANCELED)

    def start(self) -> bool:
        if self.caller.ended:
            return True
        try:
            self.request = self._make_request()
        except SyscallError as error:
            self.context.answer(self.caller, self.seq, -error.errno)
            return True
        self.context.scheduler.submit(self.request)
        return False

    def finished(self) -> None:
        """Remove it from its caller and its file.

        The cycle with its request is broken, so that no token leaves garbage to collect.
        """
        if self.constraint is not None:  # the request may stay in lists: its grammar must not
            self.constraint = None
            if self.request is not None:
                self.request.matcher = None
        self.request = None
        # `_QueuedCall.finished`, inlined for one file.
        caller, file = self.caller, self.files[0]
        caller.run.call_bytes -= self.size
        del caller.operations[self]
        if self.seq:
            del caller.pending[self.seq]
        if file.references > 1:
            file.references -= 1
        else:
            self.context.kvfs.release(file)

    def _make_request(self) -> Request:
        file, caller, context, options = self.files[0], self.caller, self.context, self.options
        n, length, tokens, positions = self.count, file.length, self.tokens, self.positions
        if file.error is not None:
            raise SyscallError(file.error)
        if length + n > context.entries_max:
            raise SyscallError(Errno.EFBIG, f"{length} entries, {n} more")
        if options.adapter != file.adapter and options.keep:
            file.use_adapter(options.adapter)
        if options.parents is not None and options.keep:
            assert tokens is not None
            file.prepare_tree(tokens, options.parents)
        context.processes.charge_tokens(caller, n)
        context.made += 1
        run = caller.run
        if positions is None and tokens is not None:
            positions = context.positions[length : length + n]
            if options.parents is not None:
                positions = tree_depths(options.parents) + np.int32(length)
        request = Request(  # keyword arguments would double the cost
            caller.id,
            run.root,
            caller.tenant.name,
            self.seq,
            file,
            tokens,
            positions,
            options,
            self._done if context.observer is None else self._observed,
            0 if options.sampling is None else self._seed(),
            run.weight,
            context.made,
            None,
            None if self.constraint is None else self._matcher(file, self.constraint),
            self.token,
            length,
        )
        if n > 1 and self._wants_sharing():
            # What `kv_offer` takes: entries at positions 0, 1, .. that saw all before them. A page
            # with entries is not shared while it gets more: it would be copied on write.
            plain = self.positions is None and file.plain == length
            # Looking for others costs as much as the file is long, so the pred must be worth it.
            worth = n * _SHARING_FILE_MOST >= length
            request.shares = plain and worth and not (length % PAGE_TOKENS or file.unrecomputable)
        return request

    def _wants_sharing(self) -> bool:
        return self.options.share

    def _count_prompt(self, request: Request) -> None:
        """Count a prompt's tokens as computed, or as taken from the prefix cache."""
        usage, shared = self.caller.usage, request.shared
        usage.prompt_tokens += request.count - shared
        if shared:
            usage.cached_tokens += shared
            self.files[0].cached += shared
            self.caller.run.tokens -= shared
            request.shared = 0
        request.prompt, request.shares = None, False  # what follows are single tokens

    def _matcher(self, file: KVFile, constraint: Constraint) -> GrammarMatcher:
        """Return the request's matcher. Its text begins behind the request, or earlier."""
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
        return self.context.draw_seed() if sampling.seed is None else sampling.seed

    def _observed(self, result: bytes | int) -> None:
        observer, request = self.context.observer, self.request
        assert request is not None
        if observer is None:
            self._done(result)
            return
        observer.done(request.number, result if isinstance(result, int) else self._value(result))
        observer.depth += 1
        self._done(result)
        observer.depth -= 1

    def _note_text(self) -> None:
        """Record where a constraint's text begins in a file when it is first used there."""
        if self.constraint is not None and self.options.keep:
            assert self.request is not None
            assert self.request.matcher is not None
            file = self.files[0]
            texts = file.texts = file.texts or {}
            texts[self.constraint.number] = self.request.matcher.base
            if len(texts) > FILE_TEXTS_MAX:
                del texts[next(iter(texts))]

    def _value(self, result: bytes) -> int:  # noqa: ARG002 - the kernel does not read a pred's
        """Return the part of a result that the kernel's next actions depend on."""
        return 0

    def _done(self, result: bytes | int) -> None:
        if isinstance(result, bytes):
            if self.constraint is not None:
                self._note_text()
            options, usage, n = self.options, self.caller.usage, self.count
            if n > 1:
                assert self.request is not None
                self._count_prompt(self.request)
            if options is DEFAULT:
                usage.completion_tokens += 1
            elif options.get in _SAMPLED:
                usage.completion_tokens += options.places(n)
        self.context.answer(self.caller, self.seq, result)
        finish(self)


@mypyc_attr(allow_interpreted_subclasses=True)
class RunAhead:
    """One generation's counters.

    `room` is how many tokens the file and the model have room for.
    """

    __slots__ = ("_ahead", "_left", "stop", "untaken")

    def __init__(self, options: GenerateOptions, room: int) -> None:
        assert room > 0
        self._left = min(options.tokens_max, room)
        self.stop = options.stop
        self._ahead = options.ahead
        self.untaken = 0  # tokens given that the program has not taken, as far as is known

    def add_given(self, record: bytes) -> bool:
        self.untaken += 1
        self._left -= 1
        return not self._left or (bool(self.stop) and _read_token(record)[0] in self.stop)

    @property
    def stalled(self) -> bool:
        return self.untaken > self._ahead

    def continues(self, tokens: int) -> bool:
        """Whether the step behind `tokens` more is certain, except for stop tokens."""
        return self._left > tokens and self.untaken + tokens <= self._ahead

    def ends(self, tokens: int) -> bool:
        """Whether it certainly ends within `tokens` more."""
        return self._left <= tokens

    def add_taken(self, n: int) -> None:
        assert 0 < n <= self.untaken
        self.untaken -= n


@mypyc_attr(allow_interpreted_subclasses=True)
class Generation(Pred):
    """A generation: a pred, and after each token the next one, until its end.

    It stays first in its file's queue, and only calls that have failed wait behind it: other calls
    on the file get EBUSY. Its records are sent once a turn of the loop: those of steps delivered
    together are one reply. The last reply is empty, or an errno.
    """

    __slots__ = ("asked", "last", "run_ahead", "unsent")

    def __init__(
        self,
        context: CallContext,
        caller: Instance,
        seq: int,
        file: KVFile,
        tokens: UInt32,
        options: GenerateOptions,
        size: int,
    ) -> None:
        super().__init__(context, caller, seq, file, tokens, None, options.pred, size)
        self.asked = options
        self.run_ahead: RunAhead  # set when it starts
        self.last: UInt32 | None = None  # [1], the last token given, until the next step
        self.unsent = b""  # records given in this turn
        file.generating = True

    @property
    def submitted(self) -> Request | None:
        """The request that the scheduler has now; None while the program is behind."""
        return self.request if self.last is None else None

    def cancel(self) -> None:
        if self.last is None:
            super().cancel()
        else:
            self._end(-Errno.ECANCELED)

    def add_taken(self, n: int) -> None:
        """Count n records that the program has taken; EINVAL if fewer were given."""
        if self.request is None or n > self.run_ahead.untaken:
            raise SyscallError(Errno.EINVAL, f"fewer than {n} records are not taken")
        self.run_ahead.add_taken(n)
        if self.last is not None:
            self._continue()

    def send_records(self) -> None:
        records, self.unsent = self.unsent, b""
        if records:
            self.context.answer(self.caller, self.seq, records)

    def finished(self) -> None:
        self.files[0].generating = False
        super().finished()

    def _make_request(self) -> Request:
        request = super()._make_request()
        room = self.context.entries_max - self.files[0].length - self.count
        # The last token is not appended, so it needs no room.
        self.run_ahead = RunAhead(self.asked, room + 1)
        if self.constraint is not None:  # nothing follows the end of its text
            self.run_ahead.stop |= self.constraint.ends
            assert request.matcher is not None
            request.matcher.kept = False
        request.continuation = self
        return request

    def _wants_sharing(self) -> bool:
        return self.asked.share

    @property
    def stop(self) -> Container[int]:
        return self.run_ahead.stop

    def continues(self, steps: int) -> bool:
        return self.run_ahead.continues(steps)

    def ends(self, steps: int) -> bool:
        return self.run_ahead.ends(steps)

    def position(self, entry: int) -> Int32:
        return self.context.positions[entry : entry + 1]

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
            self._count_prompt(request)
        usage.completion_tokens += 1
        if not self.unsent:
            self.context.unsent.append(self)
        self.unsent += result
        if self.run_ahead.add_given(result):
            self._end(b"")
        else:
            self.last = np.frombuffer(result, _U32, 1)
            self._continue()

    def _continue(self) -> None:
        """Submit the step that appends the last token, unless the program is behind."""
        if self.run_ahead.stalled:
            return
        request, token = self.request, self.last
        assert request is not None
        assert token is not None
        try:
            self.context.processes.charge_tokens(self.caller, 1)
        except SyscallError as error:
            self._end(-error.errno)
            return
        self.last = None
        length = self.files[0].length
        request.renew(token, self.context.positions[length : length + 1])
        self.context.scheduler.submit(request)

    def _end(self, result: bytes | int) -> None:
        self.files[0].unreserve()  # room for look-ahead steps that were not adopted
        self.send_records()
        self.context.answer(self.caller, self.seq, result)
        finish(self)
