"""Checks of a run's input, and of what it returns, against the schemas of its program's manifest.

Schemas and values are strangers'. Most checks take a few hundred steps and run at once. A longer
one runs in a thread, one of a tenant at a time, and is charged to the tenant.
"""

from typing import Any

from aiohttp import web

from symphony_runtime.compiler.json_schema import root_type
from symphony_runtime.compiler.schema_check import CheckLimitError, Mismatch, find_mismatch
from symphony_runtime.gateway.errors import Problem, bad_request
from symphony_runtime.gateway.http.context import body_owner, parse_json, run_charged, services
from symphony_runtime.gateway.programs.store import Program

_STEPS_AT_ONCE = 500  # about a millisecond
_SHOWN_MAX = 500  # characters of a path and of words


async def check_input(request: web.Request, program: Program, value: Any) -> None:
    """Check the `input` of a request for a run; Problem 400: it does not fit.

    A string is the input's text. It is JSON, unless the schema says that the input is a string.
    """
    schema = program.declared().get("input_schema")
    if schema is None:
        return
    if isinstance(value, str) and root_type(schema) != "string":
        value = await _read_text(request, value)
    try:
        found = await find_problem(request, schema, value)
    except CheckLimitError as error:
        raise bad_request("bad-input", f"`input` cannot be checked: {error}") from None
    if found is not None:
        raise bad_request("bad-input", f"`input{found.path}` {found.words}", path=found.path)


async def find_problem(request: web.Request, schema: dict[str, Any], value: Any) -> Mismatch | None:
    """Return the first thing in a value that does not fit a schema of a manifest.

    Raises CheckLimitError.
    """
    try:
        found = find_mismatch(schema, value, _STEPS_AT_ONCE)
    except CheckLimitError:
        async with services(request).tenant_locks.of(body_owner(request)):
            found = await run_charged(request, lambda: find_mismatch(schema, value))
    if found is None:
        return None
    # A value may hold lone surrogates.
    path, words = (text.encode("utf-8", "replace").decode() for text in (found.path, found.words))
    return Mismatch(path[:_SHOWN_MAX], words[:_SHOWN_MAX])


async def _read_text(request: web.Request, text: str) -> Any:
    try:
        return await parse_json(request, text.encode())
    except Problem as problem:
        if problem.status != 400:
            raise
    except UnicodeEncodeError:
        pass
    detail = "`input` is a text that is not JSON; the program takes JSON that fits its input_schema"
    raise bad_request("bad-input", detail, path="")
