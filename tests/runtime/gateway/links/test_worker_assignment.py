"""With a worker for each tenant no process runs two tenants' programs."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from symphony import AsyncClient
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.role_processes import Processes, Started, notice
from symphony_runtime.worker.worker import Worker

from tests.e2e import programs as guests
from tests.support.gateway.system import WORKER_SECRET, SystemRig, refused, with_system
from tests.support.run_by import run_by


async def is_refused(client: AsyncClient) -> bool:
    error = await refused(client.run("hello"))
    return error.status == 503 and error.retry_after is not None


@run_by(with_system, "tmp_path", workers_per_tenant=True)
async def test_worker_is_one_tenants_until_it_ends(system: SystemRig, first: AsyncClient) -> None:
    async with system.tenant() as second:
        for client in (first, second):
            await client.programs.upload(guests.HELLO_WASM, "hello")
        await first.programs.upload(guests.HANG_WASM, "hang")
        retired = asyncio.Event()
        system.worker.on_retire = retired.set
        live = await first.start("hang")
        # It has work of one tenant: the other waits, and nothing ends.
        assert await is_refused(second)
        assert (await first.run("hello"))["output"] == "hello"
        assert not retired.is_set()
        await first.runs.cancel(live)
        # Now it is idle: it retires, and no tenant gets it any more.
        assert await is_refused(second)
        await asyncio.wait_for(retired.wait(), 20)
        assert await is_refused(first)
        assert system.gateway.services.runs.worker_assignment.retired == 1
        # As the supervisor does: another process in its place.
        system.worker.close()
        system.worker = Worker("worker-0", WORKER_SECRET)
        await system.link_worker()
        await system.wait_until_ready()
        assert (await second.run("hello"))["output"] == "hello"
        assert set(system.worker._programs) == {
            f"acme/{(await second.programs.get('hello'))['id']}"
        }


@run_by(with_system, "tmp_path", workers_per_tenant=True)
async def test_worker_that_is_idle_for_long_is_retired(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    retired = asyncio.Event()
    system.worker.on_retire = retired.set
    own = system.gateway.services.runs.worker_assignment
    own.retire_idle()
    assert own.retired == 0, "no tenant has it"
    await client.run("hello")
    own.retire_idle()
    assert own.retired == 0
    own._now = lambda: float("inf")
    own.retire_idle()
    await asyncio.wait_for(retired.wait(), 20)
    own.retire_idle()
    assert own.retired == 1


@run_by(with_system, "tmp_path")
async def test_worker_by_default_serves_all_tenants(system: SystemRig, first: AsyncClient) -> None:
    async with system.tenant() as second:
        for client in (first, second):
            await client.programs.upload(guests.HELLO_WASM, "hello")
            assert (await client.run("hello"))["output"] == "hello"
        assert len(system.worker._programs) == 2


# A worker that was taken over. On each line that it reads it closes its link and says Hello on
# another; it reports each frame's kind, and each end.
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
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid, self._in, self._out = process.pid, process.stdin, process.stdout

    def come(self) -> None:
        self._in.write(b"\n")

    async def next(self) -> object:
        """Return the next report."""
        return json.loads(await asyncio.wait_for(self._out.readline(), 20))

    async def wait_for(self, what: object) -> None:
        while await self.next() != what:
            pass


@contextlib.asynccontextmanager
async def evil_worker(socket: Path) -> AsyncIterator[Evil]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", EVIL, str(socket), WORKER_SECRET.hex(),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    evil = Evil(process)
    assert await evil.next() == process.pid
    try:
        yield evil
    finally:
        process.kill()
        await process.wait()


async def test_worker_that_was_taken_over_keeps_its_tenant(tmp_path: Path) -> None:
    """A real process knows the secret. It comes unasked, and comes back after it was to retire."""
    processes = Processes()
    async with SystemRig(
        tmp_path, worker=False, processes=processes, workers_per_tenant=True
    ) as system:
        runs = system.gateway.services.runs
        links, own = runs.workers, runs.worker_assignment
        asked: list[str] = []
        own.on_retire = lambda worker: asked.append(worker.name)
        async with evil_worker(system.config.socket) as evil:
            # The supervisor has started another process, or none yet.
            evil.come()
            assert await evil.next() == "closed"
            processes.read_notice(notice("worker-0", Started(os.getpid(), 1)))
            evil.come()
            assert await evil.next() == "closed"
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
            # Another tenant wants a worker: this one is told to retire, and comes back instead.
            assert own.choose_workers("other") == []
            assert asked == ["worker-0"]
            await evil.wait_for(m.Retire.KIND)
            evil.come()
            await evil.wait_for(m.Welcome.KIND)
            (again,) = links.workers.values()
            assert again.retiring
            assert own.choose_workers("other") == own.choose_workers("acme") == []
        # The supervisor has killed it. The next process has no tenant, even with the same number.
        async with evil_worker(system.config.socket) as next_one:
            processes.read_notice(notice("worker-0", Started(next_one.pid, 3)))
            next_one.come()
            await next_one.wait_for(m.Welcome.KIND)
            (worker,) = own.choose_workers("other")
            assert worker.tenant == "other"
