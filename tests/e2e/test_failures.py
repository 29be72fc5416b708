"""Processes that die and servers that stop: what was acknowledged is there, the rest is told."""

import asyncio
import itertools
import os
import re
import resource
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest
from symphony import AsyncClient, ConnectionFailed, ServerError

from tests.e2e import programs as guests
from tests.support.gateway.system import refused
from tests.support.server.server import (
    RunningServer,
    descendants,
    first_message,
    running_server,
    start_server,
    still_alive,
    symphony,
    wait_for_end,
)


async def run_works(server: RunningServer) -> None:
    """The server runs a program that decodes, once it is ready again."""
    async with server.client() as client:
        await server.wait_until_ready()
        result = await client.run("decode", input="\x02")
        assert (result["status"], len(result["messages"])) == ("exited", 2)


@pytest.mark.parametrize(
    ("role", "reason", "options"),
    [
        ("worker-0", "the worker that ran it died", []),
        ("kernel", "the kernel died", ["--no-journal"]),  # with one: test_deaths.py
    ],
)
async def test_killed_worker_or_kernel_fails_its_runs_with_a_reason(
    tmp_path: Path, role: str, reason: str, options: list[str]
) -> None:
    with running_server(tmp_path, *options) as server:
        async with server.client() as client:
            await client.programs.upload(guests.HOARDER_WASM, name="hoarder")
            await client.programs.upload(guests.DECODE_WASM, name="decode")
            before = await server.counters()
            run = await client.start("hoarder")
            waiting = asyncio.create_task(client.run("hoarder"))
            await first_message(client, run)
            pids = await server.pids()
            os.kill(pids[role], signal.SIGKILL)
            for result in (await wait_for_end(client, run), await waiting):
                assert (result["status"], result["reason"]) == ("failed", reason)
            await run_works(server)
            assert (await server.pids())[role] != pids[role]
            after = await server.wait_until_idle()
            assert after["pages_free"] == before["pages_free"]
            # What a reader saw before the crash is kept.
            assert (await client.runs.get(run))["messages"] == ["held"]


async def test_killed_gateway_is_replaced_and_its_runs_fail(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        url = server.url
        async with server.client() as client:
            await client.programs.upload(guests.HOARDER_WASM, name="hoarder")
            await client.programs.upload(guests.DECODE_WASM, name="decode")
            finished = await client.run("decode", input="\x03")
            run = await client.start("hoarder")
            await first_message(client, run)
            os.kill((await server.pids())["gateway"], signal.SIGKILL)
        await server.wait_until_ready()
        async with server.client() as client:
            result = await client.runs.get(run)
            assert result["status"] == "failed"
            assert result["reason"] == "the gateway died while it ran"
            assert (await last_event(client, run))["status"] == "failed"
            assert await client.runs.get(finished["id"]) == finished
            await run_works(server)
            assert (await server.wait_until_idle())["files"] == 0
        assert server.url == url


async def test_restarted_server_keeps_programs_keys_and_results(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        async with server.client() as client:
            await client.programs.upload(guests.DECODE_WASM, name="decode")
            key, result = server.key, await client.run("decode", input="\x03")
        assert key in server.log.read_text()
    # The cache is not trusted: this artefact is not what the server has made.
    (artefact,) = (tmp_path / "programs" / "default").glob("*.cwasm")
    artefact.write_bytes(b"\x7fELF, but not ours")
    with running_server(tmp_path) as server:
        assert server.key == key
        async with server.client() as client:
            assert await client.runs.get(result["id"]) == result
            again = await client.run("decode", input="\x03")
            assert again["messages"] == result["messages"]
        assert server.log.read_text().count(key) == 1


async def test_sigterm_drains_live_runs_and_refuses_new_ones(tmp_path: Path) -> None:
    server = start_server(tmp_path, "--drain-seconds", "1.5")
    below = descendants(server.process.pid)
    assert len(below) >= 3
    began = time.monotonic()
    async with server.client() as client:
        sleeper = await client.programs.upload(guests.SLEEP_AND_DECODE_WASM, name="sleeper")
        await client.programs.upload(guests.SPIN_WASM, name="spin")
        live = asyncio.create_task(client.run("sleeper"))
        spin = await client.start("spin")
        spinning = asyncio.create_task(last_event(client, spin))
        async with asyncio.timeout(20):
            while len(await client.runs.live()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            while (await client.ready())[0]:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        error = await refused(client.run(sleeper["id"]))
        assert error.status == 503
        assert error.retry_after is not None
        ready, roles = await client.ready()
        assert (ready, len(roles)) == (False, 3)
        assert (await live)["status"] == "exited"
        assert await spinning == {
            "status": "failed", "exit_code": None, "reason": "the server was shut down",
        }  # fmt: skip
    assert server.process.wait(20) == 0, server.log.read_text()
    assert time.monotonic() - began < 15
    assert not still_alive(below)
    assert not (tmp_path / "server.json").exists()


async def last_event(client: AsyncClient, run: str) -> dict[str, object]:
    return [event async for event in client.runs.events(run)][-1].data


@pytest.mark.parametrize("kernel_too", [False, True])
def test_killed_supervisor_leaves_nothing_behind(tmp_path: Path, kernel_too: bool) -> None:
    """The kernel removes sockets and journal as it ends, or the next server as it starts."""
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # a short path
    temporary.chmod(0o755)
    place = {"TMPDIR": str(temporary), "XDG_RUNTIME_DIR": ""}
    server = start_server(tmp_path, environment=place)
    below = descendants(server.process.pid)
    pids = asyncio.run(server.pids())
    (run_directory,) = temporary.glob("symphony-*")
    assert {"kernel.sock", "gateway.sock", "journal"} <= {p.name for p in run_directory.iterdir()}
    os.kill(server.process.pid, signal.SIGSTOP)  # it shall start no other
    if kernel_too:
        os.kill(pids["kernel"], signal.SIGKILL)
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    assert not still_alive(below)
    assert list(temporary.glob("symphony-*")) == ([run_directory] if kernel_too else [])
    # And the next one starts in the same place.
    with running_server(tmp_path, environment=place):
        (another,) = temporary.glob("symphony-*")
        assert another != run_directory
    temporary.rmdir()  # nothing is left


def test_server_with_too_few_descriptors_says_so(tmp_path: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))

    ended = symphony("serve", "--data-dir", str(tmp_path), preexec_fn=few)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert re.fullmatch(
        r"a process may open 20 files here \(RLIMIT_NOFILE\), and a server needs at least 256: "
        r"`ulimit -n 256` before it, or .* allows them\n",
        ended.stderr,
    )


async def test_server_with_the_fewest_descriptors_works(tmp_path: Path) -> None:
    def fewest() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 256))

    with running_server(tmp_path, before=fewest) as server:
        async with server.client() as client:
            await client.programs.upload(guests.DECODE_WASM, name="decode")
        await run_works(server)
        limits = Path(f"/proc/{server.process.pid}/limits").read_text()
        assert re.search(r"Max open files +256 +256", limits)  # the soft limit is raised


