"""What a request to `/v1/responses` builds upon: earlier responses, and items of them."""

from functools import partial
from typing import Any, Final

from aiohttp import web
from symphony_kernel.protocol.limits import (
    OPENAI_REFERENCES_MAX,
    OPENAI_TURNS_MAX,
    RUN_INPUT_BYTES_MAX,
)

from symphony_runtime.gateway.http.context import (
    run_charged,
    services,
    tenant_of,
    to_any_json,
)
from symphony_runtime.gateway.openai.errors import OpenAIError, refused
from symphony_runtime.gateway.openai.stored.items import list_input, owner_of
from symphony_runtime.gateway.openai.stored.kept import KeptResponse, find_response

_PREVIOUS: Final = "previous_response_id"
_ENDED: Final = ("completed", "incomplete")


async def join_conversation(
    request: web.Request, body: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a body with the items that it refers to, and that with the conversation before it.

    Raises OpenAIError: 400; 404, what it refers to is not there.
    """
    previous, asked = body.get(_PREVIOUS), body.get("input")
    referring = asked if isinstance(asked, list) and any(map(_is_reference, asked)) else None
    if previous is None and referring is None:
        return body, body
    before: list[dict[str, Any]] = []
    if previous is not None:
        if not isinstance(previous, str):
            raise refused(f"`{_PREVIOUS}` must be the id of a response", _PREVIOUS)
        before = await items_of_chain(request, previous, param=_PREVIOUS)
    if referring is not None:
        body = {**body, "input": await _resolved(request, referring, before)}
    if previous is None:
        return body, body
    own = list_input("", body.get("input")) if isinstance(asked, str) else body.get("input")
    whole = {key: value for key, value in body.items() if key != _PREVIOUS}
    return body, {**whole, "input": [*before, *own] if isinstance(own, list) else own}


async def items_of_chain(
    request: web.Request, response_id: str, *, param: str | None = None
) -> list[dict[str, Any]]:
    """Return the input and output of a response and of those before it, oldest first.

    Raises OpenAIError: 400, one of them did not end well or has not ended; 404, one is missing.
    """
    turns: list[list[dict[str, Any]]] = []
    size = 0
    wanted: str | None = response_id
    hold = partial(services(request).bodies.hold, request, tenant_of(request))
    while wanted is not None:
        if len(turns) == OPENAI_TURNS_MAX:
            raise refused(f"a conversation has at most {OPENAI_TURNS_MAX} responses", param)
        kept = await find_response(request, wanted, param)
        view = await kept.view(services(request).runs)
        turn, said = await run_charged(request, partial(_turn, kept, view["output"]))
        hold(said)
        size += kept.size + said
        if size > RUN_INPUT_BYTES_MAX:
            words = f"the conversation has more than {RUN_INPUT_BYTES_MAX} bytes"
            raise refused(words, param, "context_length_exceeded")
        if view["status"] not in _ENDED:
            raise refused(f"{wanted} is {view['status']}: nothing can follow it", param)
        turns.append(turn)
        wanted = kept.body.get(_PREVIOUS)
    return [item for turn in reversed(turns) for item in turn]


def _turn(kept: KeptResponse, output: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the items of a response, and the bytes of its output."""
    return [*list_input(kept.number, kept.body["input"]), *output], len(to_any_json(output))


async def _resolved(
    request: web.Request, asked: list[Any], before: list[dict[str, Any]]
) -> list[Any]:
    """Return input items with those that references mean; OpenAIError 400, 404."""
    known = {item["id"]: item for item in before}
    if sum(map(_is_reference, asked)) > OPENAI_REFERENCES_MAX:
        raise refused(f"at most {OPENAI_REFERENCES_MAX} items may be references", "input")
    items: list[Any] = []
    for place, item in enumerate(asked):
        if not _is_reference(item):
            items.append(item)
            continue
        param, wanted = f"input[{place}]", item.get("id")
        if not isinstance(wanted, str):
            raise refused(f"`{param}.id` must be the id of an item", param)
        if wanted not in known and (owner := owner_of(wanted)) is not None:
            kept = await find_response(request, owner, param)
            output = (await kept.view(services(request).runs))["output"]
            turn, _ = await run_charged(request, partial(_turn, kept, output))
            known |= {each["id"]: each for each in turn}
        if wanted not in known:
            words = f"there is no item {ascii(wanted)[:60]}: responses that are stored have items"
            raise OpenAIError(404, words, param=param, code="item_not_found")
        items.append(known[wanted])
    return items


def _is_reference(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "item_reference"
