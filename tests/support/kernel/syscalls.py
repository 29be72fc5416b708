"""Syscalls over real KVFS and a real process table, with a scheduler that only writes down."""

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
from symphony_kernel.executor.base import ModelInfo
from symphony_kernel.grammar.compiler import Grammars
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.processes.table import Instance, ProcessTable
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.request import Work
from symphony_kernel.syscalls.table import Syscalls

from tests.support.kernel.page_device import ManualTime

FIRST = 1 << 16
WORKER = "worker-0"
MODEL = ModelInfo("m", vocab_size=100, eos=(0,), bos=None, max_context=500, dtype="float32")

Result = int | bytes


def u32(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


def handle(index: int, generation: int = 1) -> int:
    return index | generation << 16


class NoGrammars(Grammars):
    """Those of a model without a tokenizer, told of at once: here is no loop to wait in."""

    def compile(self, tenant: str, kind: int, text: str, done: Callable[[int, str], None]) -> None:
        done(Errno.ENOSYS, "")


class RecordingScheduler:
    """Keeps works until a test computes them; cancels and forgets as the real one does."""

    def __init__(self) -> None:
        self.works: list[Work] = []
        self.charged: dict[int, float] = {}

    def charge(self, root: int, tenant: str, weight: float, cost: float) -> None:
        self.charged[root] = self.charged.get(root, 0.0) + cost

    def submit(self, work: Work) -> None:
        self.works.append(work)

    def cancel(self, work: Work) -> None:
        if work in self.works:
            self.works.remove(work)
            work.file.unreserve()
            work.done(-Errno.ECANCELED)

    def forget(self, root: int, instance: int | None = None) -> None:
        for work in list(self.works):
            if work.root == root and instance in (None, work.instance):
                self.works.remove(work)
                work.file.unreserve()

    def trace(self, root: int) -> None:
        raise AssertionError("no test here traces")

    def compute(self, result: bytes = b"result") -> Work:
        """Compute the oldest work as a step would."""
        work = self.works.pop(0)
        try:
            work.file.reserve(len(work.tokens))
        except SyscallError as error:
            work.done(-error.errno)
            return work
        if work.options.keep:
            work.file.commit(work.tokens, work.positions, work.options.parents)
        else:
            work.file.unreserve()
        work.done(result)
        return work


class SyscallRig:
    """One tenant's run (instance 1) on one worker, and whatever else a test registers."""

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
            draw_seed=lambda: 4321,
            grammars=NoGrammars(b"", MODEL.vocab_size, MODEL.eos),
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
        """Return the answer to a call, or None."""
        found = [result for _, number, result in self.replies if number == seq]
        assert len(found) <= 1, "answered twice"
        return found[0] if found else None

    def call(self, instance: int, op: int, *args: Any) -> Result | None:
        """Make a call and return its answer, None when it has to wait."""
        return self.reply(self.send(instance, op, *args))

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
        assert self.scheduler.works == []
        statistics = self.kvfs.statistics()
        assert statistics.files == statistics.names == names
        if not names:
            kept = statistics.prefix_cache.idle_pages
            assert self.kvfs.pool.free + kept == self.kvfs.pool.pages
