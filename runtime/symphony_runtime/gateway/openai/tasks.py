"""The handlers of routes that generate nothing: tokens, embeddings, scores, ranks."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgpack
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
from symphony_runtime.gateway.openai.handlers import (
    OPENAI,
    USED,
    check_tokens,
    find_adapter,
    start_program,
)
from symphony_runtime.gateway.openai.program_messages import Data, Failure, Usage
from symphony_runtime.gateway.openai.requests.limits import Model, RequestLimits
from symphony_runtime.gateway.openai.requests.parsing import no_such_model, pack
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
from symphony_runtime.gateway.runs.record import Record

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
    asked = body.get("model")
    model = await server.model(asked if isinstance(asked, str) else "")
    name = asked or model.name
    # Texts have the same tokens with each adapter. What computes does so without one.
    if name != model.name and (prefix or await find_adapter(request, str(name), model) is None):
        raise no_such_model(str(name))
    await check_tokens(request, tenant, model)
    limits = RequestLimits.of(server.runs.limits.of(tenant))
    task = await run_off_loop(len(raw), partial(parse, body, model, limits))
    data, usage, run = await run_task(request, task.job, {**body, "model": name}, model.name)
    request[USED] = usage
    number, created = run.id.removeprefix("run_"), run.created_ms // 1000
    head = {"id": prefix + number, "created": created, "model": name} if prefix else {}

    def document() -> bytes:
        return to_json({**head, **task.shape(data, usage)})

    whole = await run_off_loop(_TEXT_TIMES * len(data), document)
    return await send_whole(request, whole, {"X-Run-Id": run.id})


async def token_bytes(request: web.Request, tokens: bytes, model: str) -> list[bytes]:
    """Return the bytes of a model's tokens (u32), by a run in the tenant's name; as `run_task`."""
    job = pack({"task": "tokenize", "texts": True, "prompts": [tokens]})
    data, _, _ = await run_task(request, job, model=model)
    found: list[bytes] = msgpack.unpackb(data)[1]
    return found


async def run_task(
    request: web.Request, job: bytes, asked: dict[str, Any] | None = None, model: str = ""
) -> tuple[bytes, Usage, Record]:
    """Run a job of the shipped program on a model; return its data, its usage and the run's record.

    `asked` is the body that an operator's traces describe.

    Raises:
        OpenAIError: the program reports a failure.
        Problem: as `start_program`, or 429, from the memory of bodies.
    """
    server = request.app[OPENAI]
    run, batches, _ = await start_program(request, None, job, None, model=model)
    assert isinstance(run, Run)
    if asked is not None:
        batches = watch_answer(request, run.spans, asked, batches)
    server.clients.watch(run, request)
    served = False
    try:
        hold = partial(services(request).bodies.hold, request, tenant_of(request))
        data, usage = await _gather(batches, hold)
        served = True
    except OpenAIError as error:
        server.runs.admission.set_retry_after(error)
        raise
    finally:
        server.clients.unwatch(run, served=served)
    return data, usage, run.record


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
