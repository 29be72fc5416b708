"""The handlers of the OpenAI routes."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import (
    OPENAI_MODELS_SHOWN_MAX,
    RUN_BODY_BYTES_MAX,
    RUN_INPUT_BYTES_MAX,
)

from symphony_runtime.gateway.admission.rate_limit import TOKENS, tokens_refused
from symphony_runtime.gateway.connections.slow_readers import WRITING
from symphony_runtime.gateway.http.context import (
    answer,
    beside_others,
    parse_json,
    read_body,
    services,
    tenant_of,
)
from symphony_runtime.gateway.http.idempotency import (
    REPLAYED,
    Idempotency,
    Once,
    read_once,
    start_once,
)
from symphony_runtime.gateway.http.responses import send_whole
from symphony_runtime.gateway.links.links import KernelAwayError
from symphony_runtime.gateway.openai.completions import ChatShape, CompletionShape, Shape
from symphony_runtime.gateway.openai.errors import OpenAIError, refused
from symphony_runtime.gateway.openai.requests.limits import Model, RequestLimits, read_model
from symphony_runtime.gateway.openai.requests.parsing import (
    ParsedRequest,
    model_of,
    no_such_model,
    parse_chat,
    parse_completion,
    parse_for_program,
    parse_response,
)
from symphony_runtime.gateway.openai.responses import ResponseShape
from symphony_runtime.gateway.openai.run_records import (
    Batches,
    Inbox,
    kept_records,
    own_records,
    shipped_records,
)
from symphony_runtime.gateway.openai.serving import (
    Answer,
    Clients,
    answer_stream,
    answer_whole,
    now,
)
from symphony_runtime.gateway.openai.shipped import ShippedProgram
from symphony_runtime.gateway.programs.store import Program, Programs
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.record import Record, RunRequest
from symphony_runtime.gateway.runs.service import Runs

_log = logging.getLogger(__name__)
Parse = Callable[[dict[str, Any], Model, RequestLimits], ParsedRequest]
MakeShape = Callable[
    [Record, str, ParsedRequest, dict[str, Any]], Answer
]  # run, model, request, body
_Started = tuple[Run | Record, Batches, dict[str, str]]  # with the answer's headers


class OpenAI:
    """What the routes are served with."""

    def __init__(self, runs: Runs, programs: Programs, idempotency: Idempotency) -> None:
        self.runs = runs
        self.idempotency = idempotency
        self.programs = programs
        self.shipped = ShippedProgram(programs)
        self.clients = Clients(runs)
        self.started = now()
        self._model: tuple[dict[str, Any], Model] | None = None  # of what the kernel said

    async def prepare(self) -> None:
        """Make the shipped program ready before the first request wants it."""
        try:
            await self.shipped.program()
        except Exception:
            _log.exception(
                "the program of the OpenAI routes is not ready; each request tries again"
            )

    async def model(self) -> Model:
        """Return the model that the kernel serves.

        Raises:
            Problem: 503, there is no kernel now.
        """
        kernel = self.runs.kernel
        if not kernel.expected:
            raise self.runs.admission.away("kernel", "the kernel is not ready")
        if self._model is None or self._model[0] is not kernel.about:
            about = kernel.about
            # A tokenizer may have many megabytes.
            self._model = about, await asyncio.to_thread(read_model, about)
        return self._model[1]


OPENAI = web.AppKey("openai", OpenAI)


async def list_models(request: web.Request) -> web.StreamResponse:
    """List the model and the tenant's named programs."""
    with_ = request.app[OPENAI]
    model = await with_.model()
    programs, _ = await with_.programs.page(tenant_of(request), "", OPENAI_MODELS_SHOWN_MAX)
    named = [_program_view(program) for program in programs if program.name]
    return await answer({"object": "list", "data": [_model_view(with_, model), *named]})


async def get_model(request: web.Request) -> web.StreamResponse:
    """Show the model, or a program as one."""
    with_ = request.app[OPENAI]
    name, model = request.match_info["model"], await with_.model()
    if name == model.name:
        return await answer(_model_view(with_, model))
    program = await with_.programs.find(tenant_of(request), name)
    if program is None:
        raise no_such_model(name)
    return await answer({**_program_view(program), "id": name})


