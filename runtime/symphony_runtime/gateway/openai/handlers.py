"""The handlers of the OpenAI routes."""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import (
    OPENAI_MODELS_SHOWN_MAX,
    RUN_BODY_BYTES_MAX,
    RUN_INPUT_BYTES_MAX,
)

from symphony_runtime.gateway.adapters.handlers import ADAPTERS
from symphony_runtime.gateway.adapters.records import Adapter
from symphony_runtime.gateway.admission.rate_limit import TOKENS, tokens_refused
from symphony_runtime.gateway.connections.slow_readers import WRITING
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.http.context import (
    answer,
    parse_json,
    read_body,
    run_charged,
    run_sized,
    services,
    tenant_of,
    to_any_json,
)
from symphony_runtime.gateway.http.idempotency import (
    REPLAYED,
    Idempotency,
    KeyedRequest,
    read_idempotency_key,
    start_run_once,
)
from symphony_runtime.gateway.http.responses import send_whole
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink
from symphony_runtime.gateway.openai.completions import ChatShape, CompletionShape, Shape
from symphony_runtime.gateway.openai.errors import OpenAIError, refused
from symphony_runtime.gateway.openai.program_messages import Usage
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
    kept_records,
    program_records,
    shipped_records,
)
from symphony_runtime.gateway.openai.serving import Answer, Clients, answer_stream, answer_whole
from symphony_runtime.gateway.openai.stored.conversation import join_conversation
from symphony_runtime.gateway.openai.stored.kept import request_text
from symphony_runtime.gateway.otlp.answers import watch_answer
from symphony_runtime.gateway.programs.shipped import shipped_wasm
from symphony_runtime.gateway.programs.store import Program, Programs
from symphony_runtime.gateway.runs.events.inbox import Inbox
from symphony_runtime.gateway.runs.live_run import Run
from symphony_runtime.gateway.runs.record import PRIORITY_DEFAULT, Record, RunRequest
from symphony_runtime.gateway.runs.service import Runs

_log = logging.getLogger(__name__)
Parse = Callable[[dict[str, Any], Model, RequestLimits], ParsedRequest]
# run, model, request, body -> the answer's format
MakeShape = Callable[[Record, str, ParsedRequest, dict[str, Any]], Answer]


class OpenAI:
    """The state of the routes."""

    def __init__(
        self,
        runs: Runs,
        programs: Programs,
        idempotency: Idempotency,
        tool_format: str,
        draft_tokens: int = 0,
    ) -> None:
        self.runs = runs
        self._tool_format = tool_format
        self._draft_tokens = draft_tokens
        self.idempotency = idempotency
        self.programs = programs
        self.shipped = programs.shipped.add("openai", partial(shipped_wasm, __package__, "openai"))
        self.clients = Clients(runs)
        self.started = int(time.time())
        # Of each kernel, with the Welcome that it is from.
        self._models: dict[KernelLink, tuple[dict[str, Any], Model]] = {}

    async def model(self, name: str = "") -> Model:
        """Return the model of a name, or the default; Problem 503: its kernel is away.

        The default is also what programs and adapters, which have other names, are of.
        """
        served = self.runs.models.find(name) or self.runs.models.default
        return await self._model(served.kernel)

    async def models(self) -> list[Model]:
        """Return all models whose kernels are there, the default first; Problem 503: none is."""
        kernels = [model.kernel for model in self.runs.models]
        there = [kernel for kernel in kernels if kernel.expected]
        return [await self._model(kernel) for kernel in there or kernels[:1]]

    async def _model(self, kernel: KernelLink) -> Model:
        if not kernel.expected:
            raise self.runs.admission.unavailable("kernel", "the kernel is not ready")
        known = self._models.get(kernel)
        if known is None or known[0] is not kernel.about:
            about = kernel.about
            # In a thread: a tokenizer may have many megabytes.
            made = partial(read_model, about, self._tool_format, self._draft_tokens)
            known = about, await asyncio.to_thread(made)
            self._models[kernel] = known
        return known[1]


OPENAI = web.AppKey("openai", OpenAI)
PRIORITY = web.RequestKey("priority", int)  # of the request's run, if not the usual one
USED = web.RequestKey("used", Usage)  # the tokens of the request's answer, if it was sent whole
# Its program has refused the request, or its answer takes too much memory.
REFUSED_BY_RUN = web.RequestKey("refused_by_run", bool)


async def list_models(request: web.Request) -> web.StreamResponse:
    server = request.app[OPENAI]
    models = await server.models()
    programs, _ = await server.programs.page(tenant_of(request), "", OPENAI_MODELS_SHOWN_MAX)
    named = [_program_view(program) for program in programs if program.name]
    adapters = await request.app[ADAPTERS].page(tenant_of(request), "", OPENAI_MODELS_SHOWN_MAX)
    base = models[0] if is_default(server, models[0]) else None
    adapted = [adapter_view(adapter, base) for adapter in adapters] if base is not None else []
    views = [_model_view(server, model) for model in models]
    return await answer({"object": "list", "data": [*views, *adapted, *named]})


