"""The gateway's part towards a kernel, for benchmarks that play the gateway."""

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import Link

TENANT = "tenant"


class KernelClient:
    """Asks a kernel over a link without a receiver."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._seq = count(1)
        self._answers: dict[int, asyncio.Future[m.Answer]] = {}
        link.receive(self._on_frame, lambda: None)

    async def register(self, instances: list[int], worker: str) -> None:
        """Let instances call over a worker's link, each a run of its own."""
        await asyncio.gather(*(self._ask(_register(each, worker)) for each in instances))

    async def end(self, instances: list[int]) -> None:
        """Tell of instances' ends."""
        await asyncio.gather(*(self._ask(_end(each)) for each in instances))

    async def statistics(self) -> dict[str, Any]:
        """Return the kernel's counters."""
        found: dict[str, Any] = await self._ask(lambda seq: m.Ask(seq, "statistics", {}))
        return found

    async def _ask(self, make: Callable[[int], m.Message]) -> Any:
        seq = next(self._seq)
        answer: asyncio.Future[m.Answer] = asyncio.get_running_loop().create_future()
        self._answers[seq] = answer
        self._link.send(m.encode(make(seq)))
        message = await answer
        assert not message.errno, message
        return message.value

    def _on_frame(self, frame: list[Any]) -> None:
        message = m.decode(frame)
        if isinstance(message, m.Answer):
            self._answers.pop(message.seq).set_result(message)


def _register(instance: int, worker: str) -> Callable[[int], m.Message]:
    return lambda seq: m.Register(seq, instance, TENANT, worker, 0, 0, {})


def _end(instance: int) -> Callable[[int], m.Message]:
    return lambda seq: m.End(seq, instance)
