"""Formats of tool calls: what transformers renders is parsed, held, and rendered alike."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from symphony_kernel import tiny_model
from symphony_runtime.cli.projects import ProjectError, find_rust_toolchain
from symphony_runtime.gateway.openai.formats import (
    TOOL_FORMATS,
    AnswerFormat,
    ToolFormat,
    detect_format,
)
from symphony_runtime.gateway.openai.requests.json_fallback import tell_tools
from symphony_runtime.gateway.openai.requests.tools import (
    Tool,
    ToolUse,
    check_tools,
    hold_calls,
    read_tool_use,
)
from symphony_runtime.worker.text.tokenizer import ModelTokenizer
from tokenizers import Tokenizer

from tests.support.gateway.families import (
    ENDS,
    TEMPLATES,
    family_about,
    family_tokenizer,
    reference_tokenizer,
)
from tests.support.requirements import lacking
from tools.build_shipped_program import OPENAI

FAMILIES = tuple(TEMPLATES)
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TIME: dict[str, Any] = {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
DEFINITIONS = [{"type": "function", "function": function} for function in (WEATHER, TIME)]
USER = {"role": "user", "content": "Is it warm in Paris?"}
ODD = ["</tool_call>", "<think>", "]", "}", '"', "\\", "[TOOL_CALLS]", "é", "\n", "{", "name"]


def form_of(family: str) -> AnswerFormat:
    return detect_format(TEMPLATES[family], family_tokenizer(family), "auto")


def tools(*functions: dict[str, Any]) -> list[Tool]:
    return [
        check_tools(Tool, {"type": "function", "function": each}, "tools") for each in functions
    ]


def called(*calls: tuple[str, dict[str, Any]], **more: str) -> dict[str, Any]:
    made = [
        {"id": f"abcdefgh{number}", "type": "function",
         "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in enumerate(calls)
    ]  # fmt: skip
    return {"role": "assistant", "content": "", **more, "tool_calls": made}


def answer_text(tokenizer: Any, family: str, message: dict[str, Any]) -> str:
    """Return what a model writes for a message: what transformers' template makes of it."""
    asked = {"tools": DEFINITIONS, "tokenize": False}
    before = tokenizer.apply_chat_template([USER], add_generation_prompt=True, **asked)
    whole = tokenizer.apply_chat_template([USER, message], **asked)
    assert whole.startswith(before)
    assert whole.endswith(ENDS[family])
    return str(whole[len(before) : -len(ENDS[family])])


