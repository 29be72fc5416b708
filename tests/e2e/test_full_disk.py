"""A tenant fills a small disk in every way that HTTP and the ABI offer; others do not notice."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from symphony import AsyncClient, ClientError, ServerError

from tests.e2e import programs as guests
from tests.support.faults.small_disk import fill, free_bytes, small_disk
from tests.support.gateway.metrics import scrape, value
from tests.support.server.server import RunningServer, running_server
from tests.support.waiting import wait_until
from tests.support.worker.guests import drop, main, times

MIB = 1 << 20
DISK = 200 * MIB
RESERVE = 32 * MIB
FILLING_SECONDS = 12


def _sending(then: str) -> bytes:
    """Send 7 MiB, and a long line of the log, and then do something."""
    sends = times(112, drop("send", 0, 65536) + drop("log", 1, 0, 4096))
    return guests.wasm(main(f"{sends} {then} (i32.const 0)", locals_="(local $n i32)"))


ENDING = _sending("")
KV_FILE = save(
    {"tokens": np.arange(256, dtype=np.uint32), "positions": np.arange(256, dtype=np.int32)}
)
LASTING = _sending("(call $await (call $sleep (i64.const 86400000)))")


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with small_disk(tmp_path_factory.mktemp("small") / "disk", DISK) as folder:
        yield folder


class Greedy:
    """A tenant that writes until it is refused, and then again, in all ways at once."""

    def __init__(self, server: RunningServer, key: str) -> None:
        self._server, self._key = server, key
        self.refused: set[tuple[str, int]] = set()
        self._run = ""
        self.ways = {
            "ended": self._ended, "live": self._live, "input": self._input,
            "programs": self._programs, "kv": self._kv, "upload": self._upload,
            "secrets": self._secrets, "keys": self._keys, "messages": self._messages,
        }  # fmt: skip

    async def fill(self, seconds: float) -> None:
        """Each way once, which is accepted, and then all at once."""
        async with AsyncClient(self._server.url, self._key, retries=0) as client:
            for name, program in (
                ("ending", ENDING), ("lasting", LASTING), ("save", guests.SAVE_WASM),
                ("hang", guests.HANG_WASM),
            ):  # fmt: skip
                await client.programs.upload(program, name)
            for way in self.ways.values():
                await way(client, 0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    ways = self.ways.items()
                    await asyncio.gather(*(self._again(n, way, client) for n, way in ways))

    async def _again(self, name: str, way: Any, client: AsyncClient) -> None:
        number = 1
        while True:
            try:
                await way(client, number)
            except ServerError as error:
                if error.status not in (400, 409, 413, 429, 503, 507):
                    raise
                self.refused.add((name, error.status))
                await asyncio.sleep(0.1)
            number += 1

    async def _ended(self, client: AsyncClient, _: int) -> None:
        await client.start("ending")
        await asyncio.sleep(0.05)

    async def _live(self, client: AsyncClient, _: int) -> None:
        await client.start("lasting")
        await asyncio.sleep(0.05)

    async def _input(self, client: AsyncClient, _: int) -> None:
        await client.start("hang", "x" * 500_000)

    async def _messages(self, client: AsyncClient, number: int) -> None:
        if number % 50 == 0 or not self._run:
            self._run = await client.start("hang")
        await client.runs.send(self._run, b"x" * 60_000)

    async def _programs(self, client: AsyncClient, number: int) -> None:
        await client.programs.upload(
            guests.wasm(main("(nop)" * number + "(i32.const 0)")), f"p{number}"
        )

    async def _kv(self, client: AsyncClient, _: int) -> None:
        await client.run("save")

    async def _upload(self, client: AsyncClient, number: int) -> None:
        """Files that are good, and now and then one that is large and none."""

        async def flood() -> AsyncIterator[bytes]:
            for _ in range(64):
                yield b"x" * MIB

        if number % 4 == 3:
            await client.kv.upload(f"up{number}", flood())
        else:
            await client.kv.upload(f"up{number}", KV_FILE, rebuild=True)

    async def _secrets(self, client: AsyncClient, number: int) -> None:
        await self._put(f"/v1/secrets/S{number}", {"value": "x" * 4000, "hosts": ["example.com"]})

    async def _keys(self, _: AsyncClient, number: int) -> None:
        await self._put("/v1/programs/hang/runs?detach=1", {}, {"Idempotency-Key": f"k{number}"})

    async def _put(self, path: str, body: Any, headers: dict[str, str] | None = None) -> None:
        method = "POST" if headers else "PUT"
        status, answer = await self._server.ask(method, path, body, key=self._key, headers=headers)
        if status >= 400:
            raise ServerError(status, answer, None)


async def _outputs(client: AsyncClient) -> dict[str, Any]:
    """What another tenant's new runs send; none is refused or killed."""
    found = {}
    for name in ("hello", "decode"):
        run = await client.run(name, "\x10")  # so many tokens
        assert run["status"] == "exited", run
        found[name] = run["messages"]
    return found


