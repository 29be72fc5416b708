"""The handlers of programs and runs. Streams are in `run_streams`, KV files in `kv`."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

from aiohttp import web
from symphony_kernel.protocol.limits import (
    CANCEL_SECONDS_MAX,
    MESSAGE_BYTES_MAX,
    PROGRAM_SOURCE_BYTES_MAX,
    RUN_BODY_BYTES_MAX,
)

from symphony_runtime.compiler.compiler import CompileBounds
from symphony_runtime.gateway.api.requests import parse_run
from symphony_runtime.gateway.api.results import result_pieces
from symphony_runtime.gateway.api.run_streams import stream_events
from symphony_runtime.gateway.errors import Problem, bad_request
from symphony_runtime.gateway.http.context import (
    answer,
    flag,
    page_limit,
    parse_json,
    read_body,
    run_off_loop,
    services,
    tenant_of,
    to_any_json,
    to_json,
)
from symphony_runtime.gateway.http.idempotency import REPLAYED, read_idempotency_key, start_run_once
from symphony_runtime.gateway.http.program_values import check_input
from symphony_runtime.gateway.http.responses import send_pieces, send_whole
from symphony_runtime.gateway.links.links import KernelAwayError
from symphony_runtime.gateway.links.models import merge_by_key
from symphony_runtime.gateway.programs.store import ProgramQuota, count_refusals, digest_of
from symphony_runtime.gateway.runs.live_run import Run, check_stored
from symphony_runtime.gateway.runs.record import Record, check_here
from symphony_runtime.gateway.runs.trace import find_trace
from symphony_runtime.gateway.runs.tracing.events import trace_events
from symphony_runtime.languages.language import of_content_type
from symphony_runtime.languages.source import is_source, pack_source
from symphony_runtime.texts.token_texts import token_texts

_PATIENCE_SECONDS = 5.0  # that a client waits for an end to be stored


# --- Programs ------------------------------------------------------------------------------------
async def upload_program(request: web.Request) -> web.StreamResponse:
    server, tenant, name = services(request), tenant_of(request), request.query.get("name")
    limits = server.runs.limits.of(tenant)
    with count_refusals(server.runs.metrics, tenant):
        languages = server.programs.languages.all()
        language = of_content_type(languages, request.content_type)
        if language is None:
            wasm = await read_body(request, "a program", limits.at_most("program_bytes"))
            if is_source(wasm):
                wasm = b""  # only the server makes such bytes: it is no module
        else:
            text = await read_body(request, "a source", PROGRAM_SOURCE_BYTES_MAX)
            wasm = pack_source(language.name, text)
        once, new = read_idempotency_key(request, tenant, wasm), False

        async def upload(_program: str, _again: bool) -> None:
            nonlocal new
            bounds = CompileBounds.of(limits.of_compiler())
            quota = ProgramQuota.of(limits.at_most)
            _, new = await server.programs.upload(tenant, name, wasm, bounds, quota)

        program_id, again = await digest_of(wasm), False
        if once is None:
            await upload(program_id, False)
        else:
            program_id, again = await server.idempotency.perform(once, program_id, upload)
    program = await server.programs.get(tenant, program_id)
    response = await answer(program.view(), status=201 if new else 200)
    response.headers.update(REPLAYED if again else {})
    return response


async def list_programs(request: web.Request) -> web.StreamResponse:
    server, tenant = services(request).programs, tenant_of(request)
    after, limit = request.query.get("after", ""), page_limit(request)
    if flag(request, "named"):
        named, following = await server.named(tenant, after, limit)
        programs = [replace(program, name=name) for name, program in named]
    else:
        unnamed = "named" in request.query
        programs, following = await server.page(tenant, after, limit, unnamed=unnamed)
    size = sum(len(program.manifest.declared) for program in programs)
    body = await run_off_loop(
        size, lambda: to_json({"data": [each.view() for each in programs], "next": following})
    )
    return await send_whole(request, body)


async def get_program(request: web.Request) -> web.StreamResponse:
    programs = services(request).programs
    program = await programs.get(tenant_of(request), request.match_info["program"])
    return await answer(program.view())


async def delete_program(request: web.Request) -> web.StreamResponse:
    await services(request).programs.delete(tenant_of(request), request.match_info["program"])
    return web.Response(status=204)


async def get_limits(request: web.Request) -> web.StreamResponse:
    limits = services(request).runs.limits.of(tenant_of(request))
    return await answer({"limits": limits.view()})


# --- Runs ----------------------------------------------------------------------------------------
async def start_run(request: web.Request) -> web.StreamResponse:
    """Run a program: wait for its end, stream it, or only start it."""
    detach = flag(request, "detach")
    run, again, stream = await _find_or_start(request, detach)
    services(request).bodies.release(request)  # the worker has its input, and the run may last
    headers = REPLAYED if again else {}
    if stream:
        return await stream_events(request, run, after=0, headers=headers)
    if detach:
        run_id = run.record.id if isinstance(run, Run) else run.id
        response = await answer({"id": run_id}, status=202)
        response.headers.update({"Location": f"/v1/runs/{run_id}", **headers})
        return response
    if isinstance(run, Run):
        await _wait_over(run)
    return await _result(request, run, headers)


async def _find_or_start(request: web.Request, detach: bool) -> tuple[Run | Record, bool, bool]:
    """Return the run, whether an earlier request started it, and whether to stream it."""
    server, tenant = services(request), tenant_of(request)
    program = await server.programs.get(tenant, request.match_info["program"])
    raw = await read_body(request, "the request", RUN_BODY_BYTES_MAX)
    once = read_idempotency_key(request, tenant, raw, "detach")
    body = await parse_json(request, raw) if raw else {}
    parse = partial(parse_run, body, server.runs.limits.of(tenant))
    wanted = await run_off_loop(len(raw), parse)
    if detach and wanted.stream:
        raise bad_request(
            "bad-request", "a run is either detached (`detach`) or streamed (`stream`), not both"
        )

    async def start(run_id: str | None) -> Run:
        await check_input(request, program, body.get("input", ""))
        return await server.runs.start(program, wanted, run_id=run_id, detached=detach)

    run, again = await start_run_once(server.idempotency, server.runs, once, start)
    return run, again, wanted.stream


async def _wait_over(run: Run) -> None:
    """Wait until a run has ended; Problem 503, 507: its end cannot be stored."""
    await asyncio.shield(run.known)
    if not run.over.done():
        await asyncio.wait([run.over], timeout=_PATIENCE_SECONDS)
    if run.unstored is not None and not run.over.done():
        raise run.unstored


async def get_run(request: web.Request) -> web.StreamResponse:
    tenant = tenant_of(request)
    run = await services(request).runs.find(tenant, request.match_info["run"])
    if not flag(request, "brief"):
        return await _result(request, run)
    if not isinstance(run, Run):
        return await answer(run.view())
    held = merge_by_key(await ask_kernels(request, "lips", tenant=tenant))
    return await answer({**run.record.view(), "held": held.get(run.record.seq)})


async def delete_run(request: web.Request) -> web.StreamResponse:
    await services(request).runs.delete(tenant_of(request), request.match_info["run"])
    return web.Response(status=204)


async def get_trace(request: web.Request) -> web.StreamResponse:
    runs = services(request).runs
    run = await runs.find(tenant_of(request), request.match_info["run"])
    # One per tenant at a time: an unpacked trace is many times as large.
    async with services(request).tenant_locks.of(tenant_of(request)):
        body = await _trace(request, run)
    return await send_whole(request, body)


async def _trace(request: web.Request, run: Run | Record) -> bytes:
    if isinstance(run, Run):
        record, packed = run.record, run.trace.pack() if run.trace else None
    else:
        record, packed = run, await services(request).store.read(lambda c: find_trace(c, run.seq))
    if packed is None:
        raise Problem(404, "not-traced", "the run was not traced: start it with `trace: true`")
    models = services(request).runs.models
    # A model that is not served any more has no tokenizer here: its tokens stay numbers.
    model = models.find(record.model) if record.model else models.default
    tokenizer: bytes = (model.kernel.about.get("tokenizer") if model else None) or b""
    # In a thread: a tokenizer and a trace may have many megabytes each.
    return await asyncio.to_thread(
        lambda: to_any_json(trace_events(record, packed, token_texts(tokenizer)))
    )


async def send_message(request: web.Request) -> web.StreamResponse:
    runs = services(request).runs
    close = flag(request, "close")
    run = await runs.find(tenant_of(request), request.match_info["run"])
    data = await read_body(request, "a message", MESSAGE_BYTES_MAX)
    if data or not close:
        runs.deliver(run, data)
    if close:
        runs.deliver(run, None)
    return web.Response(status=204)


async def cancel_run(request: web.Request) -> web.StreamResponse:
    """End a run, and answer when it has ended. An ended run stays as it is."""
    runs = services(request).runs
    run = await runs.find(tenant_of(request), request.match_info["run"])
    if not isinstance(run, Run):
        check_here(run)
        return await answer(run.view())
    check_stored(run)
    runs.kill(run, "it was cancelled")
    await asyncio.wait([run.known], timeout=CANCEL_SECONDS_MAX)
    return await answer(run.record.view(), status=200 if run.over.done() else 202)


async def _result(
    request: web.Request, run: Run | Record, headers: dict[str, str] | None = None
) -> web.StreamResponse:
    record, events = services(request).runs.record_and_cursor(run)
    return await send_pieces(request, result_pieces(record.view(), events), headers or {})


# --- For operators ------------------------------------------------------------------------------
async def statistics(request: web.Request) -> web.StreamResponse:
    """Answer with the counters of kernel and gateway; `check` audits the kernel first."""
    server = services(request)
    if flag(request, "check"):
        await ask_kernels(request, "check_integrity")
    models, found = server.runs.models, await ask_kernels(request, "statistics")
    counted = (server.administration.active_requests, server.runs, server.store, server.channels,
               server.bodies, server.connections, server.slow)  # fmt: skip
    gateway = {key: value for part in counted for key, value in part.statistics().items()}
    document = {"kernel": found[0], "gateway": gateway}
    if len(models) > 1:
        names = [model.name for model in models if model.kernel.ready]
        document["kernels"] = dict(zip(names, found, strict=False))
    return await answer(document)


async def ask_kernels(request: web.Request, what: str, **args: Any) -> list[Any]:
    """Return the answer of each model's kernel that is there; Problem 503: none is."""
    runs = services(request).runs
    try:
        return await runs.models.ask_each(what, **args)
    except KernelAwayError as error:
        raise runs.admission.unavailable("kernel", str(error)) from error
