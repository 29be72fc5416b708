"""The handlers of routes that generate nothing: tokens, embeddings, scores, ranks."""

from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.limits import RUN_BODY_BYTES_MAX

from symphony_runtime.gateway.http.context import (
    parse_json,
    read_body,
    run_off_loop,
    services,
    tenant_of,
    to_json,
)
from symphony_runtime.gateway.http.responses import send_whole
from symphony_runtime.gateway.openai.errors import OpenAIError, refused
from symphony_runtime.gateway.openai.handlers import OPENAI, check_tokens, start_program
from symphony_runtime.gateway.openai.program_messages import Data, Failure, Usage
from symphony_runtime.gateway.openai.requests.limits import Model, RequestLimits
from symphony_runtime.gateway.openai.requests.parsing import no_such_model
from symphony_runtime.gateway.openai.requests.tasks import (
    Task,
    parse_detokenize,
    parse_embeddings,
    parse_rerank,
    parse_score,
    parse_tokenize,
)
from symphony_runtime.gateway.openai.run_records import Batches
from symphony_runtime.gateway.openai.serving import Hold, failure_error
from symphony_runtime.gateway.otlp.answers import watch_answer
from symphony_runtime.gateway.runs.live_run import Run

_TEXT_TIMES = 8  # memory of an answer's JSON, in times the program's data, about
Parse = Callable[[dict[str, Any], Model, RequestLimits], Task]


async def tokenize(request: web.Request) -> web.StreamResponse:
    return await serve_task(request, parse_tokenize)


async def detokenize(request: web.Request) -> web.StreamResponse:
    return await serve_task(request, parse_detokenize)


async def create_embeddings(request: web.Request) -> web.StreamResponse:
    return await serve_task(request, parse_embeddings, "embd-")


async def create_score(request: web.Request) -> web.StreamResponse:
    return await serve_task(request, parse_score, "score-")


async def create_rerank(request: web.Request) -> web.StreamResponse:
    return await serve_task(request, parse_rerank, "rerank-")


async def serve_task(request: web.Request, parse: Parse, prefix: str = "") -> web.StreamResponse:
    """Answer with what the program finds; `prefix` begins the answer's id, "": it has none."""
    server, tenant = request.app[OPENAI], tenant_of(request)
    raw = await read_body(request, "the request", RUN_BODY_BYTES_MAX)
    body = await parse_json(request, raw)
    if not isinstance(body, dict):
        raise refused("the body must be a JSON object")
    model = await server.model()
    name = body.get("model") or model.name
    if name != model.name:
        raise no_such_model(str(name))
    await check_tokens(request, tenant)
    limits = RequestLimits.of(server.runs.limits.of(tenant))
    task = await run_off_loop(len(raw), partial(parse, body, model, limits))
    run, batches, headers = await start_program(request, None, task.job, None)
    assert isinstance(run, Run)
    if run.spans is not None:
        batches = watch_answer(request, run.spans, {**body, "model": name}, batches)
    number, created = run.record.id.removeprefix("run_"), run.record.created_ms // 1000
    head = {"id": prefix + number, "created": created, "model": name} if prefix else {}
    server.clients.watch(run, request)
    served = False
    try:
        hold = partial(services(request).bodies.hold, request, tenant)
        data, usage = await _gather(batches, hold)

        def document() -> bytes:
            return to_json({**head, **task.shape(data, usage)})

        whole = await run_off_loop(_TEXT_TIMES * len(data), document)
        response = await send_whole(request, whole, {**headers, "X-Run-Id": run.record.id})
        served = True
    except OpenAIError as error:
        server.runs.admission.set_retry_after(error)
        raise
    finally:
        server.clients.unwatch(run, served=served)
    return response


async def _gather(batches: Batches, hold: Hold) -> tuple[bytes, Usage]:
    """Return a task's data and usage.

    Raises:
        OpenAIError: the program reports a failure.
        Problem: 429, from `hold`.
    """
    data, usage = bytearray(), Usage()
    async for batch in batches:
        for record in batch:
            if isinstance(record, Failure):
                raise failure_error(record)
            if isinstance(record, Data):
                hold(_TEXT_TIMES * len(record.bytes))
                data += record.bytes
            elif isinstance(record, Usage):
                usage = record
    return bytes(data), usage