async def create_completion(request: web.Request) -> web.StreamResponse:
    """Go on with prompts."""
    return await _create(request, parse_completion, _shaped(CompletionShape))


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer a conversation."""
    return await _create(request, parse_chat, _shaped(ChatShape))


async def create_response(request: web.Request) -> web.StreamResponse:
    """Answer text or a conversation, in the shape of the Responses interface."""

    def shape(run: Record, name: str, _: ParsedRequest, body: dict[str, Any]) -> Answer:
        return ResponseShape(run.id, name, _seconds(run), body)

    return await _create(request, parse_response, shape)


def _shaped(shape: type[Shape]) -> MakeShape:
    return lambda run, name, wanted, _: shape(
        run.id, name, _seconds(run), include_usage=wanted.include_usage
    )


def _seconds(run: Record) -> int:
    """Return when a run began, in seconds since 1970: a second answer says so, too."""
    return run.created_ms // 1000


async def _create(request: web.Request, parse: Parse, shape: MakeShape) -> web.StreamResponse:
    with_, tenant = request.app[OPENAI], tenant_of(request)
    raw = await read_body(request, "the request", RUN_BODY_BYTES_MAX)
    once = read_once(request, tenant, raw)
    body = await parse_json(request, raw)
    name, model = model_of(body), await with_.model()
    await _check_tokens(request, tenant)
    if name == model.name:
        limits = RequestLimits.of(with_.runs.limits.of(tenant))
        wanted = await beside_others(len(raw), partial(parse, body, model, limits))
        started = await _start_shipped(request, tenant, wanted, once)
    else:
        program = await with_.programs.find(tenant, name)
        if program is None:
            raise no_such_model(name)
        wanted = parse_for_program(body, raw)
        started = await _start_own(with_, program, wanted, once)
    run, batches, headers = started
    record = run.record if isinstance(run, Run) else run
    looks = shape(record, name, wanted, body)
    choices, streamed = wanted.choices, wanted.stream
    # They are many times the request's size, and the answer may take an hour.
    del raw, body, wanted
    hold = partial(services(request).bodies.hold, request, tenant)
    # Who has a key may come back for the answer; any other run ends with its client.
    client = run if once is None and isinstance(run, Run) else None
    if client is not None:
        with_.clients.enter(client, request)
    served = False
    headers["X-Run-Id"] = record.id
    try:
        if streamed:
            response = await answer_stream(request, batches, looks, headers, hold)
        else:
            whole = await answer_whole(batches, looks, choices, hold)
            response = await send_whole(request, whole, headers)
        served = True
    except OpenAIError as error:
        with_.runs.admission.estimate(error)
        raise
    finally:
        if client is not None:
            with_.clients.leave(client, served=served)
    return response


async def _check_tokens(request: web.Request, tenant: str) -> None:
    """Let a request of a tenant begin, if it has tokens left; its answer will tell how many.

    Raises:
        Problem: 429, there are none; 503, the kernel that counts them is away.
    """
    runs = services(request).runs
    try:
        tokens = await runs.kernel_limits.tokens(tenant)
    except (KernelAwayError, SyscallError) as error:
        raise runs.admission.away("kernel", str(error)) from error
    if tokens is None:
        return
    request[TOKENS] = tokens
    if tokens[2] > 0:
        runs.figures.hit(tenant, "tokens_per_minute")
        raise tokens_refused(*tokens)


async def _start_shipped(
    request: web.Request, tenant: str, wanted: ParsedRequest, once: Once | None
) -> _Started:
    with_ = request.app[OPENAI]
    program, asked = await with_.shipped.program(), _request(with_, tenant, wanted.job)
    if once is None:
        inbox = Inbox()
        request[WRITING].held = lambda: inbox.waiting
        passing = await with_.runs.start(program, asked, tenant=tenant, listener=inbox)
        return passing, shipped_records(passing, inbox), {}
    run, again = await start_once(
        with_.idempotency,
        with_.runs,
        once,
        lambda run_id: with_.runs.start(program, asked, tenant=tenant, run_id=run_id),
    )
    return run, kept_records(with_.runs, run), dict(REPLAYED) if again else {}


async def _start_own(
    with_: OpenAI, program: Program, wanted: ParsedRequest, once: Once | None
) -> _Started:
    asked = _request(with_, program.tenant, wanted.job)
    run, again = await start_once(
        with_.idempotency,
        with_.runs,
        once,
        lambda run_id: with_.runs.start(program, asked, run_id=run_id),
    )
    return run, own_records(with_.runs, run), dict(REPLAYED) if again else {}


def _request(with_: OpenAI, tenant: str, data: bytes) -> RunRequest:
    if len(data) > RUN_INPUT_BYTES_MAX:
        raise refused(f"the request may have at most {RUN_INPUT_BYTES_MAX} bytes")
    return RunRequest(input=data, limits=with_.runs.limits.of(tenant).choose({}))


def _model_view(with_: OpenAI, model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": with_.started,
        "owned_by": "symphony",
        "max_model_len": model.context,
    }


def _program_view(program: Program) -> dict[str, Any]:
    return {
        "id": program.name or program.id,
        "object": "model",
        "created": program.created_ms // 1000,
        "owned_by": program.tenant,
    }
