"""The view of programs: uploads by drop, permissions, versions with runs and errors, rollback."""

import base64
import json
from pathlib import Path

from symphony import AsyncClient

from tests.e2e import programs as guests
from tests.support.console import NEEDS, Console, console
from tests.support.server.server import RunningServer

pytestmark = NEEDS
# Asks for nothing, and ends with exit code 7.
PLAIN = guests.wasm(
    '(module (memory (export "memory") 1) (func (export "lip_main") (result i32) (i32.const 7)))'
)


async def drop(shown: Console, name: str, wasm: bytes) -> None:
    """Drop a file onto the view, as a browser tells it."""
    body = base64.b64encode(wasm).decode()
    await shown.until("document.querySelector('.drop') !== null")
    await shown.tab.evaluate(
        f"""(() => {{
            const bytes = Uint8Array.from(atob({json.dumps(body)}), (c) => c.charCodeAt(0));
            const dataTransfer = new DataTransfer();
            dataTransfer.items.add(new File([bytes], {json.dumps(name)}));
            document.querySelector('.drop').dispatchEvent(
                new DragEvent('drop', {{ dataTransfer, bubbles: true, cancelable: true }}));
        }})()"""
    )


async def agree(shown: Console) -> None:
    """Answer yes to what the page asks, and keep the questions."""
    await shown.tab.evaluate(
        "window.asked = []; window.confirm = (words) => { asked.push(words); return true; }; 0"
    )


async def rows(shown: Console) -> list[list[str]]:
    found: list[list[str]] = await shown.tab.evaluate(
        "[...document.querySelectorAll('tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    )
    return found


async def test_dropped_files_are_uploaded_or_refused_with_all_reasons(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("programs", "Programs", "Drop a .wasm file here")
        await drop(shown, "dropped.wasm", guests.PARROT_WASM)
        await shown.sees("is there, and dropped points at it", "wait for messages of its client")
        dropped = await client.programs.get("dropped")
        assert dropped["id"][7:19] in await shown.text()
        await drop(shown, "bad.wasm", guests.REFUSED_WASM)
        await shown.sees("path_open", "(400)")
        await shown.check("programs-refused")
        # Under another name: the same bytes.
        await shown.fill(".drop input:not([type])", "another")
        await drop(shown, "dropped.wasm", guests.PARROT_WASM)
        await shown.sees("was there already, and another points at it")
    assert (await client.programs.get("another"))["id"] == dropped["id"]


async def test_name_is_pointed_at_an_older_version_and_back(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    old = (await client.programs.upload(PLAIN, "steps"))["id"]
    new = (await client.programs.upload(guests.PARROT_WASM, "steps"))["id"]
    for _ in range(3):
        await client.run(f"steps@{old}")
    async with console(server, server.key, tmp_path) as shown:
        await agree(shown)
        await shown.show("programs", "steps", new[7:19])
        await shown.click("steps")
        await shown.sees(
            "Roll back to", old[7:19], "3 (100 %)", "wait for messages of its client (new)"
        )
        await shown.check("programs-versions")
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await shown.tab.call("Emulation.setEmulatedMedia", features=dark)
        await shown.check("programs-versions-dark")
        first, second = await rows(shown)
        assert (first[0], first[1]) == (new[7:19], "current")
        assert (second[0], second[1], second[4]) == (old[7:19], "", "3")
        await shown.click(f"Point steps at {old[7:19]}")
        await shown.sees(f"Point steps at {new[7:19]}")
        assert (await client.programs.get("steps"))["id"] == old
        await shown.click(f"Point steps at {new[7:19]}")
        await shown.click(f"Roll back to {old[7:19]}")
        await shown.sees(f"Point steps at {new[7:19]}")
        assert (await client.programs.get("steps"))["id"] == old
        await shown.click("Delete")
        await shown.until("document.querySelectorAll('tbody tr').length === 1")
        assert new[7:19] in (await shown.tab.evaluate("asked"))[-1]
    assert [each["id"] for each in await client.programs.versions("steps")] == [old]


async def test_version_is_uploaded_and_gets_another_name(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    old = (await client.programs.upload(guests.HELLO_WASM, "grows"))["id"]
    async with console(server, server.key, tmp_path) as shown:
        await agree(shown)
        await shown.show("programs/grows", "Upload a version", "Alias")
        await drop(shown, "any.wasm", guests.SPIN_WASM)
        await shown.sees("and grows points at it", "Roll back to")
        await shown.fill(".panel .filters label:first-child input:not([type])", "grows-old")
        await shown.fill(".panel .filters select", f"@{old}")
        await shown.click("Point it there")
        await shown.sees("grows-old")
        await shown.until("location.hash === '#/programs/grows-old'")
        assert (await client.programs.get("grows-old"))["id"] == old
        await shown.show("programs/grows", "Delete with all versions")
        await shown.click("Delete with all versions")
        await shown.until("location.hash === '#/programs'")
        await shown.sees("grows-old")
    names = {program["name"] async for program in client.programs.list()}
    assert "grows-old" in names
    assert "grows" not in names
