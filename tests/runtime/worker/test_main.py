"""The worker's process: its links, its end, and the privileges that it gives up."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import SocketLink, serve_unix
from symphony_runtime.compiler.validation import check_and_compile
from symphony_runtime.sandboxing.contain import open_to_workers
from symphony_runtime.worker.__main__ import WorkerConfig
from wasmtime import wat2wasm

from tests.support.sockets import temporary_socket_folder
from tests.support.worker.guests import HELLO, SPIN
from tests.support.worker.rig import LIMITS

SECRET = "0badcafe"
UNKNOWN = 1_000_000  # the instance of a program that it does not have
ABOUT = {"model": {"name": "m", "vocab_size": 10}}


class Role:
    """A kernel or a gateway that says Welcome and keeps the messages that it gets."""

    def __init__(self, about: dict[str, Any]) -> None:
        self._about = about
        self.links: list[SocketLink] = []
        self.heard: asyncio.Queue[m.Message] = asyncio.Queue()

    def on_link(self, link: SocketLink) -> None:
        self.links.append(link)
        link.receive(lambda frame: self._take(link, frame), lambda: None)

    def tell(self, message: m.Message) -> None:
        self.links[-1].send(m.encode(message))

    async def next(self, kind: type[m.Message]) -> Any:
        while True:
            message = await asyncio.wait_for(self.heard.get(), 20)
            if isinstance(message, kind):
                return message

    def _take(self, link: SocketLink, frame: list[Any]) -> None:
        message = m.decode(frame)
        self.heard.put_nowait(message)
        if isinstance(message, m.Hello):
            link.send(m.encode(m.Welcome(os.getpid(), self._about)))


class Scene:
    """A worker's process between a kernel and a gateway of ours."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child
        self.kernel, self.gateway = Role(ABOUT), Role({})

    async def event(self) -> dict[str, Any]:
        assert self.child.stdout is not None
        line = await asyncio.wait_for(self.child.stdout.readline(), 20)
        found: dict[str, Any] = json.loads(line)
        return found

    async def ready(self) -> None:
        assert await self.event() == {"event": "ready", "pid": self.child.pid}

    def start(self, source: str, instance: int = 7) -> None:
        artefact = check_and_compile(bytes(wat2wasm(source))).artefact
        self.gateway.tell(m.Module("program", artefact))
        self.gateway.tell(m.Start(instance, "program", "", b"", LIMITS))

    async def all_is_taken(self) -> None:
        """Wait until the worker has taken what was sent: it reads in order, and answers this."""
        self.gateway.tell(m.Start(UNKNOWN, "nothing", "", b"", LIMITS))
        assert (await self.gateway.next(m.Ended)).instance == UNKNOWN

    async def exit_code(self) -> int:
        return await asyncio.wait_for(self.child.wait(), 20)


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    with temporary_socket_folder() as folder:  # pytest's own is closed to other users
        open_to_workers(folder)
        async with asyncio.timeout(60), staged_in(folder) as made:
            yield made


@asynccontextmanager
async def staged_in(folder: Path) -> AsyncIterator[Scene]:
    sockets = {name: folder / name for name in ("kernel.sock", "gateway.sock")}
    config = {
        "name": "worker-0",
        "secret": SECRET,
        "kernel_socket": str(sockets["kernel.sock"]),
        "gateway_socket": str(sockets["gateway.sock"]),
    }
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "symphony_runtime.worker",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    made = Scene(child)
    assert child.stdin is not None
    child.stdin.write(json.dumps(config).encode() + b"\n")
    servers = [
        await serve_unix(sockets["kernel.sock"], made.kernel.on_link),
        await serve_unix(sockets["gateway.sock"], made.gateway.on_link),
    ]
    try:
        yield made
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
        child.stdin.close()
        for role in (made.kernel, made.gateway):
            for link in role.links:
                link.close()
        for server in servers:
            server.close()


