"""How long a run takes from its POST to its first event, and to its first message.

    python -m benchmarks.run_start [--clients 1,16] [--runs 200] [--rounds 5] [--at DATA_DIR ...]

A program that sends one message, started and streamed over HTTP; the device is simulated. With
--javascript it is source, and the first run loads the language module into the worker (cold). A run
that is kept is stored, with a flush to the disk, before it begins. With --at the servers that run
in some data directories are measured in turn, round by round, in the order given and then in the
other one: of several versions, say, which flush to the same disk.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from symphony import AsyncClient
from symphony.client.places import read_place

from tests.e2e import programs as guests
from tests.support.server.server import running_server

WARM_RUNS = 20
JAVASCRIPT = b'export default () => "hello"'


@dataclass(frozen=True)
class Server:
    """A running server, by its data directory."""

    data_dir: Path

    def client(self) -> AsyncClient:
        """Return a client of its tenant `default`."""
        place = read_place(self.data_dir / "server.json")
        if place is None:
            raise SystemExit(f"no server runs in {self.data_dir}")
        return AsyncClient(
            place.url, (self.data_dir / "default.key").read_text().strip(), retries=0
        )


@dataclass
class Seconds:
    """What one server's runs took."""

    first_event: list[float] = field(default_factory=list)
    first_message: list[float] = field(default_factory=list)


async def run_once(client: AsyncClient, seconds: Seconds) -> None:
    """Run the program and note when what it tells came."""
    began, heard = time.perf_counter(), set[str]()
    async for event in client.stream("hello"):
        took = time.perf_counter() - began
        if not heard:
            seconds.first_event.append(took)
        if event.kind == "message" and "message" not in heard:
            seconds.first_message.append(took)
        heard.add(event.kind)


async def drive(server: Server, clients: int, runs: int) -> Seconds:
    """Let clients run the program, each one run after the other."""
    seconds, left = Seconds(), iter(range(runs))

    async def work(client: AsyncClient) -> None:
        for _ in left:
            await run_once(client, seconds)

    async with contextlib.AsyncExitStack() as stack:
        mine = [await stack.enter_async_context(server.client()) for _ in range(clients)]
        await asyncio.gather(*map(work, mine))
    return seconds


async def _upload(server: Server, javascript: bool) -> None:
    async with server.client() as client:
        if javascript:
            await client.programs.upload(JAVASCRIPT, "hello", "text/javascript")
        else:
            await client.programs.upload(guests.HELLO_WASM, "hello")
    cold = await drive(server, 1, 1)
    print(
        f"{server.data_dir.name:20} cold        first message {cold.first_message[0] * 1e3:6.2f} ms"
    )
    await drive(server, 1, WARM_RUNS)


def _report(name: str, clients: int, rounds: list[Seconds]) -> None:
    parts = []
    for what in ("first_event", "first_message"):
        of_rounds = [statistics.median(getattr(each, what)) * 1e3 for each in rounds]
        parts.append(
            f"{what.replace('_', ' ')} {statistics.median(of_rounds):6.2f} ms "
            f"({min(of_rounds):.2f} to {max(of_rounds):.2f})"
        )
    print(f"{name:20} {clients:3} clients   {'   '.join(parts)}")


def main() -> int:
    """Measure and say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--clients", default="1,16")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at", type=Path, action="append", help="a running server's directory")
    parser.add_argument("--javascript", action="store_true", help="the program is source")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folders: list[Path] = arguments.at or []
        if not folders:
            folders.append(Path(stack.enter_context(tempfile.TemporaryDirectory())))
            stack.enter_context(running_server(folders[0]))
        servers = [Server(folder) for folder in folders]
        for server in servers:
            asyncio.run(_upload(server, arguments.javascript))
        for clients in map(int, arguments.clients.split(",")):
            rounds: dict[Server, list[Seconds]] = {server: [] for server in servers}
            for number in range(arguments.rounds):
                for server in servers if number % 2 == 0 else reversed(servers):
                    rounds[server].append(asyncio.run(drive(server, clients, arguments.runs)))
            for server, of_server in rounds.items():
                _report(server.data_dir.name, clients, of_server)
    return 0


if __name__ == "__main__":
    sys.exit(main())
