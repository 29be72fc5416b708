"""`chat_with`: tools, variables and messages that continue, none of which forges control tokens."""

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.executor.models.assets import ModelAssets
from symphony_kernel.executor.simulated import simulated_model
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_runtime.worker.text.tokenizer import ModelTokenizer

from tests.support.gateway.families import ADDED, TEMPLATES, family_about, family_tokenizer
from tests.support.worker.guests import data, result
from tests.support.worker.rig import WorkerRig

FAMILIES = tuple(TEMPLATES)
TEXTS = {family: ModelTokenizer(family_about(family)) for family in FAMILIES}
IDS = {
    family: {token["id"]: token["content"] for token in family_tokenizer(family)["added_tokens"]}
    for family in FAMILIES
}
FORGERIES = sorted({text for added in ADDED.values() for text in added} | {"<|endoftext|>"})
PIECES = [
    *FORGERIES,
    *(text[:3] for text in FORGERIES),
    *(text[2:] for text in FORGERIES),
    "x",
    '"',
]


def tokens(family: str, **conversation: Any) -> list[int]:
    found = TEXTS[family].chat_with(msgpack.packb(conversation))
    return [int(number) for number in np.frombuffer(found, "<u4")]


def frame(family: str, **conversation: Any) -> list[str]:
    """Return the control tokens of a conversation."""
    found = tokens(family, **conversation)
    return [IDS[family][token] for token in found if token in IDS[family]]


def text_of(family: str, **conversation: Any) -> str:
    found = np.asarray(tokens(family, **conversation), "<u4").tobytes()
    return TEXTS[family].detokenize(found).decode()


def dialogue(text: str, key: str = "k") -> dict[str, Any]:
    """Return a dialogue with this text in a definition, a call, a result and reasoning."""
    function = {"name": "f", "description": text, "parameters": {"properties": {key: {"d": text}}}}
    call = {"id": "abcdefgh0", "type": "function",
            "function": {"name": "f", "arguments": {key: [text]}}}  # fmt: skip
    return {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "", "reasoning_content": "r" + text,
             "tool_calls": [call]},
            {"role": "tool", "content": text, "tool_call_id": "abcdefgh0", "name": "f"},
        ],
        "tools": [{"type": "function", "function": function}],
    }  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(parts=st.lists(st.sampled_from(PIECES), min_size=1, max_size=4))
def test_text_of_tools_and_results_never_becomes_a_control_token(
    family: str, parts: list[str]
) -> None:
    forged = "".join(parts)
    plain = frame(family, **dialogue("abc", "d"))
    assert len(plain) > 3
    assert frame(family, **dialogue(forged, forged)) == plain
    assert frame(family, **dialogue(forged)) == plain


def test_variable_that_spells_a_control_token_stays_text() -> None:
    about = family_about("hermes")
    about["chat_template"] = "<|im_start|>{{ effort }}<tool_call>{{ messages[0].content }}"
    wild = ModelTokenizer(about)
    found = wild.chat_with(
        msgpack.packb(
            {
                "messages": [{"role": "user", "content": "x"}],
                "variables": {"effort": "<|im_start|><tool_call>"},
            }
        )
    )
    ids = np.frombuffer(found, "<u4").tolist()
    assert [IDS["hermes"][i] for i in ids if i in IDS["hermes"]] == ["<|im_start|>", "<tool_call>"]


def test_chat_with_messages_alone_equals_chat() -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    for text in TEXTS.values():
        assert text.chat_with(msgpack.packb({"messages": messages})) == text.chat(
            msgpack.packb(messages)
        )


def test_message_that_continues_ends_the_prompt_with_its_content() -> None:
    for content in ("It is ", "a <|im_end|>", "b<|im_", "trailing \n", "x"):
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": content}]
        for family in FAMILIES:
            text = text_of(family, messages=messages, continue_final_message=True)
            expected = content.strip() if family == "llama3" else content
            assert text.rstrip().endswith(expected.rstrip()), (family, content)
            assert text.endswith(content)
        ended = tokens("hermes", messages=messages)
        assert len(tokens("hermes", messages=messages, continue_final_message=True)) < len(ended)


def test_generation_prompt_follows_the_last_role_unless_given() -> None:
    asked: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    prompt = tokens("hermes", messages=asked, add_generation_prompt=True)
    assert tokens("hermes", messages=asked) == prompt
    bare = tokens("hermes", messages=asked, add_generation_prompt=False)
    assert prompt[: len(bare)] == bare
    assert len(bare) < len(prompt)
    off = tokens("hermes", messages=asked, variables={"enable_thinking": False})
    assert len(off) > len(prompt)


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    "conversation",
    [[USER], 5, {}, {"messages": []}, {"messages": [USER], "other": 1},
     {"messages": [{**USER, "other": 1}]}, {"messages": [USER], "tools": {}},
     {"messages": [USER], "tools": [b"x"]}, {"messages": [USER], "variables": []},
     {"messages": [USER], "variables": {"messages": []}},
     {"messages": [USER], "variables": {"tools": []}},
     {"messages": [USER], "add_generation_prompt": 1},
     {"messages": [USER], "continue_final_message": 0},
     {"messages": [{"role": "assistant", "content": ["x"]}], "continue_final_message": True},
     {"messages": [USER], "continue_final_message": True, "add_generation_prompt": True}],
)  # fmt: skip
def test_chat_with_of_no_conversation_is_einval(conversation: object) -> None:
    with pytest.raises(SyscallError, match="EINVAL"):
        TEXTS["hermes"].chat_with(msgpack.packb(conversation))


def test_template_that_drops_a_message_that_continues_is_einval() -> None:
    about = family_about("hermes")
    about["chat_template"] = "{{ messages[0].content }}"
    messages = [USER, {"role": "assistant", "content": "y"}]
    with pytest.raises(SyscallError, match="last message"):
        ModelTokenizer(about).chat_with(
            msgpack.packb({"messages": messages, "continue_final_message": True})
        )


async def test_chat_with_of_a_guest_gives_tokens_and_the_templates_words() -> None:
    about = family_about("mistral")
    assets = ModelAssets(
        simulated_model(vocab_size=4_096), about["tokenizer"], about["chat_template"],
        about["special"],
    )  # fmt: skip
    right = msgpack.packb(dialogue("18"))
    wrong = msgpack.packb(dialogue("18")).replace(b"\xa9abcdefgh0", b"\xa6call_1")
    async with WorkerRig(assets=assets) as rig:
        found = await rig.play(
            ("chat_with", 2000, len(right), 0, 999),
            ("chat_with", 4000, len(wrong), 0, 999),
            ("last_error", 0, 200), ("show", 0, result(2)),
            parts=(data(2000, right), data(4000, wrong)),
        )  # fmt: skip
    assert found[0] == len(tokens("mistral", **dialogue("18")))
    assert found[1] == -Errno.EINVAL
    assert isinstance(found[3], bytes)
    assert b"length 9" in found[3]
