"""The handlers of `/v1/batches`: OpenAI's batches."""

import secrets
from typing import Annotated, Literal

from aiohttp import web
from pydantic import Field
from symphony_kernel.protocol.limits import (
    BATCH_SECONDS_MAX,
    FILE_KEPT_SECONDS_MAX,
    FILE_KEPT_SECONDS_MIN,
    OPENAI_METADATA_MAX,
    SMALL_BODY_BYTES_MAX,
)

from symphony_runtime.gateway.batches.records import Batch
from symphony_runtime.gateway.batches.service import Batches
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.files.handlers import FILES, page_view
from symphony_runtime.gateway.http.context import (
    answer,
    page_limit,
    parse_json,
    read_body,
    services,
    tenant_of,
)
from symphony_runtime.gateway.http.idempotency import REPLAYED, read_idempotency_key
from symphony_runtime.gateway.openai.errors import refused
from symphony_runtime.validation import FieldError, StrictModel, check_model

BATCHES = web.AppKey("batches", Batches)
_TEXT = Annotated[str, Field(max_length=512)]
_NAME = Annotated[str, Field(max_length=64)]


class ExpiresAfter(StrictModel):
    """How long the files of results are kept."""

    anchor: Literal["created_at"]
    seconds: int = Field(ge=FILE_KEPT_SECONDS_MIN, le=FILE_KEPT_SECONDS_MAX)


class BatchBody(StrictModel):
    """A batch to run."""

    input_file_id: str = Field(description="a file with purpose batch")
    endpoint: Literal[
        "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/rerank",
        "/v1/score",
    ]  # fmt: skip
    completion_window: Literal["24h"]
    metadata: Annotated[dict[_NAME, _TEXT], Field(max_length=OPENAI_METADATA_MAX)] | None = None
    output_expires_after: ExpiresAfter | None = None


async def create_batch(request: web.Request) -> web.StreamResponse:
    tenant, batches = tenant_of(request), request.app[BATCHES]
    raw = await read_body(request, "the request", SMALL_BODY_BYTES_MAX)
    once = read_idempotency_key(request, tenant, raw)
    wanted = _read_body(await parse_json(request, raw) if raw else {})

    async def insert(batch_id: str, again: bool) -> None:
        if not (again and await batches.find(tenant, batch_id)):
            await batches.insert(await _batch_of(request, wanted, batch_id))

    batch_id, was_there = f"batch_{secrets.token_hex(12)}", False
    if once is None:
        await insert(batch_id, False)
    else:
        keys = services(request).idempotency
        batch_id, was_there = await keys.perform(once, batch_id, insert)
    response = await answer((await batches.get(tenant, batch_id)).view())
    response.headers.update(REPLAYED if was_there else {})
    return response


async def _batch_of(request: web.Request, wanted: BatchBody, batch_id: str) -> Batch:
    """Return a new batch; OpenAIError 400: its file is not there."""
    files, tenant = request.app[FILES], tenant_of(request)
    file = await files.find(tenant, wanted.input_file_id)
    if file is None or file.purpose != "batch":
        message = f"there is no file with purpose batch: {wanted.input_file_id[:100]!r}"
        raise refused(message, "input_file_id")
    now, kept = files.now_ms(), wanted.output_expires_after
    return Batch(
        id=batch_id,
        tenant=tenant,
        created_ms=now,
        boot=0,
        endpoint=wanted.endpoint,
        input_file=file.id,
        expires_ms=now + 1000 * BATCH_SECONDS_MAX,
        output_seconds=kept.seconds if kept else None,
        metadata=wanted.metadata,
    )


def _read_body(body: object) -> BatchBody:
    try:
        wanted = check_model(BatchBody, body)
        for name, text in (wanted.metadata or {}).items():
            (name + text).encode()
        wanted.input_file_id.encode()
    except FieldError as error:
        raise refused(str(error), error.field) from None
    except UnicodeEncodeError:
        raise refused("the request holds a lone surrogate, which is not a character") from None
    return wanted


async def list_batches(request: web.Request) -> web.StreamResponse:
    limit = page_limit(request)
    after = request.query.get("after", "")
    found = await request.app[BATCHES].page(tenant_of(request), after, limit + 1)
    return await answer(page_view([batch.view() for batch in found], limit))


async def get_batch(request: web.Request) -> web.StreamResponse:
    batch_id = request.match_info["batch"]
    return await answer((await request.app[BATCHES].get(tenant_of(request), batch_id)).view())


async def cancel_batch(request: web.Request) -> web.StreamResponse:
    """Cancel a batch; 409 if it has ended otherwise."""
    batch_id = request.match_info["batch"]
    batch = await request.app[BATCHES].cancel(tenant_of(request), batch_id)
    if batch.status not in ("cancelling", "cancelled"):
        detail = f"the batch is {batch.status}: it cannot be cancelled any more"
        raise Problem(409, "batch-ended", detail)
    return await answer(batch.view())
