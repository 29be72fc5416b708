"""The model: what it is, its tokens, its chat template."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from symphony.attached.calls import Ticket
from symphony.attached.facts import Info
from symphony.attached.run import AttachedRun, current
from symphony.sdk.packing import numbers, words

__all__ = ["Info", "Message", "chat", "chat_with", "detokenize", "info", "tokenize"]

_LISTS_KEPT = 4_096  # texts whose tokens are known
_TEXT_KEPT = 512  # characters of such a text
_ASKED_ALONE = 64  # tokens whose bytes are asked for one by one, and kept


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a conversation; `role` is such as "system", "user" or "assistant"."""

    role: str
    content: str


async def info() -> Info:
    """Return what the model is."""
    return current().facts.info


async def tokenize(text: str) -> list[int]:
    """Return the tokens of a text.

    No special tokens are added, and their spellings stay text.
    """
    return await tokenize_in(current(), text)


async def tokenize_in(run: AttachedRun, text: str) -> list[int]:
    """Return the same of a run's model; short texts are asked for once."""
    if not text:
        return []
    if (known := run.facts.token_lists.get(text)) is None:
        known = await run.calls.start("tokenize", {"text": text}, numbers)
        if len(text) <= _TEXT_KEPT:
            if len(run.facts.token_lists) >= _LISTS_KEPT:
                run.facts.token_lists.clear()
            run.facts.token_lists[text] = known
    return list(known)


async def detokenize(tokens: Sequence[int]) -> bytes:
    """Return the bytes of tokens. A token may end inside of a character."""
    return await detokenize_in(current(), tokens)


async def detokenize_in(run: AttachedRun, tokens: Sequence[int]) -> bytes:
    """Return the same of a run's model; a token's bytes are asked for once."""
    known = run.facts.token_bytes
    missing = {token for token in tokens if token not in known}
    if len(missing) > _ASKED_ALONE:
        return await run.calls.start("detokenize", {"tokens": words(tokens)})
    if missing:
        asked: list[Ticket[bytes]] = [
            run.calls.start("detokenize", {"tokens": words([token])}) for token in missing
        ]
        known.update(zip(missing, await asyncio.gather(*asked), strict=True))
    return b"".join([known[token] for token in tokens])


async def chat(messages: Sequence[Message | Mapping[str, str]]) -> list[int]:
    """Return the tokens of a conversation in the model's own chat template."""
    return await chat_in(current(), messages)


async def chat_in(run: AttachedRun, messages: Sequence[Message | Mapping[str, str]]) -> list[int]:
    """Return the same of a run's model."""
    listed = [
        {"role": m.role, "content": m.content} if isinstance(m, Message) else dict(m)
        for m in messages
    ]
    return await run.calls.start("chat", {"conversation": msgpack.packb(listed)}, numbers)


async def chat_with(conversation: Mapping[str, Any]) -> list[int]:
    """Return the tokens of a conversation with tools.

    It is a mapping of `messages`, and of `tools`, `variables`, `add_generation_prompt` and
    `continue_final_message` where they are wanted, as the ABI has them.
    """
    packed = msgpack.packb(dict(conversation))
    return await current().calls.start("chat_with", {"conversation": packed}, numbers)
