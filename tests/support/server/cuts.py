"""Cuts: a program saves a file durably, again and again, while the kernel is killed with -9.

The n-th save holds the tokens 1 to n, and the program says n once it has been acknowledged. What is
there afterwards must be a whole file: the last one that was acknowledged or the next one.
"""

import asyncio
import os
import random
import signal
from dataclasses import dataclass, field

import numpy as np
from safetensors.numpy import load
from symphony import AsyncClient, ClientError
from wasmtime import wat2wasm

from tests.support.server.server import RunningServer, first_message
from tests.support.worker.guests import call, data, drop, increased, main
from tests.support.worker.snippets import KV

PATH = "cuts/file"
PAUSE_SECONDS = (0.0, 0.4)  # from the first save that the client knows of to the kill

# Opens the file if it exists, then appends token n, saves it and sends n, until it fails.
SAVER_WASM = bytes(
    wat2wasm(
        main(
            f"""(local.set $kv {call("kv_open", 100, 9, 31)})
               (if (i32.lt_s (local.get $kv) (i32.const 0))
                 (then (local.set $kv (call $kv_create))))
               (local.set $n (call $kv_len (local.get $kv)))
               (loop $more
                 (i32.store (i32.const 200) {increased("$n")})
                 (if (i32.lt_s {call("claim", call("pred", KV, 200, 1, 0, 0, 0), 300, 8)}
                               (i32.const 0))
                   (then (return (i32.const 1))))
                 (if {call("kv_save", KV, 100, 9, 3)} (then (return (i32.const 2))))
                 {drop("send", 200, 4)}
                 (br $more))
               (i32.const 0)""",
            data(100, PATH),
            locals_="(local $kv i32) (local $n i32)",
        )
    )
)


@dataclass
class Cut:
    """One cut: what had been acknowledged, and what was there afterwards (tokens; 0: no file)."""

    acknowledged: int
    found: int
    whole: bool

    @property
    def good(self) -> bool:
        """Whether it was the old file or the new one."""
        return self.whole and self.found in (self.acknowledged, self.acknowledged + 1)


@dataclass
class Cutter:
    """Cuts a server's kernel, which keeps no journal: nothing but the disk brings a name back."""

    server: RunningServer
    random: random.Random
    cuts: list[Cut] = field(default_factory=list)

    async def cut(self, number: int) -> None:
        """Let the program save, kill the kernel, look at what there is."""
        async with self.server.client() as client:
            before = self.cuts[-1].found if self.cuts else 0
            run = await client.start("saver")
            acknowledged = asyncio.create_task(_last(client, run, before))
            await first_message(client, run)
            await asyncio.sleep(self.random.uniform(*PAUSE_SECONDS))
            pids = await self.server.pids()
            os.kill(pids["kernel"], signal.SIGKILL)
            known = await acknowledged
            await self.server.wait_for_another("kernel", pids["kernel"])
            self.cuts.append(await _look(client, known))


async def _last(client: AsyncClient, run: str, before: int) -> int:
    """Return the number of the last save that the program said was acknowledged, to its end."""
    known = before
    async for event in client.runs.events(run):
        if event.kind == "message":
            known = int.from_bytes(event.message(), "little")
    return known


async def _look(client: AsyncClient, acknowledged: int) -> Cut:
    try:
        listed = (await client.kv.stat(PATH))["len"]
    except ClientError:
        return Cut(acknowledged, 0, True)
    tensors = load(b"".join([piece async for piece in client.kv.download(PATH)]))
    tokens = tensors["tokens"]
    whole = listed == len(tokens) and np.array_equal(tokens, np.arange(1, len(tokens) + 1))
    return Cut(acknowledged, len(tokens), whole)
