"""The gateway of a fuzzed system: kernels and workers die, the internet answers at random."""

import asyncio
from random import Random
from typing import Any

import msgpack
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError

from tests.support.worker.gateway import ScriptedGateway

KERNEL_GONE = "the kernel died"
_EGRESS_ERRNOS = (Errno.EACCES, Errno.ENOENT, Errno.ETIMEDOUT, Errno.EIO)


class FuzzGateway(ScriptedGateway):
    """Survives the loss of its kernel, and answers egress."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng

    def lose_kernel(self) -> None:
        """Fail all calls and runs: the kernel has forgotten everything."""
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(SyscallError(Errno.EPIPE, KERNEL_GONE))
        live, self.live = self.live, {}
        for instance in live:
            run = self.runs.get(instance)
            if run is not None:
                run.kill(KERNEL_GONE)
                run.end("failed", 0, KERNEL_GONE, {})

    async def register(self, instance: int, tenant: str, worker: str) -> None:
        """Let an instance of a worker call the kernel, with nothing of it here."""
        await self._request(lambda seq: m.Register(seq, instance, tenant, worker, 0, 0, {}))

    async def end(self, instance: int) -> None:
        await self._request(lambda seq: m.End(seq, instance))

    async def _end(self, message: m.Ended) -> None:
        try:
            await super()._end(message)
        except SyscallError as error:
            if error.detail != KERNEL_GONE:  # the next kernel does not know the instance
                raise
            if message.instance in self.runs:
                run = self.runs[message.instance]
                run.end(message.status, message.exit_code, message.reason, message.usage)

    def _answer_ask(self, worker: str, ask: m.Ask) -> None:
        if ask.what in ("http", "tool"):
            self._spawn(self._egress(worker, ask))
        else:
            super()._answer_ask(worker, ask)

    async def _egress(self, worker: str, ask: m.Ask) -> None:
        await asyncio.sleep(self._rng.choice((0, 0.003, 0.06, 0.5)))
        if self._rng.random() < 0.5:
            self._answer(worker, ask.seq, -self._rng.choice(_EGRESS_ERRNOS), "no")
        else:
            answer: Any = {"ok": True, "content": "x" * self._rng.choice((0, 9, 5_000))}
            self._answer(worker, ask.seq, 0, msgpack.packb(answer))
