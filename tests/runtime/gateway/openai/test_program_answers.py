"""What tenants' programs send as models: read, checked, and never more than an error."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from symphony_kernel.protocol.limits import (
    OPENAI_PROGRAM_CALLS_MAX,
    OPENAI_PROGRAM_LOGPROBS_MAX,
    OPENAI_PROGRAM_RECORD_BYTES_MAX,
)
from symphony_runtime.gateway.anthropic.shape import MessagesShape
from symphony_runtime.gateway.openai.completions import ChatShape, CompletionShape
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.program_answers import ProgramAnswer
from symphony_runtime.gateway.openai.program_messages import (
    END,
    CallArguments,
    CallBegin,
    Failure,
    Piece,
    Reasoning,
    Record,
    TokenLogprob,
    Usage,
)
from symphony_runtime.gateway.openai.responses import ResponseShape
from symphony_runtime.gateway.openai.serving import Answer, answer_whole, failure_error

from tests.support.gateway.program_records import (
    CONTENT_FILTER,
    LENGTH,
    OPENING,
    STOP,
    TOOL_CALLS,
    arguments,
    call,
    failure,
    reasoning,
    record,
    text,
    text_with,
    usage,
)

COUNTED = Usage(5, 1, 7)


def read(sent: bytes, n: int = 1, choices: int = 1, size: int = 1 << 20) -> list[Record]:
    """Return the records of a program that sends these bytes, in parts, and exits well."""
    answer, records = ProgramAnswer(n, choices), list[Record]()
    for at in range(0, len(sent), size):
        records += answer.feed(sent[at : at + size])
        if records and isinstance(records[-1], END):
            return records
    return records + answer.end(COUNTED)


def broken(sent: bytes, choices: int = 1) -> str:
    """Return the words about an answer that is broken."""
    last = read(OPENING + sent, choices, choices)[-1]
    assert isinstance(last, Failure)
    assert (last.status, last.code, last.param) == (502, "broken_answer", None)
    return last.message.removeprefix("the program's answer is broken: ")


# --- Plain text ----------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 3, 64])
@pytest.mark.parametrize(
    "sent",
    [b"", b"hello", "café \u20ac".encode(), b"\xff", b"\xff\xff\xff\xffLI", b"\xff\xffx", b"a\0"],
)
def test_plain_text_is_the_one_choice(sent: bytes, size: int) -> None:
    records = read(sent, size=size)
    pieces = [each for each in records if isinstance(each, Piece)]
    assert "".join(piece.text for piece in pieces) == sent.decode("utf-8", "replace")
    assert [piece.finish for piece in pieces] == [None] * (len(pieces) - 1) + ["stop"]
    assert records[-1] == COUNTED


@pytest.mark.parametrize("sent", [b"hello", b""])
def test_plain_text_with_several_answers_wanted_is_refused(sent: bytes) -> None:
    words = "this program gives one answer: `n` must be 1; it is 3"
    assert read(sent, 3, 3) == [Failure(400, "unsupported_value", "n", words)]
    assert isinstance(read(sent, 1, 2)[-1], Usage), "one choice to two prompts, as ever"


# --- Records -------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", [1, 2, 7, 4096])
def test_records_of_all_kinds_are_read(size: int) -> None:
    sent = OPENING + b"".join([
        reasoning("hm"), text("a"), OPENING, text_with("b", [[b"b", -0.5, [[b"c", -1]]]]),
        call("look"), arguments('{"a"'), arguments(": 1}"), call("edit", 1),
        text("", finish=LENGTH), usage(9, 4, 2),
    ])  # fmt: skip
    assert read(sent, size=size) == [
        Reasoning(0, "hm"), Piece(0, "a", None),
        Piece(0, "b", None, [TokenLogprob(b"b", -0.5, [(b"c", -1)])]),
        CallBegin(0, 0, "look"), CallArguments(0, 0, '{"a"'), CallArguments(0, 0, ": 1}"),
        CallBegin(0, 1, "edit"), Piece(0, "", "length"), Usage(9, 4, 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("finish", "word"),
    [(STOP, "stop"), (LENGTH, "length"), (TOOL_CALLS, "tool_calls"),
     (CONTENT_FILTER, "content_filter")],
)  # fmt: skip
def test_finish_of_a_program_is_one_of_openais(finish: int, word: str) -> None:
    assert read(OPENING + text("a", finish=finish)) == [Piece(0, "a", word), COUNTED]


def test_choice_without_an_end_ends_with_the_program() -> None:
    assert read(OPENING + text("a")) == [Piece(0, "a", None), Piece(0, "", "stop"), COUNTED]
    assert read(OPENING) == [Piece(0, "", "stop"), COUNTED]
    called = read(OPENING + text("a", 1) + call("look"), 2, 2)
    assert called[2:] == [Piece(0, "", "tool_calls"), Piece(1, "", "stop"), COUNTED]


def test_failure_of_a_program_is_the_last_record() -> None:
    sent = text("a") + failure(status=409, code="x", param="messages", message="no") + text("b")
    refused = Failure(409, "x", "messages", "no")
    assert read(OPENING + sent) == [Piece(0, "a", None), refused]
    assert read(OPENING + failure(status=599))[-1] == Failure(599, "c", None, "m")


NOT_UTF8 = struct.pack("<HB", 0, 255) + b"\xff"
BROKEN: list[tuple[bytes, str]] = [
    (b"hello", "a record has 1 to 65536 bytes, not 1819043176; behind its opening a program sends "
     "nothing but records"),
    (b"hi", "it ends within a record"),
    (text("a")[:-1], "it ends within a record"),
    (OPENING[:-1] + b"\2", "its records are of version 2; this server reads version 1"),
    (b"\xff\xff\xff\xffNOT\1", "a record has 1 to 65536 bytes"),
    (struct.pack("<I", 0), "a record has 1 to 65536 bytes, not 0; behind its opening a program "
     "sends nothing but records"),
    (record("t", b"\0\0"), "there is no kind of record 116"),
    (record("p", b""), "a record of the kind 'p' is malformed"),
    (record("p", struct.pack("<HB", 0, 9)), "a record of the kind 'p' is malformed"),
    (record("p", NOT_UTF8), "a record of the kind 'p' is malformed"),
    (record("u", b"1234"), "a record of the kind 'u' is malformed"),
    (record("l", struct.pack("<HBI", 0, 0, 99) + b"a"), "a record of the kind 'l' is malformed"),
    (text_with("a", 7), "a record of the kind 'l' is malformed"),
    (text_with("a", [["a", -1.0, []]]), "a token is bytes, its log-probability a finite number"),
    (text_with("a", [[b"a", float("nan"), []]]),
     "a token is bytes, its log-probability a finite number"),
    (text_with("a", [[b"a", -1.0, [[b"b", "x"]]]]),
     "a token is bytes, its log-probability a finite number"),
    (text_with("a", [[b"a", -1.0, [[b"b", -1.0]] * 21]]), "a token has at most 20 alternatives"),
    (text_with("a", [[b"", -1.0, []]] * (OPENAI_PROGRAM_LOGPROBS_MAX + 1)),
     "a record has at most 2048 log-probabilities"),
    (record("e", b"\xc1"), "a record of the kind 'e' is malformed"),
    (record("e", msgpack.packb({"status": 400})), "a record of the kind 'e' is malformed"),
    (failure(status=200), "the status of a failure is from 400 to 599"),
    (failure(status="400"), "the status of a failure is from 400 to 599"),
    (failure(status=400, message="x" * 4097),
     "a failure's message is a text of at most 4096 characters"),
    (failure(status=400, message=7), "a failure's message is a text of at most 4096 characters"),
    (failure(status=400, code=[]),
     "a failure's code and param are texts of at most 256 characters"),
    (failure(status=400, param=b"x"),
     "a failure's code and param are texts of at most 256 characters"),
    (text("a", 1), "choice 1 is not one of 1, from 0 on"),
    (text("a", finish=STOP) + text("b"), "choice 0 goes on behind its end"),
    (text("a", finish=STOP) + reasoning("b"), "choice 0 goes on behind its end"),
    (call("a b"), "a tool's name has 1 to 64 letters, digits, _ and -"),
    (call(""), "a tool's name has 1 to 64 letters, digits, _ and -"),
    (call("a", 1), "call 1 follows 0 calls; they count from 0 on, at most 128"),
    (b"".join(call("a", index) for index in range(OPENAI_PROGRAM_CALLS_MAX + 1)),
     "call 128 follows 128 calls; they count from 0 on, at most 128"),
    (arguments("{}"), "arguments of call 0, which is not the last one begun: nothing else of its "
     "choice comes between"),
    (call("a") + text("b") + arguments("{}"), "arguments of call 0, which is not the last one "
     "begun: nothing else of its choice comes between"),
    (call("a") + call("b", 1) + arguments("{}", 0), "arguments of call 0, which is not the last "
     "one begun: nothing else of its choice comes between"),
]  # fmt: skip


@pytest.mark.parametrize("told", ['{"a": NaN}', '{"a": "\\ud800"}', "[" * 9_000, '{"a": 1e999}'])
def test_arguments_that_json_cannot_hold_are_empty_in_a_message(told: str) -> None:
    records = read(OPENING + call("look") + arguments(told))
    shape = MessagesShape("run_1", "m", max_tokens=9)
    whole = strict_json(asyncio.run(answer_whole(batches(records), shape, 1, lambda _: None))[0])
    (block,) = whole["content"]
    assert (block["name"], block["input"]) == ("look", {})


@pytest.mark.parametrize(("sent", "words"), BROKEN)
def test_record_that_no_answer_can_have_is_502_with_words(sent: bytes, words: str) -> None:
    assert broken(sent) == words


def test_record_that_is_too_long_is_refused_before_it_is_complete() -> None:
    longest = text("x" * (OPENAI_PROGRAM_RECORD_BYTES_MAX - 4))
    assert read(OPENING + longest)[-1] == COUNTED
    answer = ProgramAnswer()
    (refused,) = answer.feed(OPENING + struct.pack("<I", OPENAI_PROGRAM_RECORD_BYTES_MAX + 1))
    assert isinstance(refused, Failure)
    assert answer.refused == refused


def test_answer_without_some_of_its_choices_is_broken() -> None:
    words = "it gives 1 of 3 choices, one for each of `n` to each prompt"
    assert broken(text("a", 2), 3) == words
    assert broken(text("a", 0) + usage(1, 0, 1), 3) == words


# --- The routes answer any input -----------------------------------------------------------------
NUMBERS = st.integers(0, 3)
TEXTS = st.text(max_size=5)
LOGPROBS = st.lists(
    st.tuples(
        st.binary(max_size=3),
        st.none() | st.floats() | st.integers(-5, 5) | st.booleans(),
        st.lists(st.tuples(st.binary(max_size=3), st.floats()), max_size=3),
    ),
    max_size=3,
)
ARGUMENTS = st.sampled_from(['{"a": NaN}', '{"a": "\\ud800"}', "[" * 2_000, '{"a": 1e999}'])
ANYTHING = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)
KINDS = st.sampled_from("plrcauetqdx\xff")
GOOD = st.one_of(
    st.builds(text, TEXTS, NUMBERS, st.sampled_from([0, 1, 2, 3, 255, 255, 255])),
    st.builds(text_with, TEXTS, LOGPROBS, NUMBERS),
    st.builds(reasoning, TEXTS, NUMBERS),
    st.builds(call, st.sampled_from(["look", "edit"]), NUMBERS, NUMBERS),
    st.builds(arguments, TEXTS | ARGUMENTS, NUMBERS, NUMBERS),
)
ODD = st.one_of(
    st.binary(max_size=12),
    st.builds(lambda kind, rest: record("p", b"")[:4] + kind.encode("latin-1") + rest, KINDS,
              st.binary(max_size=12)),
    st.builds(lambda kind, rest: struct.pack("<I", 1 + len(rest)) + kind.encode("latin-1") + rest,
              KINDS, st.binary(max_size=12)),
    st.builds(text_with, TEXTS, ANYTHING, NUMBERS),
    st.builds(lambda packed: record("e", msgpack.packb(packed)), ANYTHING),
    st.builds(failure, status=st.integers(300, 700), code=ANYTHING, param=ANYTHING),
    st.builds(usage, NUMBERS, NUMBERS, NUMBERS),
    st.just(OPENING),
)  # fmt: skip
SHAPES: list[tuple[Callable[[], Answer], int]] = [
    (lambda: ChatShape("run_1", "m", 1, include_usage=True), 3),
    (lambda: CompletionShape("run_1", "m", 1, include_usage=True), 3),
    (lambda: ResponseShape("run_1", "m", 1, {}), 1),
    (lambda: MessagesShape("run_1", "m", max_tokens=9), 1),
]


async def batches(records: list[Record]) -> AsyncIterator[list[Record]]:
    yield records


def strict_json(data: str | bytes) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(data, parse_constant=refuse)


@given(st.lists(st.one_of(GOOD, GOOD, GOOD, ODD), max_size=12), st.integers(1, 40), st.data())
def test_any_messages_are_an_answer_or_an_error_on_every_route(
    sent: list[bytes], size: int, data: st.DataObject
) -> None:
    make, choices = data.draw(st.sampled_from(SHAPES))
    opening = data.draw(st.sampled_from([OPENING, OPENING, OPENING, b""]))
    wanted = data.draw(st.integers(1, choices))
    records = read(opening + b"".join(sent), wanted, wanted, size)
    assert isinstance(records[-1], END)
    assert not any(isinstance(each, END) for each in records[:-1])
    whole = answer_whole(batches(records), make(), wanted, lambda _: None)
    last = records[-1]
    if isinstance(last, Failure):
        with pytest.raises(OpenAIError) as refused:
            asyncio.run(whole)
        assert 400 <= refused.value.status <= 599
        strict_json(json.dumps(refused.value.document()))
    else:
        strict_json(asyncio.run(whole)[0])
    streamed = make()
    events = [streamed.begin(None), *(event_of(each, streamed) for each in records)]
    for line in b"".join(events).decode().split("\n"):
        if line.startswith("data: ") and line != "data: [DONE]":
            strict_json(line.removeprefix("data: "))


def event_of(record: Record, answer: Answer) -> bytes:
    if isinstance(record, Piece):
        return answer.chunk(record)
    if isinstance(record, Reasoning | CallBegin | CallArguments):
        return answer.part(record)
    if isinstance(record, Usage):
        return answer.end(record)
    assert isinstance(record, Failure)
    return answer.failed(failure_error(record))