def json_value(rng: Random, depth: int = 0) -> Any:
    kind = rng.randrange(7 if depth < 3 else 5)
    if kind == 5:
        return [json_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 6:
        return {text_of(rng): json_value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return [None, True, rng.randrange(-99, 99), rng.random(), text_of(rng)][kind]


def text_of(rng: Random) -> str:
    return "".join(rng.choice([*ODD, "a", " ", "b"]) for _ in range(rng.randrange(6)))


def arguments_of(rng: Random) -> dict[str, Any]:
    return {text_of(rng): json_value(rng) for _ in range(rng.randrange(4))}


@pytest.mark.parametrize("family", FAMILIES)
def test_format_is_detected_from_the_chat_template(family: str) -> None:
    assert form_of(family).tools.name == family


def test_format_of_a_template_without_tools_is_json_unless_named() -> None:
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert detect_format(plain, {}, "auto").tools.name == "json"
    assert detect_format(None, {}, "auto").tools.name == "json"
    assert detect_format(plain, {}, "hermes").tools.name == "hermes"
    other = "{{ tools }}<tool_call><function=f></function></tool_call>"
    assert detect_format(other, {}, "auto").tools.name == "json"


def test_format_spells_the_special_tokens_among_its_markers() -> None:
    mistral = form_of("mistral")
    token = (mistral.added or {})["[TOOL_CALLS]"]
    assert mistral.spelt() == {token: "[TOOL_CALLS]"}
    assert mistral.literal("[TOOL_CALLS]") == f"<[{token}]>"
    later = form_of("mistral11")
    assert set(later.spelt().values()) == {"[TOOL_CALLS]", "[ARGS]"}
    hermes = form_of("hermes")
    assert hermes.spelt() == {}
    assert hermes.think == ("<think>", "</think>")
    assert AnswerFormat().literal("<tool_call>") == '"<tool_call>"'


@pytest.mark.parametrize("family", FAMILIES)
def test_chat_with_tools_has_the_tokens_of_transformers(family: str, tmp_path: Path) -> None:
    ours, theirs = ModelTokenizer(family_about(family)), reference_tokenizer(tmp_path, family)
    result = {"role": "tool", "content": "18", "tool_call_id": "abcdefgh0", "name": "get_weather"}
    messages = [USER, called(("get_weather", {"city": "Paris", "days": 2})), result]
    packed = msgpack.packb({"messages": messages, "tools": DEFINITIONS})
    expected = theirs.apply_chat_template(
        messages, tools=DEFINITIONS, add_generation_prompt=True, return_dict=False
    )
    assert np.frombuffer(ours.chat_with(packed), "<u4").tolist() == expected


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_rendered_calls_are_parsed_back_in_every_split(tmp_path: Path) -> None:
    try:
        toolchain = find_rust_toolchain()
    except ProjectError as error:
        lacking("rust", f"no Rust here: {error}")
    rng = Random(5)
    cases = [
        case
        for family in FAMILIES
        for case in rendered_cases(rng, family, reference_tokenizer(tmp_path, family))
    ]
    cases += [fallback_case(rng) for _ in range(20)]
    path = tmp_path / "cases.json"
    path.write_text(json.dumps(cases))
    done = subprocess.run(
        [toolchain.cargo, "test", "--quiet", "rendered_answers"],
        cwd=OPENAI.program,
        env={**(toolchain.environment or os.environ), "SYMPHONY_RENDERED": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def rendered_cases(rng: Random, family: str, tokenizer: Any) -> list[dict[str, Any]]:
    form = form_of(family)
    made = []
    for _ in range(20):
        count = 1 if family == "llama3" else rng.choice((1, 1, 2, 3))
        calls = [(rng.choice(("get_weather", "get_time")), arguments_of(rng)) for _ in range(count)]
        more = {}
        if family == "mistral11":
            more = {"content": rng.choice(("", "Let me <see>."))}
        if family == "hermes":
            more = {
                "content": rng.choice(("", "Let me <see>.")),
                "reasoning_content": rng.choice(("", "One.\n\nTwo.")),
            }
        text = answer_text(tokenizer, family, called(*calls, **more))
        made.append(parser_case(form, text, calls, more))
    return made


def fallback_case(rng: Random) -> dict[str, Any]:
    calls = [("get_weather", arguments_of(rng)) for _ in range(rng.choice((1, 2)))]
    (message,) = tell_tools([called(*calls)], [])
    return parser_case(AnswerFormat(), message["content"], calls, {})


def parser_case(
    form: AnswerFormat, text: str, calls: Sequence[tuple[str, Any]], more: dict[str, str]
) -> dict[str, Any]:
    parser = form.tools.parser(["get_weather", "get_time"], single=False)
    return {
        "format": {"calls": parser, **({"think": form.think} if form.think else {})},
        "text": text,
        "content": more.get("content", ""),
        "reasoning": more.get("reasoning_content", ""),
        "calls": [{"name": name, "arguments": arguments} for name, arguments in calls],
    }


# --- Grammars ------------------------------------------------------------------------------------
def accepts(family: str, use: ToolUse, text: str, answer: str | None = None) -> bool:
    """Return whether a text is a whole answer under the constraint of the tools."""
    return allows(form_of(family), json.dumps(family_tokenizer(family)), use, text, answer)


def allows(
    form: AnswerFormat, source: str, use: ToolUse, text: str, answer: str | None = None
) -> bool:
    job: dict[str, Any] = {}
    hold_calls(use, form, job, answer)
    kind, grammar, origin = job["constraint"]
    assert (kind, origin) == (2, "tools")
    tokenizer = LLTokenizer(source, n_vocab=4_096, eos_token=[0])
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(grammar.decode()), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = Tokenizer.from_str(source).encode(text, add_special_tokens=False).ids
    if matcher.validate_tokens(tokens) < len(tokens):
        return False
    return bool(matcher.consume_tokens(tokens) and matcher.is_accepting())


def use_of(choice: Any, *functions: dict[str, Any], parallel: bool = True) -> ToolUse:
    return read_tool_use(tools(*functions), choice, parallel=parallel)


@pytest.mark.parametrize("family", FAMILIES)
def test_grammar_of_forced_calls_accepts_what_the_family_writes(
    family: str, tmp_path: Path
) -> None:
    tokenizer = reference_tokenizer(tmp_path, family)

    def text(*calls: tuple[str, dict[str, Any]]) -> str:
        # The server makes the ids.
        return answer_text(tokenizer, family, called(*calls)).replace(', "id": "abcdefgh0"', "")

    use = use_of("required", WEATHER, TIME)
    right = text(("get_weather", {"city": "Paris", "days": 2}))
    assert accepts(family, use, right)
    assert accepts(family, use, text(("get_time", {})))
    for wrong in (text(("get_weather", {"days": 2})), text(("other", {})), "Hello", right + "x"):
        assert not accepts(family, use, wrong), wrong
    assert not accepts(family, use_of("required", TIME), right)


def test_grammar_of_one_call_accepts_no_second() -> None:
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    assert accepts("hermes", use_of("required", TIME), f"{call}\n{call}")
    single = use_of("required", TIME, parallel=False)
    assert accepts("hermes", single, call)
    assert not accepts("hermes", single, f"{call}\n{call}")


@pytest.mark.parametrize("family", FAMILIES)
def test_grammar_of_strict_tools_accepts_text_or_calls_of_the_schema(
    family: str, tmp_path: Path
) -> None:
    tokenizer = reference_tokenizer(tmp_path, family)
    use = use_of("auto", {**WEATHER, "strict": True}, TIME)
    text = answer_text(tokenizer, family, called(("get_weather", {"city": "Paris"})))
    text = text.replace(', "id": "abcdefgh0"', "")
    assert accepts(family, use, text)
    assert accepts(family, use, "It is warm: { see }.")
    assert not accepts(family, use, text.replace("city", "town"))
    if family == "hermes":
        assert accepts(family, use, f"Let me see.\n{text}")


@pytest.mark.parametrize("form", [TOOL_FORMATS[0], TOOL_FORMATS[-1]], ids=["hermes", "json"])
def test_grammar_of_markers_that_are_no_tokens_accepts_their_texts(form: ToolFormat) -> None:
    source = (tiny_model.path() / "tokenizer.json").read_text()
    call = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
    if form.begin:
        call = f"{form.begin}\n{call}\n{form.end}"
    strict = use_of("auto", {**WEATHER, "strict": True})
    for use in (strict, use_of("required", WEATHER)):
        assert allows(AnswerFormat(form), source, use, call)
        assert allows(AnswerFormat(form), source, use, f"{call}\n{call}")
        assert not allows(AnswerFormat(form), source, use, call.replace("city", "town"))
    assert allows(AnswerFormat(form), source, strict, "a <b> c")
    if form.begin:
        assert allows(AnswerFormat(form), source, strict, f"Well.\n{call}")
        assert not allows(AnswerFormat(form), source, strict, f"Well. {form.begin} x")


def test_grammar_of_a_format_and_tools_accepts_either() -> None:
    schema = '{"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}'
    use = use_of("auto", TIME)
    assert accepts("hermes", use, '{"warm": true}', schema)
    call = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
    assert accepts("hermes", use, call, schema)
    assert not accepts("hermes", use, "warm", schema)
