"""Answers in OpenAI's JSON: whole ones, and the chunks of streams.

A chunk is joined from bytes that are the same in all chunks of a stream, so a token needs no dict.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from json.encoder import encode_basestring
from typing import Any

from symphony_runtime.gateway.http.context import compact
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.program_messages import (
    Begun,
    CallArguments,
    CallBegin,
    Part,
    Piece,
    PromptLogprob,
    Reasoning,
    TokenLogprob,
    Usage,
)

DONE = b"data: [DONE]\n\n"
_TEXT, _CHAT = "text_completion", "chat.completion"
_CALL_ID_CHARACTERS = 24  # as usual


class Shape(ABC):
    """The format of one answer. The answer's id is made of its run's id, `run`."""

    prefix = ""
    kind = ""
    chunk_kind = ""

    def __init__(
        self,
        run: str,
        model: str,
        created: int,
        *,
        include_usage: bool,
        call_id_characters: int = _CALL_ID_CHARACTERS,
    ) -> None:
        self.id = self.prefix + run.removeprefix("run_")
        self.model = model
        self.created = created
        self._include_usage = include_usage
        self._call_id_characters = call_id_characters
        self._lengths: dict[int, int] = {}  # characters of each choice so far
        head = {"id": self.id, "object": self.chunk_kind, "created": created, "model": model}
        self._head = b"data: " + compact(head)[:-1].encode() + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if include_usage else b"]}\n\n"

    def begin(self, _: Begun | None = None) -> bytes:
        return b""

    def chunk(self, piece: Piece) -> bytes:
        """Return a piece of a stream as a server-sent event."""
        return self._head + self._choice_chunk(piece).encode() + self._tail

    def part(self, part: Part) -> bytes:  # noqa: ARG002
        """Return a part of a stream that is no content as a server-sent event.

        Completions are text alone: what else a program gives is left out.
        """
        return b""

    def end(self, usage: Usage) -> bytes:
        if not self._include_usage:
            return DONE
        return self._head + b'],"usage":' + compact(usage_of(usage)).encode() + b"}\n\n" + DONE

    def failed(self, error: OpenAIError) -> bytes:
        """Return the end of a stream that cannot continue."""
        return b"data: %s\n\n" % json.dumps(error.document()).encode() + DONE

    def whole(self, pieces: list[Piece], usage: Usage) -> bytes:
        """Return a whole answer's JSON; `pieces` has one for each choice."""
        answer = {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": [self._choice(piece) for piece in pieces],
            "usage": usage_of(usage),
        }
        return compact(answer | self._of_prompt(pieces)).encode()

    def kept_bytes(self, piece: Piece | Part) -> int:  # noqa: ARG002
        return 0

    def _of_prompt(self, pieces: list[Piece]) -> dict[str, Any]:  # noqa: ARG002
        """Return what a whole answer says of its prompt, besides its choices."""
        return {}

    @abstractmethod
    def _choice(self, piece: Piece) -> dict[str, Any]:
        """Return a choice of a whole answer."""

    @abstractmethod
    def _choice_chunk(self, piece: Piece) -> str:
        """Return a choice's part of a chunk, as JSON."""

    def _text_offset(self, piece: Piece) -> int:
        """Return where a piece begins in its choice's text, in characters."""
        before = self._lengths.get(piece.choice, 0)
        self._lengths[piece.choice] = before + len(piece.text)
        return before


class CompletionShape(Shape):
    """`/v1/completions`."""

    prefix, kind, chunk_kind = "cmpl-", _TEXT, _TEXT

    def _choice(self, piece: Piece) -> dict[str, Any]:
        choice = {
            "index": piece.choice,
            "text": piece.text,
            "logprobs": self._logprobs(piece),
            "finish_reason": piece.finish,
        }
        if piece.ids is not None:
            choice["token_ids"] = piece.ids
        if piece.prompt is not None:
            choice["prompt_logprobs"] = _prompt_logprobs(piece.prompt)
        return choice

    def _choice_chunk(self, piece: Piece) -> str:
        logprobs = "null" if piece.logprobs is None else compact(self._logprobs(piece))
        return (
            f'{{"index":{piece.choice},"text":{encode_basestring(piece.text)},'
            f'"logprobs":{logprobs},"finish_reason":{_finish(piece)}}}'
        )

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if piece.logprobs is None:
            return None
        offset = self._text_offset(piece)
        offsets = []
        for entry in piece.logprobs:
            offsets.append(offset)
            offset += len(_text(entry.token))
        return {
            "tokens": [_text(entry.token) for entry in piece.logprobs],
            "token_logprobs": [entry.logprob for entry in piece.logprobs],
            "top_logprobs": [_top_map(entry) for entry in piece.logprobs],
            "text_offset": offsets,
        }


