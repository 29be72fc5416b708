"""The kernel's half of the syscall table: what each operation checks and does.

    worker's frame -> execute -> its handler in the table -> a reply now, or when it has run

A handler checks its arguments (`validation`), then acts on KVFS. A call on a file's content waits
in the file's queue (`syscalls.pending`), so that calls on one file take effect in order. Nothing
that a worker sends raises here. A call for an instance that is not that worker's is dropped and
counted. Every other call is answered with a result or a negative errno.

A waiting call is data: a method of `Syscalls` and its arguments, so that a snapshot can hold it
(`partial(self._truncate, file, length)`, never a closure).
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from symphony_kernel.executor.base import ModelInfo
from symphony_kernel.fairness.cpu_accounts import CpuAccounts
from symphony_kernel.grammar.compiler import GrammarCompiler
from symphony_kernel.kvfs.durable.names import DurableNames
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.file_queue import submit
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.name_tree import is_public, parse_path, parse_prefix
from symphony_kernel.kvfs.tiers.advice import Hint
from symphony_kernel.platform.clock import Clock, RealClock
from symphony_kernel.processes.handles import (
    ALL_RIGHTS,
    APPEND,
    GRANT,
    READ,
    SAVE,
    TRUNCATE,
    Handle,
)
from symphony_kernel.processes.table import Grant, Instance, ProcessTable, RequestQueue
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    FILE_ENTRIES_MAX,
    INSTANCE_HANDLES_MAX,
    KV_KEEP_MS_MAX,
    KV_PRIORITY_MAX,
    LIST_ITEMS_MAX,
    TENANT_LISTED_MAX,
)
from symphony_kernel.protocol.messages import Op
from symphony_kernel.protocol.pred_options import DEFAULT
from symphony_kernel.syscalls import validation as arguments
from symphony_kernel.syscalls.adapters import Adapters
from symphony_kernel.syscalls.dispatch import CallQueue, SyscallObserver
from symphony_kernel.syscalls.grammar import ConstraintCalls
from symphony_kernel.syscalls.names import SAVE_DURABLE, SAVE_PUBLIC, SAVE_REPLACE, NameCalls, pack
from symphony_kernel.syscalls.pending import (
    Call,
    CallContext,
    Generation,
    Pred,
    Result,
)
from symphony_kernel.syscalls.validation import Ranges, integer, text

Handler: TypeAlias = Callable[..., Result | None]

SEQ_MAX: Final = (1 << 63) - 1
_READ_APPEND: Final = READ | APPEND
_PRED: Final = int(Op.PRED)
_PRED_ITEMS: Final = 7  # instance, op, seq, and its arguments
_PUBLIC_LISTED: Final = 256  # extra names that a listing of public ones counts as


class Syscalls:
    """Executes workers' calls. `reply` takes (caller, seq, result) if one is wanted."""

    def __init__(
        self,
        kvfs: KVFS,
        processes: ProcessTable,
        scheduler: RequestQueue,
        model: ModelInfo,
        reply: Callable[[Instance, int, Result], None],
        draw_seed: Callable[[], int],
        durable_names: DurableNames,
        grammars: GrammarCompiler,
        happen: Callable[[str, list[Any]], None],
        accounts: CpuAccounts,
        clock: Clock,
        adapters: Adapters,
    ) -> None:
        """`accounts` are charged for the time of calls, in `clock`'s seconds."""
        self._kvfs = kvfs
        self._adapters = adapters
        self._processes = processes
        self._model = model
        self._vocab_size = model.vocab_size
        entries_max = min(FILE_ENTRIES_MAX, model.max_context)
        self.context = CallContext(kvfs, processes, scheduler, entries_max, reply, draw_seed)
        self._durable_names = durable_names
        self.named = NameCalls(kvfs, durable_names, self.context)
        self.constraints = ConstraintCalls(grammars, self.context, happen)
        cpu = time.thread_time if isinstance(clock, RealClock) else None
        self.call_queue = CallQueue(
            processes.get, self._caller, self._execute, happen, accounts, clock.now, cpu
        )
        self._table = self._entries()
        self._calls = 0
        self._dropped = 0  # calls that named no instance of their worker, or were no calls
        self._listed: dict[str, int] = {}  # names listed in this frame or release, by tenant

    def _entries(self) -> dict[int, tuple[Handler, int]]:
        """Return operation -> handler, and the number of arguments after `seq`."""
        return {
            Op.KV_CREATE: (self._kv_create, 1),  # handle
            Op.KV_OPEN: (self._kv_open, 3),  # handle, path, rights -> rights granted
            Op.KV_FORK: (self._kv_fork, 2),  # handle, source
            Op.KV_EXTRACT: (self._kv_extract, 3),  # handle, source, ranges
            Op.KV_APPEND: (self._kv_append, 4),  # handle, source, start, end
            Op.KV_TRUNCATE: (self._kv_truncate, 2),  # handle, length
            Op.KV_LEN: (self._kv_len, 1),  # handle -> entries
            Op.KV_STAT: (self._kv_stat, 1),  # handle -> msgpack
            Op.KV_TOKENS: (self._kv_tokens, 3),  # handle, start, n -> u32 tokens
            Op.KV_SAVE: (self._kv_save, 3),  # handle, path, flags
            Op.KV_REMOVE: (self._kv_remove, 1),  # path
            Op.KV_LIST: (self._kv_list, 1),  # prefix -> msgpack
            Op.KV_LIST_AFTER: (self._kv_list_after, 3),  # prefix, after, limit -> msgpack
            Op.KV_GRANT: (self._kv_grant, 4),  # handle, instance, rights, name
            Op.KV_GRANTED: (self._kv_granted, 2),  # handle, name -> rights
            Op.KV_CLOSE: (self._kv_close, 1),  # handle
            Op.KV_OFFER: (self._kv_offer, 1),  # handle -> entries cached
            Op.KV_MATCH: (self._kv_match, 2),  # handle, tokens -> entries
            Op.KV_ADVISE: (self._kv_advise, 3),  # handle, hint, argument
            Op.WAITS: (self._waits, 1),  # whether it does
            Op.CONSTRAINT: (self.constraints.begin, 2),  # kind, text -> handle
            Op.CONSTRAINT_CLOSE: (self.constraints.close, 1),  # handle
            # Called by `_execute`: handle, tokens, positions, options -> results
            Op.PRED: (self._pred, 4),
            Op.STAGE: (self._stage, 2),  # stage, [[handle, rights, name], ...]
            Op.CANCEL: (self._cancel, 1),  # seq of a PRED or a GENERATE
            Op.GENERATE: (self._generate, 3),  # handle, tokens, options -> records, until b""
            Op.TAKEN: (self._taken, 2),  # seq of a GENERATE, records
        }

    def listen_with(self, hooks: SyscallObserver | None) -> None:
        self.context.observer = self.call_queue.observer = hooks

    def resume(self) -> None:
        self.constraints.resume(self._processes)
        self.call_queue.resume()

    def end(self) -> None:
        self.constraints.end()
        self.call_queue.close()

    def execute(self, worker: str, calls: list[Any]) -> None:
        self._listed.clear()
        self._calls += len(calls)
        if self.call_queue.queues or self._processes.tenants_live > 1:
            self.call_queue.execute(worker, calls)
            return
        for call in calls:
            caller = self._caller(worker, call)
            if caller is not None:
                self._execute(caller, call)

    def release(self, tenant: str) -> None:
        self._listed.clear()
        self.call_queue.release(tenant)

    def _caller(self, worker: str, call: Any) -> Instance | None:
        """Return the caller of a call, if it is an instance of that worker."""
        if type(call) is list and len(call) >= 3:
            number, seq = call[0], call[2]
            caller = self._processes.live.get(number) if type(number) is int else None
            known = caller is not None and caller.worker == worker
            if known and type(seq) is int and 0 <= seq <= SEQ_MAX:
                return caller
        self._dropped += 1
        return None

    def _execute(self, caller: Instance, call: list[Any]) -> bool:
        """Execute a call; return whether its time counts: a pred is charged by tokens."""
        op, seq = call[1], call[2]
        result: Result | None
        try:
            if (
                op == _PRED
                and type(op) is int
                and len(call) == _PRED_ITEMS
                and seq not in caller.pending
            ):
                self._pred(caller, seq, call[3], call[4], call[5], call[6])
                return False
            result = self._handle(caller, op, seq, call[3:])
        except SyscallError as error:
            result = -error.errno
        if result is not None:
            self.context.answer(caller, seq, result)
        return True

    def send_replies(self, flush: Callable[[], None]) -> None:
        """Send a frame's replies with `flush`; its callers' tenants pay for the time."""
        flush()
        self.call_queue.charge_reply()

    def statistics(self) -> dict[str, int]:
        counts = {"calls": self._calls, "failed": self.context.failed, "dropped": self._dropped}
        return {**counts, **self.constraints.grammars.statistics()}

    def _handle(self, caller: Instance, op: Any, seq: int, given: list[Any]) -> Result | None:
        entry = self._table.get(op) if type(op) is int else None
        if entry is None:
            raise SyscallError(Errno.ENOSYS, "no such operation")
        handler, count = entry
        if len(given) != count:
            raise SyscallError(Errno.EINVAL, f"expected {count} arguments, got {len(given)}")
        if seq in caller.pending:
            raise SyscallError(Errno.EINVAL, f"call {seq} has not been answered yet")
        return handler(Call(caller, seq), *given)

    # -- Calls that make a file. After a failure every call on the new file fails. ---------------
    def _kv_create(self, call: Call, number: Any) -> Result | None:
        new = call.caller.handles.check_new(number)
        try:
            self._new_file(call.caller, new, ALL_RIGHTS)
        except SyscallError as error:
            self._new_failed(call.caller, new, error.errno)
            raise
        return 0

    def _kv_fork(self, call: Call, number: Any, source: Any) -> Result | None:
        new = call.caller.handles.check_new(number)
        try:
            origin = call.caller.handles.get(source, READ)
            file = self._new_file(call.caller, new, origin.rights)
        except SyscallError as error:
            self._new_failed(call.caller, new, error.errno)
            raise
        source_file = origin.file
        fork = partial(self._share, call.caller, file, source_file)
        return self.context.run_in_order(call, (source_file, file), fork, sticky=file, new=True)

    def _share(self, caller: Instance, file: KVFile, source: KVFile) -> Result:
        file.share(_content(source))
        caller.usage.cached_tokens += file.length
        run = caller.run
        if run.traced:
            self.context.scheduler.trace_fork(run.root, file.number, source.number, file.length)
        return 0

    def _kv_extract(self, call: Call, number: Any, source: Any, given: Any) -> Result | None:
        new = call.caller.handles.check_new(number)
        try:
            origin = call.caller.handles.get(source, READ)
            ranges = arguments.ranges(given)
            file = self._new_file(call.caller, new, origin.rights)
        except SyscallError as error:
            self._new_failed(call.caller, new, error.errno)
            raise
        source_file = origin.file
        return self.context.run_in_order(
            call,
            (source_file, file),
            partial(self._append, call.caller, file, source_file, ranges),
            sticky=file,
            size=3 * len(given),  # as checked ranges
            new=True,
        )

    def _kv_append(
        self, call: Call, number: Any, source: Any, start: Any, end: Any
    ) -> Result | None:
        file = call.caller.handles.get(number, APPEND).file
        try:
            origin = call.caller.handles.get(source, READ).file
            ranges = arguments.one_range(start, end)
            self.context.check_not_generating(origin)
            self.context.check_not_generating(file)
        except SyscallError as error:
            # Earlier calls have not failed: the file's error is set after them.
            return self.context.run_in_order(
                call, (file,), partial(self._fail, error.errno), sticky=file, behind=True
            )
        files = (file,) if origin is file else (origin, file)
        append = partial(self._append, call.caller, file, origin, ranges)
        return self.context.run_in_order(call, files, append, sticky=file)

    def _fail(self, errno: Errno) -> Result:
        raise SyscallError(errno)

    def _append(self, caller: Instance, file: KVFile, source: KVFile, ranges: Ranges) -> Result:
        entries = ranges.entries(_content(source).length)
        length = _content(file).length
        if length + ranges.total > self.context.entries_max:
            raise SyscallError(Errno.EFBIG, f"{length} entries, {ranges.total} more")
        copied = file.append(source, entries)
        if copied:  # the next step copies first, which delays all its rows
            run, cost = caller.run, self._kvfs.tiers.copy_service(copied)
            self.context.scheduler.charge_run(run.root, caller.tenant.name, run.weight, cost)
        caller.usage.cached_tokens += ranges.total
        return 0

    def _kv_open(self, call: Call, number: Any, path: Any, rights: Any) -> Result | None:
        new = call.caller.handles.check_new(number)
        granted = arguments.rights(rights)
        return self.named.open(call, new, parse_path(text(path)), granted)

    def _kv_match(self, call: Call, number: Any, tokens: Any) -> Result | None:
        new = call.caller.handles.check_new(number)
        ids = arguments.token_ids(tokens, self._model)
        match = partial(self._kvfs.match, call.caller.tenant.name, ids, call.caller.account)
        file = call.caller.open_file(new, ALL_RIGHTS, match)
        call.caller.usage.cached_tokens += file.length
        return file.length

    def _new_file(self, caller: Instance, number: int, rights: int) -> KVFile:
        create = partial(self._kvfs.create, caller.tenant.name, caller.account)
        return caller.open_file(number, rights, create)

    def _new_failed(self, caller: Instance, number: int, errno: Errno) -> None:
        # Even past its quota: an instance can have only so many handles.
        caller.tenant.handles += 1
        file = self._kvfs.create_failed(caller.tenant.name, caller.account, errno)
        caller.handles.insert(number, file, ALL_RIGHTS)

    # -- Calls on a file's content ----------------------------------------------------------------
    def _pred(
        self, caller: Instance, seq: int, number: Any, tokens: Any, positions: Any, options: Any
    ) -> None:
        context, model = self.context, self._model
        file = caller.handles.get(number, _READ_APPEND).file
        token = arguments.only_token(tokens, self._vocab_size)
        ids, given, parsed, count = None, None, DEFAULT, 1  # as in most preds
        if token < 0 or positions is not None:
            ids = arguments.token_ids(tokens, model)
            count = len(ids)
        if positions is not None:
            given = arguments.positions(positions, count, model)
        if options != b"":
            parsed = arguments.pred_options(options, count, model)
            if parsed.parents is not None:
                ids = arguments.token_ids(tokens, model)
            if parsed.adapter:
                parsed = self._adapters.resolve(caller.tenant.name, parsed, options)
        if ids is not None:
            token = -1
        size = len(tokens) + len(options)
        if file.generating:
            context.check_not_generating(file)
        context.check_call_budget(caller, size)
        submit(Pred(context, caller, seq, file, ids, given, parsed, size, token))

    def _generate(self, call: Call, number: Any, tokens: Any, options: Any) -> Result | None:
        file = call.caller.handles.get(number, APPEND).file
        ids = arguments.token_ids(tokens, self._model)
        parsed = arguments.generate_options(options, self._model)
        if parsed.pred.adapter:
            tenant = call.caller.tenant.name
            pred = self._adapters.resolve(tenant, parsed.pred, b"generate" + options)
            parsed = replace(parsed, pred=pred)
        if not call.seq:
            raise SyscallError(Errno.EINVAL, "a generation needs a call number (seq)")
        size = len(tokens) + len(options)
        self.context.check_not_generating(file)
        self.context.check_call_budget(call.caller, size)
        submit(Generation(self.context, *call, file, ids, parsed, size))
        return None

    def _taken(self, call: Call, target: Any, count: Any) -> Result | None:
        generation, records = call.caller.pending.get(integer(target)), integer(count, 1)
        if isinstance(generation, Generation):  # otherwise it has ended
            generation.add_taken(records)
        return 0

    def _cancel(self, call: Call, target: Any) -> Result | None:
        pred = call.caller.pending.get(integer(target))
        if isinstance(pred, Pred):
            pred.cancel()
        return 0

    def _kv_truncate(self, call: Call, number: Any, length: Any) -> Result | None:
        file = call.caller.handles.get(number, TRUNCATE).file
        return self.context.run_in_order(
            call, (file,), partial(self._truncate, file, integer(length))
        )

    def _truncate(self, file: KVFile, kept: int) -> Result:
        if kept > _content(file).length:
            raise SyscallError(Errno.EINVAL, f"the file has {file.length} entries")
        file.truncate(kept)
        return 0

    def _kv_len(self, call: Call, number: Any) -> Result | None:
        file = call.caller.handles.get(number, READ).file
        return self.context.run_in_order(call, (file,), partial(self._length, file))

    def _length(self, file: KVFile) -> Result:
        return _content(file).length

    def _kv_stat(self, call: Call, number: Any) -> Result | None:
        handle = call.caller.handles.get(number, READ)
        return self.context.run_in_order(call, (handle.file,), partial(self._stat, handle))

    def _stat(self, handle: Handle) -> Result:
        file = _content(handle.file)
        return pack(
            {
                "len": file.length,
                "pages": len(file.pages),
                "shared": file.shared_pages,
                "tier": file.tier.word,
                "rights": handle.rights,
                "path": file.path,
                "expires_ms": self._durable_names.expires_ms(file),
                "cached": file.cached,
            }
        )

    def _kv_tokens(self, call: Call, number: Any, start: Any, n: Any) -> Result | None:
        file = call.caller.handles.get(number, READ).file
        tokens = partial(self._tokens, file, integer(start), integer(n))
        return self.context.run_in_order(call, (file,), tokens)

    def _tokens(self, file: KVFile, first: int, count: int) -> Result:
        if first + count > _content(file).length:
            raise SyscallError(Errno.EINVAL, f"the file has {file.length} entries")
        return file.read_tokens(first, count).tobytes()

    def _kv_save(self, call: Call, number: Any, path: Any, flags: Any) -> Result | None:
        file = call.caller.handles.get(number, SAVE).file
        chosen = integer(flags, 0, SAVE_REPLACE | SAVE_DURABLE | SAVE_PUBLIC)
        name = parse_path(text(path))
        save = partial(self._save, call, file, name, chosen)
        return self.context.run_in_order(call, (file,), save)

    def _save(self, call: Call, file: KVFile, name: str, flags: int) -> Result | None:
        return self.named.save(call, _content(file), name, flags)

    def _kv_offer(self, call: Call, number: Any) -> Result | None:
        file = call.caller.handles.get(number, READ).file
        return self.context.run_in_order(call, (file,), partial(self._offer, file))

    def _offer(self, file: KVFile) -> Result:
        return self._kvfs.offer(_content(file))

    # -- Hints ------------------------------------------------------------------------------------
    def _kv_advise(self, call: Call, number: Any, hint: Any, argument: Any) -> Result | None:
        file = call.caller.handles.get(number, READ).file
        given = Hint(integer(hint, 0, max(Hint)))
        most = {Hint.KEEP: KV_KEEP_MS_MAX, Hint.PRIORITY: KV_PRIORITY_MAX}.get(given, 0)
        self._kvfs.eviction.advise(file, given, integer(argument, 0, most))
        return 0

    def _waits(self, call: Call, waits: Any) -> Result | None:
        caller = call.caller
        files = (handle.file for handle in caller.handles)
        self._kvfs.eviction.set_waiting(caller.account, files, bool(integer(waits, 0, 1)))
        return 0

    # -- Names ------------------------------------------------------------------------------------
    def _kv_remove(self, call: Call, path: Any) -> Result | None:
        return self.named.remove(call, parse_path(text(path)))

    def _kv_list(self, call: Call, prefix: Any) -> Result | None:
        return self._list(call, parse_prefix(text(prefix)))

    def _kv_list_after(self, call: Call, prefix: Any, after: Any, limit: Any) -> Result | None:
        first = parse_prefix(text(prefix)), parse_prefix(text(after))
        return self._list(call, *first, integer(limit, 1, LIST_ITEMS_MAX))

    def _list(self, call: Call, *given: Any) -> Result:
        """List names, up to TENANT_LISTED_MAX in a frame or release."""
        tenant = call.caller.tenant.name
        listed = self._listed.get(tenant, 0)
        if listed >= TENANT_LISTED_MAX:
            raise SyscallError(Errno.EAGAIN, f"{listed} names were listed at once")
        # This is the cost if it is refused.
        self._listed[tenant] = listed + LIST_ITEMS_MAX
        count, names = self.named.list_names(call, *given)
        self._listed[tenant] = listed + count + (_PUBLIC_LISTED if is_public(given[0]) else 1)
        return names

    # -- Capabilities -----------------------------------------------------------------------------
    def _kv_close(self, call: Call, number: Any) -> Result | None:
        handle = call.caller.handles.remove(number)
        call.caller.tenant.handles -= 1
        self._kvfs.release(handle.file)
        return 0

    def _kv_grant(self, call: Call, number: Any, to: Any, rights: Any, name: Any) -> Result | None:
        handle = call.caller.handles.get(number, GRANT)
        receiver = self._processes.related(call.caller, to)
        given = arguments.rights(rights) & handle.rights
        self._processes.grant(receiver, arguments.grant_name(name), handle.file, given)
        return 0

    def _kv_granted(self, call: Call, number: Any, name: Any) -> Result | None:
        new = call.caller.handles.check_new(number)
        grant = call.caller.granted.pop(arguments.grant_name(name), None)
        if grant is None:
            raise SyscallError(Errno.ENOENT, "nothing was granted under that name")
        # The grant's reference and its place in the quota become the handle's.
        call.caller.handles.insert(new, grant.file, grant.rights)
        return grant.rights

    def _stage(self, call: Call, stage: Any, given: Any) -> Result | None:
        if type(given) is not list or len(given) > INSTANCE_HANDLES_MAX:
            raise SyscallError(Errno.EINVAL, f"a list of at most {INSTANCE_HANDLES_MAX} grants")
        wanted: dict[str, Grant] = {}
        for item in given:
            if type(item) is not list or len(item) != 3:
                raise SyscallError(Errno.EINVAL, "a grant is [handle, rights, name]")
            handle = call.caller.handles.get(item[0], GRANT)
            name = arguments.grant_name(item[2])
            if name in wanted:
                raise SyscallError(Errno.EEXIST, name)
            wanted[name] = Grant(handle.file, arguments.rights(item[1]) & handle.rights)
        self._processes.stage(call.caller, integer(stage, low=1), wanted)
        return 0


def _content(file: KVFile) -> KVFile:
    if file.error is not None:
        raise SyscallError(file.error)
    return file
