"""Make docs/reference/openai-fields.md from what a server does with each field.

    symphony serve                                  # with the tiny model
    python -m tools.openai_fields_page --key KEY > docs/reference/openai-fields.md

The fields are those of the types of the `openai` package, then those that only this server has.
Each is sent with the values below, and the answer is compared with the answer without the field. A
field without a value here is sent as an object, which a server that does not know it refuses.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import aiohttp
from openai.types import completion_create_params as completions
from openai.types import embedding_create_params as embeddings
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses
from symphony_runtime.gateway.openai.requests import bodies
from symphony_runtime.gateway.openai.requests.tasks import EmbeddingBody

Ask = Callable[[str, dict[str, Any]], Awaitable[tuple[int, str]]]  # path, body -> status, answer
Page = Callable[[Ask], Awaitable[str]]
EFFECT, NOTHING, REFUSED = "with effect", "without effect", "refused"
_HEAD = """# Fields of the OpenAI routes

What the server does with each field of a request. `python -m tools.openai_fields_page` made this
page by asking a server with the tiny model; a test in the suite makes it again. The first fields of
each route are those of the types of the `openai` package, version {version}. *Only here* are fields
that those types do not have.

| word | what a request with the field gets |
| --- | --- |
| required | 400 without it |
| with effect | an answer that differs; a response repeats some fields |
| without effect | the same answer: the field is accepted so that clients need no change |
| refused | an error that names the field, because its effect would be missing |

Where values differ, each is named. A field that is null counts as left out. A field that stands in
no table is refused by name. `suffix` has an effect with a model whose tokenizer has
fill-in-the-middle tokens; the tiny model has none.
"""
_SEEDED = {"temperature": 1.5, "seed": 1}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
_LONG = {"max_tokens": 24}
_ENDS = {"logit_bias": {"0": 100}}  # the model's end of text
_FIXED = {"logit_bias": {"300": 100}}


@dataclass(frozen=True)
class Probe:
    """A value to send, and the fields that it is sent with."""

    value: Any
    others: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Route:
    """A route, the types of its requests in the package and here, and a usual request."""

    path: str
    types: tuple[Any, ...]
    body: type[Any]
    request: dict[str, Any]
    probes: dict[str, list[Probe]]

    def fields(self) -> Iterator[tuple[str, bool]]:
        """Yield the fields, and whether the package's types have them."""
        theirs = [name for each in self.types for name in each.__annotations__]
        yield from ((name, True) for name in dict.fromkeys(theirs))
        yield from ((name, False) for name in self.body.model_fields if name not in theirs)


def _values(*values: Any) -> list[Probe]:
    return [Probe(value) for value in values]


def _with(value: Any, **others: Any) -> list[Probe]:
    return [Probe(value, others)]


