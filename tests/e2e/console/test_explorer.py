"""The generation explorer of real runs: their text, probabilities, forks and masks."""

import json
from pathlib import Path

import pytest
from symphony import AsyncClient, message_bytes
from symphony.client.views import RunResult

from tests.e2e.programs import HELLO_WASM, wasm
from tests.support.console import NEEDS, Console, console
from tests.support.examples import EXAMPLES, built, scenario
from tests.support.server.server import RunningServer
from tests.support.usage import used
from tests.support.worker.generating_guests import given, taker

pytestmark = NEEDS
FLOWS = (
    "[...document.querySelectorAll('.flow')].map((flow) => flow.textContent.replaceAll('⏎', ''))"
)
TOLD = "document.querySelector('.explorer .event').innerText"


async def show_run(shown: Console, run: RunResult) -> None:
    await shown.tab.evaluate(f"location.hash = '#/runs/{run['id']}'")
    await shown.sees("Generation")
    await shown.until("document.querySelector('.flow .token') !== null")


async def press(shown: Console, flow: int, *keys: str) -> str:
    """Press keys in a branch's tokens; return what the console then says about it."""
    await shown.tab.evaluate(f"document.querySelectorAll('.flow')[{flow}].focus()")
    for key in keys:
        await shown.tab.evaluate(
            f"document.activeElement.dispatchEvent(new KeyboardEvent('keydown', "
            f"{{ key: {json.dumps(key)}, bubbles: true, cancelable: true }}))"
        )
    await shown.tab.evaluate("new Promise(requestAnimationFrame)")
    told: str = await shown.tab.evaluate(TOLD)
    return told


async def test_explorer_shows_the_text_that_a_run_generated(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(built(EXAMPLES / "completion").read_bytes(), "completion")
    run = await client.run("completion", input="def f(", trace=True)
    async with console(server, server.key, tmp_path) as shown:
        await show_run(shown, run)
        (text,) = await shown.tab.evaluate(FLOWS)
        assert text.startswith("def f(")
        assert run["output"] in text
        # Tokens of the prompt are the program's; the others have probabilities.
        made = await shown.tab.evaluate("document.querySelectorAll('.flow [class*=\" p\"]').length")
        assert made == used(run)["completion_tokens"]
        await shown.sees("perplexity")
        assert "was given by the program" in await press(shown, 0, "Home")
        assert "%" in await press(shown, 0, "n")
        assert "the last one, not appended" in await press(shown, 0, "End")
        await shown.tab.evaluate("document.querySelector('.explorer').scrollIntoView()")
        await shown.check("explorer-text")


async def test_explorer_shows_forks_side_by_side_and_what_a_constraint_forbade(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(built(EXAMPLES / "json_schema").read_bytes(), "json-schema")
    run = await client.run(
        "json-schema", input=json.dumps(scenario("json_schema")["input"]), trace=True
    )
    assert run["status"] == "exited", run
    answers = [json.loads(message_bytes(message))["value"] for message in run["messages"]]
    async with console(server, server.key, tmp_path) as shown:
        await show_run(shown, run)
        prompt, *branches = await shown.tab.evaluate(FLOWS)
        assert prompt.startswith("A person of the story")
        assert await shown.tab.evaluate("document.querySelectorAll('.sides > li').length") == 4
        assert len(branches) == 4
        read = [
            json.loads(branch[branch.index("{") : branch.rindex("}") + 1]) for branch in branches
        ]
        assert all(answer in read for answer in answers)
        wide = await shown.tab.evaluate(
            "new Set([...document.querySelectorAll('.sides > li')]"
            ".map((one) => Math.round(one.getBoundingClientRect().left))).size"
        )
        assert wide == 4, "the branches stand side by side"
        told = await press(shown, 1, "End")
        assert "The constraint allowed" in told
        told = await press(shown, 1, "Home", "ArrowRight", "ArrowRight")
        assert "of the probability" in told
        assert await shown.tab.evaluate("document.querySelectorAll('.masked-much').length") > 4
        await shown.tab.evaluate("document.querySelector('.explorer').scrollIntoView()")
        await shown.check("explorer-forks")


async def test_explorer_tells_the_alternatives_that_a_program_asked_for(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(wasm(taker(given(max=12, logprobs=3), 800)), "listing")
    run = await client.run("listing", trace=True)
    assert run["status"] == "exited", run
    trace = await client.runs.trace(run["id"])
    (first, *_) = [e["args"] for e in trace["traceEvents"] if e.get("cat") == "pred"]
    assert len(first["alternatives"]) == 3
    async with console(server, server.key, tmp_path) as shown:
        await show_run(shown, run)
        told = await press(shown, 0, "Home", "ArrowRight")
        assert "Best tokens" in told
        rows = await shown.tab.evaluate(
            "[...document.querySelectorAll('.alternatives tbody tr')].map((row) => row.innerText)"
        )
        assert len(rows) == 3
        best = max(chance for _, chance in first["alternatives"])
        assert f"{100 * best:.1f} %" in rows[0] or f"{100 * best:.0f} %" in rows[0]


async def test_run_without_tokens_says_so(
    server: RunningServer, client: AsyncClient, tmp_path: Path
) -> None:
    await client.programs.upload(HELLO_WASM, "hello")
    run = await client.run("hello", trace=True)
    async with console(server, server.key, tmp_path) as shown:
        await shown.tab.evaluate(f"location.hash = '#/runs/{run['id']}'")
        await shown.sees("The trace has no tokens.")


@pytest.mark.parametrize("example", ["beam_search", "tree_of_thoughts", "speculative"])
async def test_explorer_shows_runs_of_many_forks(
    server: RunningServer, client: AsyncClient, tmp_path: Path, example: str
) -> None:
    await client.programs.upload(built(EXAMPLES / example).read_bytes(), example)
    run = await client.run(example, input=scenario(example)["input"], trace=True)
    assert run["status"] == "exited", run
    trace = await client.runs.trace(run["id"])
    preds = [
        e["args"] for e in trace["traceEvents"] if e.get("cat") == "pred" and not e["args"]["errno"]
    ]
    files = {pred["file"] for pred in preds if pred.get("kept", True)}
    async with console(server, server.key, tmp_path) as shown:
        await show_run(shown, run)
        facts = await shown.tab.evaluate(
            "[...document.querySelectorAll('.branches .hint')].map((one) => one.textContent)"
        )
        told = {
            int(fact.split()[1].strip(":,")) for fact in facts if not fact.endswith("continues")
        }
        assert told == files
        await shown.tab.evaluate("document.querySelector('.explorer').scrollIntoView()")
        await shown.check(f"explorer-{example}")
