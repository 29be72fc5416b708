"""LIPs that do what a script says, and record the kernel's answers."""

import asyncio
from dataclasses import dataclass
from typing import Any

from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.messages import Op

from tests.support.kernel.rig import HasPeers, options, pairs, tokens

FIRST = 1 << 16


@dataclass(frozen=True)
class Script:
    """What one LIP does, one operation after the other, on a growing set of files."""

    tenant: int
    begins_ms: int
    operations: tuple[tuple[str, int, int], ...]  # what, which file, how much


class Lip:
    """Runs a script and records the kernel's answers."""

    def __init__(self, rig: HasPeers, instance: int, script: Script) -> None:
        self.rig, self.instance, self.script = rig, instance, script
        self.files = [FIRST]
        self.answers: list[Any] = []

    async def run(self) -> list[Any]:
        await asyncio.sleep(self.script.begins_ms / 1000)
        await self.rig.gateway.register(self.instance, tenant=f"t{self.script.tenant}")
        self._tell(Op.KV_CREATE, FIRST)
        for what, which, much in self.script.operations:
            await getattr(self, "_" + what)(self.files[which % len(self.files)], much)
        for file in self.files:
            length = await self._call(Op.KV_LEN, file)
            self.answers.append((length, await self._call(Op.KV_TOKENS, file, 0, length)))
        usage = await self.rig.gateway.end(self.instance)
        # What of a prompt is known already is the others' doing.
        others = {"prompt_tokens", "cached_tokens"} if self.matches else set()
        own = {k: v for k, v in usage.value.items() if k not in {"kv_token_ms", *others}}
        self.answers.append(own)
        return self.answers

    @property
    def matches(self) -> bool:
        return any(what in ("complete", "share") for what, _, _ in self.script.operations)

    def _tell(self, op: int, *args: Any) -> None:
        self.rig.worker.tell(self.instance, op, *args)

    async def _call(self, op: int, *args: Any) -> Any:
        return await self.rig.worker.call(self.instance, op, *args)

    async def _pred(self, file: int, ids: list[int], **given: Any) -> None:
        packed = options(**given) if given else b""
        self.answers.append(await self.rig.worker.pred(self.instance, file, tokens(*ids), packed))

    def _new(self) -> int:
        self.files.append(FIRST + len(self.files))
        return self.files[-1]

    async def _prompt(self, file: int, much: int) -> None:
        await self._pred(file, list(range(much, 3 * much)), at="all", get={"top": 2})

    async def _decode(self, file: int, much: int) -> None:
        token = much
        for _ in range(much % 7 + 1):
            await self._pred(file, [token])
            ((token, _),) = pairs(self.answers[-1])

    async def _generate(self, file: int, much: int) -> None:
        given: dict[str, Any] = {"get": {"sample": {"seed": much}}} if much % 2 else {}
        made = self.rig.worker.generate(
            self.instance, file, tokens(much), max=much % 9 + 1, ahead=much % 4, **given
        )
        self.answers.append((await made.end, made.records))

    async def _fork(self, file: int, much: int) -> None:
        self._tell(Op.KV_FORK, self._new(), file)

    async def _truncate(self, file: int, much: int) -> None:
        length = await self._call(Op.KV_LEN, file)
        self.answers.append(await self._call(Op.KV_TRUNCATE, file, min(much, length)))

    async def _extract(self, file: int, much: int) -> None:
        length = await self._call(Op.KV_LEN, file)
        end = min(much, length)
        self._tell(Op.KV_EXTRACT, self._new(), file, tokens(end // 3, end))

    async def _append(self, file: int, much: int) -> None:
        source = self.files[much % len(self.files)]
        length = await self._call(Op.KV_LEN, source)
        self._tell(Op.KV_APPEND, file, source, 0, min(much, length))

    async def _peek(self, file: int, much: int) -> None:
        await self._pred(file, [much] * 20, keep=False, get={"sample": {"seed": much}})

    async def _tree(self, file: int, much: int) -> None:
        parents = [i // 2 - 1 if i < 2 else (i - 1) // 2 for i in range(much % 9 + 1)]
        await self._pred(file, [much + i for i in range(len(parents))], parents=parents, at="all")

    async def _complete(self, file: int, much: int) -> None:
        """One of a few prompts, some of which begin alike: what is known of it, and the rest."""
        ids, kv = [*range(much % 3, 30), *range(much)], self._new()
        known = await self._call(Op.KV_MATCH, kv, tokens(*ids))
        if known == -Errno.ENOENT:
            known = 0
            self._tell(Op.KV_CREATE, kv)
        await self._pred(kv, ids[known:])
        offered = await self._call(Op.KV_OFFER, kv)
        assert offered == len(ids) // 16 * 16

    async def _share(self, file: int, much: int) -> None:
        """One of a few long prompts that begin alike, computed with those of other LIPs."""
        ids, kv = [*range(much % 2, 90), *range(much % 5, 40)], self._new()
        self._tell(Op.KV_CREATE, kv)
        made = self.rig.worker.generate(
            self.instance, kv, tokens(*ids), max=much % 4 + 1, share=True
        )
        self.answers.append((await made.end, made.records))

    async def _pause(self, file: int, much: int) -> None:
        await asyncio.sleep(much / 2000)
