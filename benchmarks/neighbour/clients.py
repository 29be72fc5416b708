"""The clients of one attacking tenant, in a process of their own (`--attack`).

`Attackers` starts one such process for each attacking tenant, asks it for its counts and ends it.
The process prints "ready" once all programs of its attack have their full load, then one line of
JSON for each line on its stdin: how many requests, runs or uploads ended, by how they ended.
"""

import asyncio
import contextlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path

import aiohttp
from symphony import AsyncClient, ClientError, ServerError

from benchmarks.neighbour import guests
from benchmarks.neighbour.attacks import Crowd, Requests, Runs, Target, Uploads, crowds

READY_SECONDS_MAX = 300.0  # prompts of thousands of entries come first
_NICENESS, _GROUP_ATTEMPTS = 19, 5  # only the server's work for the attack is to disturb
_MEGABYTE = 1_000_000
_RETRY_SECONDS = 0.05  # of a client that was refused
_COUNTS_SECONDS_MAX = 60.0


class AttackError(Exception):
    """An attack that did not take place."""


# -- In the attackers' process ---------------------------------------------------------------------
class _Crew:
    """All clients of one attack, and what became of what they did."""

    def __init__(self, client: AsyncClient, session: aiohttp.ClientSession, target: Target) -> None:
        self._client, self._session, self._target = client, session, target
        self._numbers = count()
        self._missing = 0  # programs that are not ready yet
        self._prepared = asyncio.Event()  # none is missing
        self.ready = asyncio.Event()
        self.counts: Counter[str] = Counter()

    async def attack(self, found: list[Crowd]) -> None:
        """Let all clients work until the process ends.

        Programs that build up a load come first, one crowd after the other: their tenant's other
        work would delay them for many minutes.
        """
        others: list[Callable[[], Awaitable[None]]] = []
        async with asyncio.TaskGroup() as tasks:
            for index, crowd in enumerate(found):
                works = await self._works(crowd, f"attack-{index}")
                if not self._missing:
                    others += works
                    continue
                for work in works:
                    tasks.create_task(self._again(work))
                await self._prepared.wait()
                self._prepared.clear()
            for work in others:
                tasks.create_task(self._again(work))
            self.ready.set()

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
            except ServerError as error:
                self.counts[str(error.status)] += 1
                await asyncio.sleep(_RETRY_SECONDS)
            except (ClientError, aiohttp.ClientError) as error:
                self.counts[type(error).__name__] += 1
                await asyncio.sleep(_RETRY_SECONDS)

    async def _works(self, crowd: Crowd, name: str) -> list[Callable[[], Awaitable[None]]]:
        match crowd:
            case Requests():
                return [lambda: self._post(crowd)] * crowd.clients
            case Uploads():
                module = crowd.module()
                return [lambda: self._upload(module)] * crowd.clients
            case Runs():
                await self._client.programs.upload(crowd.module(self._target), name)
                if crowd.says_ready:
                    self._missing += crowd.clients
                return [self._runner(name, crowd.says_ready) for _ in range(crowd.clients)]

    async def _post(self, crowd: Requests) -> None:
        body = crowd.body(self._target, next(self._numbers))
        status = await self._read(crowd.path, body)
        self.counts[str(status)] += 1
        if status != 200 and not crowd.refused:
            await asyncio.sleep(_RETRY_SECONDS)

    async def _read(self, path: str, body: bytes) -> int:
        """POST a body, read the answer to its end, and return its status.

        Each megabyte counts at once: an answer may take longer than the measurement.
        """
        headers = {"Content-Type": "application/json"}
        async with self._session.post(path, data=body, headers=headers) as response:
            read = 0
            async for chunk in response.content.iter_any():
                megabytes, read = divmod(read + len(chunk), _MEGABYTE)
                if megabytes:
                    self.counts["MB"] += megabytes
        return response.status

    async def _upload(self, module: bytes) -> None:
        await self._client.programs.upload(guests.unlike(module))
        self.counts["uploaded"] += 1

    def _runner(self, name: str, says_ready: bool) -> Callable[[], Awaitable[None]]:
        waits = True

        async def run_until_ready() -> None:
            nonlocal waits
            async for event in self._client.stream(name):
                if event.kind == "message" and waits:
                    waits = False
                    self._missing -= 1
                    if not self._missing:
                        self._prepared.set()
                elif event.kind == "status" and event.data["status"] not in ("queued", "running"):
                    self._ended(event.data["status"], event.data["exit_code"])

        async def run() -> None:
            # The answer holds all that the program sent. Reading JSON would take this process
            # longer than the attack takes the server.
            path = f"/v1/programs/{name}/runs"
            status = await self._read(path, b'{"input": ""}')
            self.counts["ended" if status == 200 else str(status)] += 1
            if status != 200:
                await asyncio.sleep(_RETRY_SECONDS)

        return run_until_ready if says_ready else run

    def _ended(self, status: str, code: int | None) -> None:
        self.counts[f"{status} {code}" if code else status] += 1


