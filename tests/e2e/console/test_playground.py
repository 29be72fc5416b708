"""The playground: forms from schemas, versions side by side, requests as code; the chat."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from symphony import AsyncClient
from symphony_runtime.cli.projects import put_manifest

from tests.e2e import programs as guests
from tests.support.console import NEEDS, Console, console
from tests.support.server.server import RunningServer
from tests.support.worker.guests import call, data, drop, main

pytestmark = NEEDS
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string", "minLength": 1, "description": "what it begins with"},
        "n": {"type": "integer", "minimum": 1, "maximum": 8, "default": 4},
        "warmth": {"type": "number"},
        "kind": {"enum": ["short", "long", 3]},
        "loud": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/$defs/place"},
        "free": {"anyOf": [{"type": "string"}, {"type": "array"}]},
        "left": {"type": "string"},
    },
    "required": ["prompt", "kind", "place"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "far": {"type": "integer"}},
            "required": ["city"],
        }
    },
}


def echo(code: int) -> bytes:
    """Return a program that sends its input, and ends with a code."""
    sent = drop("send", 100, call("input_read", 100, 60_000))
    return guests.wasm(main(f"{sent} (i32.const {code})"))


def described(tmp_path: Path, wasm: bytes, **manifest: Any) -> bytes:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(manifest))
    return put_manifest(wasm, path)


async def fill(shown: Console, label: str, value: str) -> None:
    """Type into the field with this label, or choose there."""
    await shown.until(
        f"""(() => {{
            const label = [...document.querySelectorAll('label')]
                .find((each) => each.textContent.trim().startsWith({json.dumps(label)}));
            const field = label?.control;
            if (!field) return false;
            if (field.type === 'checkbox') field.click();
            else {{
                field.value = {json.dumps(value)};
                for (const kind of ['input', 'change'])
                    field.dispatchEvent(new Event(kind, {{ bubbles: true }}));
            }}
            return true;
        }})()"""
    )


async def test_form_from_a_schema_makes_the_input(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    wasm = described(tmp_path, echo(0), description="Says it again.", input_schema=SCHEMA)
    await client.programs.upload(wasm, "formed")
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("playground/formed", "Says it again.", "what it begins with", "place")
        await fill(shown, "prompt", "once")
        assert await shown.until(
            "[...document.querySelectorAll('input')].some((i) => i.value === '4')"
        )
        await fill(shown, "warmth", "0.5")
        await shown.click("Run")  # the browser itself refuses: kind and place.city are missing
        await asyncio.sleep(0.5)
        assert "exited" not in await shown.text()
        await fill(shown, "kind", "2")
        await fill(shown, "loud", "")
        for at, tag in enumerate(("a", "b", "c")):
            await shown.click("Add to tags")
            await fill(shown, f"tags {at + 1}", tag)
        await shown.tab.evaluate("document.querySelector('[aria-label=\"Remove tags 2\"]').click()")
        await fill(shown, "city", "Ulm")
        await fill(shown, "free", "[1,")
        await shown.click("Run")
        await asyncio.sleep(0.5)
        assert "exited" not in await shown.text(), "[1, is no JSON"
        await fill(shown, "free", "[1, 2]")
        await shown.click("Run")
        await shown.sees("exited", "the run")
        await shown.check("playground-form")
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await shown.tab.call("Emulation.setEmulatedMedia", features=dark)
        await shown.tab.evaluate("document.querySelector('dl.value').scrollIntoView()")
        await shown.check("playground-dark")
        wanted = {
            "prompt": "once", "n": 4, "warmth": 0.5, "kind": 3, "loud": True, "tags": ["a", "c"],
            "place": {"city": "Ulm"}, "free": [1, 2],
        }  # fmt: skip
        shown_fields = await shown.tab.evaluate(
            "[...document.querySelectorAll('dl.value dt')].map((each) => each.textContent)"
        )
        assert set(shown_fields) == {*wanted, "city"}, "JSON is shown by its fields"
        (newest, *_) = [run async for run in client.runs.list()]
        assert json.loads((await client.runs.get(newest["id"]))["output"]) == wanted
        # As JSON text: the same value, and what is no JSON is not sent.
        await fill(shown, "as JSON", "")
        text = await shown.until("document.querySelector('form textarea').value")
        assert json.loads(text) == wanted
        await shown.fill("form textarea", '{"prompt": "twice", "kind": "no", "place": {}}')
        await shown.click("Run")
        await shown.sees("`input/kind` must be one of 3 values", "(400)")


async def test_two_versions_run_side_by_side_on_one_input(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    old = (await client.programs.upload(echo(0), "pair"))["id"]
    await client.programs.upload(echo(3), "pair")
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("programs/pair", "Compare")
        await shown.click("Compare")
        await shown.sees("First", "Second", "the same input for both")
        await fill(shown, "Input: a text, or JSON", "both of us")
        await shown.click("Run both")
        await shown.until("document.body.innerText.split('exited').length === 3")
        await shown.check("playground-two")
        found = "[...document.querySelectorAll('[aria-label^=\"output of\"]')]"
        outputs = await shown.tab.evaluate(f"{found}.map((each) => each.textContent)")
        assert outputs == ["both of us", "both of us"]
    ended = [run async for run in client.runs.list()][:2]
    assert {run["exit_code"] for run in ended} == {0, 3}
    assert old in {run["program"] for run in ended}


async def test_copied_requests_do_the_same_elsewhere(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(echo(0), "copied")
    words = 'it\'s "quoted" \\ $HOME häh'
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("playground/copied", "Input: a text, or JSON")
        await fill(shown, "Input: a text, or JSON", words)
        await shown.tab.evaluate("document.querySelector('form details').open = true")
        await shown.check("playground-code")
        texts = {
            name: await shown.until(
                f"document.querySelector('[aria-label=\"Run as {name}\"]').textContent"
            )
            for name in ("curl", "Python", "symphony run")
        }
    python = tmp_path / "copied.py"
    python.write_text(texts["Python"])
    environment = {**os.environ, **server.environment, "SYMPHONY_KEY": server.key}
    for command in (texts["curl"], f"python3 {python}"):
        process = await asyncio.create_subprocess_shell(
            command, env=environment, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        lines = [line for line in said.decode().splitlines() if line.startswith("data: ")]
        messages = [json.loads(line.removeprefix("data: ")).get("message") for line in lines]
        assert words in messages, command
    arguments = await asyncio.create_subprocess_shell(
        texts["symphony run"].replace("symphony ", "printf '%s\\n' ", 1),
        env=environment, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await arguments.communicate()
    ran = server.symphony(*said.decode().splitlines())
    assert (ran.returncode, ran.stdout) == (0, words)


async def test_chat_keeps_its_branches_and_continues_from_any(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    cards = "[...document.querySelectorAll('.card')]"
    idle = f"!{cards}.some((card) => card.textContent.includes('streaming'))"
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("chat", "Answers at once", "Model or program")
        await shown.until("document.querySelector('[list=models]').value !== ''")
        await fill(shown, "Tokens at most", "12")
        await fill(shown, "Message", "write a function")
        await shown.click("Send")
        await shown.until(f"{cards}.length === 3 && {idle}")
        texts = await shown.tab.evaluate(
            f"{cards}.map((card) => card.querySelector('pre').textContent)"
        )
        assert texts[0] == "write a function"
        assert all(texts)
        assert texts[1] != texts[2], "two answers, of two seeds"
        # From the second answer; the first stays in view.
        await shown.click("Continue from here")
        await shown.until(f"{cards}[2].classList.contains('chosen')")
        await fill(shown, "Message", "go on")
        await shown.click("Send")
        await shown.until(f"{cards}.length === 6 && {idle}")
        await shown.check("chat-branches")
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        await shown.tab.call("Emulation.setEmulatedMedia", features=dark)
        await shown.check("chat-dark")
        await shown.tab.call("Emulation.setEmulatedMedia", features=[])
        body = json.loads(next(
            each["request"]["postData"]
            for each in reversed(shown.tab.of("Network.requestWillBeSent"))
            if each["request"]["url"].endswith("chat/completions")
        ))  # fmt: skip
        assert [message["content"] for message in body["messages"]] == [
            "write a function", texts[2], "go on",
        ]  # fmt: skip
        # Another view, and back.
        await shown.show("runs", "Runs")
        await shown.tab.evaluate("location.hash = '#/chat'")
        await shown.until(f"{cards}.length === 6")
        # From the first, which has no branch yet: the others are behind their answer.
        await shown.click("Continue from here")
        await shown.until(f"{cards}.length === 3 && {cards}[1].classList.contains('chosen')")
        await shown.sees("answer, continued")
        await shown.click("More answers")
        await shown.until(f"{cards}.length === 5 && {idle}")


async def test_chat_shows_why_a_program_refuses(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    said = b"plain words"
    await client.programs.upload(
        guests.wasm(main(f"{drop('send', 8, len(said))} (i32.const 0)", data(8, said))), "talker"
    )
    async with console(server, server.key, tmp_path) as shown:
        await shown.show("chat", "Answers at once")
        await fill(shown, "Model or program", "no-such-program")
        await fill(shown, "Message", "x")
        await shown.click("Send")
        await shown.sees("no-such-program", "(404)")
        await fill(shown, "Model or program", "talker")
        await shown.click("More answers")
        await shown.sees("this program gives one answer")
        await fill(shown, "Answers at once", "1")
        await shown.click("More answers")
        await shown.sees("plain words")
