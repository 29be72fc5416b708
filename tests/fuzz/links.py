"""Cases of links: a worker that strangers have taken over says what it likes to the gateway.

The gateway is a real one, on real sockets; the worker is made by hand. It has proved who it is, is
given runs, and then sends messages about them, about other and unknown runs, with fields of any
value, and bytes that are no frames. What must hold: no exception, no answer that begins with 5 to
who asks over HTTP, and a gateway that goes on with the next worker.
"""

import asyncio
import socket
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import msgpack
from symphony import AsyncClient, ClientError, ServerError
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import SocketLink, connect_unix
from wasmtime import wat2wasm

from tests.fuzz.frames import Frames
from tests.fuzz.values import mutated, shortened
from tests.support.gateway.system import WORKER_SECRET, SystemRig
from tests.support.worker.guests import HELLO

WORKER = "worker-0"
_FRAMES = 150
_RUNS = 3
_SECONDS = 60.0  # of real time, for an answer on a slow machine
_STATUSES = ("exited", "trapped", "killed", "failed", "", "else")
_WHATS = ("spawn", "channel_send", "channel_recv", "tools", "tool", "http", "nothing")
_RUN = "run"  # stands for the instance of one of the runs that the worker was given


@dataclass(frozen=True)
class Case:
    """Frames, in which `_RUN` stands for an instance, and bytes."""

    frames: tuple[list[Any] | bytes, ...]

    def __str__(self) -> str:
        return "\n".join(f"  {frame!r}"[:2_000] for frame in self.frames)


def make(rng: Random) -> Case:
    frames = Frames(rng)
    made: list[list[Any] | bytes] = []
    for _ in range(rng.choice((20, _FRAMES))):
        if rng.random() < 0.03:
            body = msgpack.packb(_message(rng, frames)[:1])
            lied = rng.choice((len(body), len(body) + 9, 0, 1 << 31, (1 << 32) - 1))
            made.append(lied.to_bytes(4, "little") + mutated(rng, body))
        elif rng.random() < 0.1:
            made.append(frames.frame())
        else:
            made.append(_message(rng, frames))
    return Case(tuple(made))


def _message(rng: Random, frames: Frames) -> list[Any]:
    """Return a message that a worker may send, some of its fields of any value."""
    some = rng.choice((_RUN, _RUN, _RUN, 1, 1_001, -1))
    data = rng.choice((b"", b"x", b"x" * 70_000))
    args: dict[str, Any] = {
        "instance": some, "parent": some, "program": None, "entry": "", "input": b"", "stage": 0,
        "name": rng.choice(("c", "", "x" * 300)), "item": data, "request": data,
    }  # fmt: skip
    usage = {"cpu_ms": 1, "wall_ms": 2, "syscalls": 3, "peak_memory_bytes": 4}
    message = rng.choice(
        (
            [m.Output.KIND, [[some, data] for _ in range(rng.choice((1, 3)))]],
            [m.Logs.KIND, [[some, rng.choice((0, 3, 9)), data]]],
            [m.Ended.KIND, some, rng.choice(_STATUSES), rng.choice((0, 137)), "why", usage],
            [m.Received.KIND, some, rng.choice((1, -1, 1 << 40)), rng.choice((0, 9, -9))],
            [m.Traced.KIND, some, [[some, "send", 0.0, 1.0, 0, False]]],
            [m.Ask.KIND, rng.randrange(9), rng.choice(_WHATS), args],
            [m.Unask.KIND, rng.randrange(9)],
        )
    )
    return _spoilt(rng, frames, message) if rng.random() < 0.3 else message


def _spoilt(rng: Random, frames: Frames, value: Any) -> Any:
    """Return a message with one thing in it, at any depth, of any value."""
    if isinstance(value, list) and len(value) > 1:
        at = (
            rng.randrange(1, len(value)) if isinstance(value[0], int) else rng.randrange(len(value))
        )
        return [*value[:at], _spoilt(rng, frames, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(sorted(value))
        return {**value, key: frames.anything()}
    return frames.anything()


class _Evil:
    """The worker."""

    def __init__(self, system: SystemRig, wrong: list[str]) -> None:
        self._system, self._wrong = system, wrong
        self.link: SocketLink | None = None
        self.runs: list[int] = []

    async def connect(self) -> SocketLink:
        if self.link is None or self.link.closed:
            self.link = await connect_unix(self._system.config.socket)
            self.link.receive(self._on_frame, lambda: None)
            hello = m.Hello(m.PROTOCOL_VERSION, "worker", WORKER, WORKER_SECRET, 1)
            self.link.send(m.encode(hello))
        return self.link

    def _on_frame(self, frame: list[Any]) -> None:
        if frame[0] == m.Start.KIND:
            self.runs.append(frame[1])

    def said(self, value: Any, rng: Random) -> Any:
        """Put instances to where they stand for."""
        if value == _RUN and isinstance(value, str):
            return rng.choice(self.runs) if self.runs else 1
        if isinstance(value, list):
            return [self.said(each, rng) for each in value]
        if isinstance(value, dict):
            return {key: self.said(each, rng) for key, each in value.items()}
        return value

    async def send(self, frame: list[Any] | bytes, rng: Random) -> None:
        """Send a frame; bytes go over a connection of their own, which has said nothing yet."""
        if isinstance(frame, bytes):
            with socket.socket(socket.AF_UNIX) as raw:
                raw.connect(str(self._system.config.socket))
                raw.sendall(frame)
                await asyncio.sleep(0)
            return
        (await self.connect()).send(self.said(frame, rng), now=True)
        await asyncio.sleep(0)


def play(case: Case) -> tuple[int, list[str]]:
    """Play a case; return how many frames were sent, and what was wrong."""
    wrong: list[str] = []

    async def whole(folder: Path) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, said: wrong.append(f"unheard: {said}"))
        async with SystemRig(folder, worker=False) as system, system.client() as client:
            evil = _Evil(system, wrong)
            await evil.connect()
            await client.programs.upload(bytes(wat2wasm(HELLO)), "hello")
            rng = Random(len(case.frames))
            for index, frame in enumerate(case.frames):
                if index % 20 == 0:
                    await _ask(client, wrong)
                await evil.send(frame, rng)
            await evil.connect()
            await _ask(client, wrong)

    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(asyncio.wait_for(whole(Path(folder)), _SECONDS + len(case.frames)))
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
    return len(case.frames), wrong


async def _ask(client: AsyncClient, wrong: list[str]) -> None:
    """Start runs and look at them, as a client does; being told to come later is an answer."""
    began = time.monotonic()
    for _ in range(_RUNS):
        try:
            run = await client.start("hello")
            await client.runs.get(run)
            [each async for each in client.runs.list()]
        except ServerError as error:
            if error.status >= 500 and error.status != 503:
                wrong.append(f"a client was answered {error.status}: {error}")
        except ClientError as error:
            wrong.append(f"a client was not answered: {error}")
    if time.monotonic() - began > _SECONDS:
        wrong.append(f"a client has waited for {time.monotonic() - began:.0f} s")


def smaller(case: Case, at: int) -> Case | None:
    """Return the case with some frames left out; None: no more."""
    less = shortened(case.frames, at, (64, 16, 4, 1))
    return None if less is None else Case(less)
