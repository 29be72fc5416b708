"""Answers in Anthropic's JSON: whole messages, and events in their order."""

import json
from typing import Any

import pytest
from symphony_runtime.gateway.anthropic.shape import MessagesShape
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.program_messages import (
    Begun,
    CallArguments,
    CallBegin,
    Piece,
    Reasoning,
    Stopped,
    Usage,
)

USAGE = Usage(10, 4, 3)
TOLD = {"input_tokens": 6, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4}


def shape(**fields: Any) -> MessagesShape:
    return MessagesShape("run_1", "m", max_tokens=3, **fields)


def whole(piece: Piece, usage: Usage = USAGE, **fields: Any) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(shape(**fields).whole([piece], usage))
    return message


def events(data: bytes) -> list[dict[str, Any]]:
    """Return the events' data; each is under the name of its type."""
    read = []
    for event in data.decode().split("\n\n")[:-1]:
        name, text = event.split("\n")
        read.append(json.loads(text.removeprefix("data: ")))
        assert name == f"event: {read[-1]['type']}"
    return read


def test_whole_message_has_reasoning_text_and_calls() -> None:
    piece = Piece(0, "I look.", "tool_calls", reasoning="hm",
                  calls=[("f", '{"a": 1}'), ("g", "{}")])  # fmt: skip
    message = whole(piece)
    thinking, said, *calls = message.pop("content")
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "hm")
    assert thinking["signature"].startswith("sig_")
    assert said == {"type": "text", "text": "I look."}
    assert [(call["type"], call["name"], call["input"]) for call in calls] == [
        ("tool_use", "f", {"a": 1}), ("tool_use", "g", {}),
    ]  # fmt: skip
    assert calls[0]["id"].startswith("toolu_")
    assert calls[0]["id"] != calls[1]["id"]
    assert message == {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m",
        "stop_reason": "tool_use", "stop_sequence": None, "usage": {**TOLD, "output_tokens": 3},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("piece", "completion", "reason", "sequence"),
    [
        (Piece(0, "a", "stop"), 2, "end_turn", None),
        (Piece(0, "a", "stop", stopped="b"), 2, "stop_sequence", "b"),
        (Piece(0, "a", "length"), 3, "max_tokens", None),
        (Piece(0, "a", "length"), 2, "model_context_window_exceeded", None),
        (Piece(0, "", "tool_calls", calls=[("f", "{}")]), 3, "tool_use", None),
    ],
)
def test_message_says_why_it_ended(
    piece: Piece, completion: int, reason: str, sequence: str | None
) -> None:
    message = whole(piece, Usage(1, 0, completion))
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


def test_call_that_is_cut_off_has_no_input() -> None:
    for arguments in ('{"a": ', "[" * 100_000, "7"):
        piece = Piece(0, "", "length", calls=[("f", arguments)])
        assert whole(piece)["content"][0]["input"] == {}


def test_message_without_text_has_no_block() -> None:
    assert whole(Piece(0, "", "stop"))["content"] == []


def test_ids_of_a_family_are_as_short_as_it_wants() -> None:
    piece = Piece(0, "", "tool_calls", calls=[("f", "{}")])
    assert len(whole(piece, call_id_characters=9)["content"][0]["id"]) == 9


def test_stream_has_each_block_begun_told_and_ended() -> None:
    told = shape()
    data = told.begin(Begun(10, 4))
    data += told.part(Reasoning(0, "h")) + told.part(Reasoning(0, "m"))
    data += told.chunk(Piece(0, 'I "', None)) + told.chunk(Piece(0, "look", None))
    data += told.part(CallBegin(0, 0, "f")) + told.part(CallArguments(0, 0, '{"a":'))
    data += told.part(CallArguments(0, 0, " 1}")) + told.part(CallBegin(0, 1, "g"))
    data += told.part(CallArguments(0, 1, "{}")) + told.chunk(Piece(0, "", "tool_calls"))
    read = events(data + told.end(USAGE))
    assert read[0]["message"] == {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {**TOLD, "output_tokens": 0},
    }  # fmt: skip
    assert [each["type"].removeprefix("content_block_") for each in read] == [
        "message_start", "ping", "start", "delta", "delta", "delta", "stop", "start", "delta",
        "delta", "stop", "start", "delta", "delta", "stop", "start", "delta", "stop",
        "message_delta", "message_stop",
    ]  # fmt: skip
    assert [each["index"] for each in read if "index" in each] == (
        [0] * 5 + [1] * 4 + [2] * 4 + [3] * 3
    )
    kinds = [each["delta"]["type"] for each in read if each["type"] == "content_block_delta"]
    assert kinds == (
        ["thinking_delta"] * 2 + ["signature_delta"] + ["text_delta"] * 2 + ["input_json_delta"] * 3
    )
    starts = [each["content_block"] for each in read if "content_block" in each]
    assert starts[:2] == [
        {"type": "thinking", "thinking": "", "signature": ""}, {"type": "text", "text": ""},
    ]  # fmt: skip
    assert [(start["name"], start["input"]) for start in starts[2:]] == [("f", {}), ("g", {})]
    assert read[-2] == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {**TOLD, "output_tokens": 3},
    }


def test_stream_and_whole_have_the_same_ids_and_signature() -> None:
    piece = Piece(0, "", "tool_calls", reasoning="hm", calls=[("f", "{}")])
    thinking, call = whole(piece)["content"]
    told = shape()
    data = told.part(Reasoning(0, "hm")) + told.part(CallBegin(0, 0, "f"))
    read = events(data)
    assert read[2]["delta"]["signature"] == thinking["signature"]
    assert read[4]["content_block"]["id"] == call["id"]


def test_reasoning_that_is_omitted_leaves_a_block_with_a_signature() -> None:
    hidden = whole(Piece(0, "a", "stop", reasoning="hm"), shows_thinking=False)["content"][0]
    assert (hidden["thinking"], bool(hidden["signature"])) == ("", True)
    told = shape(shows_thinking=False)
    data = told.part(Reasoning(0, "h")) + told.part(Reasoning(0, "m"))
    read = events(data + told.chunk(Piece(0, "a", "stop")))
    kinds = [each.get("delta", each)["type"] for each in read]
    assert kinds == ["content_block_start", "signature_delta", "content_block_stop",
                     "content_block_start", "text_delta"]  # fmt: skip


def test_stream_without_text_has_no_block_and_says_where_it_stopped() -> None:
    told = shape()
    data = told.begin(None) + told.part(Stopped(0, "é")) + told.chunk(Piece(0, "", "stop"))
    read = events(data + told.end(USAGE))
    assert [each["type"] for each in read] == [
        "message_start", "ping", "message_delta", "message_stop",
    ]  # fmt: skip
    assert read[0]["message"]["usage"]["input_tokens"] == 0
    assert read[2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "é"}


def test_stream_that_fails_ends_with_an_error() -> None:
    (error,) = events(shape().failed(OpenAIError(500, "the worker died")))
    assert error == {"type": "error", "error": {"type": "api_error", "message": "the worker died"}}
    assert shape().kept_bytes(Piece(0, "a" * 1000, None)) == 0
