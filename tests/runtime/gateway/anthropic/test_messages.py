"""Dialogues in Anthropic's blocks become messages of a chat, and its tools functions."""

from typing import Any

import pytest
from symphony_runtime.gateway.anthropic.bodies import Choice
from symphony_runtime.gateway.anthropic.messages import read_choice, read_dialogue, read_tools
from symphony_runtime.gateway.openai.errors import OpenAIError

USER = {"role": "user", "content": "q"}
USE = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
SPOKEN = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I ", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "look"},
        USE,
    ],
}
SCHEMA = {"type": "object", "properties": {}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def result(content: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **fields}


def test_system_is_the_first_message_without_a_clients_billing_line() -> None:
    assert read_dialogue("Code", [USER])[0] == {"role": "system", "content": "Code"}
    blocks = [text("x-anthropic-billing-header: cch=1"), text("Be short."), text("Code")]
    assert read_dialogue(blocks, [USER])[0]["content"] == "Be short.\nCode"
    for nothing in (None, "", [], blocks[:1]):
        assert read_dialogue(nothing, [USER]) == [USER]


def test_assistants_blocks_are_one_message_with_reasoning_and_calls() -> None:
    call = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert read_dialogue(None, [USER, SPOKEN])[1] == {
        "role": "assistant",
        "content": "I look",
        "reasoning_content": "hm",
        "tool_calls": [call],
    }


def test_results_of_tools_are_messages_between_the_users_texts() -> None:
    answered = {"role": "user", "content": [text("a"), text("b"), result("18"), text("c")]}
    read = read_dialogue(None, [USER, SPOKEN, answered])
    told = {"role": "tool", "content": "18", "tool_call_id": "toolu_1", "name": "f"}
    assert read[2:] == [{"role": "user", "content": "a\nb"}, told, {"role": "user", "content": "c"}]


@pytest.mark.parametrize(
    ("block", "content"),
    [
        (result([text("1"), text("2")]), "1\n2"),
        (result(None), ""),
        (result("no file", is_error=True), "Error: no file"),
        (result("file", is_error=False), "file"),
    ],
)
def test_result_of_a_tool_is_text(block: dict[str, Any], content: str) -> None:
    read = read_dialogue(None, [USER, SPOKEN, {"role": "user", "content": [block]}])
    assert read[2]["content"] == content


def test_turns_of_a_role_in_a_row_are_one() -> None:
    said = {"role": "assistant", "content": "A."}
    read = read_dialogue(None, [USER, USER, said, SPOKEN])
    assert [(each["role"], each["content"]) for each in read] == [
        ("user", "q\nq"), ("assistant", "A.\nI look"),
    ]  # fmt: skip
    assert (read[1]["reasoning_content"], len(read[1]["tool_calls"])) == ("hm", 1)


def test_system_between_turns_is_a_reminder_in_the_users() -> None:
    told = {"role": "system", "content": [text("s")]}
    read = read_dialogue("Code", [told, USER, told, USER])
    reminder = "<system-reminder>\ns\n</system-reminder>"
    assert [(each["role"], each["content"]) for each in read] == [
        ("system", "Code\ns"), ("user", f"q\n{reminder}\nq"),
    ]  # fmt: skip
    assert told == {"role": "system", "content": [text("s")]}


def test_request_is_left_alone() -> None:
    read_dialogue(None, [USER, USER, SPOKEN, SPOKEN])
    assert USER["content"] == "q"
    assert SPOKEN["content"][-1] is USE


@pytest.mark.parametrize(
    ("system", "messages", "words"),
    [
        (None, [], "`messages` must be a list"),
        (None, ["x"], "`messages.0.role`"),
        (None, [{"role": "tool", "content": "x"}], "user, assistant, system"),
        (None, [{"role": "user"}], "`messages.0.content` must be a string or a list"),
        (None, [{"role": "user", "content": ["x"]}], "`messages.0.content.0`"),
        (None, [{"role": "user", "content": [{"type": "text"}]}], "`messages.0.content.0.text`"),
        (None, [{"role": "user", "content": [{"type": "image"}]}], "'image' are not supported"),
        (None, [{"role": "user", "content": [{"type": "document"}]}], "'document'"),
        (None, [{"role": "user", "content": [USE]}], "'tool_use' are not supported here"),
        (None, [USER, {"role": "assistant", "content": [{"type": "server_tool_use"}]}],
         "`messages.1.content.0`: blocks of the type 'server_tool_use'"),
        (None, [{"role": "user", "content": [result("x")]}], "earlier `tool_use`; it is 'toolu_1'"),
        (None, [SPOKEN, {"role": "user", "content": [result([{"type": "image"}])]}],
         "`messages.1.content.0.content.0`: blocks of the type 'image'"),
        (None, [{"role": "assistant", "content": [{**USE, "input": "{}"}]}],
         "`messages.0.content.0.input` must be an object"),
        ([{"type": "image"}], [USER], "`system.0`"),
        (7, [USER], "`system` must be a string or a list"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_its_place(
    system: Any, messages: list[Any], words: str
) -> None:
    with pytest.raises(OpenAIError) as refused:
        read_dialogue(system, messages)
    assert words in refused.value.detail
    assert refused.value.status == 400


def test_call_that_nests_too_deep_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"a": deep}
    with pytest.raises(OpenAIError, match="deep"):
        read_dialogue(None, [{"role": "assistant", "content": [{**USE, "input": deep}]}])


# --- Tools ---------------------------------------------------------------------------------------
def test_tool_is_a_function_with_its_examples() -> None:
    tool = {"name": "f" * 128, "input_schema": SCHEMA, "description": "Does.", "strict": True,
            "type": "custom", "cache_control": {"type": "ephemeral"}, "defer_loading": False,
            "eager_input_streaming": True, "input_examples": [{"é": 1}],
            "allowed_callers": ["direct"]}  # fmt: skip
    ((made,), (plain,)) = read_tools([tool]), read_tools([{"name": "g", "input_schema": SCHEMA}])
    function = made.function
    assert (function.name, function.parameters, function.strict) == ("f" * 128, SCHEMA, True)
    assert function.description == 'Does.\nExamples of inputs:\n{"é": 1}'
    assert (plain.function.description, plain.function.strict) == (None, None)


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"type": "web_search_20250305", "name": "web_search"}, "'web_search_20250305' are not"),
        ({"type": "bash_20250124", "name": "bash"}, "`tools.0`: tools of the type"),
        ({"name": "f"}, "input_schema"),
        ({"name": "a b", "input_schema": SCHEMA}, "name"),
        ({"name": "f", "input_schema": SCHEMA, "defer_loading": True}, "defer_loading"),
        ({"name": "f", "input_schema": SCHEMA, "allowed_callers": ["code"]}, "allowed_callers"),
        ({"name": "f", "input_schema": SCHEMA, "other": 1}, "other"),
    ],
)
def test_tool_of_another_kind_is_refused(tool: dict[str, Any], words: str) -> None:
    with pytest.raises(OpenAIError) as refused:
        read_tools([tool])
    assert words in refused.value.detail


def test_choice_of_tools_is_that_of_a_chat() -> None:
    kinds: list[Any] = ["auto", "any", "none"]
    assert [read_choice(Choice(type=kind)) for kind in kinds] == ["auto", "required", "none"]
    assert read_choice(None) is None
    named: Any = read_choice(Choice(type="tool", name="f"))
    assert named.function.name == "f"
    for wrong in (Choice(type="tool"), Choice(type="auto", name="f")):
        with pytest.raises(OpenAIError, match="is for the type tool"):
            read_choice(wrong)
