"""An answer of `/v1/messages` in Anthropic's JSON: a message of blocks, whole or as events."""

import json
from json.encoder import encode_basestring
from typing import Any, Final

from symphony_runtime.gateway.anthropic.errors import AnthropicError
from symphony_runtime.gateway.http.context import compact
from symphony_runtime.gateway.openai.completions import call_id
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.program_messages import (
    Begun,
    CallBegin,
    Part,
    Piece,
    Reasoning,
    Stopped,
    Usage,
)

_TEXT, _THINKING, _CALL = "text", "thinking", "tool_use"
_CHARACTERS: Final = 24  # of a signature, and of usual ids of calls


class MessagesShape:
    """The format of one message. Its id is made of its run's id, `run`.

    `max_tokens` tells an answer that has all of its tokens from one that the context has cut off.
    Without `shows_thinking` a block of reasoning has no text.
    """

    def __init__(
        self,
        run: str,
        model: str,
        *,
        max_tokens: int | None,
        shows_thinking: bool = True,
        call_id_characters: int = _CHARACTERS,
    ) -> None:
        self.id = f"msg_{run.removeprefix('run_')}"
        self._model = model
        self._max_tokens = max_tokens
        self._shows_thinking = shows_thinking
        self._call_id_characters = call_id_characters
        self._finish: str | None = None
        self._stopped: str | None = None
        self._blocks = 0  # begun so far
        self._open = ""  # the type of the last one, if it has not ended
        self._delta = b""  # the beginning of the open text's events

    # -- Whole ---------------------------------------------------------------------------------
    def whole(self, pieces: list[Piece], usage: Usage) -> bytes:
        (piece,) = pieces
        self._finish, self._stopped = piece.finish, piece.stopped
        content: list[dict[str, Any]] = []
        if piece.reasoning:
            thinking = piece.reasoning if self._shows_thinking else ""
            content.append({"type": _THINKING, "thinking": thinking, "signature": self._sign(0)})
        if piece.text:
            content.append({"type": _TEXT, "text": piece.text})
        for index, (name, arguments) in enumerate(piece.calls or ()):
            content.append(self._call(index, name, _read_arguments(arguments)))
        return compact(self._view(content, usage) | self._ended(usage)).encode()

    # -- Streamed ------------------------------------------------------------------------------
    def begin(self, begun: Begun | None) -> bytes:
        usage = Usage(begun.prompt, begun.cached) if begun else Usage()
        message = {**self._view([], usage), "stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=message) + _event("ping")

    def chunk(self, piece: Piece) -> bytes:
        """Return a piece of a stream, b"" if it has no text."""
        self._finish = piece.finish
        if not piece.text:
            return b""
        begun = b"" if self._open == _TEXT else self._begin_text()
        return begun + self._delta + encode_basestring(piece.text).encode() + b"}}\n\n"

    def part(self, part: Part) -> bytes:
        """Return a part of a stream that is no content."""
        if isinstance(part, Stopped):
            self._stopped = part.text
            return b""
        if isinstance(part, CallBegin):
            return self._begin_block(_CALL, self._call(part.index, part.name, {}))
        if not isinstance(part, Reasoning):
            return self._say("input_json_delta", "partial_json", part.text)
        begun = b""
        if self._open != _THINKING:
            block = {"type": _THINKING, "thinking": "", "signature": ""}
            begun = self._begin_block(_THINKING, block)
        if not self._shows_thinking:
            return begun
        return begun + self._say("thinking_delta", "thinking", part.text)

    def kept_bytes(self, _: Piece | Part) -> int:
        return 0

    def end(self, usage: Usage) -> bytes:
        ended = self._end_block()
        delta = _event("message_delta", delta=self._ended(usage), usage=_usage(usage))
        return ended + delta + _event("message_stop")

    def failed(self, error: OpenAIError) -> bytes:
        """Return the end of a stream that cannot continue."""
        return _event("error", **AnthropicError(error).event)

    # -- Blocks --------------------------------------------------------------------------------
    def _begin_text(self) -> bytes:
        begun = self._begin_block(_TEXT, {"type": _TEXT, "text": ""})
        self._delta = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":' % (self._blocks - 1)
        )
        return begun

    def _begin_block(self, kind: str, block: dict[str, Any]) -> bytes:
        """Begin a block, behind the one before it."""
        ended = self._end_block()
        index, self._open = self._blocks, kind
        self._blocks += 1
        return ended + _event("content_block_start", index=index, content_block=block)

    def _end_block(self) -> bytes:
        """End the block that is open, if any."""
        signed = b""
        if self._open == _THINKING:
            signed = self._say("signature_delta", "signature", self._sign(self._blocks - 1))
        was_open, self._open = self._open, ""
        return signed + _event("content_block_stop", index=self._blocks - 1) if was_open else b""

    def _say(self, kind: str, field: str, text: str) -> bytes:
        delta = {"type": kind, field: text}
        return _event("content_block_delta", index=self._blocks - 1, delta=delta)

    def _call(self, index: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        call = call_id(self.id, 0, index, self._call_id_characters, "toolu_")
        return {"type": _CALL, "id": call, "name": name, "input": arguments}

    def _sign(self, index: int) -> str:
        """Return the signature of a block of reasoning, which clients need and nothing checks."""
        return call_id(self.id, index, 0, _CHARACTERS, "sig_")

    # -- Parts ---------------------------------------------------------------------------------
    def _view(self, content: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "usage": _usage(usage),
        }

    def _ended(self, usage: Usage) -> dict[str, Any]:
        """Return why the message has ended."""
        reason, stopped = "end_turn", None
        if self._finish == "tool_calls":
            reason = "tool_use"
        elif self._finish == "length":
            cut = self._max_tokens is not None and usage.completion < self._max_tokens
            reason = "model_context_window_exceeded" if cut else "max_tokens"
        elif self._finish == "content_filter":
            reason = "refusal"
        elif self._stopped is not None:
            reason, stopped = "stop_sequence", self._stopped
        return {"stop_reason": reason, "stop_sequence": stopped}


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {compact({'type': kind, **fields})}\n\n".encode()


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }


def _read_arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments, {} if `max_tokens` has cut them off or no JSON can hold them."""
    try:
        arguments = json.loads(text)
        # An infinite number, or a lone surrogate that was escaped.
        json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}
