"""A kept response: found by its id, and as it is now.

Its run's first event is the request, and the messages behind it are what the program said. From
both the answer is made again, whole or as the same stream.
"""

import json
import re
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.http.context import load_kept_json, services, tenant_of
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.program_messages import Failure, Part, Piece, Usage
from symphony_runtime.gateway.openai.requests.bodies import ResponseBody
from symphony_runtime.gateway.openai.requests.parsing import ParsedRequest
from symphony_runtime.gateway.openai.responses import ResponseShape
from symphony_runtime.gateway.openai.run_records import Batches, kept_records, program_records
from symphony_runtime.gateway.openai.serving import failure_error
from symphony_runtime.gateway.openai.stored.items import check_items
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.record import Record, check_here
from symphony_runtime.gateway.runs.service import Runs

_ID: Final = re.compile("resp_[0-9a-f]{24}")
_CANCELLED: Final = "run_killed"  # the code of a run that something else than a limit has ended


@dataclass(frozen=True, slots=True)
class KeptResponse:
    """A response whose request is kept. `shipped`: the server's own program makes it."""

    run: Run | Record
    model: str
    shipped: bool
    call_id_characters: int
    body: dict[str, Any]
    size: int  # bytes of the request's text

    @property
    def record(self) -> Record:
        return self.run.record if isinstance(self.run, Run) else self.run

    @property
    def number(self) -> str:
        """What the ids of the response and of its items have in common."""
        return self.record.id.removeprefix("run_")

    def shape(self) -> ResponseShape:
        record, made = self.record, (self.model, self.record.created_ms // 1000, self.body)
        return ResponseShape(record.id, *made, self.call_id_characters)

    def batches(self, runs: Runs) -> Batches:
        """Return its records from the beginning on; they follow a response that has not ended."""
        return (kept_records if self.shipped else program_records)(runs, self.run)

    async def view(self, runs: Runs) -> dict[str, Any]:
        """Return the response as it is now."""
        shape, record = self.shape(), self.record
        if record.live:
            return shape.started("queued" if record.status == "queued" else "in_progress")
        async for batch in self.batches(runs):
            for each in batch:
                if isinstance(each, Usage):
                    return shape.ended(each)
                if isinstance(each, Failure):
                    status = "cancelled" if each.code == _CANCELLED else "failed"
                    return shape.stopped(status, failure_error(each))
                if isinstance(each, Piece):
                    shape.chunk(each)
                elif isinstance(each, Part):
                    shape.part(each)
        raise AssertionError("a run ends with its usage or a failure")


def request_text(body: dict[str, Any], model: str, wanted: ParsedRequest, *, shipped: bool) -> str:
    """Return what is kept of a request; `body` is without the conversation before it.

    Raises OpenAIError: 400, its input cannot be listed.
    """
    check_items(body.get("input"))
    kept = {key: value for key, value in body.items() if key in ResponseBody.model_fields}
    characters = wanted.call_id_characters
    told = {"model": model, "shipped": shipped, "call_id_characters": characters, "body": kept}
    return json.dumps(told, separators=(",", ":"))  # in ASCII: what has no effect may be odd


async def find_response(
    request: web.Request, response_id: str, param: str | None = None
) -> KeptResponse:
    """Return a kept response of the tenant. The memory of its request is held.

    Raises OpenAIError: 404. Problem: 409, it is made by another gateway; as `load_kept_json`.
    """
    runs, tenant = services(request).runs, tenant_of(request)
    if not _ID.fullmatch(response_id):
        raise _missing(response_id, param)
    try:
        run = await runs.find(tenant, f"run_{response_id.removeprefix('resp_')}")
    except Problem as problem:
        if problem.status != 404:
            raise
        raise _missing(response_id, param) from problem
    if not isinstance(run, Run):
        check_here(run)
    with closing(runs.open_reader(run, 0)) as reader:
        first = await reader.next(0)
    if not first or first[0].kind != "request":
        raise _missing(response_id, param)
    text: str = first[0].data["text"]
    return KeptResponse(run, **await load_kept_json(request, text), size=len(text))


def _missing(response_id: str, param: str | None) -> OpenAIError:
    shown = ascii(response_id[:60])
    words = f"there is no response {shown}: it was not stored, was deleted, or is not kept any more"
    return OpenAIError(404, words, param=param, code="response_not_found")
