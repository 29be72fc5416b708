"""`/v1/responses` in OpenAI's JSON: reasoning, a message and calls, whole or as typed events."""

import sys
from json.encoder import encode_basestring
from typing import Any

from symphony_runtime.gateway.http.context import to_any_json
from symphony_runtime.gateway.openai.completions import call_id, token_logprob
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
from symphony_runtime.gateway.openai.requests.response_tools import called_tools
from symphony_runtime.gateway.openai.response_output import (
    CALL,
    CUSTOM_CALL,
    MESSAGE,
    PREFIXES,
    REASONING,
    TEXTS,
    Item,
    call_item,
)

# Why an answer that has ended so is incomplete.
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}
_END_TIMES = 6  # copies of a stream's text in memory, at its end
# The fields of the request that a response repeats, with their defaults.
_ECHOED: dict[str, Any] = {
    "background": False,
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


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
        self._items: list[Item] = []
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text is still to come
        self._called = called_tools(body.get("tools"))
        self._text: list[str] | None = None  # of the message that is open
        self._finish: str | None = None
        self._delta = b""  # the beginning of its events

    # -- Whole ---------------------------------------------------------------------------------
    def whole(self, pieces: list[Piece], usage: Usage) -> bytes:
        (piece,) = pieces
        self._finish = piece.finish
        if piece.reasoning:
            self._add(REASONING).text.append(piece.reasoning)
        if piece.text or not piece.calls:
            self._add(MESSAGE).text.append(piece.text)
            self._items[-1].logprobs = _logprobs(piece)
        for index, (name, arguments) in enumerate(piece.calls or []):
            self._add(CALL, index, name).text.append(arguments)
        return to_any_json(self.ended(usage))

    # -- Streamed ------------------------------------------------------------------------------
    def begin(self, _: Begun | None = None) -> bytes:
        started = self.started("in_progress")
        created = self._event("response.created", response=started)
        return created + self._event("response.in_progress", response=started)

    def chunk(self, piece: Piece) -> bytes:
        """Return a piece of a stream, b"" if it has no text."""
        self._finish = piece.finish
        if piece.logprobs:
            self._logprobs += _logprobs(piece)
        if not piece.text:
            return b""
        opened = b"" if self._text is not None else self._open(MESSAGE)
        assert self._text is not None
        self._text.append(piece.text)
        if piece.logprobs is not None:
            return opened + self._chunk_with_logprobs(piece)
        number = self._sequence
        self._sequence += 1
        delta = f'{number},"delta":{encode_basestring(piece.text)}}}\n\n'.encode()
        return opened + self._delta + delta

    def part(self, part: Part) -> bytes:
        """Return a part of a stream that is no content."""
        if isinstance(part, CallBegin):
            return self._open(CALL, part.index, part.name)
        opened = b""
        if isinstance(part, Reasoning) and (not self._items or self._items[-1].kind != REASONING):
            opened = self._open(REASONING)
        item = self._items[-1]
        item.text.append(part.text)
        if item.kind == CUSTOM_CALL:  # its input is told whole, once the arguments are complete
            return b""
        kind = "function_call_arguments" if isinstance(part, CallArguments) else "reasoning_text"
        return opened + self._event(f"response.{kind}.delta", **item.place, delta=part.text)

    def kept_bytes(self, piece: Piece | Part) -> int:
        """Return about the bytes that a stream keeps of a piece: its end repeats the text."""
        text = piece.name if isinstance(piece, CallBegin) else piece.text
        return _END_TIMES * sys.getsizeof(text) if text else 0

    def end(self, usage: Usage) -> bytes:
        opened = b"" if self._items else self._open(MESSAGE)
        closed = self._close()
        ended = self.ended(usage)
        return opened + closed + self._event(f"response.{ended['status']}", response=ended)

    def failed(self, error: OpenAIError) -> bytes:
        """Return the end of a stream that cannot continue."""
        failed = self._event("response.failed", response=self.stopped("failed", error))
        told = self._event("error", code=error.code, message=error.detail, param=error.param)
        return failed + told

    # -- Of a response that is kept ------------------------------------------------------------
    def started(self, status: str) -> dict[str, Any]:
        """Return a response that has not ended."""
        return self._view(status, [], None)

    def ended(self, usage: Usage) -> dict[str, Any]:
        """Return a response that has ended by itself."""
        last = len(self._items) - 1
        output = [
            item.view(self._status if item.index == last else "completed") for item in self._items
        ]
        return self._view(self._status, output, usage)

    def stopped(self, status: str, error: OpenAIError) -> dict[str, Any]:
        """Return a response that has failed or was cancelled, with what came before."""
        output = [item.view("incomplete") for item in self._items]
        view = self._view(status, output, None)
        if status == "failed":
            code = "rate_limit_exceeded" if error.status == 429 else "server_error"
            code = "invalid_prompt" if error.status == 400 else code
            view["error"] = {"code": code, "message": error.detail}
        return view

    # -- Items ---------------------------------------------------------------------------------
    def _add(self, kind: str, call: int = 0, name: str = "") -> Item:
        index = len(self._items)
        number = self._number if not index else f"{self._number}_{index}"
        if kind == CALL:
            called = call_id(self.id, 0, call, self._call_id_characters)
            item = call_item(f"{{}}_{number}", index, called, name, self._called.get(name))
        else:
            item = Item(kind, f"{PREFIXES[kind]}_{number}", index)
        self._items.append(item)
        return item

    def _open(self, kind: str, call: int = 0, name: str = "") -> bytes:
        """Begin an item, behind the one before it."""
        events = self._close()
        item = self._add(kind, call, name)
        events += self._event(
            "response.output_item.added", output_index=item.index, item=item.view("in_progress")
        )
        if kind == MESSAGE:
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
        if item.kind == MESSAGE and self._logprobs:
            item.logprobs += self._logprobs
            self._logprobs = []
        text = item.whole
        if item.kind == CALL:
            done = self._event(
                "response.function_call_arguments.done",
                **item.place, name=item.name, arguments=text,
            )  # fmt: skip
        elif item.kind == CUSTOM_CALL:
            kind = "response.custom_tool_call_input"
            done = self._event(f"{kind}.delta", **item.place, delta=text)
            done += self._event(f"{kind}.done", **item.place, input=text)
        else:
            more: dict[str, Any] = {"logprobs": item.logprobs} if item.kind == MESSAGE else {}
            kind = f"response.{TEXTS[item.kind]}.done"
            done = self._event(kind, **item.place, text=text, **more)
        if item.kind == MESSAGE:
            done += self._event("response.content_part.done", **item.place, part=item.part(text))
        view = item.view(self._status)
        return done + self._event("response.output_item.done", output_index=item.index, item=view)

    # -- Parts ---------------------------------------------------------------------------------
    @property
    def _status(self) -> str:
        return "incomplete" if self._finish in _CUT else "completed"

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), to_any_json(data))

    def _chunk_with_logprobs(self, piece: Piece) -> bytes:
        item, found = self._items[-1], self._logprobs
        self._logprobs = []
        item.logprobs += found
        return self._event(
            "response.output_text.delta", **item.place, delta=piece.text, logprobs=found
        )

    def _view(
        self, status: str, output: list[dict[str, Any]], usage: Usage | None
    ) -> dict[str, Any]:
        cut = {"reason": _CUT[self._finish or ""]} if status == "incomplete" else None
        return {
            "id": self.id,
            "object": "response",
            **self._asked,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "output": output,
            "usage": _usage(usage) if usage else None,
            **self._echoed,
        }


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def _logprobs(piece: Piece) -> list[dict[str, Any]]:
    """Return the log-probabilities of a piece's tokens."""
    return [token_logprob(entry) for entry in piece.logprobs or ()]