class ChatShape(Shape):
    """`/v1/chat/completions`."""

    prefix, kind, chunk_kind = "chatcmpl-", _CHAT, _CHAT + ".chunk"

    def _choice(self, piece: Piece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": piece.text, "refusal": None}
        if piece.reasoning:
            message["reasoning_content"] = piece.reasoning
        if piece.calls:
            message["content"] = piece.text or None
            message["tool_calls"] = [
                {
                    "id": self._call_id(piece.choice, index),
                    "type": "function",
                    "function": {"name": name, "arguments": arguments},
                }
                for index, (name, arguments) in enumerate(piece.calls)
            ]
        return {
            "index": piece.choice,
            "message": message,
            "logprobs": self._logprobs(piece),
            "finish_reason": piece.finish,
        }

    def part(self, part: Part) -> bytes:
        delta: dict[str, Any]
        if isinstance(part, Reasoning):
            delta = {"reasoning_content": part.text}
        elif isinstance(part, CallBegin):
            call = {
                "index": part.index,
                "id": self._call_id(part.choice, part.index),
                "type": "function",
                "function": {"name": part.name, "arguments": ""},
            }
            delta = {"tool_calls": [call]}
        else:
            assert isinstance(part, CallArguments)
            function = {"arguments": part.text}
            delta = {"tool_calls": [{"index": part.index, "function": function}]}
        if part.choice not in self._lengths:
            self._lengths[part.choice] = 0
            delta = {"role": "assistant", **delta}
        choice = {"index": part.choice, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._head + compact(choice).encode() + self._tail

    def _call_id(self, choice: int, index: int) -> str:
        return call_id(self.id, choice, index, self._call_id_characters)

    def _of_prompt(self, pieces: list[Piece]) -> dict[str, Any]:
        prompt = pieces[0].prompt
        return {} if prompt is None else {"prompt_logprobs": _prompt_logprobs(prompt)}

    def _choice_chunk(self, piece: Piece) -> str:
        logprobs = "null" if piece.logprobs is None else compact(self._logprobs(piece))
        role = ""
        if piece.choice not in self._lengths:
            self._lengths[piece.choice] = 0
            role = '"role":"assistant",'
        if piece.finish == "tool_calls" and not piece.text:
            return (
                f'{{"index":{piece.choice},"delta":{{}},"logprobs":{logprobs},'
                f'"finish_reason":"tool_calls"}}'
            )
        return (
            f'{{"index":{piece.choice},"delta":{{{role}"content":{encode_basestring(piece.text)}}},'
            f'"logprobs":{logprobs},"finish_reason":{_finish(piece)}}}'
        )

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if piece.logprobs is None:
            return None
        return {"content": [token_logprob(entry) for entry in piece.logprobs], "refusal": None}


def call_id(answer: str, choice: int, index: int, characters: int, prefix: str = "call_") -> str:
    """Return the id of a call, the same each time that an answer is told.

    Families whose ids are short want nothing but letters and digits.
    """
    digest = hashlib.sha256(f"{answer}/{choice}/{index}".encode()).hexdigest()[:characters]
    return digest if characters < _CALL_ID_CHARACTERS else f"{prefix}{digest}"


def usage_of(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def token_logprob(entry: TokenLogprob) -> dict[str, Any]:
    """Return a token with its log-probability and the likeliest there."""
    top = [_token(token, logprob) for token, logprob in entry.top]
    return {**_token(entry.token, entry.logprob), "top_logprobs": top}


def _finish(piece: Piece) -> str:
    return f'"{piece.finish}"' if piece.finish else "null"


def _text(token: bytes) -> str:
    return token.decode("utf-8", "replace")


def _token(token: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": _text(token), "logprob": logprob, "bytes": list(token)}


def _prompt_logprobs(entries: list[PromptLogprob]) -> list[dict[str, Any] | None]:
    """Return vLLM's list: for each token but the first its own and the likeliest, by id.

    A rank is known of the likeliest tokens only.
    """
    found: list[dict[str, Any] | None] = []
    for entry in entries:
        if entry.logprob is None:
            found.append(None)
            continue
        ranked = [(*best, rank) for rank, best in enumerate(entry.top, 1)]
        at_place = {
            str(token): {"logprob": logprob, "rank": rank, "decoded_token": _text(text)}
            for token, text, logprob, rank in ranked
        }
        own = {"logprob": entry.logprob, "rank": None, "decoded_token": _text(entry.token)}
        found.append({str(entry.id): own} | at_place)
    return found


def _top_map(entry: TokenLogprob) -> dict[str, float] | None:
    if not entry.top:
        return None
    # The likeliest come first: of two tokens with the same text the better one stays.
    top: dict[str, float] = {}
    for token, logprob in entry.top:
        top.setdefault(_text(token), logprob)
    if entry.logprob is not None:
        top.setdefault(_text(entry.token), entry.logprob)
    return top
