"""Cuts: a program saves a file durably, again and again, while the kernel is killed with -9.

The n-th save holds the tokens 1 to n, and the program says n once it has been acknowledged. So
whatever is there afterwards must be a whole file, the last one that was acknowledged or the one
that was being saved.
"""

import asyncio
import contextlib
import os
import random
import signal
from dataclasses import dataclass, field

import numpy as np
from safetensors.numpy import load
from symphony_runtime.client import Client, ClientError, Event
from wasmtime import wat2wasm

from tests.support.server.server import RunningServer
from tests.support.worker.guests import data, main

PATH = "cuts/file"
PAUSE_SECONDS = (0.0, 0.4)  # from the first save that the client knows of to the kill

# Opens the file if it exists, then appends token n, saves it and sends n, until it fails.
SAVER_WASM = bytes(
    wat2wasm(
        main(
            """(local.set $kv (call $kv_open (i32.const 100) (i32.const 9) (i32.const 31)))
               (if (i32.lt_s (local.get $kv) (i32.const 0))
                 (then (local.set $kv (call $kv_create))))
               (local.set $n (call $kv_len (local.get $kv)))
               (loop $more
                 (local.set $n (i32.add (local.get $n) (i32.const 1)))
                 (i32.store (i32.const 200) (local.get $n))
                 (if (i32.lt_s (call $claim
                       (call $pred (local.get $kv) (i32.const 200) (i32.const 1) (i32.const 0)
                                   (i32.const 0) (i32.const 0))
                       (i32.const 300) (i32.const 8)) (i32.const 0))
                   (then (return (i32.const 1))))
                 (if (call $kv_save (local.get $kv) (i32.const 100) (i32.const 9) (i32.const 3))
                   (then (return (i32.const 2))))
                 (drop (call $send (i32.const 200) (i32.const 4)))
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
            async for event in client.events(run):
                if event.kind == "message":
                    break
            await asyncio.sleep(self.random.uniform(*PAUSE_SECONDS))
            pids = await self.server.pids()
            os.kill(pids["kernel"], signal.SIGKILL)
            known = await acknowledged
            await self._wait_for_another(pids["kernel"])
            self.cuts.append(await _look(client, known))

    async def _wait_for_another(self, old: int) -> None:
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(ClientError):
                    if (await self.server.pids())["kernel"] not in (None, old):
                        break
                await asyncio.sleep(0.02)
        await self.server.wait_until_ready()


async def _last(client: Client, run: str, before: int) -> int:
    """Return the number of the last save that the program said was acknowledged, to its end."""
    known = before
    async for event in client.events(run):
        known = _number(event, known)
    return known


def _number(event: Event, known: int) -> int:
    return int.from_bytes(event.message(), "little") if event.kind == "message" else known


async def _look(client: Client, acknowledged: int) -> Cut:
    try:
        listed = (await client.kv_stat(PATH))["len"]
    except ClientError:
        return Cut(acknowledged, 0, True)
    tensors = load(b"".join([piece async for piece in client.kv_download(PATH)]))
    tokens = tensors["tokens"]
    whole = listed == len(tokens) and np.array_equal(tokens, np.arange(1, len(tokens) + 1))
    return Cut(acknowledged, len(tokens), whole)