async def attack(kind: str, url: str, key: str, target: Target) -> None:
    """Be the clients of one attacker, until the process is killed or its benchmark has ended."""
    headers = {"Authorization": f"Bearer {key}"}
    timeout, connector = aiohttp.ClientTimeout(total=None), aiohttp.TCPConnector(limit=0)
    async with (
        AsyncClient(url, key, retries=0) as client,
        aiohttp.ClientSession(
            url, headers=headers, timeout=timeout, connector=connector
        ) as session,
    ):
        crew = _Crew(client, session, target)
        async with asyncio.TaskGroup() as tasks:  # what one of them raises ends the process
            tasks.create_task(crew.attack(crowds(kind)))
            tasks.create_task(_tell_counts(crew))
            await crew.ready.wait()
            print("ready", flush=True)


async def _tell_counts(crew: _Crew) -> None:
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while await lines.readline():
        print(json.dumps(crew.counts), flush=True)
    raise AttackError("the benchmark has ended")


def yield_processors() -> None:
    """Give all other processes precedence: real attackers are not on the server's machine.

    Where the system shares processors by sessions before it shares them by processes, niceness
    counts within one session only. This process has a session of its own, which is made nice as a
    whole.
    """
    os.nice(_NICENESS)
    group = Path("/proc/self/autogroup")
    for number in range(_GROUP_ATTEMPTS):
        try:
            if group.exists() and group.read_text():
                group.write_text(str(_NICENESS))
        except BlockingIOError:  # the system lets one be set in a tenth of a second
            if number == _GROUP_ATTEMPTS - 1:
                raise
            time.sleep(0.1)
        else:
            return


# -- In the benchmark's process --------------------------------------------------------------------
class Attackers:
    """The processes of all attacking tenants."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    async def ready(self) -> None:
        """Wait until all attacks have their full load.

        Raises:
            AttackError: One has ended, or is not ready after `READY_SECONDS_MAX`.
        """
        try:
            async with asyncio.timeout(READY_SECONDS_MAX):
                for process in self._processes:
                    assert process.stdout is not None
                    if await process.stdout.readline() != b"ready\n":
                        raise AttackError("the attackers' process has ended")
        except TimeoutError:
            counts = await self.counts()
            raise AttackError(
                f"not ready after {READY_SECONDS_MAX:.0f} s: {dict(counts)}"
            ) from None

    async def counts(self) -> Counter[str]:
        """Return how what the attackers did has ended, so far and all together."""
        total: Counter[str] = Counter()
        async with asyncio.timeout(_COUNTS_SECONDS_MAX):
            for process in self._processes:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(b"\n")
                while (line := await process.stdout.readline()) == b"ready\n":
                    pass
                if not line:
                    raise AttackError("the attackers' process has ended")
                total.update(json.loads(line))
        return total


@contextlib.asynccontextmanager
async def attacking(
    kind: str, url: str, keys: list[str], target: Target
) -> AsyncIterator[Attackers]:
    """Have attackers at work for the length of a block, one process for each key."""
    processes: list[asyncio.subprocess.Process] = []
    try:
        for key in keys:
            given = ["--attack", kind, "--url", url, "--key", key]
            given += ["--target", target.model, str(target.context)]
            processes.append(
                await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "benchmarks.neighbour", *given,
                    stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                    start_new_session=True,
                )
            )  # fmt: skip
        yield Attackers(processes)
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
        for process in processes:
            await process.wait()
