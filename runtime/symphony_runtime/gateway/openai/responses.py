"""`/v1/responses` in OpenAI's JSON: one text message as the output, whole or as typed events."""

import sys
from json.encoder import encode_basestring
from typing import Any

from symphony_runtime.gateway.http.context import compact
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.program_messages import Part, Piece, Usage

_END_TIMES = 6  # copies of a stream's text in memory, at its end
# The fields of the request that a response repeats, with their defaults.
_ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


class ResponseShape:
    """The format of one response. The answer's id is made of its run's id."""

    def __init__(self, run: str, model: str, created: int, body: dict[str, Any]) -> None:
        number = run.removeprefix("run_")
        self.id = f"resp_{number}"
        self._item = f"msg_{number}"
        self._asked = {"created_at": created, "model": model}
        self._echoed = {
            key: default if body.get(key) is None else body[key] for key, default in _ECHOED.items()
        }
        self._sequence = 0
        self._text: list[str] = []
        self._finish: str | None = None
        self._delta = (
            b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
            b'"item_id":"%s","output_index":0,"content_index":0,"logprobs":[],'
            b'"sequence_number":' % self._item.encode()
        )

    # -- Whole ---------------------------------------------------------------------------------
    def whole(self, pieces: list[Piece], usage: Usage) -> bytes:
        (piece,) = pieces
        self._text, self._finish = [piece.text], piece.finish
        return compact(self._ended(usage)).encode()

    # -- Streamed ------------------------------------------------------------------------------
    def begin(self) -> bytes:
        started = self._view("in_progress", [], None)
        item = {**self._message("in_progress"), "content": []}
        return (
            self._event("response.created", response=started)
            + self._event("response.in_progress", response=started)
            + self._event("response.output_item.added", output_index=0, item=item)
            + self._event("response.content_part.added", **self._at, part=_part(""))
        )

    def chunk(self, piece: Piece) -> bytes:
        """Return a piece of a stream, b"" if it has no text."""
        self._finish = piece.finish
        if not piece.text:
            return b""
        self._text.append(piece.text)
        number = self._sequence
        self._sequence += 1
        return self._delta + f'{number},"delta":{encode_basestring(piece.text)}}}\n\n'.encode()

    def part(self, part: Part) -> bytes:
        raise AssertionError(f"only chat has parts: {part}")

    def kept_bytes(self, piece: Piece) -> int:
        """Return about the bytes that a stream keeps of a piece: its end repeats the text."""
        return _END_TIMES * sys.getsizeof(piece.text) if piece.text else 0

    def end(self, usage: Usage) -> bytes:
        text, ended = "".join(self._text), self._ended(usage)
        (item,) = ended["output"]
        return (
            self._event("response.output_text.done", **self._at, text=text, logprobs=[])
            + self._event("response.content_part.done", **self._at, part=_part(text))
            + self._event("response.output_item.done", output_index=0, item=item)
            + self._event(f"response.{ended['status']}", response=ended)
        )

    def failed(self, error: OpenAIError) -> bytes:
        """Return the end of a stream that cannot continue."""
        return self._event("error", code=error.code, message=error.detail, param=error.param)

    # -- Parts ---------------------------------------------------------------------------------
    @property
    def _at(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {kind}\ndata: {compact(data)}\n\n".encode()

    def _ended(self, usage: Usage) -> dict[str, Any]:
        status = "incomplete" if self._finish == "length" else "completed"
        return self._view(status, [self._message(status)], usage)

    def _message(self, status: str) -> dict[str, Any]:
        return {
            "id": self._item,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [_part("".join(self._text))],
        }

    def _view(
        self, status: str, output: list[dict[str, Any]], usage: Usage | None
    ) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            **self._asked,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "output": output,
            "previous_response_id": None,
            "store": False,
            "text": {"format": {"type": "text"}},
            "tools": [],
            "usage": _usage(usage) if usage else None,
            **self._echoed,
        }


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }
