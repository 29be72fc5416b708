"""The console in a real browser: each view shows what a real server's real runs did.

With SYMPHONY_SCREENSHOTS=FOLDER each view's picture is saved there, to be looked at.
"""

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.client import Client

from tests.e2e import programs as guests
from tests.support.browser import Tab, find_browser, open_tab
from tests.support.examples import EXAMPLES, built
from tests.support.pages import ROOT
from tests.support.requirements import requires
from tests.support.server.server import RunningServer, running_server

AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = os.environ.get("SYMPHONY_SCREENSHOTS")
SECONDS_MAX = 20
pytestmark = [
    requires("chromium", find_browser() is not None, "there is no Chromium"),
    requires("console", AXE.exists(), "`make console` has not installed axe-core"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server of these tests' own: they add tenants."""
    with running_server(tmp_path_factory.mktemp("server"), executor="torch") as running:
        yield running


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


async def test_views_of_a_tenant_show_its_runs_programs_and_files(
    server: RunningServer, client: Client, tmp_path: Path
) -> None:
    await client.upload(built(EXAMPLES / "completion").read_bytes(), "completion")
    await client.upload(guests.SAVE_WASM, "save")
    await client.upload(guests.HANG_WASM, "hang")
    ended = await client.run("completion", input="def f(", trace=True)
    await client.run("save")
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("overview", "Tokens a second", "worker-0", "seccomp", "ready")
        await shown.show("runs", "completion", "exited")
        await shown.show(f"runs/{ended['id']}", ended["output"].splitlines()[0], "128 generated",
                         "Timeline", "Time by kind")  # fmt: skip
        assert await shown.until("document.querySelector('canvas.timeline')?.width > 0")
        await shown.show("programs", "completion", "compute with the model", "Upload")
        (file, *_) = [file async for file in client.kv()]
        await shown.show("files", file["path"])
        await shown.show(f"files/{file['path']}", "tokens in", "device", "Download")
        assert shown.hosts() == {server.url.removeprefix("http://")}


async def test_playground_streams_the_model_and_a_program(
    server: RunningServer, client: Client, tmp_path: Path
) -> None:
    await client.upload(built(EXAMPLES / "completion").read_bytes(), "completion")
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("playground", "What runs", "compare two")
        await shown.fill("textarea", "read a file")
        await shown.click("Run")
        await shown.sees("first piece after", "in all")
        assert await shown.until("document.querySelector('pre.tail').textContent.length > 10")
        await shown.fill("select", "completion")
        await shown.fill("textarea", "def f(")
        await shown.click("Run")
        await shown.sees("exited", "the run", "tokens, ended by")
        assert "return" in await shown.text()


async def test_live_run_is_cancelled_from_its_view(
    server: RunningServer, client: Client, tmp_path: Path
) -> None:
    await client.upload(guests.HANG_WASM, "hang")
    run = await client.start("hang")
    async with console(server, server.key, tmp_path) as shown:
        await shown.show(f"runs/{run}", "running", "Message to the program")
        await shown.click("Cancel")
        await shown.sees("killed", "it was cancelled")
    assert (await client.result(run))["status"] == "killed"


async def test_operator_adds_a_tenant_with_a_key_that_works(
    server: RunningServer, tmp_path: Path
) -> None:
    async with console(server, server.admin_key, tmp_path) as shown:
        await shown.show("operators", "Least share", "default")
        assert "Playground" not in await shown.text()
        await shown.fill(".filters input", "console-made")
        await shown.click("Add a tenant")
        await shown.sees("console-made")
        await shown.show("operators/keys%20console-made", "The tenant has no key.")
        await shown.click("Make a key")
        key = await shown.until("document.querySelector('.shown-once code')?.textContent")
        await shown.show("operators/usage", "Generated")
        await shown.show("operators/audit", "createTenantKey")
    async with Client(server.url, key) as made:
        assert [run async for run in made.runs()] == []


async def test_wrong_key_is_told_and_not_kept(server: RunningServer, tmp_path: Path) -> None:
    program = find_browser()
    assert program is not None
    async with open_tab(program, tmp_path) as tab:
        await tab.open(f"{server.url}/")
        shown = Console(tab, server.url)
        await shown.fill("#key", "sym_nobody")
        await shown.click("Open")
        await shown.sees("(401)")
        assert await tab.evaluate("sessionStorage.length") == 0
        assert await tab.evaluate("document.querySelector('#key') !== null")
