"""Programs that talk: turns of a prompt and a decoded answer, with pauses in between."""

import asyncio
from typing import Any

from tests.support.kernel.rig import A, KernelRig, decode, ids, start, tokens


def prompt(seed: int, n: int) -> bytes:
    return tokens(*((seed * 1_000 + i) % 4_000 + 1 for i in range(n)))


async def talks(
    rig: KernelRig, lips: int, *, prompt_tokens: int, decodes: int, pauses: tuple[float, ...]
) -> tuple[list[list[int]], dict[str, Any]]:
    """Return the tokens that each of some LIPs decodes, and the kernel's statistics.

    `pauses`: seconds behind each turn, in which the file is idle.
    """

    async def talk(instance: int) -> list[int]:
        worker = await start(rig, instance)
        out: list[int] = []
        for turn, pause in enumerate(pauses):
            text = prompt(10 * instance + turn, prompt_tokens)
            (first,) = ids(await worker.pred(instance, A, text))
            out += [first, *await decode(worker, instance, A, first, decodes)]
            await asyncio.sleep(0.01 * (instance % 3) + pause)
        await rig.gateway.end(instance)
        return out

    outputs = await asyncio.gather(*(talk(i) for i in range(1, lips + 1)))
    await rig.gateway.check_integrity()
    return list(outputs), await rig.gateway.statistics()
