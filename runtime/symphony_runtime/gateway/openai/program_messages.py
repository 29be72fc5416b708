"""The messages of the shipped program, which `program/src/wire.rs` writes."""

import struct
from dataclasses import dataclass
from typing import Any

import msgpack

_HEAD = struct.Struct("<IB")
_PIECE = struct.Struct("<HB")
_CHOICE = struct.Struct("<H")
_PROMPT = struct.Struct("<HH")
_LENGTH = struct.Struct("<I")
_BEGUN = struct.Struct("<II")
_COUNTS = struct.Struct("<IIIIII")
# Of runs that are kept from before drafts were counted, and before reasoning was.
_OLD_COUNTS = (struct.Struct("<IIII"), struct.Struct("<III"))
_CALL = struct.Struct("<HH")
_FINISHES: dict[int, str | None] = {
    0: "stop", 1: "length", 2: "tool_calls", 3: "content_filter", 255: None,
}  # fmt: skip
_PIECE_KIND, _LOGPROBS_KIND, _TOKENS_KIND, _PROMPT_KIND, _DATA_KIND, _USAGE_KIND, _FAILURE_KIND = (
    b"pltqdue"
)
_REASONING_KIND, _CALL_KIND, _ARGUMENTS_KIND, _STOPPED_KIND, _BEGUN_KIND = b"rcasb"


@dataclass(slots=True)
class TokenLogprob:
    """A token's bytes, its log-probability (None: the first of a prompt) and the likeliest."""

    token: bytes
    logprob: float | None
    top: list[tuple[bytes, float]]


@dataclass(slots=True)
class Tokens:
    """All tokens of a choice, without the one that ended it."""

    choice: int
    ids: list[int]


@dataclass(slots=True)
class Piece:
    """The next text of a choice. `finish` says why it has ended, None: it has not.

    `ids` are the tokens of a whole choice, and `prompt` the log-probabilities of its prompt, if the
    request wants them; `reasoning` and `calls` (names with arguments) are those of a whole choice,
    and `stopped` is the text that it stopped at.
    """

    choice: int
    text: str
    finish: str | None
    logprobs: list[TokenLogprob] | None = None
    ids: list[int] | None = None
    reasoning: str = ""
    calls: list[tuple[str, str]] | None = None
    prompt: "list[PromptLogprob] | None" = None
    stopped: str | None = None


@dataclass(slots=True)
class Reasoning:
    """The next text of a choice's reasoning."""

    choice: int
    text: str


@dataclass(slots=True)
class CallBegin:
    """A choice's call of a tool begins. `index` counts the choice's calls."""

    choice: int
    index: int
    name: str


@dataclass(slots=True)
class CallArguments:
    """The next text of a call's arguments."""

    choice: int
    index: int
    text: str


@dataclass(slots=True)
class Stopped:
    """The text that a choice stopped at, if the request wants to know."""

    choice: int
    text: str


@dataclass(slots=True)
class Begun:
    """A stream begins: the prompt's tokens, if the request wants to know them then."""

    prompt: int
    cached: int


@dataclass(slots=True)
class PromptLogprob:
    """A prompt's token, its log-probability (None: the first) and the likeliest there."""

    id: int
    token: bytes
    logprob: float | None
    top: list[tuple[int, bytes, float]]


@dataclass(slots=True)
class PromptLogprobs:
    """The log-probabilities of the prompt of some choices."""

    choices: range
    entries: list[PromptLogprob]


@dataclass(slots=True)
class Data:
    """Data of a task that generates nothing; it goes on in the next record."""

    bytes: bytes


@dataclass(slots=True)
class Usage:
    """The tokens of a whole request; `reasoning` are those of the completion that reason.

    `drafted` tokens were computed before they were known to be right; `accepted` of them were.
    """

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Failure:
    """The request cannot be answered, or not completely."""

    status: int
    code: str
    param: str | None
    message: str


Part = Reasoning | CallBegin | CallArguments | Stopped
Record = Begun | Piece | Tokens | Part | PromptLogprobs | Data | Usage | Failure
END = (Usage, Failure)  # the last record of an answer


class Records:
    """Cuts messages into records. A record may span several messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Record]:
        """Return the records that are complete."""
        if self._rest:
            data = self._rest + data
        records: list[Record] = []
        at = 0
        while len(data) - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(data, at)
            end = at + _LENGTH.size + length
            if end > len(data):
                break
            records.append(read_record(kind, data, at + _HEAD.size, end))
            at = end
        self._rest = data[at:]
        return records


def read_record(kind: int, data: bytes, at: int, end: int) -> Record:
    """Return the record of a kind, whose rest is data[at:end]. One of a tenant may be malformed.

    Raises struct.error, ValueError, TypeError, KeyError.
    """
    if kind == _PIECE_KIND:
        choice, finish = _PIECE.unpack_from(data, at)
        return Piece(choice, data[at + _PIECE.size : end].decode(), _FINISHES[finish])
    if kind == _LOGPROBS_KIND:
        choice, finish = _PIECE.unpack_from(data, at)
        begin = at + _PIECE.size + _LENGTH.size
        (length,) = _LENGTH.unpack_from(data, at + _PIECE.size)
        text = data[begin : begin + length].decode()
        return Piece(choice, text, _FINISHES[finish], _logprobs(data[begin + length : end]))
    if kind == _TOKENS_KIND:
        (choice,) = _CHOICE.unpack_from(data, at)
        begin = at + _CHOICE.size
        return Tokens(choice, list(struct.unpack_from(f"<{(end - begin) // 4}I", data, begin)))
    if kind in (_REASONING_KIND, _STOPPED_KIND):
        (choice,) = _CHOICE.unpack_from(data, at)
        told = Reasoning if kind == _REASONING_KIND else Stopped
        return told(choice, data[at + _CHOICE.size : end].decode())
    if kind in (_CALL_KIND, _ARGUMENTS_KIND):
        choice, index = _CALL.unpack_from(data, at)
        part = CallBegin if kind == _CALL_KIND else CallArguments
        return part(choice, index, data[at + _CALL.size : end].decode())
    if kind == _PROMPT_KIND:
        first, count = _PROMPT.unpack_from(data, at)
        found = msgpack.unpackb(data[at + _PROMPT.size : end])
        entries = [
            PromptLogprob(token, text, logprob, [(t, b, p) for t, b, p in top])
            for token, text, logprob, top in found
        ]
        return PromptLogprobs(range(first, first + count), entries)
    if kind == _DATA_KIND:
        return Data(data[at:end])
    if kind == _BEGUN_KIND:
        return Begun(*_BEGUN.unpack_from(data, at))
    if kind == _USAGE_KIND:
        sizes = (_COUNTS, *_OLD_COUNTS)
        counts = next((each for each in sizes if each.size == end - at), sizes[-1])
        return Usage(*counts.unpack_from(data, at))
    assert kind == _FAILURE_KIND, kind
    failure: dict[str, Any] = msgpack.unpackb(data[at:end])
    return Failure(failure["status"], failure["code"], failure["param"] or None, failure["message"])


def _logprobs(packed: bytes) -> list[TokenLogprob]:
    return [
        TokenLogprob(token, logprob, [(t, p) for t, p in top])
        for token, logprob, top in msgpack.unpackb(packed)
    ]