async def test_tenant_at_its_run_limit_gets_429(tmp_path: Path) -> None:
    config = tmp_path / "symphony.toml"
    config.write_text("tenant_runs_live_max = 3\nworkers = 2\n")
    with running_server(tmp_path / "data", "--config", str(config)) as server:
        async with server.client() as client:
            await client.programs.upload(guests.SPIN_WASM, name="spin")
            runs = [await client.start("spin") for _ in range(3)]
            error = await refused(client.start("spin"))
            assert error.status == 429
            assert error.retry_after is not None
            await client.runs.cancel(runs[0])
            runs[0] = await client.start("spin")
            for run in runs:
                await client.runs.cancel(run)
        assert {"worker-0", "worker-1"} < set(await server.pids())


async def test_client_tells_a_dead_server_from_a_refusal() -> None:
    async with AsyncClient("http://127.0.0.1:9", "key", retries=0) as client:
        with pytest.raises(ConnectionFailed):
            await client.runs.get("run_1")


@pytest.mark.slow
async def test_roles_that_die_under_load_leave_no_run_without_an_end(tmp_path: Path) -> None:
    ended: Counter[str] = Counter()
    refusals: set[tuple[int, float | None]] = set()

    async def client_of(server: RunningServer, client: AsyncClient, stop: asyncio.Event) -> None:
        programs = itertools.cycle(["sleeper", "chatty"])
        while not stop.is_set():
            try:
                result = await client.run(next(programs))
                ended[f"{result['status']} {result['reason']}".strip()] += 1
                assert result["status"] != "exited" or result["messages"]
            except ServerError as error:
                refusals.add((error.status, error.retry_after))
                await asyncio.sleep(0.1)
            except ConnectionFailed:  # the gateway itself was away
                await asyncio.sleep(0.1)

    with running_server(tmp_path) as server:
        async with server.client() as client:
            await client.programs.upload(guests.SLEEP_AND_DECODE_WASM, name="sleeper")
            await client.programs.upload(guests.CHATTY_WASM, name="chatty")
            before = await server.counters()
            stop = asyncio.Event()
            load = [asyncio.create_task(client_of(server, client, stop)) for _ in range(20)]
            for role in ("worker-0", "kernel", "gateway", "worker-0"):
                await server.wait_until_ready()
                await asyncio.sleep(0.5)
                os.kill((await server.pids())[role], signal.SIGKILL)
                await asyncio.sleep(0.1)
            await server.wait_until_ready()
            stop.set()
            await asyncio.wait_for(asyncio.gather(*load), 30)
            after = await server.wait_until_idle()
            assert after["pages_free"] == before["pages_free"]
            statuses = {run["status"] async for run in client.runs.list()}
            assert statuses <= {"exited", "failed"}
        async with server.admin() as admin:
            gateway = (await admin.admin.statistics())["gateway"]
        assert (gateway["runs"], gateway["failed_writes"]) == (0, 0)
        assert set(ended) <= {
            "exited", "failed the worker that ran it died", "failed the kernel died",
        }  # fmt: skip
        assert ended["exited"] > 0
        # How much later depends on how fast places came free while the machine was this busy.
        assert all(status == 503 and (later or 0) >= 1 for status, later in refusals), refusals
        assert "Traceback" not in server.log.read_text()
