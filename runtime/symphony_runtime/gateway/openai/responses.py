"""`/v1/responses` in OpenAI's JSON: reasoning, a message and calls, whole or as typed events."""

import sys
from dataclasses import dataclass, field
from json.encoder import encode_basestring
from typing import Any

from symphony_runtime.gateway.http.context import compact
from symphony_runtime.gateway.openai.completions import call_id
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.program_messages import (
    Begun,
    CallArguments,
    CallBegin,
    Part,
    Piece,
    Reasoning,
    Usage,
)

_END_TIMES = 6  # copies of a stream's text in memory, at its end
# The fields of the request that a response repeats, with their defaults.
_ECHOED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {},
    "temperature": 1.0,
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}
_MESSAGE, _REASONING, _CALL = "message", "reasoning", "function_call"
_PREFIXES = {_MESSAGE: "msg", _REASONING: "rs", _CALL: "fc"}
# The events of an item's text: their field, and what they are called.
_TEXTS = {_MESSAGE: "output_text", _REASONING: "reasoning_text"}


@dataclass(slots=True)
class _Item:
    """An item of the output; `text` are the pieces of its text, or of a call's arguments."""

    kind: str
    id: str
    index: int
    call: str = ""
    name: str = ""
    text: list[str] = field(default_factory=list)

    @property
    def place(self) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self.id, "output_index": self.index}
        return place if self.kind == _CALL else {**place, "content_index": 0}

    def view(self, status: str) -> dict[str, Any]:
        text = "".join(self.text)
        view: dict[str, Any] = {"id": self.id, "type": self.kind, "status": status}
        if self.kind == _CALL:
            return {**view, "call_id": self.call, "name": self.name, "arguments": text}
        content = [] if status == "in_progress" else [self.part(text)]
        if self.kind == _REASONING:
            return {**view, "summary": [], "content": content}
        return {**view, "role": "assistant", "content": content}

    def part(self, text: str) -> dict[str, Any]:
        part: dict[str, Any] = {"type": _TEXTS[self.kind], "text": text}
        return part if self.kind == _REASONING else {**part, "annotations": [], "logprobs": []}