def is_default(server: OpenAI, model: Model) -> bool:
    """Return whether a model is the server's first, which adapters are of."""
    return model.name == server.runs.models.default.name


async def get_model(request: web.Request) -> web.StreamResponse:
    server = request.app[OPENAI]
    name = request.match_info["model"]
    model = await server.model(name)
    if name == model.name:
        return await answer(_model_view(server, model))
    adapter = await find_adapter(request, name, model)
    if adapter is not None:
        return await answer(adapter_view(adapter, model))
    program = await _find_program(server.programs, tenant_of(request), name)
    return await answer({**_program_view(program), "id": name})


async def create_completion(request: web.Request) -> web.StreamResponse:
    return await create_answer(request, parse_completion, _shaped(CompletionShape))


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    return await create_answer(request, parse_chat, _shaped(ChatShape))


async def create_response(request: web.Request) -> web.StreamResponse:
    def shape(run: Record, name: str, wanted: ParsedRequest, body: dict[str, Any]) -> Answer:
        return ResponseShape(run.id, name, _seconds(run), body, wanted.call_id_characters)

    return await create_answer(request, parse_response, shape, keeps=True)


def _shaped(shape: type[Shape]) -> MakeShape:
    return lambda run, name, wanted, _: shape(
        run.id,
        name,
        _seconds(run),
        include_usage=wanted.include_usage,
        call_id_characters=wanted.call_id_characters,
    )


async def find_adapter(request: web.Request, name: str, model: Model) -> Adapter | None:
    """Return the tenant's adapter that `<model>:<adapter>` names, None for any other name."""
    base, _, adapter = name.rpartition(":")
    if base != model.name:
        return None
    return await request.app[ADAPTERS].find(tenant_of(request), adapter)


async def _served_model(request: web.Request, name: str, model: Model) -> Model | None:
    """Return the model with the adapter that a name has behind it; None: it is a program's."""
    adapter = None if name == model.name else await find_adapter(request, name, model)
    if adapter is not None:
        return replace(model, adapter=adapter.name)
    return model if name == model.name else None


async def _find_program(programs: Programs, tenant: str, name: str) -> Program:
    """Return a tenant's program that is a model; OpenAIError 404."""
    program = await programs.find(tenant, name)
    if program is None:
        raise no_such_model(name)
    return program


def _seconds(run: Record) -> int:
    """Return when a run began, in Unix seconds: a repeated answer has the same time."""
    return run.created_ms // 1000


async def create_answer(
    request: web.Request, parse: Parse, shape: MakeShape, *, keeps: bool = False
) -> web.StreamResponse:
    """Answer a request of a route that generates; Problem and OpenAIError.

    `keeps`: it may build upon kept answers, and is kept unless it says no.
    """
    server, tenant = request.app[OPENAI], tenant_of(request)
    raw = await read_body(request, "the request", RUN_BODY_BYTES_MAX)
    once = read_idempotency_key(request, tenant, raw)
    body = await parse_json(request, raw)
    model = await server.model(name := model_of(body))
    await check_tokens(request, tenant, model)
    asked = body
    if keeps:
        body, asked = await join_conversation(request, body)
    program: Program | None = None  # the shipped one
    if (served := await _served_model(request, name, model)) is not None:
        limits = RequestLimits.of(server.runs.limits.of(tenant))
        wanted = await run_sized(request, len(raw), partial(parse, asked, served, limits))
    else:
        program = await _find_program(server.programs, tenant, name)
        several = parse in (parse_completion, parse_chat)
        data = raw if asked is body else await run_charged(request, partial(to_any_json, asked))
        wanted = parse_for_program(asked, data, several=several)
        del data
    kept: str | None = None
    background = keeps and body.get("background") is True
    if keeps and body.get("store") is not False:
        services(request).store.disk.check(tenant)
        text = partial(request_text, body, name, wanted, shipped=program is None)
        kept = await run_sized(request, len(raw), text)
    counts = wanted.n, wanted.choices
    run, batches, headers = await start_program(
        request, program, wanted.job, once, kept, counts, detached=background, model=model.name
    )
    record, spans = (run.record, run.spans) if isinstance(run, Run) else (run, None)
    batches = watch_answer(request, spans, body, batches)
    looks = shape(record, name, wanted, body)
    headers["X-Run-Id"] = record.id
    if background and not wanted.stream and isinstance(looks, ResponseShape):
        return await send_whole(request, to_any_json(looks.started("queued")), headers)
    choices, streamed = wanted.choices, wanted.stream
    # They take many times the request's size, and the answer may take an hour.
    del raw, body, asked, wanted, kept
    hold = partial(services(request).bodies.hold, request, tenant)
    # A request with a key can be repeated; any other run ends with its client.
    client = run if once is None and isinstance(run, Run) and not background else None
    if client is not None:
        server.clients.watch(client, request)
    done = False
    try:
        if streamed:
            response = await answer_stream(request, batches, looks, headers, hold)
        else:
            whole, request[USED] = await answer_whole(batches, looks, choices, hold)
            response = await send_whole(request, whole, headers)
        done = True
    except Problem as error:
        told = isinstance(error, OpenAIError)
        done = told and program is not None  # a program that has told why may end by itself
        unstored = isinstance(run, Run) and run.unstored is not None
        request[REFUSED_BY_RUN] = not unstored and (done or not told)
        if told:
            server.runs.admission.set_retry_after(error)
        raise
    finally:
        if client is not None:
            server.clients.unwatch(client, served=done)
    return response


