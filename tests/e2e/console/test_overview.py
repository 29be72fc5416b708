"""The console's overview: the hour's figures, the roles and what became of them."""

import os
import signal
from pathlib import Path

from symphony import AsyncClient

from tests.e2e import programs as guests
from tests.support.console import NEEDS, console
from tests.support.server.server import RunningServer

pytestmark = NEEDS
ROW = "[...document.querySelectorAll('tbody tr')].find((row) => row.innerText.includes('worker-0'))"
# A sample has shown the worker ready: what became of it stands in the second column.
SAMPLED = (
    "[...document.querySelectorAll('tr')].some((row) => row.cells[1]?.textContent === 'worker-0'"
    " && row.cells[2].textContent === 'ready')"
)


async def test_restart_of_a_worker_is_seen(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    # An operator: a tenant would see the server's figures only while there is no other one.
    async with console(server, server.admin_key, tmp_path) as shown:
        charts = "Tokens that wait for a step", "Rows a step", "KV pages", "Refused a second"
        await shown.show("overview", *charts, "Started again", "What became of the roles")
        again = f"{ROW}?.cells[3].textContent"
        await shown.until(SAMPLED)
        before = (await server.pids())["worker-0"]
        os.kill(before, signal.SIGKILL)
        await shown.until(f"{again} === '1' && {ROW}.innerText.includes('seccomp')")
        await shown.check("overview-restart")
    assert (await server.pids())["worker-0"] != before
    await client.programs.upload(guests.HELLO_WASM, "hello")
    assert (await client.run("hello"))["output"] == "hello"


async def test_figures_go_on_with_the_newest_steps_only(
    server: RunningServer, tmp_path: Path
) -> None:
    async with console(server, server.key, tmp_path) as shown:
        await shown.sees("Tokens a second")
        asked = "performance.getEntriesByType('resource').map((each) => each.name)"
        asked += ".filter((name) => name.includes('history'))"
        await shown.until(f"{asked}.length >= 3")
        urls = await shown.tab.evaluate(asked)
        assert [url.rpartition("/")[2] for url in urls[:3]] == [
            "history",
            *["history?steps=12"] * 2,
        ]
        assert "NaN" not in await shown.text()


async def test_operator_sees_queues_and_runs_by_tenant(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    acme = await server.add_tenant("acme")
    await client.programs.upload(guests.HELLO_WASM, "hello")
    await client.run("hello")
    async with AsyncClient(server.url, acme, retries=0) as other:
        await other.programs.upload(guests.HELLO_WASM, "hello")
        await other.run("hello")
    async with console(server, server.admin_key, tmp_path) as shown:
        await shown.sees("Tokens that wait, by tenant", "Live runs by tenant", "acme", "MiB")
        await shown.check("overview-operator")
    async with console(server, acme, tmp_path / "tenant") as shown:
        await shown.sees("Tokens that wait for a step", "Tokens a second")
        assert "by tenant" not in await shown.text()
        assert "Device busy" not in await shown.text()
