"""The timeline of real traces: what it tells, by pointer, by keys and as a table, and how fast."""

import asyncio
import json
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient
from symphony.client.views import RunResult

from tests.e2e.programs import DECODE_WASM, wasm
from tests.runtime.gateway.runs.test_trace import checked
from tests.support.console import NEEDS, Console, console
from tests.support.server.server import RunningServer
from tests.support.timing import check_median
from tests.support.waiting import wait_until
from tests.support.worker.guests import call, drop, main, times

pytestmark = NEEDS
EVENTS = 20_000  # as the console's page claims
OPENS_SECONDS_MAX = 2.0
FRAMES_A_SECOND_MIN = 30
PAN_MS = 250  # of each measurement
PREDS = 4_000
# One token in a file of its own, again and again: four calls each.
MANY_PREDS = wasm(
    main(
        times(
            PREDS,
            "(local.set $kv (call $kv_create))"
            + call("await", call("pred", "(local.get $kv)", 0, 1, 0, 0, 0))
            + drop("kv_close", "(local.get $kv)"),
        )
        + "(i32.const 0)",
        locals_="(local $n i32) (local $kv i32)",
    )
)
CANVAS = "document.querySelector('canvas.timeline')"
TOLD = "document.querySelector('.event').innerText"


@asynccontextmanager
async def opened(server: RunningServer, folder: Path, run: RunResult) -> AsyncIterator[Console]:
    async with console(server, server.key, folder) as shown:
        await shown.tab.evaluate(f"location.hash = '#/runs/{run['id']}'")
        await shown.sees("Timeline", "Time by kind")
        await shown.until(f"{CANVAS}?.width > 0")
        yield shown


async def press(shown: Console, *keys: str) -> str:
    """Press keys on the timeline; return what it tells then."""
    for key in keys:
        await shown.tab.evaluate(
            f"{CANVAS}.dispatchEvent(new KeyboardEvent('keydown', "
            f"{{ key: {json.dumps(key)}, bubbles: true, cancelable: true }}))"
        )
        await asyncio.sleep(0.05)
    told: str = await shown.tab.evaluate(TOLD)
    return told


async def decoded(client: AsyncClient) -> RunResult:
    await client.programs.upload(DECODE_WASM, name="decode")
    run = await client.run("decode", input="\x20", trace=True)
    assert run["status"] == "exited", run
    return run