async def check_tokens(request: web.Request, tenant: str, model: Model) -> None:
    """Check that a tenant has tokens left in this minute; the answer's headers tell how many.

    Each model's kernel counts its own.

    Raises Problem: 429, there are none; 503, the kernel that counts them is away.
    """
    runs = services(request).runs
    served = runs.models.find(model.name) or runs.models.default
    try:
        tokens = await served.limits.tokens_left(tenant)
    except (KernelAwayError, SyscallError) as error:
        raise runs.admission.unavailable("kernel", str(error)) from error
    if tokens is None:
        return
    request[TOKENS] = tokens
    if tokens[2] > 0:
        runs.metrics.count_limit(tenant, "tokens_per_minute")
        raise tokens_refused(*tokens)


async def start_program(
    request: web.Request,
    program: Program | None,
    job: bytes,
    once: KeyedRequest | None,
    kept: str | None = None,
    counts: tuple[int, int] = (1, 1),
    *,
    detached: bool = False,
    model: str = "",
) -> tuple[Run | Record, Batches, dict[str, str]]:
    """Start a program (None: the shipped one), or find the run of the key's first request.

    `kept` is the text of a request that is kept with its answer; `detached`: it goes on without
    its client. `counts`: a tenant's program is to give so many answers to a prompt, so many in all.
    `model`: the name of the model that it runs on; "": the default.
    Return the run, its records, and headers of the answer.
    """
    server, tenant = request.app[OPENAI], tenant_of(request)
    chosen = program or await server.shipped.program()
    if len(job) > RUN_INPUT_BYTES_MAX:
        raise refused(f"the request may have at most {RUN_INPUT_BYTES_MAX} bytes")
    limits = server.runs.limits.of(tenant).choose({})
    priority = request.get(PRIORITY, PRIORITY_DEFAULT)
    if program is None and once is None and not detached:
        inbox = Inbox()
        asked = RunRequest(input=job, limits=limits, priority=priority, model=model)
        request[WRITING].held = lambda: inbox.waiting
        passing = await server.runs.start(chosen, asked, tenant=tenant, listener=inbox)
        keep = partial(_keep, server.runs, passing, kept) if kept is not None else None
        count = partial(server.runs.metrics.count_drafts, tenant)
        return passing, shipped_records(passing, inbox, keep, count), {}
    asked = RunRequest(input=job, limits=limits, priority=priority, asked=kept, model=model)

    async def start(run_id: str | None) -> Run:
        started = await server.runs.start(
            chosen, asked, tenant=tenant, run_id=run_id, detached=detached
        )
        if not started.ending:
            server.runs.deliver(started, None)  # a request has no messages
        return started

    run, again = await start_run_once(server.idempotency, server.runs, once, start)
    headers = dict(REPLAYED) if again else {}
    if program is None:
        return run, kept_records(server.runs, run), headers
    return run, program_records(server.runs, run, *counts), headers


async def _keep(runs: Runs, run: Run, asked: str, said: bytes) -> None:
    await runs.keep(run, [("request", {"text": asked}), ("message", said)])


def _model_view(server: OpenAI, model: Model) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": server.started,
        "owned_by": "symphony",
        "max_model_len": model.context,
    }


def adapter_view(adapter: Adapter, model: Model) -> dict[str, Any]:
    return {
        "id": f"{model.name}:{adapter.name}",
        "object": "model",
        "created": adapter.created_ms // 1000,
        "owned_by": adapter.tenant,
        "max_model_len": model.context,
        "root": model.name,
        "parent": model.name,
    }


def _program_view(program: Program) -> dict[str, Any]:
    return {
        "id": program.name or program.id,
        "object": "model",
        "created": program.created_ms // 1000,
        "owned_by": program.tenant,
    }
