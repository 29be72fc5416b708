"""The console's runs: live as the stream tells them, by the thousand, with their children."""

import asyncio
from pathlib import Path

from symphony import AsyncClient

from tests.e2e import programs as guests
from tests.support.console import NEEDS, Console, console
from tests.support.family import PARENT_WASM
from tests.support.server.server import RunningServer

pytestmark = NEEDS
LIVE = 1_000
TASK_MS_MAX = 200  # of the page's thread at once, also on a busy machine
WATCH = """
window.tasks = [];
new PerformanceObserver((list) => {
  window.tasks.push(...list.getEntries().map((each) => each.duration));
}).observe({ type: 'longtask' });
"""


def lists_asked(shown: Console) -> int:
    asked = [each["request"]["url"] for each in shown.tab.of("Network.requestWillBeSent")]
    return len([url for url in asked if "/v1/runs?" in url])


async def test_runs_appear_and_end_without_lists_being_asked_again(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    await client.programs.upload(guests.HANG_WASM, "hang")
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("runs", "Limit hit", "live only")
        asked = lists_asked(shown)
        live = await client.start("hang")
        await shown.sees(live[:16], "running")
        ended = [(await client.run("hello"))["id"] for _ in range(30)]
        await shown.sees(ended[-1][:16])
        await shown.until("document.body.innerText.includes('1 instances')")
        await client.runs.cancel(live)
        await shown.sees("killed")
        await shown.check("runs-live")
        # What live runs hold is asked for every five seconds.
        assert lists_asked(shown) <= asked + 5


async def test_runs_are_found_by_the_limit_that_ended_them(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(guests.SPIN_WASM, "spin")
    limited = (await client.run("spin", limits={"cpu_ms": 50}))["id"]
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("runs", "Limit hit")
        await shown.until("document.querySelectorAll('select')[1].options.length > 10")
        await shown.tab.evaluate("document.querySelectorAll('select')[1].id = 'limit-hit'")
        await shown.fill("#limit-hit", "cpu_ms")
        await shown.sees(limited[:16])
        rows = "[...document.querySelectorAll('tbody tr')].map((row) => row.innerText)"
        assert all("cpu_ms" in row for row in await shown.tab.evaluate(rows))
        await shown.show(f"runs/{limited}", "Ended by the limit cpu_ms of 50 ms.", "cpu_ms")


async def test_run_is_run_again_with_its_input_from_its_view(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(guests.ECHO_WASM, "echo")
    run = (await client.run("echo", "the words that were given"))["id"]
    async with console(server, server.key, tmp_path) as shown:
        await shown.show(f"runs/{run}", "the words that were given")
        await shown.click("Run again with its input")
        await shown.until(
            f"location.hash.startsWith('#/runs/run_') && !location.hash.includes('{run}')"
        )
        await shown.sees("the words that were given", "exit code 7")
    runs = [each["id"] async for each in client.runs.list(program="echo")]
    assert (len(runs), runs[1]) == (2, run)


async def test_children_of_a_run_are_shown_as_a_tree(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(PARENT_WASM, "parent")
    run = await client.start("parent")
    async with console(server, server.key, tmp_path) as shown:
        await shown.show(
            f"runs/{run}", "Children: 2", "parent (child), exit code 3", "parent (idle)"
        )
        bars = "[...document.querySelectorAll('.bar .name')].map((each) => each.textContent)"
        assert {"wall_ms", "tokens", "children"} <= set(await shown.tab.evaluate(bars))
        await shown.click("Cancel")
        await shown.sees("killed", "its parent has ended", "memory_bytes")


async def test_thousand_live_runs_are_listed_without_a_stall(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    started: list[str] = []
    while len(started) < LIVE:
        started += await asyncio.gather(*(client.start("hang") for _ in range(50)))
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("runs", "live only")
        await shown.fill("select", "running")
        await shown.until("document.querySelector('output').textContent.startsWith('200')")
        await shown.tab.evaluate("document.querySelector('input[type=checkbox]').click()")
        await shown.until(f"document.querySelector('output').textContent === '{LIVE} runs'")
        assert await shown.tab.evaluate("document.querySelectorAll('tbody tr').length") < 100
        await shown.tab.evaluate(WATCH)
        longest = float("inf")
        for at in range(3):  # other work only makes it longer
            await shown.tab.evaluate("window.tasks.length = 0")
            changes = started[at * 50 : at * 50 + 50]
            scrolling = asyncio.create_task(scroll(shown))
            await asyncio.gather(*map(client.runs.cancel, changes))
            started += await asyncio.gather(*(client.start("hang") for _ in range(50)))
            await scrolling
            longest = min(longest, await shown.tab.evaluate("Math.max(0, ...window.tasks)"))
            if longest < TASK_MS_MAX:
                break
        assert longest < TASK_MS_MAX
        await shown.until(f"document.querySelector('output').textContent === '{LIVE} runs'")
        # The last row can be reached, and is the oldest run's.
        oldest = started[(at + 1) * 50][:16]
        await shown.until(
            "(() => { const box = document.querySelector('.long');"
            f" box.scrollTop = box.scrollHeight; return box.innerText.includes('{oldest}') }})()"
        )
        await shown.check("runs-thousand")
    await asyncio.gather(*map(client.runs.cancel, started))


async def scroll(shown: Console) -> None:
    for top in range(0, 20_000, 1_000):
        await shown.tab.evaluate(f"document.querySelector('.long').scrollTop = {top}")
        await asyncio.sleep(0.05)


async def test_run_of_a_completion_is_listed_while_it_lives(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    model = (await server.ask("GET", "/v1/models"))[1]["data"][0]["id"]
    wanted = {"model": model, "prompt": "x", "max_tokens": 2_000, "ignore_eos": True}
    changes = client.runs.changes()
    assert (await anext(changes)).kind == "begin"
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("runs", "live only")
        asked = asyncio.create_task(server.ask("POST", "/v1/completions", wanted))
        started = (await anext(changes)).data
        assert (started["status"], started["kept"]) == ("running", False)
        await shown.sees(started["id"][:16])
        assert (await asked)[0] == 200
        ended = (await anext(changes)).data
        assert (ended["id"], ended["status"], ended["kept"]) == (started["id"], "exited", False)
        await shown.until(f"!document.body.innerText.includes('{started['id'][:16]}')")