class ResponseShape:
    """The format of one response. The answer's id is made of its run's id."""

    def __init__(
        self,
        run: str,
        model: str,
        created: int,
        body: dict[str, Any],
        call_id_characters: int = 24,
    ) -> None:
        self._number = run.removeprefix("run_")
        self.id = f"resp_{self._number}"
        self._call_id_characters = call_id_characters
        self._asked = {"created_at": created, "model": model}
        self._echoed = {
            key: default if body.get(key) is None else body[key] for key, default in _ECHOED.items()
        }
        self._sequence = 0
        self._items: list[_Item] = []
        self._text: list[str] | None = None  # of the message that is open
        self._finish: str | None = None
        self._delta = b""  # the beginning of its events

    # -- Whole ---------------------------------------------------------------------------------
    def whole(self, pieces: list[Piece], usage: Usage) -> bytes:
        (piece,) = pieces
        self._finish = piece.finish
        if piece.reasoning:
            self._add(_REASONING).text.append(piece.reasoning)
        if piece.text or not piece.calls:
            self._add(_MESSAGE).text.append(piece.text)
        for index, (name, arguments) in enumerate(piece.calls or []):
            self._add(_CALL, index, name).text.append(arguments)
        return compact(self._ended(usage)).encode()

    # -- Streamed ------------------------------------------------------------------------------
    def begin(self, _: Begun | None = None) -> bytes:
        started = self._view("in_progress", [], None)
        created = self._event("response.created", response=started)
        return created + self._event("response.in_progress", response=started)

    def chunk(self, piece: Piece) -> bytes:
        """Return a piece of a stream, b"" if it has no text."""
        self._finish = piece.finish
        if not piece.text:
            return b""
        opened = b"" if self._text is not None else self._open(_MESSAGE)
        assert self._text is not None
        self._text.append(piece.text)
        number = self._sequence
        self._sequence += 1
        delta = f'{number},"delta":{encode_basestring(piece.text)}}}\n\n'.encode()
        return opened + self._delta + delta

    def part(self, part: Part) -> bytes:
        """Return a part of a stream that is no content."""
        if isinstance(part, CallBegin):
            return self._open(_CALL, part.index, part.name)
        opened = b""
        if isinstance(part, Reasoning) and (not self._items or self._items[-1].kind != _REASONING):
            opened = self._open(_REASONING)
        item = self._items[-1]
        item.text.append(part.text)
        kind = "function_call_arguments" if isinstance(part, CallArguments) else "reasoning_text"
        return opened + self._event(f"response.{kind}.delta", **item.place, delta=part.text)

    def kept_bytes(self, piece: Piece | Part) -> int:
        """Return about the bytes that a stream keeps of a piece: its end repeats the text."""
        text = piece.name if isinstance(piece, CallBegin) else piece.text
        return _END_TIMES * sys.getsizeof(text) if text else 0

    def end(self, usage: Usage) -> bytes:
        opened = b"" if self._items else self._open(_MESSAGE)
        closed = self._close()
        ended = self._ended(usage)
        return opened + closed + self._event(f"response.{ended['status']}", response=ended)

    def failed(self, error: OpenAIError) -> bytes:
        """Return the end of a stream that cannot continue."""
        return self._event("error", code=error.code, message=error.detail, param=error.param)

    # -- Items ---------------------------------------------------------------------------------
    def _add(self, kind: str, call: int = 0, name: str = "") -> _Item:
        index = len(self._items)
        number = self._number if not index else f"{self._number}_{index}"
        called = ""
        if kind == _CALL:
            called = call_id(self.id, 0, call, self._call_id_characters)
        self._items.append(_Item(kind, f"{_PREFIXES[kind]}_{number}", index, called, name))
        return self._items[-1]

    def _open(self, kind: str, call: int = 0, name: str = "") -> bytes:
        """Begin an item, behind the one before it."""
        events = self._close()
        item = self._add(kind, call, name)
        events += self._event(
            "response.output_item.added", output_index=item.index, item=item.view("in_progress")
        )
        if kind == _MESSAGE:
            self._text = item.text
            events += self._event("response.content_part.added", **item.place, part=item.part(""))
            self._delta = (
                b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta",'
                b'"item_id":"%s","output_index":%d,"content_index":0,"logprobs":[],'
                b'"sequence_number":' % (item.id.encode(), item.index)
            )
        return events

    def _close(self) -> bytes:
        """End the item that is open, if any."""
        self._text = None
        if not self._items:
            return b""
        item = self._items[-1]
        text = "".join(item.text)
        if item.kind == _CALL:
            done = self._event(
                "response.function_call_arguments.done",
                **item.place, name=item.name, arguments=text,
            )  # fmt: skip
        else:
            more: dict[str, Any] = {"logprobs": []} if item.kind == _MESSAGE else {}
            kind = f"response.{_TEXTS[item.kind]}.done"
            done = self._event(kind, **item.place, text=text, **more)
        if item.kind == _MESSAGE:
            done += self._event("response.content_part.done", **item.place, part=item.part(text))
        view = item.view(self._status)
        return done + self._event("response.output_item.done", output_index=item.index, item=view)

    # -- Parts ---------------------------------------------------------------------------------
    @property
    def _status(self) -> str:
        return "incomplete" if self._finish == "length" else "completed"

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return f"event: {kind}\ndata: {compact(data)}\n\n".encode()

    def _ended(self, usage: Usage) -> dict[str, Any]:
        last = len(self._items) - 1
        output = [
            item.view(self._status if item.index == last else "completed") for item in self._items
        ]
        return self._view(self._status, output, usage)

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
            "usage": _usage(usage) if usage else None,
            **self._echoed,
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }
