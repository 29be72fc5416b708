"""JavaScript over real processes: promises, errors, children; the examples equal the Rust ones."""

import asyncio
import json
from typing import Any

import pytest
from symphony import ServerError, message_bytes
from symphony.client.views import RunResult

from tests.support.examples import EXAMPLES, answers, play_scenario, scenario, wait_until_ended
from tests.support.server.server import RunningServer
from tests.support.usage import used

SOURCES = EXAMPLES / "javascript"
RUST = {
    "parallel_suffixes": "parallel_suffixes/rust",
    "react": "react/rust",
    "tree_of_thoughts": "tree_of_thoughts",
    "rag": "rag/rust",
}


INSTANCE_BYTES_MAX = 3 << 20


def play(server: RunningServer, source: str, given: object = "") -> RunResult:
    """Upload a source and run it."""

    async def main() -> RunResult:
        async with server.client() as client:
            made = await client.programs.upload(source.encode(), None, "text/javascript")
            return await client.run(made["id"], given)

    return asyncio.run(main())


def play_source(server: RunningServer, name: str) -> RunResult:
    """Upload a source and play its scenario; all pages and names must come back."""

    async def main() -> RunResult:
        given = scenario(RUST[name])
        before = await server.wait_until_idle()
        async with server.client() as client:
            source = (SOURCES / f"{name}.js").read_bytes()
            await client.programs.upload(source, f"js-{name}", "text/javascript")
            run = await client.start(f"js-{name}", input=given["input"])
            for message in given.get("messages", []):
                await client.runs.send(run, message.encode())
            if "messages" in given:
                await client.runs.send(run, b"", close=True)
            await wait_until_ended(server, client, run)
            result = await client.runs.get(run)
        after = await server.wait_until_idle()
        assert (after["pages_free"], after["names"]) == (before["pages_free"], before["names"])
        return result

    return asyncio.run(main())


def rounded(value: Any) -> Any:
    """Return a message with its decimals as both languages print them."""
    return json.loads(json.dumps(value), parse_float=lambda text: round(float(text), 3))


@pytest.mark.parametrize("name", sorted(RUST))
def test_javascript_example_says_what_the_rust_one_says(server: RunningServer, name: str) -> None:
    expected, _ = play_scenario(server, RUST[name])
    result = play_source(server, name)
    key = "id" if name == "rag" else "suffix"
    found = [
        sorted(map(rounded, answers(each)), key=lambda said: said.get(key, 0))
        for each in (result, expected)
    ]
    assert found[0] == found[1]
    assert all(message_bytes(message) for message in result["messages"])


def test_script_awaits_branches_side_by_side(server: RunningServer) -> None:
    source = """import { KvFile, sleep, send } from "symphony";
    export default async (input) => {
      const file = KvFile.create();
      await file.prefill([1, 2, 3]);
      const ways = await Promise.all([4, 5, 6].map(async (token) => {
        const fork = file.fork();
        const { token: next } = await fork.pred([token]);
        const rest = await fork.stream([next], { maxTokens: 2, exact: true }).rest();
        return [fork.length(), rest.length];
      }));
      await Promise.all([sleep(3), sleep(1)]);
      return { ...input, ways };
    }"""
    run = play(server, source, {"a": 1})
    assert json.loads(run["output"]) == {"a": 1, "ways": [[6, 2]] * 3}
    assert used(run)["peak_memory_bytes"] < INSTANCE_BYTES_MAX


def test_mistakes_are_told_with_their_place(server: RunningServer) -> None:
    for source, problem in {
        "let x = ;": "line 1, column 9: unexpected token in expression: ';'",
        "\n  const é = 'a;\n": "line 2, column 13: unexpected end of string",
        'import { nope } from "symphony"':
            "line 1, column 1: Could not find export 'nope' in module 'symphony'",
    }.items():  # fmt: skip
        with pytest.raises(ServerError) as refused:
            play(server, source)
        assert refused.value.problem["problems"] == [problem]
    run = play(server, "const f = () => null.x;\nexport default () => {\n  f();\n}")
    assert run["status"] == "trapped"
    assert run["reason"].splitlines() == [
        "failed: TypeError: cannot read property 'x' of null",
        "    at f (program.js:1)",
        "    at default (program.js:3)",
    ]


def test_errors_of_calls_have_the_errnos_names(server: RunningServer) -> None:
    source = """import { KvFile } from "symphony"; export default async () => {
      try { KvFile.open("none") } catch ({ name, errno, call, message }) {
        return [name, errno, call, message]
      }
    }"""
    run = play(server, source)
    assert json.loads(run["output"]) == ["ENOENT", 2, "kv_open", "kv_open failed"]


def test_child_runs_the_same_source(server: RunningServer) -> None:
    source = """import { spawn } from "symphony"; export default async (input) => {
      if (input.child) return "child of " + input.child;
      const child = await spawn({ input: { child: "me" } });
      return (await child.join()).text;
    }"""
    assert (play(server, source))["output"] == "child of me"


def test_numbers_are_printed_as_the_standard_says(server: RunningServer) -> None:
    source = """export default () => [2.5.toFixed(0), 1.25.toFixed(1), 1.005.toFixed(2),
      (-2.5).toFixed(0), 9.5.toFixed(0), 0.1 + 0.2, 1.45.toPrecision(2),
      123456..toExponential(2)]"""
    expected = ["3", "1.3", "1.00", "-3", "10", 0.1 + 0.2, "1.4", "1.23e+5"]
    assert json.loads((play(server, source))["output"]) == expected


def test_seeds_differ_from_run_to_run(server: RunningServer) -> None:
    source = "export default () => [Math.random(), Math.random()]"
    assert play(server, source)["output"] != play(server, source)["output"]