async def test_full_disk_of_one_tenant_leaves_others_working(disk: Path) -> None:
    with running_server(disk, "--disk-reserve-bytes", str(RESERVE)) as server:
        async with server.admin() as admin, server.client() as client:
            await client.programs.upload(guests.HELLO_WASM, "hello")
            await client.programs.upload(guests.DECODE_WASM, "decode")
            outputs = await _outputs(client)
            before = [(await client.run("decode", "\x10"))["id"] for _ in range(3)]
            greedy = Greedy(server, await server.add_tenant("greedy"))
            filling = asyncio.create_task(greedy.fill(FILLING_SECONDS))
            runs = 0
            while not filling.done():  # no other tenant is refused anything
                assert await _outputs(client) == outputs
                runs += 1
                await asyncio.sleep(0.2)
            await filling
            assert runs > 5
            assert {status for _, status in greedy.refused} & {429, 507}
            assert free_bytes(disk) >= RESERVE // 2
            # Now the disk is in fact full, from outside: the operator can still act.
            filler = fill(disk)
            await asyncio.sleep(1.5)
            assert not await _healthy(server)
            for run in before:
                assert (await client.runs.get(run))["messages"] == outputs["decode"]
            assert (await admin.admin.change_tenant("greedy", suspended=True))["suspended"]
            await _delete(admin)
            await client.runs.delete(before.pop())
            filler.unlink()
            await wait_until(lambda: free_bytes(disk) >= DISK - 2 * RESERVE, 60)
            await wait_until(lambda: _healthy(server), 60)
            assert await _outputs(client) == outputs
            for run in before:
                assert (await client.runs.get(run))["messages"] == outputs["decode"]
        assert "Traceback" not in server.log.read_text()


async def _healthy(server: RunningServer) -> bool:
    return not (await server.ask("GET", "/readyz"))[1]["degraded"]


async def _delete(admin: AsyncClient) -> None:
    """As often as the server says that it has to be asked again."""
    async with asyncio.timeout(40):
        while True:
            try:
                return await admin.admin.delete_tenant("greedy", everything=True)
            except ClientError as error:
                if "ask again" not in str(error):
                    raise
                await asyncio.sleep(0.5)


def test_disk_tier_is_reserved_from_the_servers_disk_budget(tmp_path: Path) -> None:
    with running_server(
        tmp_path, "--executor", "simulated", "--host-pool-tokens", "1600",
        "--disk-pool-tokens", "16000", "--disk-bytes-max", str(1 << 30),
    ) as server:  # fmt: skip
        series = asyncio.run(scrape(server.url, server.admin_key))
    slots, pool = value(series, "kv_disk_slots"), value(series, "kv_pages")
    set_aside = (1 << 30) - value(series, "disk_room_bytes") - value(series, "disk_used_bytes")
    assert (slots, pool > 0) == (1_000, True)
    assert set_aside == slots * 256, "of the simulated executor's pages"
