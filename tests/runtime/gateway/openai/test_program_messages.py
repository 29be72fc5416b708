"""Records of the shipped program, cut into messages at any place."""

import struct

import msgpack
import pytest
from symphony_runtime.gateway.openai.program_messages import (
    Begun,
    CallArguments,
    CallBegin,
    Data,
    Failure,
    Piece,
    PromptLogprob,
    PromptLogprobs,
    Reasoning,
    Records,
    Stopped,
    TokenLogprob,
    Tokens,
    Usage,
)


def record(kind: bytes, payload: bytes) -> bytes:
    return struct.pack("<I", 1 + len(payload)) + kind + payload


def piece(choice: int, finish: int, text: str) -> bytes:
    return record(b"p", struct.pack("<HB", choice, finish) + text.encode())


LOGPROBS = msgpack.packb([[b"\xc3", -0.5, [[b"a", -0.25]]], [b"b", None, []]])
PROMPT = msgpack.packb([[7, b"a", None, []], [8, b"\xc3", -1.5, [[9, b"b", -0.5]]]])
TOLD = (
    record(b"b", struct.pack("<II", 5, 1))
    + piece(0, 255, "café")
    + piece(1, 0, "")
    + record(b"l", struct.pack("<HBI", 2, 1, 3) + b"end" + LOGPROBS)
    + record(b"t", struct.pack("<H3I", 2, 7, 0, 70_000))
    + record(b"q", struct.pack("<HH", 1, 2) + PROMPT)
    + record(b"r", struct.pack("<H", 1) + b"hm")
    + record(b"c", struct.pack("<HH", 1, 2) + b"f")
    + record(b"a", struct.pack("<HH", 1, 2) + b"{}")
    + record(b"s", struct.pack("<H", 1) + "é".encode())
    + record(b"d", b"\0\1data")
    + record(b"u", struct.pack("<III", 5, 1, 7))
    + record(b"e", msgpack.packb({"status": 400, "code": "c", "param": "", "message": "m"}))
)
READ = [
    Begun(5, 1), Piece(0, "café", None), Piece(1, "", "stop"), Piece(2, "end", "length", None),
    Tokens(2, [7, 0, 70_000]),
    PromptLogprobs(range(1, 3), [PromptLogprob(7, b"a", None, []),
                                 PromptLogprob(8, b"\xc3", -1.5, [(9, b"b", -0.5)])]),
    Reasoning(1, "hm"), CallBegin(1, 2, "f"), CallArguments(1, 2, "{}"), Stopped(1, "é"),
    Data(b"\0\1data"), Usage(5, 1, 7), Failure(400, "c", None, "m"),
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 4096])
def test_record_may_span_messages(size: int) -> None:
    records = Records()
    read = [r for at in range(0, len(TOLD), size) for r in records.feed(TOLD[at : at + size])]
    with_logprobs = read[3]
    assert isinstance(with_logprobs, Piece)
    tokens = with_logprobs.logprobs or []
    assert [(t.token, t.logprob, t.top) for t in tokens] == [
        (b"\xc3", -0.5, [(b"a", -0.25)]),
        (b"b", None, []),
    ]
    assert isinstance(tokens[0], TokenLogprob)
    with_logprobs.logprobs = None
    assert read == READ


@pytest.mark.parametrize(
    ("counts", "usage"),
    [
        ((5, 1, 7), Usage(5, 1, 7)),
        ((5, 1, 7, 2), Usage(5, 1, 7, 2)),
        ((5, 1, 7, 2, 9, 4), Usage(5, 1, 7, 2, drafted=9, accepted=4)),
    ],
)
def test_usage_of_each_version_is_read(counts: tuple[int, ...], usage: Usage) -> None:
    data = record(b"u", struct.pack(f"<{len(counts)}I", *counts))
    assert Records().feed(data) == [usage]


def test_usage_that_is_cut_short_is_refused() -> None:
    with pytest.raises(struct.error):
        Records().feed(record(b"u", struct.pack("<II", 5, 1)))
