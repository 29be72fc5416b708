"""The handlers that show what a tenant's KV files and its cached prefixes hold.

The kernel gives pages and tokens. The text of tokens is a run of the shipped program in the
tenant's name, as `/detokenize` is.
"""

import codecs
import struct
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.limits import (
    FILE_ENTRIES_MAX,
    KV_VIEW_TOKENS_MAX,
    PREFIX_VIEW_DEPTH_DEFAULT,
    PREFIX_VIEW_DEPTH_MAX,
)

from symphony_runtime.gateway.errors import unavailable
from symphony_runtime.gateway.http.context import answer, flag, number, page_limit
from symphony_runtime.gateway.kv.kernel import ask_kernel, model_of, path_of
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.tasks import token_bytes

TOKENS_DEFAULT = 1_024  # of one answer


async def get_pages(request: web.Request) -> web.StreamResponse:
    limit, after = page_limit(request), _after(request)
    shown = await ask_kernel(request, "kv_pages", path=path_of(request), after=after, limit=limit)
    return await answer({**shown, "next": _cursor(shown["next"])})


async def get_tokens(request: web.Request) -> web.StreamResponse:
    path, after, wants_text = path_of(request), _after(request), flag(request, "text")
    text = request.query.get("limit", str(TOKENS_DEFAULT))
    count = number(text, "limit", 1, KV_VIEW_TOKENS_MAX)
    shown = await ask_kernel(request, "kv_tokens", path=path, start=after, count=count)
    ids, length = _integers(shown["tokens"]), shown["len"]
    end = after + len(ids)
    document: dict[str, Any] = {
        "path": path,
        "len": length,
        "first": after,
        "tokens": ids,
        "positions": _integers(shown["positions"]),
        "texts": None,
        "next": _cursor(end if ids and end < length else None),
    }
    if wants_text and (pieces := await _pieces(request, shown["tokens"])) is not None:
        document["texts"] = _texts(pieces)
    return await answer(document)


async def list_prefixes(request: web.Request) -> web.StreamResponse:
    depth = request.query.get("depth", str(PREFIX_VIEW_DEPTH_DEFAULT))
    levels = number(depth, "depth", 1, PREFIX_VIEW_DEPTH_MAX)
    limit, wants_text = page_limit(request), flag(request, "text")
    shown = await ask_kernel(request, "kv_prefixes", depth=levels, limit=limit)
    parts, pieces = shown["data"], None
    if wants_text:
        pieces = await _pieces(request, b"".join(part["tokens"] for part in parts))
    at = 0
    for part in parts:
        ids = part["tokens"] = _integers(part["tokens"])
        own = None if pieces is None else b"".join(pieces[at : at + len(ids)])
        part["text"] = None if own is None else own.decode("utf-8", "replace")
        at += len(ids)
    return await answer(shown)


def _after(request: web.Request) -> int:
    return number(request.query.get("after", "0"), "after", 0, FILE_ENTRIES_MAX)


def _cursor(following: int | None) -> str | None:
    return None if following is None else str(following)


def _integers(packed: bytes) -> list[int]:
    return list(struct.unpack(f"<{len(packed) // 4}i", packed))


async def _pieces(request: web.Request, tokens: bytes) -> list[bytes] | None:
    """Return the bytes of each token (u32), None for a model without a tokenizer; Problem."""
    model = model_of(request)
    if not model.kernel.about.get("tokenizer"):
        return None
    if not tokens:
        return []
    try:
        return await token_bytes(request, tokens, model.name)
    except OpenAIError as error:
        raise unavailable(f"the text of the tokens: {error.detail}") from error


def _texts(pieces: list[bytes]) -> list[str]:
    """Return each token's text; a character of several tokens is the last one's."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(piece) for piece in pieces]
    if rest := decoder.decode(b"", final=True):
        texts[-1] += rest
    return texts