@pytest.fixture
def made() -> AbstractAsyncContextManager[Scene]:
    return scene()


async def test_worker_retires_when_the_gateway_says_so(made: Scene) -> None:
    await made.ready()
    made.gateway.tell(m.Retire())
    assert await made.exit_code() == 0


async def test_worker_authenticates_and_runs_programs(made: Scene) -> None:
    await made.ready()
    for role in (made.kernel, made.gateway):
        hello = await role.next(m.Hello)
        assert (hello.role, hello.name) == ("worker", "worker-0")
        assert (hello.secret, hello.pid) == (bytes.fromhex(SECRET), made.child.pid)
    made.start(HELLO)
    assert (await made.gateway.next(m.Output)).messages == [[7, b"hello"]]
    assert (await made.gateway.next(m.Ended)).status == "exited"


def of_process(pid: int, file: str) -> str:
    return Path(f"/proc/{pid}/{file}").read_text()


async def test_worker_gives_up_privileges_and_core_files(made: Scene) -> None:
    await made.ready()
    assert "NoNewPrivs:\t1" in of_process(made.child.pid, "status")
    limits = of_process(made.child.pid, "limits")
    (core,) = [line for line in limits.splitlines() if line.startswith("Max core file size")]
    assert core.split()[4:6] == ["0", "0"]


async def test_worker_at_sigterm_ends_its_runs_and_itself(made: Scene) -> None:
    await made.ready()
    made.start(SPIN)
    await made.all_is_taken()
    made.child.send_signal(signal.SIGTERM)
    ended = await made.gateway.next(m.Ended)
    assert (ended.status, ended.reason) == ("failed", "the worker was stopped")
    assert await made.exit_code() == 0


async def test_worker_reports_many_ends_before_it_exits(made: Scene) -> None:
    await made.ready()
    made.start(SPIN, 1)
    for instance in range(2, 2_000):
        made.gateway.tell(m.Start(instance, "program", "", b"", LIMITS))
    await made.all_is_taken()
    made.child.send_signal(signal.SIGTERM)
    ended = {(await made.gateway.next(m.Ended)).instance for _ in range(1, 2_000)}
    assert ended == set(range(1, 2_000))
    assert await made.exit_code() == 0


async def test_worker_ends_with_its_supervisor(made: Scene) -> None:
    await made.ready()
    assert made.child.stdin is not None
    made.child.stdin.close()
    assert await made.exit_code() == 0


async def test_worker_after_a_kernel_death_fails_its_runs_and_reconnects(made: Scene) -> None:
    await made.ready()
    first = await made.kernel.next(m.Hello)
    made.start(SPIN)
    await made.all_is_taken()
    made.kernel.links[-1].close()
    again = await made.kernel.next(m.Hello)
    assert (first.received, again.session, again.received) == (-1, first.session, 0)
    ended = await made.gateway.next(m.Ended)  # it was not known there
    assert (ended.status, ended.reason) == ("failed", "the kernel died")
    new = await made.kernel.next(m.Hello)
    assert new.session != first.session
    assert new.received == -1
    made.start(HELLO, 8)
    assert (await made.gateway.next(m.Ended)).status == "exited"


async def test_worker_after_a_gateway_death_forgets_and_reconnects(made: Scene) -> None:
    await made.ready()
    await made.gateway.next(m.Hello)
    made.start(SPIN)
    await made.all_is_taken()
    made.gateway.links[-1].close()
    await made.gateway.next(m.Hello)
    made.gateway.tell(m.Start(9, "program", "", b"", LIMITS))
    ended = await made.gateway.next(m.Ended)
    assert (ended.instance, ended.status) == (9, "failed")
    assert ended.reason == "the worker does not have the program"


@pytest.mark.parametrize("line", ["", "{}", '{"name": "x", "secret": "zz"}'])
def test_worker_configuration_that_is_incomplete_is_refused(line: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        WorkerConfig.parse(line)
