"""With a worker for each tenant no process runs two tenants' programs."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.role_processes import Processes, Started, notice
from symphony_runtime.client import Client, ServerError
from symphony_runtime.worker.worker import Worker

from tests.e2e import programs as guests
from tests.support.gateway.system import WORKER_SECRET, SystemRig


async def refused(client: Client) -> int:
    with pytest.raises(ServerError) as error:
        await client.run("hello")
    assert error.value.retry_after is not None
    return error.value.status


async def test_a_worker_is_one_tenants_until_its_process_ends(tmp_path: Path) -> None:
    async with (
        SystemRig(tmp_path, workers_per_tenant=True) as system,
        Client(system.url, system.admin_key) as admin,
        system.client() as first,
    ):
        await admin.create_tenant("acme")
        key = (await admin.create_key("acme", role="tenant"))["key"]
        async with Client(system.url, key) as second:
            for client in (first, second):
                await client.upload(guests.HELLO_WASM, "hello")
            await first.upload(guests.HANG_WASM, "hang")
            retired = asyncio.Event()
            system.worker.on_retire = retired.set
            live = await first.start("hang")
            # It has work of one tenant: the other waits, and nobody is disturbed.
            assert await refused(second) == 503
            assert (await first.run("hello"))["output"] == "hello"
            assert not retired.is_set()
            await first.cancel(live)
            # Idle now: it gives way, and nobody gets it any more.
            assert await refused(second) == 503
            await asyncio.wait_for(retired.wait(), 20)
            assert await refused(first) == 503
            assert system.gateway.services.runs.worker_assignment.retired == 1
            # As the supervisor does: another process in its place.
            system.worker.close()
            system.worker = Worker("worker-0", WORKER_SECRET)
            await system.link_worker()
            await system.wait_until_ready()
            assert (await second.run("hello"))["output"] == "hello"
            assert set(system.worker._programs) == {f"acme/{(await second.program('hello'))['id']}"}


async def test_a_worker_that_is_idle_for_long_is_given_up(tmp_path: Path) -> None:
    async with (
        SystemRig(tmp_path, workers_per_tenant=True) as system,
        system.client() as client,
    ):
        await client.upload(guests.HELLO_WASM, "hello")
        retired = asyncio.Event()
        system.worker.on_retire = retired.set
        own = system.gateway.services.runs.worker_assignment
        own.retire_idle()
        assert own.retired == 0, "it is nobody's: there is nothing to give up"
        await client.run("hello")
        own.retire_idle()
        assert own.retired == 0
        own._now = lambda: float("inf")
        own.retire_idle()
        await asyncio.wait_for(retired.wait(), 20)
        own.retire_idle()
        assert own.retired == 1


async def test_otherwise_workers_are_everybodys(tmp_path: Path) -> None:
    async with (
        SystemRig(tmp_path) as system,
        Client(system.url, system.admin_key) as admin,
        system.client() as first,
    ):
        await admin.create_tenant("acme")
        key = (await admin.create_key("acme", role="tenant"))["key"]
        async with Client(system.url, key) as second:
            for client in (first, second):
                await client.upload(guests.HELLO_WASM, "hello")
                assert (await client.run("hello"))["output"] == "hello"
            assert len(system.worker._programs) == 2


# A worker that was taken over: on each line that it reads it closes the link that it had and says
# Hello on another; it tells of each frame's kind, and of each end.
EVIL = """
import asyncio, json, os, sys
from pathlib import Path
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.links import connect_unix

async def main():
    loop, link = asyncio.get_running_loop(), None
    path, secret = Path(sys.argv[1]), bytes.fromhex(sys.argv[2])
    tell = lambda what: print(json.dumps(what), flush=True)
    tell(os.getpid())
    while await loop.run_in_executor(None, sys.stdin.readline):
        if link is not None:
            link.close()
        link = await connect_unix(path)
        link.receive(lambda frame: tell(frame[0]), lambda: tell("closed"))
        link.send(m.encode(m.Hello(m.PROTOCOL_VERSION, "worker", "worker-0", secret, 1)))

asyncio.run(main())
"""


class Evil:
    """Its process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    @contextlib.asynccontextmanager
    async def started(cls, socket: Path) -> AsyncIterator["Evil"]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", EVIL, str(socket), WORKER_SECRET.hex(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        evil = cls(process)
        assert await evil.heard() == process.pid
        try:
            yield evil
        finally:
            process.kill()
            await process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    def come(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")

    async def heard(self) -> object:
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), 20)
        return json.loads(line)

    async def wait_for(self, what: object) -> None:
        while await self.heard() != what:
            pass


async def test_a_worker_that_was_taken_over_stays_whose_it_is_and_no_other_process_is_one(
    tmp_path: Path,
) -> None:
    """A real process knows the secret: it comes unasked, and comes back once it was to retire."""
    processes = Processes()
    async with SystemRig(
        tmp_path, worker=False, processes=processes, workers_per_tenant=True
    ) as system:
        runs = system.gateway.services.runs
        links, own = runs.workers, runs.worker_assignment
        asked: list[str] = []
        own.on_retire = lambda worker: asked.append(worker.name)
        async with Evil.started(system.config.socket) as evil:
            # The supervisor has started another process, or none yet.
            evil.come()
            assert await evil.heard() == "closed"
            processes.read_notice(notice("worker-0", Started(os.getpid(), 1)))
            evil.come()
            assert await evil.heard() == "closed"
            assert links.workers == {}
            # This one it has started.
            processes.read_notice(notice("worker-0", Started(evil.pid, 2)))
            evil.come()
            await evil.wait_for(m.Welcome.KIND)
            (worker,) = own.choose_workers("acme")
            assert (worker.tenant, worker.pid) == ("acme", evil.pid)
            evil.come()  # it says that it is new
            await evil.wait_for(m.Welcome.KIND)
            (again,) = links.workers.values()
            assert again is not worker
            assert again.tenant == "acme"
            # Another tenant wants a worker: it is told to retire, and comes back instead.
            assert own.choose_workers("other") == []
            assert asked == ["worker-0"]
            await evil.wait_for(m.Retire.KIND)
            evil.come()
            await evil.wait_for(m.Welcome.KIND)
            (again,) = links.workers.values()
            assert again.retiring
            assert own.choose_workers("other") == own.choose_workers("acme") == []
        # The supervisor has killed it; the next process is nobody's, with the same number, too.
        async with Evil.started(system.config.socket) as next_one:
            processes.read_notice(notice("worker-0", Started(next_one.pid, 3)))
            next_one.come()
            await next_one.wait_for(m.Welcome.KIND)
            (worker,) = own.choose_workers("other")
            assert worker.tenant == "other"
