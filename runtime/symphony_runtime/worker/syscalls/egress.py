"""Egress calls: the gateway makes them for programs, which have no network."""

from collections.abc import Callable
from typing import Any

from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import (
    HTTP_BODY_BYTES_MAX,
    HTTP_HEADER_BYTES_MAX,
    HTTP_REQUEST_BYTES_MAX,
    TOOL_REQUEST_BYTES_MAX,
    TOOL_RESULT_BYTES_MAX,
)

from symphony_runtime.abi.egress_requests import parse_http, parse_tool
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.syscalls import validation

_WARNING = 2
_DETAIL_MAX = 1_024  # characters
# Name, parser, bytes of a request and of its result.
_HTTP = "http", parse_http, HTTP_REQUEST_BYTES_MAX, HTTP_BODY_BYTES_MAX + HTTP_HEADER_BYTES_MAX
_TOOL = "tool", parse_tool, TOOL_REQUEST_BYTES_MAX, TOOL_RESULT_BYTES_MAX


def http(instance: Instance, pointer: int, length: int) -> int | None:
    """Return a ticket for the response of an HTTP server."""
    return _request(instance, pointer, length, *_HTTP)


def tool(instance: Instance, pointer: int, length: int) -> int | None:
    """Return a ticket for the result of a tool."""
    return _request(instance, pointer, length, *_TOOL)


def tools(instance: Instance, pointer: int, capacity: int) -> None:
    """Write a msgpack list of the tools that the tenant may call; suspends."""
    instance.fiber.check(pointer, capacity)

    def on_answer(errno: int, value: Any) -> None:
        instance.resume(errno if errno < 0 else validation.put(instance, pointer, capacity, value))

    instance.ask_gateway("tools", {"instance": instance.id}, on_answer)


def _request(
    instance: Instance, pointer: int, length: int, what: str, parse: Callable[[bytes], object],
    bytes_max: int, result_bytes_max: int,
) -> int | None:  # fmt: skip
    def note(errno: int, value: Any) -> None:
        if errno < 0:
            _note_error(instance, what, value)

    instance.fiber.check(pointer, length)
    data = instance.fiber.read(pointer, min(length, bytes_max + 1))
    try:
        parse(data)
    except SyscallError as error:
        _note_error(instance, what, error.detail)
        raise
    return instance.ticket_of_gateway(what, {"request": data}, result_bytes_max, note)


def _note_error(instance: Instance, what: str, detail: object) -> None:
    """Keep a request's error for `last_error` and the log: an errno says too little."""
    # The detail may repeat what the program has passed.
    instance.last_error = str(detail)[:_DETAIL_MAX].encode(errors="replace")
    instance.write_log(_WARNING, f"{what}: ".encode() + instance.last_error)
