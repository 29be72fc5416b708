"""Reads a streamed completion after it has come, so that nothing is parsed while time is taken."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

DONE = "[DONE]"


class StreamError(Exception):
    """A stream that says an error, or is none."""


def events(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, str]]:
    """Yield the time and data of each server-sent event.

    Args:
        pieces: What was read from the connection, each with the time that it came. Pieces end
            anywhere.

    Yields:
        The time that the event's last byte came, and its data lines, joined.
    """
    data: list[str] = []
    rest = b""
    for time, piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for raw in lines:
            line = raw.rstrip(b"\r").decode()
            if line.startswith("data:"):
                data.append(line[5:].removeprefix(" "))
            elif not line and data:
                yield time, "\n".join(data)
                data = []


@dataclass(frozen=True, slots=True)
class Completion:
    """What a stream gave. Times as in its pieces; `texts` are those of chunks with text."""

    texts: list[float]
    finished: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int

    @property
    def first(self) -> float | None:
        """The time of the first token, which may have no text (a part of a letter)."""
        return self.texts[0] if self.texts else self.finished


def read_completion(pieces: Iterable[tuple[float, bytes]]) -> Completion:
    """Return what a stream of `/v1/completions` gave.

    Raises:
        StreamError: The stream is broken or tells an error.
    """
    texts: list[float] = []
    finished: float | None = None
    usage: dict[str, Any] = {}
    for time, data in events(pieces):
        if data == DONE:
            continue
        try:
            chunk = json.loads(data)
        except ValueError as error:
            raise StreamError(f"an event that is no JSON: {data[:200]}") from error
        if "error" in chunk:
            raise StreamError(str(chunk["error"]))
        for choice in chunk.get("choices") or ():
            if choice.get("text"):
                texts.append(time)
            if choice.get("finish_reason") is not None:
                finished = time
        usage = chunk.get("usage") or usage
    details = usage.get("prompt_tokens_details") or {}
    return Completion(
        texts,
        finished,
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
        int(details.get("cached_tokens") or 0),
    )
