"""The kernel as a process: `python -m symphony_kernel` with a Unix socket."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from symphony_kernel.config import ConfigurationError, parse_configuration
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import WORKER_FRAME_BYTES_MAX
from symphony_kernel.protocol.links import SocketLink, connect_unix
from symphony_kernel.protocol.messages import Op
from symphony_kernel.protocol.role_processes import Started, notice

from tests.support.kernel.rig import Gateway, Worker, pairs, tokens
from tests.support.run_by import run_by

KERNEL_FOLDER = Path(__file__).parents[3] / "kernel"
SECRETS = {"gateway": "aa" * 16, "worker-0": "bb" * 16, "worker-1": "cc" * 16}
HANDLE = 1 << 16


class Process:
    """A kernel process with its pipes."""

    def __init__(self, process: asyncio.subprocess.Process, socket: Path) -> None:
        self.process = process
        self.socket = socket

    async def event(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        event: dict[str, Any] = json.loads(line)
        return event

    async def wait(self) -> int:
        return await asyncio.wait_for(self.process.wait(), 30)

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    async def gateway(self) -> Gateway:
        gateway = Gateway(await connect_unix(self.socket))
        hello(gateway.link, "gateway", "gateway")
        await asyncio.wait_for(gateway.welcome, 20)
        return gateway

    async def worker(self, name: str = "worker-0") -> Worker:
        worker = Worker(await connect_unix(self.socket))
        hello(worker.link, "worker", name)
        await asyncio.wait_for(worker.welcome, 20)
        return worker

    async def refuse(self, *given: Any) -> None:
        """Check that a peer with this `hello` is cut off without a welcome."""
        peer = Worker(await connect_unix(self.socket))
        hello(peer.link, *given)
        peer.tell(1, Op.KV_CREATE, HANDLE)
        await asyncio.wait_for(peer.closed.wait(), 20)
        assert not peer.welcome.done()


def hello(
    link: Any, role: str, name: str, secret: str | None = None, version: int = m.PROTOCOL_VERSION
) -> None:
    proof = bytes.fromhex(SECRETS.get(name, "dd") if secret is None else secret)
    link.send(m.encode(m.Hello(version, role, name, proof, os.getpid())))


async def wait_instances(gateway: Gateway, count: int) -> None:
    while (await gateway.statistics())["instances"] != count:  # noqa: ASYNC110 - another process's
        await asyncio.sleep(0.01)


@asynccontextmanager
async def kernel_process(folder: Path, **settings: Any) -> AsyncIterator[Process]:
    socket = folder / "kernel.sock"
    configuration = {
        "socket": str(socket),
        "secrets": SECRETS,
        "executor": "simulated",
        "simulated": {"fixed_us": 1000, "pages": 256},
    } | settings
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "symphony_kernel", stdin=PIPE, stdout=PIPE, stderr=PIPE,
        env=os.environ | {"PYTHONPATH": str(KERNEL_FOLDER)},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(configuration).encode() + b"\n")
    try:
        yield Process(process, socket)
    finally:
        if process.returncode is None:
            process.kill()
        process.stdin.close()
        await process.communicate()


def run(
    folder: Path, test: Callable[[Process], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    async def main() -> None:
        async with kernel_process(folder, **settings) as process:
            event = await process.event()
            assert event["event"] == "ready"
            assert event["pid"] == process.process.pid
            await asyncio.wait_for(test(process), 60)

    asyncio.run(main())


@run_by(run, "socket_folder", processes=True)
async def test_peers_from_unreported_processes_are_refused(process: Process) -> None:
    def started(role: str, pid: int) -> None:
        assert process.process.stdin is not None
        line = json.dumps(notice(role, Started(pid, 1)))
        process.process.stdin.write(line.encode() + b"\n")

    started("worker-0", process.process.pid)  # another process than this one
    for name, role in (("worker-0", "worker"), ("gateway", "gateway")):
        await process.refuse(role, name)
    started("gateway", os.getpid())
    started("worker-0", os.getpid())
    gateway = await process.gateway()
    await process.worker()
    assert (await gateway.ask("workers")).value == ["worker-0"]


@run_by(run, "socket_folder")
async def test_kernel_process_serves_a_run(process: Process) -> None:
    gateway, worker = await process.gateway(), await process.worker()
    about = (await worker.welcome).about
    assert about["model"]["page_size"] == 16
    assert set(about) == {
        "model", "tokenizer", "chat_template", "special", "embedding", "disk_tier_bytes",
    }  # fmt: skip
    assert about["disk_tier_bytes"] == 0
    assert (await worker.welcome).pid == process.process.pid
    assert (await gateway.register(7, worker="worker-0")).errno == 0
    worker.tell(7, Op.KV_CREATE, HANDLE)
    first = pairs(await worker.pred(7, HANDLE, tokens(*range(1, 100))))
    assert len(first) == 1
    assert (await gateway.end(7)).value["prompt_tokens"] == 99
    await gateway.check_integrity()
    statistics = await gateway.statistics()
    assert statistics["pages_free"] == statistics["pages"] == 256


@pytest.mark.parametrize(
    ("role", "name", "secret", "version"),
    [
        ("worker", "worker-0", SECRETS["worker-1"], m.PROTOCOL_VERSION),
        ("worker", "worker-0", "", m.PROTOCOL_VERSION),
        ("worker", "worker-9", "bb" * 16, m.PROTOCOL_VERSION),
        ("gateway", "gateway", SECRETS["worker-0"], m.PROTOCOL_VERSION),
        ("gateway", "worker-0", SECRETS["worker-0"], m.PROTOCOL_VERSION),
        ("worker", "gateway", SECRETS["gateway"], m.PROTOCOL_VERSION),
        ("worker", "worker-0", SECRETS["worker-0"], m.PROTOCOL_VERSION + 1),
    ],
)
@run_by(run, "socket_folder")
async def test_peer_with_wrong_credentials_is_refused(
    process: Process, *, role: str, name: str, secret: str, version: int
) -> None:
    await process.refuse(role, name, secret, version)
    gateway = await process.gateway()
    assert (await gateway.statistics())["calls"] == 0


@run_by(run, "socket_folder")
async def test_bytes_that_break_the_protocol_end_the_link(
    process: Process,
) -> None:
    gateway = await process.gateway()
    early = Worker(await connect_unix(process.socket))
    early.tell(1, Op.KV_CREATE, HANDLE)
    await asyncio.wait_for(early.closed.wait(), 10)
    for raw in (
        b"\xff\xff\xff\xff",  # a length without end
        (WORKER_FRAME_BYTES_MAX + 1).to_bytes(4, "little"),
        b"\x03\0\0\0\xc1\xc1\xc1",  # no msgpack
        b"\x01\0\0\0\x05",  # no array
        b"\x01\0\0\0\x90",  # an empty one
    ):
        worker = await process.worker()
        assert isinstance(worker.link, SocketLink)
        assert (await gateway.register(3, worker="worker-0")).errno == 0
        transport = worker.link._transport
        assert transport is not None
        transport.write(raw)
        await asyncio.wait_for(worker.closed.wait(), 10)
        await wait_instances(gateway, 0)
    assert process.process.returncode is None


@run_by(run, "socket_folder")
async def test_worker_that_connects_again_replaces_the_old_one(process: Process) -> None:
    gateway, old = await process.gateway(), await process.worker()
    await gateway.register(1, worker="worker-0")
    new = await process.worker()
    await asyncio.wait_for(old.closed.wait(), 10)
    assert (await gateway.statistics())["instances"] == 0
    assert (await gateway.register(1, worker="worker-0")).errno == 0
    new.tell(1, Op.KV_CREATE, HANDLE)
    assert isinstance(await new.pred(1, HANDLE, tokens(5)), bytes)


@pytest.mark.parametrize("how", ["SIGTERM", "end of stdin"])
@run_by(run, "socket_folder")
async def test_kernel_process_stops_cleanly(process: Process, *, how: str) -> None:
    gateway, worker = await process.gateway(), await process.worker()
    await gateway.register(1, worker="worker-0")
    worker.tell(1, Op.KV_CREATE, HANDLE)
    worker.pred(1, HANDLE, tokens(*range(1, 3000)))
    await asyncio.sleep(0.01)
    if how == "SIGTERM":
        process.process.send_signal(signal.SIGTERM)
    else:
        process.close_stdin()
    assert await process.wait() == 0
    await asyncio.wait_for(worker.closed.wait(), 10)
    assert "Traceback" not in await process.errors()


async def test_kernel_process_can_be_stopped_while_it_loads(socket_folder: Path) -> None:
    async with kernel_process(socket_folder, executor="torch") as process:
        process.close_stdin()
        assert await process.wait() == 0


async def test_kernel_process_without_its_model_says_so(socket_folder: Path) -> None:
    missing = socket_folder / "no-such-model"
    async with kernel_process(socket_folder, executor="torch", model=str(missing)) as process:
        assert await process.wait() == 2
        while (refused := await process.event())["event"] == "progress":
            pass
        assert refused["event"] == "refused", "the supervisor prints it, once"
        assert "no-such-model" in refused["words"]
        assert "Traceback" not in await process.errors()


@pytest.mark.slow
async def test_kernel_process_with_the_tiny_model_answers(socket_folder: Path) -> None:
    settings = {"executor": "torch", "threads": 1, "pool_bytes": 16 << 20}
    async with kernel_process(socket_folder, **settings) as process:
        events = [await process.event()]
        while events[-1]["event"] == "progress":
            events.append(await process.event())
        assert events[-1]["event"] == "ready"
        shares = [event["share"] for event in events[:-1]]
        assert shares == sorted(shares)
        gateway, worker = await process.gateway(), await process.worker()
        assert (await worker.welcome).about["model"]["name"] == "tiny"
        await gateway.register(1, worker="worker-0")
        worker.tell(1, Op.KV_CREATE, HANDLE)
        ((token, logprob),) = pairs(await worker.pred(1, HANDLE, tokens(*range(1, 40))))
        assert token < (await worker.welcome).about["model"]["vocab_size"]
        assert logprob < 0
        process.process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0


@pytest.mark.parametrize(
    "line",
    [
        "", "[]", "{", "{}", '{"socket": 5, "secrets": {}}', '{"socket": "s", "secrets": []}',
        '{"socket": "s", "secrets": {"gateway": "zz"}}',
        '{"socket": "s", "secrets": {"gateway": ""}}',
        '{"socket": "s", "secrets": {}, "colour": 1}',
        '{"socket": "s", "secrets": {}, "executor": "abacus"}',
        '{"socket": "s", "secrets": {}, "simulated": {"warp": 9}}',
    ],
)  # fmt: skip
def test_configuration_that_is_invalid_is_refused(line: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_configuration(line)


def test_configuration_does_not_print_its_secrets() -> None:
    configuration = parse_configuration('{"socket": "s", "secrets": {"gateway": "abcd"}}')
    assert configuration.secrets == {"gateway": b"\xab\xcd"}
    assert "xab" not in repr(configuration)
    assert configuration.directory.name == "weights"
