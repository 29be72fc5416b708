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
_RESPONSE_BYTES = HTTP_BODY_BYTES_MAX + HTTP_HEADER_BYTES_MAX


def http(instance: Instance, pointer: int, length: int) -> int | None:
    """Return a ticket for the response of an HTTP server."""
    instance.fiber.check(pointer, length)
    data = instance.fiber.read(pointer, min(length, HTTP_REQUEST_BYTES_MAX + 1))
    _check(instance, "http", parse_http, data)
    return _request(instance, "http", data, _RESPONSE_BYTES)


def tool(instance: Instance, pointer: int, length: int) -> int | None:
    """Return a ticket for the result of a tool."""
    instance.fiber.check(pointer, length)
    data = instance.fiber.read(pointer, min(length, TOOL_REQUEST_BYTES_MAX + 1))
    _check(instance, "tool", parse_tool, data)
    return _request(instance, "tool", data, TOOL_RESULT_BYTES_MAX)


def tools(instance: Instance, pointer: int, capacity: int) -> None:
    """Write a msgpack list of the tools that the tenant may call; suspends."""
    instance.fiber.check(pointer, capacity)

    def on_answer(errno: int, value: Any) -> None:
        instance.resume(errno if errno < 0 else validation.put(instance, pointer, capacity, value))

    instance.ask_gateway("tools", {"instance": instance.id}, on_answer)


def _request(instance: Instance, what: str, data: bytes, result_bytes_max: int) -> int | None:
    ticket = instance.tickets.issue(held=result_bytes_max)

    def on_answer(errno: int, value: Any) -> None:
        if errno < 0:
            _note_error(instance, what, value)
        instance.complete(ticket, errno if errno < 0 else value)

    seq = instance.ask_gateway(what, {"instance": instance.id, "request": data}, on_answer)
    ticket.drop = lambda: instance.cancel_ask(seq)
    return instance.paced(ticket.number)


def _check(instance: Instance, what: str, parse: Callable[[bytes], object], data: bytes) -> None:
    try:
        parse(data)
    except SyscallError as error:
        _note_error(instance, what, error.detail)
        raise


def _note_error(instance: Instance, what: str, detail: object) -> None:
    """Keep a request's error for `last_error` and the log: an errno says too little."""
    # The detail may repeat what the program has passed.
    instance.last_error = str(detail)[:_DETAIL_MAX].encode(errors="replace")
    instance.write_log(_WARNING, f"{what}: ".encode() + instance.last_error)