_GENERATION: dict[str, list[Probe]] = {
    "frequency_penalty": _with(2, **_LONG),
    "presence_penalty": _with(2, **_LONG),
    "repetition_penalty": _with(1.5, **_LONG),
    "logit_bias": _values({"300": 100}),
    "max_tokens": _values(3),
    "max_completion_tokens": _values(3),
    "n": _values(2),
    "seed": [Probe(2, _SEEDED)],
    "stop": _values(" "),
    "stream": _values(True),
    "stream_options": _with({"include_usage": True}, stream=True, max_tokens=1),
    "temperature": _with(1.5, seed=1),
    "top_p": [Probe(0.1, _SEEDED)],
    "top_k": [Probe(1, _SEEDED)],
    "min_p": [Probe(0.99, _SEEDED)],
    "min_tokens": [Probe(3, _ENDS)],
    "ignore_eos": [Probe(True, _ENDS)],
    "stop_token_ids": [Probe([300], _FIXED)],
    "guided_json": _values({"type": "object"}),
    "guided_regex": _values("[0-9]+"),
    "guided_grammar": _values('start: "a" "b"'),
    "guided_choice": _values(["a", "b"]),
    "tools": _values([], [_TOOL]),
    "tool_choice": _values("none", "auto", "required"),
    "functions": _values([], [_TOOL["function"]]),
    "function_call": _values("none", "auto", {"name": "f"}),
    "parallel_tool_calls": _values(False),
    "response_format": _values({"type": "text"}, {"type": "json_object"}),
    "user": _values("u"),
    "metadata": _values({"a": "b"}),
    "prediction": _values({"type": "content", "content": "x"}),
    "prompt_cache_key": _values("k"),
    "prompt_cache_options": _values({}),
    "prompt_cache_retention": _values("24h"),
    "reasoning_effort": _values("low"),
    "safety_identifier": _values("s"),
    "service_tier": _values("auto"),
    "store": _values(False, True),
    "verbosity": _values("low"),
}
_CHAT: dict[str, list[Probe]] = {
    **_GENERATION,
    "logprobs": _values(True),
    "prompt_logprobs": _values(1),
    "top_logprobs": _with(2, logprobs=True),
    "modalities": _values(["text"], ["text", "audio"]),
}
_COMPLETIONS: dict[str, list[Probe]] = {
    **_GENERATION,
    "best_of": [Probe(2, _SEEDED)],
    "echo": _values(True),
    "logprobs": _values(2),
    "prompt_logprobs": _values(1),
    "suffix": _values("", "x"),
    "add_special_tokens": _values(False),
    "return_token_ids": _values(True),
}
_RESPONSES: dict[str, list[Probe]] = {
    **_GENERATION,
    "n": _values(1, 2),
    "background": _values(False, True),
    "include": _values(
        [], ["reasoning.encrypted_content"], ["message.output_text.logprobs"], ["other"]
    ),
    "instructions": _values("Code"),
    "max_output_tokens": _values(3),
    "max_tokens": _with(3, max_output_tokens=None),
    "max_tool_calls": _values(1),
    "conversation": _values("conv_1"),
    "previous_response_id": _values(f"resp_{'0' * 24}"),
    "reasoning": _values({}, {"effort": "low"}),
    "stream_options": _with({"include_obfuscation": False}, stream=True, max_output_tokens=1),
    "text": _values({"format": {"type": "text"}}, {"format": {"type": "json_object"}}),
    "top_logprobs": _values(2),
    "truncation": _values("disabled", "auto"),
    "frequency_penalty": _with(2, max_output_tokens=24),
    "presence_penalty": _with(2, max_output_tokens=24),
    "repetition_penalty": _with(1.5, max_output_tokens=24),
}
_EMBEDDINGS = {
    "dimensions": _values(256, 7),
    "encoding_format": _values("float", "base64"),
    "pooling": _values("last", "mean"),
    "add_special_tokens": _values(False),
    "user": _values("u"),
}
_TEXT = "import os\n\n\ndef read_lines(path):\n    "
_USUAL = {"model": "tiny", "temperature": 0}
ROUTES = (
    Route(
        "/v1/completions",
        (completions.CompletionCreateParamsBase, completions.CompletionCreateParamsStreaming),
        bodies.CompletionBody,
        {**_USUAL, "prompt": _TEXT, "max_tokens": 8},
        _COMPLETIONS,
    ),
    Route(
        "/v1/chat/completions",
        (chat.CompletionCreateParamsBase, chat.CompletionCreateParamsStreaming),
        bodies.ChatBody,
        {**_USUAL, "messages": [{"role": "user", "content": "read a file"}], "max_tokens": 8},
        _CHAT,
    ),
    Route(
        "/v1/responses",
        (responses.ResponseCreateParamsBase, responses.ResponseCreateParamsStreaming),
        bodies.ResponseBody,
        {**_USUAL, "input": "read a file", "max_output_tokens": 8},
        _RESPONSES,
    ),
    Route(
        "/v1/embeddings",
        (embeddings.EmbeddingCreateParams,),
        EmbeddingBody,
        {"model": "tiny", "input": _TEXT},
        _EMBEDDINGS,
    ),
)
_ANY = [Probe({"any": "thing"})]
# What answers to equal requests differ in.
_IDS = re.compile(
    r'"(?:cmpl|chatcmpl|resp|msg|embd|toolu)[-_]\w+"|"created(?:_at)?":\d+'
    r'|"input_tokens":\d+,"cache_creation_input_tokens":\d+,"cache_read_input_tokens":\d+'
)


