"""The messages of a tenant's program that serves as a model, as the records of an answer.

A program that just sends text gives one choice with that text. One whose first bytes are `OPENING`
sends records as the shipped program does, after it. It may send anything: each record is checked,
and what no answer can have is a Failure in words (docs/reference/http.md#answers-of-a-program).
"""

import codecs
import math
import re
import struct
from dataclasses import dataclass
from typing import Final

from symphony_kernel.protocol.limits import OPENAI_PROGRAM_CALLS_MAX as CALLS_MAX
from symphony_kernel.protocol.limits import OPENAI_PROGRAM_CODE_CHARACTERS_MAX as CODE_MAX
from symphony_kernel.protocol.limits import OPENAI_PROGRAM_LOGPROBS_MAX as LOGPROBS_MAX
from symphony_kernel.protocol.limits import OPENAI_PROGRAM_MESSAGE_CHARACTERS_MAX as MESSAGE_MAX
from symphony_kernel.protocol.limits import OPENAI_PROGRAM_RECORD_BYTES_MAX as RECORD_BYTES_MAX
from symphony_kernel.protocol.limits import PRED_LOGPROBS_MAX

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
    read_record,
)

OPENING: Final = b"\xff\xff\xff\xffLIP"  # as a record's length it would be too long; not UTF-8
VERSION: Final = 1  # the byte after it
_KINDS: Final = frozenset(b"plrcaue")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LENGTH: Final = struct.Struct("<I")


class BrokenAnswerError(Exception):
    """A program's answer is none; the words say why."""


@dataclass(slots=True)
class _Choice:
    """How far a choice is. `writing`: its last call may get arguments."""

    calls: int = 0
    writing: bool = False
    finished: bool = False


class ProgramAnswer:
    """The answer of one run of a program."""

    def __init__(self, n: int = 1, choices: int = 1) -> None:
        """Expect `choices` answers, `n` to each prompt; of plain text one."""
        self._n, self._expected = n, choices
        self._head = b""  # bytes that may be an opening
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._records: _Records | None = None
        self._decided = False
        self.refused: Failure | None = None  # why the server does not take the answer

    def feed(self, data: bytes) -> list[Record]:
        """Return what more messages add; the last is a Usage or a Failure if the answer is over."""
        if self._records is None:
            if self._decided:
                return self._plain(data)
            data = self._head + data
            if len(data) < len(OPENING) and OPENING.startswith(data):
                self._head = data
                return []
            self._head, self._decided = b"", True
            if not data.startswith(OPENING):
                return self._plain(data)
            self._records = _Records(self._expected)
        try:
            return self._records.feed(data)
        except BrokenAnswerError as error:
            return self._broken(error)

    def end(self, counted: Usage) -> list[Record]:
        """Return what completes the answer of a program that has exited well.

        `counted` are the tokens of its preds, for a program that does not tell its usage.
        """
        if self._records is None:
            rest = self._plain(self._head)
            if self.refused is None:
                rest += [Piece(0, self._text.decode(b"", final=True), "stop"), counted]
            return rest
        try:
            return [*self._records.end(), counted]
        except BrokenAnswerError as error:
            return self._broken(error)

    def _plain(self, data: bytes) -> list[Record]:
        if self._n != 1:
            words = f"this program gives one answer: `n` must be 1; it is {self._n}"
            return self._end(400, "unsupported_value", "n", words)
        text = self._text.decode(data)
        return [Piece(0, text, None)] if text else []

    def _broken(self, error: BrokenAnswerError) -> list[Record]:
        words = f"the program's answer is broken: {error}"
        return self._end(502, "broken_answer", None, words)

    def _end(self, status: int, code: str, param: str | None, words: str) -> list[Record]:
        self.refused = Failure(status, code, param, words)
        return [self.refused]


