"""A real server for tests: `symphony serve` with all its processes, on a free port."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from symphony import AsyncClient, ClientError
from symphony.client.places import read_place
from symphony.client.views import RunResult

START_SECONDS_MAX = 60
RESERVE_BYTES = 2 << 20  # hundreds of servers leave their directories behind
STOP_SECONDS_MAX = 30
REPOSITORY = Path(__file__).resolve().parents[3]
SYMPHONY = [sys.executable, "-m", "symphony_runtime.cli"]


@dataclass(eq=False)
class RunningServer:
    """A server's processes. `log` is what it has said on stderr."""

    process: subprocess.Popen[bytes]
    data_dir: Path
    log: Path
    url: str

    @property
    def key(self) -> str:
        return (self.data_dir / "default.key").read_text().strip()

    @property
    def environment(self) -> dict[str, str]:
        """For commands that shall find this server and no other."""
        return {**_environment(self.data_dir), "SYMPHONY_SERVER": self.url,
                "SYMPHONY_KEY": self.key}  # fmt: skip

    @property
    def admin_key(self) -> str:
        return (self.data_dir / "admin.key").read_text().strip()

    def client(self) -> AsyncClient:
        return AsyncClient(self.url, self.key, retries=0)

    def admin(self) -> AsyncClient:
        return AsyncClient(self.url, self.admin_key, retries=0)

    def session(self, key: str | None = None) -> aiohttp.ClientSession:
        """Return a session for requests by path, with the default tenant's key or this one."""
        headers = {"Authorization": f"Bearer {key or self.key}"}
        return aiohttp.ClientSession(self.url, headers=headers)

    async def ask(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, **options: Any
    ) -> tuple[int, Any]:
        """Make a request with a tenant's key; return the status and the JSON of the answer."""
        async with (
            self.session(key) as session,
            session.request(method, path, json=body, **options) as response,
        ):
            return response.status, await response.json()

    async def add_tenant(self, tenant: str) -> str:
        """Create a tenant and return a key of it."""
        async with self.admin() as admin:
            await admin.admin.create_tenant(tenant)
            return str((await admin.admin.create_key(tenant))["key"])

    async def pids(self) -> dict[str, int]:
        async with self.client() as client:
            _, roles = await client.ready()
        return {role["role"]: role["pid"] or 0 for role in roles}

    async def counters(self) -> dict[str, Any]:
        """The kernel's counters, after an audit of its tables."""
        async with self.admin() as admin:
            kernel: dict[str, Any] = (await admin.admin.statistics(check=True))["kernel"]
            return kernel

    async def wait_until_ready(self, seconds: float = START_SECONDS_MAX) -> None:
        async with asyncio.timeout(seconds), AsyncClient(self.url, retries=0) as client:
            while True:
                with contextlib.suppress(ClientError):
                    if (await client.ready())[0]:
                        return
                await asyncio.sleep(0.05)

    async def wait_for_another(self, role: str, old: int, seconds: float = 60) -> None:
        """Wait until a run can start, with another process than `old` as the role."""
        async with asyncio.timeout(seconds):
            while True:
                await self.wait_until_ready(seconds)
                if (await self.pids())[role] not in (old, None):
                    return
                await asyncio.sleep(0.01)

    async def wait_until_idle(self, seconds: float = 10) -> dict[str, Any]:
        """Wait until the kernel has no instance; return its counters."""
        counters: dict[str, Any] = {}
        try:
            async with asyncio.timeout(seconds):
                while True:
                    counters = await self.counters()
                    if not counters["instances"]:
                        return counters
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not idle: {counters}\n{self.log.read_text()}") from None

    def symphony(
        self, *arguments: str, environment: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run the command for this server."""
        return symphony(*arguments, env={**self.environment, **(environment or {})}, **options)

    def stop(self) -> int:
        """SIGTERM; return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_SECONDS_MAX)


def symphony(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    usual = {"capture_output": True, "text": True, "timeout": 60, "check": False}
    return subprocess.run([*SYMPHONY, *arguments], **{**usual, **options})


async def first_message(client: AsyncClient, run: str) -> None:
    """Wait until a run has sent something."""
    async for event in client.runs.events(run):
        if event.kind == "message":
            return


async def wait_for_end(client: AsyncClient, run: str, seconds: float = 60) -> RunResult:
    """Wait until a run has ended; return its result."""
    async with asyncio.timeout(seconds):
        async for _ in client.runs.events(run):
            pass
    return await client.runs.get(run)


def example_tools() -> str:
    """A configuration with the tools of the examples, run by this `python`."""
    command = [sys.executable, str(REPOSITORY / "examples" / "tool_server.py")]
    return f'[tools.example]\ncommand = {json.dumps(command)}\ntenants = ["default"]\n'


def start_server(
    data_dir: Path,
    *options: str,
    executor: str = "simulated",
    seconds: float = START_SECONDS_MAX,
    environment: Mapping[str, str] | None = None,
    before: Callable[[], None] | None = None,
) -> RunningServer:
    """Start a server and wait until it serves, so long at most; stop it with `stop`.

    `environment` is added to this process's; `before` runs in its process, before it is one.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "server.log"
    command = [*SYMPHONY, "serve", "--data-dir", str(data_dir), "--port", "0", "--threads", "1",
               "--executor", executor, "--disk-reserve-bytes", str(RESERVE_BYTES),
               *options]  # fmt: skip
    with log.open("ab") as words:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stderr=words,
            env=_environment(data_dir) | dict(environment or {}),
            preexec_fn=before,
        )
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        place = read_place(data_dir / "server.json")
        if place is not None and place.pid == process.pid:
            return RunningServer(process, data_dir, log, place.url)
        time.sleep(0.02)
    process.kill()
    process.wait()
    raise AssertionError(f"the server did not start:\n{log.read_text()}")


@contextlib.contextmanager
def running_server(data_dir: Path, *options: str, **more: Any) -> Iterator[RunningServer]:
    """A server, as of `start_server`, for the length of a block; it must end well."""
    server = start_server(data_dir, *options, **more)
    try:
        yield server
    except BaseException:
        if server.process.poll() is None:
            server.process.send_signal(signal.SIGINT)
            server.process.send_signal(signal.SIGINT)
            server.process.wait(STOP_SECONDS_MAX)
        sys.stderr.write(server.log.read_text())
        raise
    if server.process.poll() is None:
        assert server.stop() == 0, server.log.read_text()


def descendants(pid: int) -> set[int]:
    """The processes below one."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                # The name, in parentheses, may hold anything; the parent stands two fields after.
                parents[int(entry.name)] = int(
                    (entry / "stat").read_text().rpartition(")")[2].split()[1]
                )
    found: set[int] = set()
    below = {pid}
    while below:
        below = {child for child, parent in parents.items() if parent in below} - found
        found |= below
    return found


def alive(pid: int) -> bool:
    """Whether a process is there (a zombie is not)."""
    try:
        state = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def still_alive(pids: Iterable[int], seconds: float = 20) -> list[int]:
    """Return which processes do not end in that time.

    What ends with its parent by the system's word (a compiler with its gateway) does so an instant
    after it.
    """
    deadline = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _environment(data_dir: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SYMPHONY_")}
    return {**kept, "XDG_STATE_HOME": str(data_dir / "state"), "OMP_NUM_THREADS": "1"}