async def test_keys_walk_through_lanes_and_events_and_tell_their_tokens(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    run = await decoded(client)
    spans = checked(await client.runs.trace(run["id"]))
    preds = sorted((s for s in spans if s["cat"] == "pred"), key=lambda s: float(s["ts"]))
    async with opened(server, tmp_path, run) as shown:
        told = await press(shown, "ArrowDown")
        assert "of Gateway" in told
        lanes = [told]
        while (told := await press(shown, "ArrowDown")) != lanes[-1]:
            lanes.append(told)
        assert [next(filter(lane.__contains__, ("Gateway", "Instances", "Steps", "Preds")))
                for lane in lanes] == ["Gateway", "Instances", "Steps", "Preds"]  # fmt: skip
        while "pred of Preds" not in told:
            told = await press(shown, "p")
        # Back at the first: its tokens, what came of them, and its waits in words.
        for _ in spans:
            if (before := await press(shown, "p")) == told:
                break
            told = before
        first = preds[0]["args"]
        assert f"file {first['file']} at 0" in told
        assert "queue" in told
        assert "step" in told
        assert f"{100 * first['probability']:.0f} %" in told or first["probability"] < 0.0995
        await press(shown, "Enter", "+", "-", "ArrowLeft", "ArrowRight")
        await shown.check("timeline-chosen")
        assert await press(shown, "0", "Escape") == ""


async def test_pointer_tells_the_event_under_it_and_its_tokens(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    run = await decoded(client)
    async with opened(server, tmp_path, run) as shown:
        await shown.tab.evaluate(f"{CANVAS}.scrollIntoView()")
        box = await shown.tab.evaluate(
            "(({ x, y, width, height }) => [x, y, width, height])"
            f"({CANVAS}.getBoundingClientRect())"
        )
        told = set()
        for down in range(24, int(box[3]), 9):
            for across in (0.3, 0.5, 0.7, 0.9):
                await shown.tab.call(
                    "Input.dispatchMouseEvent", type="mouseMoved",
                    x=box[0] + across * box[2], y=box[1] + down,
                )  # fmt: skip
                told.add(await shown.tab.evaluate(TOLD))
        events = {each.split(":")[0] for each in told}
        assert {"running of Gateway, run", "step of Steps, steps"} <= events
        assert any("of Instances of worker-0, lip_main" in each for each in events)
        assert any(each.startswith("pred of Preds") and "→" in each for each in told)
        assert any(each.startswith("step of Steps") and "→" in each for each in told)


async def test_table_lists_each_lanes_events_in_words(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    run = await decoded(client)
    spans = checked(await client.runs.trace(run["id"]))
    async with opened(server, tmp_path, run) as shown:
        await shown.tab.evaluate("[...document.querySelectorAll('summary')].at(-1).click()")
        await shown.until("document.querySelector('details[open] select')")
        lanes: list[str] = await shown.tab.evaluate(
            "[...document.querySelectorAll('details select option')].map((one) => one.textContent)"
        )
        counted = sum(int(lane.split("(")[1].split()[0]) for lane in lanes)
        assert counted == len(spans)
        number = next(at for at, lane in enumerate(lanes) if lane.startswith("Preds"))
        await shown.fill("details select", str(number))
        await shown.until("document.querySelector('details[open] tbody').innerText.includes('→')")
        assert "queue" in await shown.tab.evaluate(
            "document.querySelector('details[open] tbody').innerText"
        )
        await shown.click("Later")
        await shown.sees("page 2 of")
        await shown.check("timeline-table")


async def test_download_is_the_trace_as_perfetto_reads_it(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    run = await decoded(client)
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    async with opened(server, tmp_path / "profile", run) as shown:
        await shown.tab.call(
            "Page.setDownloadBehavior", behavior="allow", downloadPath=str(downloads)
        )
        await shown.click("Download for Perfetto")
        saved = downloads / f"{run['id']}.json"
        await wait_until(saved.exists, 20)
        trace = json.loads(saved.read_text())
        checked(trace)
        assert trace == await client.runs.trace(run["id"])


@pytest.mark.slow
@pytest.mark.timing
async def test_trace_of_many_events_opens_and_pans_as_fast_as_claimed(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(MANY_PREDS, name="many-preds")
    run = await client.run("many-preds", trace=True)
    assert run["status"] == "exited", run
    events = len((await client.runs.trace(run["id"]))["traceEvents"])
    assert events >= EVENTS
    async with opened(server, tmp_path, run) as shown:

        async def open_again() -> float:
            await shown.tab.evaluate("location.hash = '#/overview'")
            await shown.sees("Tokens a second")
            took = await shown.tab.evaluate(
                f"""new Promise((done) => {{
                    performance.clearMarks("timeline");
                    const began = performance.now();
                    location.hash = "#/runs/{run["id"]}";
                    const look = () => {{
                        const [mark] = performance.getEntriesByName("timeline");
                        if (mark) done((mark.startTime - began) / 1000);
                        else setTimeout(look, 10);
                    }};
                    look();
                }})"""
            )
            return float(took)

        async def pan() -> float:
            took = await shown.tab.evaluate(
                f"""new Promise((done) => {{
                    const canvas = {CANVAS}, began = performance.now();
                    let frames = 0;
                    const frame = () => {{
                        panned = (globalThis.panned ?? 0) + 1;  // on from the last measurement
                        const key = panned % 20 < 10 ? "ArrowRight" : "ArrowLeft";
                        const event = new KeyboardEvent("keydown", {{ key, bubbles: true }});
                        canvas.dispatchEvent(event);
                        frames += 1;
                        const took = performance.now() - began;
                        if (took < {PAN_MS}) requestAnimationFrame(frame);
                        else done(took / 1000 / frames);
                    }};
                    requestAnimationFrame(frame);
                }})"""
            )
            return float(took)

        opens: list[float] = []
        pans: list[float] = []

        async def measured(measure: Any, found: list[float]) -> float:
            found.append(await measure())
            return found[-1]

        await check_median(lambda: measured(open_again, opens), below=OPENS_SECONDS_MAX)
        await press(shown, "+", "+", "+")  # a third of the events, and room to pan
        await check_median(lambda: measured(pan, pans), below=1 / FRAMES_A_SECOND_MIN)
        seconds, frame = statistics.median(opens), statistics.median(pans)
        sys.stdout.write(
            f"{events} events: {seconds:.2f} s to open, {1 / frame:.0f} frames a second\n"
        )
