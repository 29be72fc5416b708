"""The handlers of a name's versions: list them, point the name at one, delete them."""

from functools import partial

from aiohttp import web
from pydantic import Field
from symphony_kernel.protocol.limits import NAME_BYTES_MAX, SMALL_BODY_BYTES_MAX

from symphony_runtime.gateway.api.requests import parse_body
from symphony_runtime.gateway.http.context import (
    answer,
    read_json,
    run_off_loop,
    services,
    tenant_of,
    to_json,
)
from symphony_runtime.gateway.http.responses import send_whole
from symphony_runtime.gateway.programs.store import ProgramQuota, Version, count_refusals
from symphony_runtime.validation import StrictModel


class AliasBody(StrictModel):
    """What a name is to point at."""

    program: str = Field(
        description="a program's id, a name, or name@version", max_length=2 * NAME_BYTES_MAX
    )


async def list_versions(request: web.Request) -> web.StreamResponse:
    programs, name = services(request).programs, request.match_info["program"]
    versions = await programs.versions(tenant_of(request), name)
    size = sum(len(version.program.manifest.declared) for version in versions)
    view = partial(_view, versions)
    return await send_whole(request, await run_off_loop(size, view))


def _view(versions: list[Version]) -> bytes:
    return to_json({"data": [version.view() for version in versions], "next": None})


async def put_alias(request: web.Request) -> web.StreamResponse:
    server, tenant = services(request), tenant_of(request)
    body = await read_json(request, "the request", SMALL_BODY_BYTES_MAX)
    wanted = parse_body(AliasBody, body)
    quota = ProgramQuota.of(server.runs.limits.of(tenant).at_most)
    with count_refusals(server.runs.metrics, tenant):
        program = await server.programs.point(
            tenant, request.match_info["program"], wanted.program, quota
        )
    return await answer(program.view())


async def delete_version(request: web.Request) -> web.StreamResponse:
    name, version = request.match_info["program"], request.match_info["version"]
    await services(request).programs.delete_version(tenant_of(request), name, version)
    return web.Response(status=204)


async def delete_name(request: web.Request) -> web.StreamResponse:
    programs = services(request).programs
    await programs.delete_name(tenant_of(request), request.match_info["program"])
    return web.Response(status=204)
