"""A headless Chromium, driven over its debugging protocol."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.waiting import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_SECONDS_MAX = 30
LOAD_SECONDS_MAX = 20


def find_browser() -> str | None:
    """Return the path of a Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Tab:
    """One page. `events` holds what has happened in it since `open`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.events: list[dict[str, Any]] = []

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Make a call of the protocol; return its result."""
        self._number += 1
        number = self._number
        await self._socket.send_json({"id": number, "method": method, "params": arguments})
        while True:
            message = await self._socket.receive_json(timeout=LOAD_SECONDS_MAX)
            if message.get("id") == number:
                assert "error" not in message, message
                result: dict[str, Any] = message["result"]
                return result
            self.events.append(message)

    async def open(self, url: str) -> None:
        """Open a page and wait until it has loaded."""
        self.events.clear()
        await self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(await self._socket.receive_json(timeout=LOAD_SECONDS_MAX))

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression, or of what it promises."""
        done = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def of(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of the events of one kind."""
        return [event["params"] for event in self.events if event["method"] == method]


@contextlib.asynccontextmanager
async def open_tab(program: str, folder: Path) -> AsyncIterator[Tab]:
    """Start the browser with its profile in `folder`; give its one tab."""
    as_root = ["--no-sandbox"] if os.geteuid() == 0 else []
    process = await asyncio.create_subprocess_exec(
        *(program, "--headless=new", "--disable-gpu", "--disable-dev-shm-usage", *as_root),
        *("--no-first-run", "--disable-background-networking", "--remote-debugging-port=0"),
        *(f"--user-data-dir={folder}", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        place = folder / "DevToolsActivePort"
        await wait_until(lambda: place.exists() and "\n" in place.read_text(), START_SECONDS_MAX)
        url = f"http://127.0.0.1:{place.read_text().splitlines()[0]}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{url}/json/list") as answer:
                (target, *_) = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Network", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                yield tab
    finally:
        process.terminate()
        await process.wait()