class _Records:
    """Records of a program, checked. A record may span several messages."""

    def __init__(self, choices: int) -> None:
        self._expected = choices
        self._choices: dict[int, _Choice] = {}
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Record]:
        """Return the records that are complete; BrokenAnswerError: one of them is none."""
        self._rest += data
        records: list[Record] = []
        while (found := self._next()) is not None:
            if found:
                records += self._checked(_read(found))
                if records and isinstance(records[-1], END):
                    break
        return records

    def end(self) -> list[Record]:
        """Return the ends of choices that have none; BrokenAnswerError."""
        if self._rest:
            raise BrokenAnswerError("it ends within a record")
        return self._finish()

    def _next(self) -> bytes | None:
        """Return the next record from its kind on, b"" for an opening, None: it is not complete."""
        rest = self._rest
        if len(rest) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(rest)
        if length == 0xFFFF_FFFF:
            return self._opened()
        if not 1 <= length <= RECORD_BYTES_MAX:
            raise BrokenAnswerError(
                f"a record has 1 to {RECORD_BYTES_MAX} bytes, not {length}; behind its opening a "
                "program sends nothing but records"
            )
        end = _LENGTH.size + length
        if len(rest) > _LENGTH.size and rest[_LENGTH.size] not in _KINDS:
            raise BrokenAnswerError(f"there is no kind of record {rest[_LENGTH.size]}")
        if len(rest) < end:
            return None
        record = bytes(rest[_LENGTH.size : end])
        del rest[:end]
        return record

    def _opened(self) -> bytes | None:
        """Take an opening, which may come again: each part of a program may begin with it."""
        size = len(OPENING) + 1
        if len(self._rest) < size:
            return None
        opening, version = self._rest[: len(OPENING)], self._rest[len(OPENING)]
        if opening != OPENING:
            raise BrokenAnswerError(f"a record has 1 to {RECORD_BYTES_MAX} bytes")
        if version != VERSION:
            raise BrokenAnswerError(
                f"its records are of version {version}; this server reads version {VERSION}"
            )
        del self._rest[:size]
        return b""

    def _checked(self, record: Record) -> list[Record]:
        """Return the records that a record of a program adds."""
        if isinstance(record, Failure):
            return [_checked_failure(record)]
        if isinstance(record, Usage):
            return [*self._finish(), record]
        assert isinstance(record, Piece | Reasoning | CallBegin | CallArguments)
        number = record.choice
        if number >= self._expected:
            raise BrokenAnswerError(f"choice {number} is not one of {self._expected}, from 0 on")
        choice = self._choices.setdefault(number, _Choice())
        if choice.finished:
            raise BrokenAnswerError(f"choice {number} goes on behind its end")
        if isinstance(record, CallBegin | CallArguments):
            _check_call(choice, record)
            return [record]
        choice.writing = False
        if isinstance(record, Reasoning):
            return [record] if record.text else []
        if record.logprobs is not None:
            _check_logprobs(record.logprobs)
        choice.finished = record.finish is not None
        tells = record.text or record.finish or record.logprobs
        return [record] if tells else []

    def _finish(self) -> list[Record]:
        """Return the ends of the choices that have none."""
        if self._expected == 1:
            self._choices.setdefault(0, _Choice())
        elif len(self._choices) < self._expected:
            given = f"{len(self._choices)} of {self._expected} choices"
            raise BrokenAnswerError(f"it gives {given}, one for each of `n` to each prompt")
        return [
            Piece(number, "", "tool_calls" if choice.calls else "stop")
            for number, choice in sorted(self._choices.items())
            if not choice.finished
        ]


def _read(record: bytes) -> Record:
    try:
        return read_record(record[0], record, 1, len(record))
    except (struct.error, ValueError, TypeError, KeyError) as error:
        raise BrokenAnswerError(f"a record of the kind {chr(record[0])!r} is malformed") from error


def _check_call(choice: _Choice, record: CallBegin | CallArguments) -> None:
    if isinstance(record, CallBegin):
        if not _NAME.fullmatch(record.name):
            raise BrokenAnswerError("a tool's name has 1 to 64 letters, digits, _ and -")
        if record.index != choice.calls or choice.calls == CALLS_MAX:
            raise BrokenAnswerError(
                f"call {record.index} follows {choice.calls} calls; they count from 0 on, at most "
                f"{CALLS_MAX}"
            )
        choice.calls += 1
        choice.writing = True
    elif not choice.writing or record.index != choice.calls - 1:
        raise BrokenAnswerError(
            f"arguments of call {record.index}, which is not the last one begun: nothing else of "
            "its choice comes between"
        )


def _check_logprobs(entries: list[TokenLogprob]) -> None:
    if len(entries) + sum(len(entry.top) for entry in entries) > LOGPROBS_MAX:
        raise BrokenAnswerError(f"a record has at most {LOGPROBS_MAX} log-probabilities")
    for entry in entries:
        own = (entry.token, 0.0 if entry.logprob is None else entry.logprob)
        for token, logprob in (own, *entry.top):
            real = type(logprob) in (int, float) and math.isfinite(logprob)
            if not isinstance(token, bytes) or not real:
                raise BrokenAnswerError("a token is bytes, its log-probability a finite number")
        if len(entry.top) > PRED_LOGPROBS_MAX:
            raise BrokenAnswerError(f"a token has at most {PRED_LOGPROBS_MAX} alternatives")


def _checked_failure(failure: Failure) -> Failure:
    status, code, param, message = failure.status, failure.code, failure.param, failure.message
    if type(status) is not int or not 400 <= status <= 599:
        raise BrokenAnswerError("the status of a failure is from 400 to 599")
    if not isinstance(message, str) or len(message) > MESSAGE_MAX:
        words = f"a failure's message is a text of at most {MESSAGE_MAX} characters"
        raise BrokenAnswerError(words)
    for field in (code, param or ""):
        if not isinstance(field, str) or len(field) > CODE_MAX:
            words = f"a failure's code and param are texts of at most {CODE_MAX}"
            raise BrokenAnswerError(f"{words} characters")
    return failure
