"""Requests of guests to the outside, unpacked and checked: every mistake is a SyscallError."""

import math
from dataclasses import dataclass
from typing import Any

import msgpack
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    TOOL_ARGUMENTS_DEPTH_MAX,
    TOOL_CALL_MS_MAX,
    TOOL_NAME_BYTES_MAX,
    TOOL_REQUEST_BYTES_MAX,
)

_ITEMS_MAX = 4_096  # of one list or map in a request


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of a tool: `name` is "server.tool"; `arguments` can be said in JSON."""

    name: str
    arguments: dict[str, Any]
    timeout_ms: int | None = None


def parse_tool(data: bytes) -> ToolRequest:
    """Return the request in msgpack {name, arguments?, timeout_ms?}.

    Raises:
        SyscallError: EINVAL, EFBIG, or ENAMETOOLONG.
    """
    values = unpack(data, TOOL_REQUEST_BYTES_MAX, frozenset({"name", "arguments", "timeout_ms"}))
    name, arguments = values.get("name"), values.get("arguments")
    if not isinstance(name, str) or not name:
        raise invalid("a tool's name must be text")
    if len(name.encode()) > TOOL_NAME_BYTES_MAX:
        raise SyscallError(Errno.ENAMETOOLONG, f"a tool's name has {TOOL_NAME_BYTES_MAX} bytes")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise invalid("arguments must be a map")
    _check_json(arguments)
    return ToolRequest(name, arguments, timeout(values.get("timeout_ms"), TOOL_CALL_MS_MAX))


def unpack(data: bytes, size_max: int, known: frozenset[str]) -> dict[str, Any]:
    """Return a msgpack map that has known keys only; EINVAL, EFBIG."""
    if len(data) > size_max:
        raise SyscallError(Errno.EFBIG, f"a request of {len(data)} bytes, limit {size_max}")
    try:
        # Lists are made as long as they say they are, before their items are seen.
        found = msgpack.unpackb(data, raw=False, max_array_len=_ITEMS_MAX, max_map_len=_ITEMS_MAX)
    except Exception as error:
        raise invalid(f"no msgpack: {error}") from error
    if not isinstance(found, dict) or not known.issuperset(found):
        raise invalid(f"not a map with keys of {sorted(known)}")
    return found


def timeout(value: Any, most_ms: int) -> int | None:
    """Return a time in ms, as long as it may be at most; None where none is given. EINVAL."""
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise invalid("timeout_ms must be a positive integer")
    return min(value, most_ms)


def invalid(detail: str) -> SyscallError:
    """Return an EINVAL."""
    return SyscallError(Errno.EINVAL, detail)


def _check_json(value: Any, depth: int = 0) -> None:
    """EINVAL for what JSON cannot say (bytes, NaN, other keys than text), and for deep nesting."""
    if depth > TOOL_ARGUMENTS_DEPTH_MAX:
        raise invalid(f"arguments are nested deeper than {TOOL_ARGUMENTS_DEPTH_MAX} levels")
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise invalid("a key in arguments is no text")
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _check_json(item, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise invalid("a number in arguments is not finite")
    elif not (value is None or isinstance(value, str | int | bool)):
        raise invalid("arguments hold what JSON cannot say")
