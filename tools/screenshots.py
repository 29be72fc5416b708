"""Take the documentation's pictures of the console: `make screenshots`.

Serves the tiny model as the demonstration does, runs some of its programs traced, and opens the
console's views in Chromium. Writes docs/operate/figures/*.webp. A picture is at most
`BYTES_MAX`; its figures and times are those of the machine.
"""

import asyncio
import base64
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from symphony import AsyncClient

from examples.demo import server
from tests.support.browser import Tab, find_browser, open_tab
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/operate/figures"
BYTES_MAX = 150_000
QUALITY = 82
WIDTH, HEIGHT, SCALE = 1200, 760, 1.5
SECONDS_MAX = 60
WATCHED_SECONDS = 31  # while runs come and go, for the overview's charts
PROGRAMS = {  # their folders below examples/, by scenario
    "completion": "completion", "parallel_suffixes": "parallel_suffixes/rust", "rag": "rag/rust",
    "json_schema": "json_schema", "swarm": "swarm", "tree_of_thoughts": "tree_of_thoughts",
}  # fmt: skip


class Camera:
    """A tab of the console that is photographed."""

    def __init__(self, tab: Tab) -> None:
        self._tab = tab

    async def wait_for(self, expression: str) -> None:
        await wait_until(lambda: self._tab.evaluate(expression), SECONDS_MAX)

    async def open(self, view: str, element: str) -> None:
        """Open a view and wait for an element of it."""
        await self._tab.evaluate(f"location.hash = {json.dumps('#/' + view)}")
        await self.wait_for(f"document.querySelector({json.dumps(element)}) !== null")
        await asyncio.sleep(1)

    async def do(self, script: str) -> None:
        await self._tab.evaluate(script)
        await asyncio.sleep(0.3)

    async def press(self, element: str, *keys: str) -> None:
        for key in keys:
            await self.do(
                f"{element}.dispatchEvent("
                f"new KeyboardEvent('keydown', {{ key: {json.dumps(key)}, bubbles: true }}))"
            )

    async def take(self, name: str, panel: str = "", scheme: str = "light") -> None:
        """Save the window's picture, or that of the panel with this title."""
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        await self._tab.call("Emulation.setEmulatedMedia", features=media)
        await asyncio.sleep(0.5)
        clip: dict[str, Any] = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}
        if panel:
            found = "[...document.querySelectorAll('.panel')].find((one) =>"
            found += f" one.querySelector('h2').textContent === {json.dumps(panel)})"
            clip = await self._tab.evaluate(
                "(({ x, y, width, height }) => ({ x, y: y + scrollY, width, height }))"
                f"({found}.getBoundingClientRect())"
            )
        shot = await self._tab.call(
            "Page.captureScreenshot", format="webp", quality=QUALITY, clip={**clip, "scale": 1},
            captureBeyondViewport=bool(panel),
        )  # fmt: skip
        picture = base64.b64decode(shot["data"])
        if len(picture) > BYTES_MAX:
            raise SystemExit(f"{name} has {len(picture)} bytes, more than {BYTES_MAX}")
        (FOLDER / f"{name}.webp").write_bytes(picture)
        sys.stdout.write(f"   {name}: {len(picture) / 1000:.0f} kB\n")


async def run_programs(client: AsyncClient) -> dict[str, str]:
    """Upload and run the programs, traced; return their runs' ids by scenario."""
    runs = {}
    for scenario, folder in PROGRAMS.items():
        wasm = next((ROOT / "examples" / folder / "build").glob("*.wasm"))
        await client.programs.upload(wasm.read_bytes(), name=scenario)
        told = json.loads((ROOT / "examples" / scenario / "scenario.json").read_text())
        runs[scenario] = await client.start(scenario, told["input"], trace=True)
        messages = told.get("messages", [])
        for number, message in enumerate(messages, 1):
            await client.runs.send(runs[scenario], message.encode(), close=number == len(messages))
        async for _ in client.runs.events(runs[scenario]):
            pass
    return runs


async def keep_busy(client: AsyncClient) -> None:
    """Start completions for a while."""
    until = asyncio.get_running_loop().time() + WATCHED_SECONDS
    while asyncio.get_running_loop().time() < until:
        names = ("read", "write", "main")
        await asyncio.gather(*(client.run("completion", f"def {name}(") for name in names))
        await asyncio.sleep(0.2)


async def photograph(camera: Camera, client: AsyncClient, runs: dict[str, str]) -> None:
    await camera.open("overview", ".charts canvas")
    await keep_busy(client)
    await camera.take("overview")
    await camera.open(f"runs/{runs['json_schema']}", ".flow .token")
    await camera.do("document.querySelectorAll('.flow')[1].focus()")
    await camera.press("document.activeElement", *["ArrowRight"] * 5)
    await camera.take("explorer", "Generation")
    await camera.take("explorer-dark", "Generation", scheme="dark")
    await camera.open(f"runs/{runs['swarm']}", "canvas.timeline")
    await camera.press(
        "document.querySelector('canvas.timeline')", *"+++", *["ArrowDown"] * 7, *"nnnn"
    )
    await camera.take("timeline", "Timeline")


async def main() -> None:
    program = find_browser()
    if program is None:
        raise SystemExit("screenshots: there is no Chromium")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="symphony-pictures-") as folder:
        async with (
            server(Path(folder)) as place,
            AsyncClient(place["url"], place["key"], retries=0) as client,
            open_tab(program, Path(folder, "browser")) as tab,
        ):
            runs = await run_programs(client)
            size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": SCALE, "mobile": False}
            await tab.call("Emulation.setDeviceMetricsOverride", **size)
            await tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
            await tab.call("Emulation.setScrollbarsHidden", hidden=True)
            await tab.open(place["url"])
            key = json.dumps(place["key"])
            await tab.evaluate(f"sessionStorage.setItem('symphony.key', {key})")
            await tab.open(place["url"])
            await photograph(Camera(tab), client, runs)


if __name__ == "__main__":
    asyncio.run(main())
