"""The routes of kept responses: read, follow, list the input, cancel, delete."""

import asyncio
import json
from functools import partial
from typing import Any, Final

from aiohttp import web
from symphony_kernel.protocol.limits import CANCEL_SECONDS_MAX, OPENAI_ITEMS_MAX

from symphony_runtime.gateway.http.context import (
    answer,
    number,
    run_charged,
    services,
    tenant_of,
)
from symphony_runtime.gateway.http.responses import send_whole
from symphony_runtime.gateway.openai.errors import OpenAIError, refused
from symphony_runtime.gateway.openai.program_messages import Begun, Part, Piece, Record, Usage
from symphony_runtime.gateway.openai.responses import ResponseShape
from symphony_runtime.gateway.openai.run_records import Batches
from symphony_runtime.gateway.openai.serving import answer_stream
from symphony_runtime.gateway.openai.stored.conversation import items_of_chain
from symphony_runtime.gateway.openai.stored.items import list_input
from symphony_runtime.gateway.openai.stored.kept import KeptResponse, find_response
from symphony_runtime.gateway.runs.live_run import Run, check_stored

ITEMS_DEFAULT: Final = 20  # of a page, as in OpenAI's API
_EVENTS_MAX: Final = 1 << 40


async def get_response(request: web.Request) -> web.StreamResponse:
    """Answer with a response as it is now, or with its stream."""
    kept = await _kept(request)
    if _flag(request, "stream"):
        after = _number(request, "starting_after", -1, 0, _EVENTS_MAX)
        runs, looks = services(request).runs, Resumed(kept.shape(), after)
        hold = partial(services(request).bodies.hold, request, tenant_of(request))
        headers = {"X-Run-Id": kept.record.id}
        return await answer_stream(request, _at_once(kept.batches(runs)), looks, headers, hold)
    return await _answer_view(request, kept)


async def delete_response(request: web.Request) -> web.StreamResponse:
    """Delete a response that has ended, with its input and its output."""
    kept = await _kept(request)
    await services(request).runs.delete(tenant_of(request), kept.record.id)
    return await answer({"id": f"resp_{kept.number}", "object": "response", "deleted": True})


async def cancel_response(request: web.Request) -> web.StreamResponse:
    """End a response, and answer when it has ended. An ended response stays as it is."""
    kept = await _kept(request)
    run = kept.run
    if isinstance(run, Run):
        check_stored(run)
        services(request).runs.kill(run, "it was cancelled")
        await asyncio.wait([run.known], timeout=CANCEL_SECONDS_MAX)
    return await _answer_view(request, kept)


async def list_input_items(request: web.Request) -> web.StreamResponse:
    """Answer with a page of the items that a response was made from, the chain's included."""
    kept = await _kept(request)
    limit = _number(request, "limit", ITEMS_DEFAULT, 1, OPENAI_ITEMS_MAX)
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise refused("`order` must be asc or desc", "order")
    previous = kept.body.get("previous_response_id")
    before = [] if previous is None else await items_of_chain(request, previous)

    def page() -> bytes:
        items = [*before, *list_input(kept.number, kept.body["input"])]
        if order == "desc":
            items.reverse()
        return _json(_page(items, request.query.get("after"), limit))

    return await send_whole(request, await run_charged(request, page))


def _page(items: list[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    """Return a page of items behind the one with an id; OpenAIError 400: there is none."""
    if after:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise refused("`after` must be the id of an item of this response", "after")
        items = items[places[0] + 1 :]
    shown = items[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(items) > limit,
    }


class Resumed:
    """The stream of a response behind the event with a sequence number."""

    def __init__(self, shape: ResponseShape, after: int) -> None:
        self._shape = shape
        self._left = after + 1  # events that are not sent

    def begin(self, begun: Begun | None) -> bytes:
        return self._behind(self._shape.begin(begun))

    def chunk(self, piece: Piece) -> bytes:
        return self._behind(self._shape.chunk(piece))

    def part(self, part: Part) -> bytes:
        return self._behind(self._shape.part(part))

    def end(self, usage: Usage) -> bytes:
        return self._behind(self._shape.end(usage))

    def failed(self, error: OpenAIError) -> bytes:
        return self._behind(self._shape.failed(error))

    def kept_bytes(self, piece: Piece | Part) -> int:
        return self._shape.kept_bytes(piece)

    def _behind(self, events: bytes) -> bytes:
        if not self._left or not events:
            return events
        each = events.split(b"\n\n")[:-1]
        skipped = min(self._left, len(each))
        self._left -= skipped
        return b"".join(event + b"\n\n" for event in each[skipped:])


async def _at_once(batches: Batches) -> Batches:
    """Yield an empty batch first: the stream begins before the first record is there."""
    none: list[Record] = []
    yield none
    async for batch in batches:
        yield batch


async def _kept(request: web.Request) -> KeptResponse:
    """Return the response that a request is about; OpenAIError 404."""
    return await find_response(request, request.match_info["response"])


async def _answer_view(request: web.Request, kept: KeptResponse) -> web.StreamResponse:
    view = await kept.view(services(request).runs)
    body = await run_charged(request, lambda: _json(view))
    return await send_whole(request, body, {"X-Run-Id": kept.record.id})


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()  # in ASCII: any text is kept


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "false")
    if value not in ("true", "false"):
        raise refused(f"`{name}` must be true or false", name)
    return value == "true"


def _number(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    text = request.query.get(name)
    return default if text is None else number(text, name, low, high)
