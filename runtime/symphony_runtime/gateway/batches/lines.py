"""The lines of a batch's input file: split as they are read, and checked.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}

A blank line is skipped. Lines are read one at a time; one that is too long is never held whole.
"""

import hashlib
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from symphony_kernel.protocol.limits import (
    BATCH_CUSTOM_ID_CHARACTERS_MAX,
    BATCH_ERRORS_MAX,
    BATCH_LINE_BYTES_MAX,
    BATCH_LINES_MAX,
    JSON_COST_MAX,
)

from symphony_runtime.bounded_json import DeepJsonError, load_json
from symphony_runtime.gateway.http.context import to_json
from symphony_runtime.gateway.http.json_cost import parse_cost

_COSTLY_BYTES = 64 << 10  # the values of longer lines are counted before they are parsed
_SHOWN_CHARACTERS = 100
_DIGEST_BYTES = 16
_RESPONSES = "/v1/responses"


@dataclass(frozen=True, slots=True)
class Line:
    """A line from `start` up to `end`, which is behind its newline; `data` None: too long."""

    number: int  # from 1
    start: int
    end: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """What a line asks for."""

    custom_id: str
    body: bytes  # JSON


class LineError(Exception):
    """A line is wrong: OpenAI's code, message and parameter of the error."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.param = code, param


class Splitter:
    """Splits bytes that come in pieces into lines."""

    def __init__(self, number: int = 1, start: int = 0) -> None:
        """Begin with the line of this number, which starts at this offset."""
        self._number, self._start = number, start
        self._pending = bytearray()  # of the line that is not complete
        self._dropped = 0  # bytes of it that are not in memory: it is too long

    def feed(self, piece: bytes) -> Iterator[Line]:
        """Yield the lines that a piece completes."""
        at = 0
        while (end := piece.find(b"\n", at)) >= 0:
            yield self._line(piece[at:end], 1)
            at = end + 1
        self._keep(piece[at:])

    def finish(self) -> Iterator[Line]:
        """Yield the last line if it has no newline."""
        if self._pending or self._dropped:
            yield self._line(b"", 0)

    def _keep(self, data: bytes) -> None:
        if self._dropped or len(self._pending) + len(data) > BATCH_LINE_BYTES_MAX:
            self._dropped += len(self._pending) + len(data)
            self._pending.clear()
        else:
            self._pending += data

    def _line(self, rest: bytes, newline: int) -> Line:
        self._keep(rest)
        size = self._dropped + len(self._pending) + newline
        data = None if self._dropped else bytes(self._pending)
        line = Line(self._number, self._start, self._start + size, data)
        self._number, self._start, self._dropped = self._number + 1, line.end, 0
        self._pending.clear()
        return line


async def read_lines(
    pieces: AsyncGenerator[bytes, None], number: int = 1, start: int = 0
) -> AsyncGenerator[Line, None]:
    """Yield the lines of a file whose bytes from `start` on come in pieces, but for blank ones."""
    splitter = Splitter(number, start)
    async with aclosing(pieces):
        async for piece in pieces:
            for line in splitter.feed(piece):
                if line.data is None or line.data.strip():
                    yield line
    for line in splitter.finish():
        if line.data is None or line.data.strip():
            yield line


def parse_line(line: Line, endpoint: str) -> BatchRequest:
    """Return what a line asks for; LineError."""
    if line.data is None:
        message = f"a line may have at most {BATCH_LINE_BYTES_MAX} bytes"
        raise LineError("line_too_long", message)
    values = _parse(line.data)
    if not isinstance(values, dict):
        raise LineError("invalid_json_line", "the line is not a JSON object")
    custom_id = values.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= BATCH_CUSTOM_ID_CHARACTERS_MAX:
        message = (
            f"`custom_id` must be a string of 1 to {BATCH_CUSTOM_ID_CHARACTERS_MAX} characters"
        )
        raise LineError("invalid_custom_id", message, "custom_id")
    if values.get("method") != "POST":
        raise LineError("invalid_method", "`method` must be POST", "method")
    if values.get("url") != endpoint:
        raise LineError("invalid_url", f"`url` must be the batch's endpoint, {endpoint}", "url")
    body = values.get("body")
    if not isinstance(body, dict):
        raise LineError("invalid_body", "`body` must be a JSON object", "body")
    if body.get("stream"):
        raise LineError("invalid_body", "`stream` must be false: a batch streams nothing", "body")
    if endpoint == _RESPONSES and body.get("background") is True:
        message = "`background` must be false: a batch waits for each answer"
        raise LineError("invalid_body", message, "body")
    try:
        custom_id.encode()
        return BatchRequest(custom_id, to_json(body))
    except UnicodeEncodeError:
        raise LineError("invalid_json_line", "the line holds a lone surrogate") from None


def _parse(data: bytes) -> Any:
    if len(data) > _COSTLY_BYTES and parse_cost(data, JSON_COST_MAX) > JSON_COST_MAX:
        raise LineError("line_too_long", "the line has too many values")
    try:
        return load_json(data)
    except DeepJsonError as error:
        raise LineError("invalid_json_line", f"the line {error}") from None
    except ValueError as error:
        words = str(error)[:_SHOWN_CHARACTERS]
        raise LineError("invalid_json_line", f"the line is not JSON: {words}") from None


class Validator:
    """Checks a whole input file; `errors` are OpenAI's, `total` counts the requests."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._splitter = Splitter()
        self._seen: set[bytes] = set()  # digests of the custom ids
        self.total = 0
        self.errors: list[dict[str, Any]] = []
        self.ended = False  # no more of the file need be read

    def feed(self, piece: bytes) -> None:
        for line in self._splitter.feed(piece):
            self._check(line)
            if self.ended:
                return

    def finish(self) -> None:
        """Check the end of the file."""
        if not self.ended:
            for line in self._splitter.finish():
                self._check(line)
        if not self.total and not self.errors:
            self._add(LineError("empty_file", "the input file has no requests"), None)

    def _check(self, line: Line) -> None:
        if line.number > BATCH_LINES_MAX:
            message = f"an input file may have at most {BATCH_LINES_MAX} lines"
            self._add(LineError("too_many_lines", message), line.number)
            self.ended = True
            return
        if line.data is not None and not line.data.strip():
            return
        try:
            request = parse_line(line, self._endpoint)
            digest = hashlib.blake2b(request.custom_id.encode(), digest_size=_DIGEST_BYTES).digest()
            if digest in self._seen:
                message = f"an earlier line has the same custom_id: {_shown(request.custom_id)}"
                raise LineError("duplicate_custom_id", message, "custom_id")
            self._seen.add(digest)
            self.total += 1
        except LineError as error:
            self._add(error, line.number)
        self.ended = len(self.errors) >= BATCH_ERRORS_MAX

    def _add(self, error: LineError, line: int | None) -> None:
        self.errors.append(
            {"code": error.code, "message": str(error), "param": error.param, "line": line}
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")
