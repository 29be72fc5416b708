"""The console in a real browser, for tests of its views.

With SYMPHONY_SCREENSHOTS=FOLDER each view's picture is saved there, to be looked at.
"""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.browser import Tab, find_browser, open_tab
from tests.support.pages import ROOT
from tests.support.requirements import requires
from tests.support.server.server import RunningServer

AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = os.environ.get("SYMPHONY_SCREENSHOTS")
SECONDS_MAX = 20
NEEDS = [
    requires("chromium", find_browser() is not None, "there is no Chromium"),
    requires("console", AXE.exists(), "`make console` has not installed axe-core"),
]


class Console:
    """The console in a tab, opened with a key."""

    def __init__(self, tab: Tab, url: str) -> None:
        self.tab, self._url = tab, url
        self._shown = 0

    async def text(self) -> str:
        found: str = await self.tab.evaluate("document.body.innerText")
        return found

    async def until(self, expression: str) -> Any:
        """Wait until an expression of the page is true; return it."""
        for _ in range(20 * SECONDS_MAX):
            if found := await self.tab.evaluate(expression):
                return found
            await asyncio.sleep(0.05)
        raise AssertionError(f"{expression} did not come; the page says: {await self.text()}")

    async def sees(self, *words: str) -> None:
        for each in words:
            await self.until(f"document.body.innerText.includes({json.dumps(each)})")

    async def show(self, view: str, *words: str) -> None:
        """Open a view, wait for its words, and check what a browser and axe-core find."""
        await self.tab.evaluate(f"location.hash = {json.dumps('#/' + view)}")
        await self.sees(*words)
        await self.check(view.replace("/", "-") or "overview")

    async def check(self, name: str) -> None:
        if PICTURES:
            await asyncio.sleep(0.5)
            shot = await self.tab.call("Page.captureScreenshot", format="png")
            Path(PICTURES, f"{name[:24]}.png").write_bytes(base64.b64decode(shot["data"]))
        if not await self.tab.evaluate("'axe' in window"):
            # Through the debugger, which the page's policy does not bind.
            await self.tab.call("Runtime.evaluate", expression=AXE.read_text())
        found = await self.tab.evaluate("axe.run().then((result) => result.violations)")
        grave = [
            (each["id"], [node["html"][:200] for node in each["nodes"]])
            for each in found
            if each["impact"] in ("serious", "critical")
        ]
        assert not grave, (name, grave)
        thrown = [
            each["exceptionDetails"].get("exception", {}).get("description", each)
            for each in self.tab.of("Runtime.exceptionThrown")
        ]
        assert not thrown, (name, thrown)
        logged = [entry["entry"]["text"] for entry in self.tab.of("Log.entryAdded")]
        assert not [text for text in logged if "Content Security Policy" in text], (name, logged)

    async def click(self, label: str) -> None:
        """Click the first button or link of this label."""
        label = json.dumps(label)
        await self.until(
            "(() => { const found = [...document.querySelectorAll('button, a')]"
            f".find((each) => each.textContent.trim() === {label});"
            " found?.click(); return Boolean(found); })()"
        )

    async def fill(self, selector: str, value: str) -> None:
        """Type into a field, as its events tell it."""
        await self.until(
            "(() => { const field = document.querySelector("
            f"{json.dumps(selector)}); if (!field) return false;"
            f" field.value = {json.dumps(value)};"
            " for (const kind of ['input', 'change'])"
            " field.dispatchEvent(new Event(kind, { bubbles: true })); return true; })()"
        )

    def hosts(self) -> set[str]:
        """Return the hosts that the page has asked."""
        urls = [each["request"]["url"] for each in self.tab.of("Network.requestWillBeSent")]
        return {url.split("/")[2] for url in urls if url.startswith("http")}


@asynccontextmanager
async def console(server: RunningServer, key: str, folder: Path) -> AsyncIterator[Console]:
    program = find_browser()
    assert program is not None
    async with open_tab(program, folder) as tab:
        await tab.call(
            "Emulation.setDeviceMetricsOverride",
            width=1280, height=900, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        await tab.open(f"{server.url}/")
        shown = Console(tab, server.url)
        await shown.until("document.querySelector('#key') !== null")
        await shown.check("sign-in")
        await shown.fill("#key", key)
        await shown.click("Open")
        await shown.sees("Overview", "Sign out")
        yield shown
