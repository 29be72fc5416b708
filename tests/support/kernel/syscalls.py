"""Syscalls over a real KVFS and a real process table, with a scheduler that records requests."""

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
from symphony_kernel.executor.base import ModelInfo
from symphony_kernel.executor.simulated import SimulatedExecutor
from symphony_kernel.fairness.cpu_accounts import CpuAccounts, CpuOptions
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.grammar.compiler import GrammarCompiler
from symphony_kernel.kvfs.durable.names import DurableNames
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.processes.table import Instance, ProcessTable
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.messages import Op
from symphony_kernel.request import Request
from symphony_kernel.syscalls.adapters import Adapters
from symphony_kernel.syscalls.table import Syscalls

from tests.support.kernel.page_device import ManualTime

FIRST = 1 << 16
WORKER = "worker-0"
MODEL = ModelInfo(
    "m", vocab_size=100, eos=(0,), bos=None, max_context=500, dtype="float32", hidden_size=8
)

Result = int | bytes


def u32(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


def handle(index: int, generation: int = 1) -> int:
    return index | generation << 16


class NoGrammars(GrammarCompiler):
    """Those of a model without a tokenizer, refused at once: there is no loop to wait in."""

    def compile(self, tenant: str, kind: int, text: str, done: Callable[[int, str], None]) -> None:
        done(Errno.ENOSYS, "")


class RecordingScheduler:
    """Keeps requests until a test computes them; cancels and drops as the real one does."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.charged: dict[int, float] = {}

    def charge_run(self, root: int, tenant: str, weight: float, cost: float) -> None:
        self.charged[root] = self.charged.get(root, 0.0) + cost

    def submit(self, request: Request) -> None:
        self.requests.append(request)

    def cancel(self, request: Request) -> None:
        if request in self.requests:
            self.requests.remove(request)
            request.file.unreserve()
            request.done(-Errno.ECANCELED)

    def drop_requests(self, root: int, instance: int | None = None) -> None:
        for request in list(self.requests):
            if request.root == root and instance in (None, request.instance):
                self.requests.remove(request)
                request.file.unreserve()

    def trace_run(self, root: int) -> None:
        raise AssertionError("no test here traces")

    def trace_fork(self, root: int, file: int, source: int, length: int) -> None:
        raise AssertionError("no test here traces")

    def trace_held(self, request: Request, since: float) -> None:
        raise AssertionError("no test here traces")

    def compute(self, result: bytes = b"result") -> Request:
        """Compute the oldest request as a step would."""
        request = self.requests.pop(0)
        try:
            request.file.reserve(len(request.tokens))
        except SyscallError as error:
            request.done(-error.errno)
            return request
        if request.options.keep:
            request.file.commit(request.tokens, request.positions, request.options.parents)
        else:
            request.file.unreserve()
        request.done(result)
        return request


class SyscallRig:
    """One tenant's run (instance 1) on one worker, and what else a test registers."""

    def __init__(self, pages: int = 64, limits: TenantLimits | None = None) -> None:
        self.time = ManualTime()
        self.kvfs = KVFS(pages, self.time, limits)
        self.scheduler = RecordingScheduler()
        self.exceeded: list[tuple[int, str]] = []
        self.processes = ProcessTable(
            self.kvfs, self.scheduler, lambda root, reason: self.exceeded.append((root, reason))
        )
        self.replies: list[tuple[int, int, Result]] = []
        self.syscalls = Syscalls(
            self.kvfs,
            self.processes,
            self.scheduler,
            MODEL,
            lambda caller, seq, result: self.replies.append((caller.id, seq, result)),
            lambda: 4321,
            DurableNames(self.kvfs),
            NoGrammars(b"", MODEL.vocab_size, MODEL.eos),
            lambda _what, arguments: self.syscalls.constraints.compiled(*arguments),
            CpuAccounts(FairQueue(), lambda _now: (), CpuOptions()),
            VirtualClock(),
            Adapters(
                SimulatedExecutor(VirtualClock(), pages),
                self.kvfs,
                list,
                lambda _answer: None,
                lambda _what, _arguments: None,
                lambda _tenant, _seconds: None,
                threads=False,
            ),
        )
        self._seq = 0
        self.register(1)

    def register(self, instance: int, tenant: str = "t", **given: Any) -> Instance:
        return self.processes.register(instance, tenant, given.pop("worker", WORKER), **given)

    def send(self, instance: int, op: int, *args: Any) -> int:
        """Make a call; return its seq."""
        self._seq += 1
        self.syscalls.execute(WORKER, [[instance, int(op), self._seq, *args]])
        return self._seq

    def reply(self, seq: int) -> Result | None:
        found = [result for _, number, result in self.replies if number == seq]
        assert len(found) <= 1, "answered twice"
        return found[0] if found else None

    def call(self, instance: int, op: int, *args: Any) -> Result | None:
        """Make a call and return its answer, None when it has to wait."""
        return self.reply(self.send(instance, op, *args))

    def pred(
        self, instance: int, number: int, *tokens: int, positions: Any = None, **options: Any
    ) -> int:
        """Make a pred; return its seq."""
        packed = msgpack.packb(options) if options else b""
        return self.send(instance, Op.PRED, number, u32(*tokens), positions, packed)

    def computed(self, instance: int, number: int, *tokens: int, **given: Any) -> int:
        """Make a pred and compute it, if none waits before it; return its seq."""
        seq = self.pred(instance, number, *tokens, **given)
        self.scheduler.compute()
        return seq

    def filled(self, number: int, length: int) -> None:
        """Make a file of instance 1 with so many entries."""
        self.call(1, Op.KV_CREATE, number)
        self.computed(1, number, *(token % MODEL.vocab_size for token in range(length)))

    def unpack(self, instance: int, op: int, *args: Any) -> Any:
        data = self.call(instance, op, *args)
        assert isinstance(data, bytes), data
        return msgpack.unpackb(data)

    def file(self, number: int, instance: int = 1) -> KVFile:
        found = self.processes.get(instance)
        assert found is not None
        return found.handles.get(number).file

    def finish(self, names: int = 0) -> None:
        """End everything; all pages but those of names must be back."""
        self.processes.check_integrity()
        self.processes.end_worker()
        self.processes.check_integrity()
        assert self.scheduler.requests == []
        statistics = self.kvfs.statistics()
        assert statistics["files"] == statistics["names"] == names
        if not names:
            kept = self.kvfs.prefix_cache.idle_pages
            assert self.kvfs.pool.free + kept == self.kvfs.pool.pages
