"""The view of KV files in a real browser: names, pages with their sharers, tokens, prefixes."""

import json
from pathlib import Path
from typing import Any

from symphony import AsyncClient

from tests.runtime.gateway.kv.test_files import bare
from tests.support.console import NEEDS, Console, console
from tests.support.kv_files import MATCH_WASM, SHARE_WASM, TEXT
from tests.support.server.server import RunningServer

pytestmark = NEEDS

STRIP = "document.querySelector('canvas.strip')"
FACTS = "document.querySelector('.facts').textContent"
# How many different colours a strip has, transparent ones aside.
COLOURS = """(() => {
  const strip = document.querySelector('canvas.strip');
  const { data } = strip.getContext('2d').getImageData(0, 0, strip.width, strip.height);
  const found = new Set();
  for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) {
    found.add(`${data[at]} ${data[at + 1]} ${data[at + 2]}`);
  }
  return found.size;
})()"""


async def share(client: AsyncClient, title: str) -> None:
    """Let a program share files of a text that begins with a title: the server is the module's."""
    await client.programs.upload(SHARE_WASM, "share")
    await client.programs.upload(MATCH_WASM, "match")
    whole = f"# {title}\n{TEXT}"
    for program, text in (("share", whole), ("match", whole), ("match", whole[:100])):
        assert (await client.run(program, input=text))["exit_code"] == 0


async def press(shown: Console, key: str) -> None:
    event = f"new KeyboardEvent('keydown', {{ key: '{key}', bubbles: true }})"
    await shown.tab.evaluate(f"{STRIP}.dispatchEvent({event})")


async def value_of(shown: Console, words: str) -> None:
    await shown.until(f"{STRIP}.getAttribute('aria-valuetext').startsWith({json.dumps(words)})")


async def test_names_are_a_tree_beside_the_prefixes(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await share(client, "names")
    await client.kv.upload("deep/er/file", bare(3), rebuild=True, keep_ms=60_000)
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("files", "talk/", "second", "deep/", "er/", "until", "Cached prefixes",
                         "2 hits", "# names def add(first")  # fmt: skip
        assert await shown.until("document.querySelectorAll('.prefix').length >= 2")
        await shown.fill("#prefix", "talk/")
        await shown.until("!document.body.innerText.includes('deep/')")
        await shown.sees("2 names")
        await shown.fill("#prefix", "nothing")
        await shown.sees("No program has named such a KV file yet.")


async def test_pages_tokens_and_sharers_of_a_file_are_shown(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await share(client, "pages")
    length = (await client.kv.stat("talk/first"))["len"]
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("files/talk%2Ffirst", f"{length} tokens in", "on the device", "Tokens",
                         "def add(first, second)", "It does not expire")  # fmt: skip
        assert await shown.until(f"{STRIP}.width > 0")
        await value_of(shown, "page 0: tokens 0 to 15, on the device, shared with talk/second")
        assert await shown.tab.evaluate(COLOURS) > 2
        await press(shown, "ArrowRight")
        await value_of(shown, "page 1: tokens 16 to 31")
        await shown.until(f"{FACTS}.includes('shared with cut, talk/second, the prefix cache')")
        await shown.until("document.querySelectorAll('.tokens .chosen').length === 16")
        await press(shown, "End")
        await value_of(shown, f"page {length // 16}: tokens {length // 16 * 16}")
        await shown.until(f"{FACTS}.includes('not shared')")
        await shown.tab.evaluate("document.querySelector('details summary').click()")
        await shown.check("files-table")
        await press(shown, "Home")
        await shown.until(f"{FACTS}.includes('talk/second')")
        await shown.click("talk/second")
        await shown.sees("talk/second", "talk/first")
        await shown.show("files/cut", "24 tokens in", "Lineage", f"24 of the {length} tokens")


async def test_pages_of_a_file_on_disk_come_with_their_text(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.kv.upload("disk/file", bare(2_000), rebuild=True)
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("files/disk%2Ffile", "2,000 tokens in 125 pages", "on disk: 125",
                         "Tokens 0 to 511 of 2,000")  # fmt: skip
        await shown.click("Later")
        await shown.sees("Tokens 512 to 1,023 of 2,000")
        await press(shown, "End")
        await shown.sees("Tokens 1,536 to 1,999 of 2,000")
        await value_of(shown, "page 124: tokens 1,984 to 1,999, on disk, not shared")
        await shown.tab.evaluate("window.confirm = () => true")
        await shown.click("Remove")
        await shown.sees("KV files", "Upload")
    assert "disk/file" not in [file["path"] async for file in client.kv.list()]


async def test_views_in_the_dark_pass_the_same_checks(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await share(client, "dark")
    async with console(server, server.key, tmp_path) as shown:
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await shown.tab.call("Emulation.setEmulatedMedia", features=dark)
        await shown.show("files", "Cached prefixes", "2 hits")
        await shown.check("files-dark")
        await shown.show("files/talk%2Ffirst", "on the device", "def add(first, second)")
        await shown.check("file-dark")


async def test_strip_of_thousands_of_pages_is_drawn_fast(
    server: RunningServer, tmp_path: Path
) -> None:
    """The answer of a long file, which the tiny model's context does not allow, is made up here."""
    runs: list[dict[str, Any]] = [
        {"first": first, "pages": 1, "tier": ("device", "host", "disk", "tokens")[first % 4],
         "holders": first % 3, "cached": first % 5 == 0, "files": []}
        for first in range(8_192)
    ]  # fmt: skip
    answer = {
        "path": "long", "len": 8_192 * 16, "pages": 8_192, "tier": "tokens", "durable": False,
        "public": False, "expires_ms": 0, "shared": 0, "tiers": {}, "disk_bytes": 0,
        "page_tokens": 16, "recomputable": True, "lineage": None, "data": runs, "next": None,
        "complete": True,
    }  # fmt: skip
    async with console(server, server.key, tmp_path) as shown:
        await shown.tab.evaluate(
            "(() => { const ask = window.fetch; window.fetch = (path, options) =>"
            " String(path).includes('kv-pages/long')"
            f" ? Promise.resolve(new Response({json.dumps(json.dumps(answer))}))"
            " : ask(path, options); })()"
        )
        await shown.tab.evaluate("location.hash = '#/files/long'")
        await shown.until(f"{STRIP} && {STRIP}.width > 0")
        await shown.check("files-long")
        took = await shown.tab.evaluate(
            f"""(async () => {{
              const strip = {STRIP}, box = strip.getBoundingClientRect();
              const frame = () => new Promise((done) => requestAnimationFrame(done));
              const began = performance.now();
              for (let at = 0; at < 20; at += 1) {{
                strip.dispatchEvent(new PointerEvent('pointermove',
                  {{ clientX: box.left + 20 * at, clientY: box.top + 20, bubbles: true }}));
                await frame();
              }}
              return (performance.now() - began) / 20;
            }})()"""
        )
        print(f"{took:.1f} ms for each move")
        assert took < 200