# --- What a server does --------------------------------------------------------------------------
async def found(ask: Ask, route: Route, name: str) -> str:
    """Return what the server does with a field, in the page's words."""
    if name in route.request and name not in route.probes:
        without = {key: value for key, value in route.request.items() if key != name}
        status, _ = await ask(route.path, without)
        return "required" if status == 400 else "optional"
    probes = route.probes.get(name, _ANY)
    words = [(each, await _outcome(ask, route, name, each)) for each in probes]
    kinds = list(dict.fromkeys(word for _, word in words))
    if len(kinds) == 1:
        return kinds[0]
    return "; ".join(
        f"{kind}: "
        + ", ".join(f"`{json.dumps(each.value)}`" for each, word in words if word == kind)
        for kind in kinds
    )


async def _outcome(ask: Ask, route: Route, name: str, probe: Probe) -> str:
    usual = {**route.request, **probe.others}
    status, answer = await ask(route.path, {**usual, name: probe.value})
    if status in (400, 404):
        error = json.loads(answer)["error"]
        # Anthropic's shape has no `param`: its message says all.
        named = error["param"] == name if "param" in error else name in error["message"]
        if not named and f"`{name}`" not in error["message"]:
            raise AssertionError(f"{route.path}: the refusal of {name} does not name it: {answer}")
        return REFUSED if status == 400 else EFFECT  # 404: what it names was looked up
    before, without = await ask(route.path, usual)
    if (status, before) != (200, 200):
        raise AssertionError(f"{route.path} with {name}: {status} {answer}, {before} {without}")
    return EFFECT if _IDS.sub("", answer) != _IDS.sub("", without) else NOTHING


async def fields_page(ask: Ask) -> str:
    """Return the page."""
    parts = [_HEAD.format(version=version("openai"))]
    parts += [await fields_table(ask, route) for route in ROUTES]
    return "".join([*parts, _others()])


async def fields_table(ask: Ask, route: Route) -> str:
    """Return the part of a page about one route."""
    lines = [f"\n## `{route.path}`\n\n| field | |\n| --- | --- |\n"]
    for name, theirs in route.fields():
        words = await found(ask, route, name)
        lines.append(f"| `{name}`{'' if theirs else ' (*only here*)'} | {words} |\n")
    return "".join(lines)


def _others() -> str:
    """Return the part about fields that stand in no type of the package, or not on every route."""
    ignored = ", ".join(f"`{name}`" for name in sorted(bodies.IGNORED))
    neutral = "".join(
        f"| `{name}` | {', '.join(f'`{json.dumps(value)}`' for value in values)} |\n"
        for name, values in sorted(bodies.NEUTRAL.items())
    )
    return f"""
## On every route

Without effect with any value, where the tables above do not say more: {ignored}.

Without effect with these values, and refused with others, where the tables above do not say more:

| field | values |
| --- | --- |
{neutral}"""


async def ask_server(session: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, str]:
    """Return the status and the text of a server's answer."""
    async with session.post(path, json=body) as response:
        return response.status, await response.text()


async def _page_of(page: Page, url: str, key: str) -> str:
    headers = {"Authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(url, headers=headers) as session:
        return await page(lambda path, body: ask_server(session, path, body))


def main(page: Page, doc: str) -> int:
    """Print the page that a server's answers make."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8700")
    parser.add_argument("--key", required=True)
    options = parser.parse_args()
    sys.stdout.write(asyncio.run(_page_of(page, options.url, options.key)))
    return 0


if __name__ == "__main__":
    sys.exit(main(fields_page, __doc__))
