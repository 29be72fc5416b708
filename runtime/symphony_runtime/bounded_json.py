"""JSON of clients and programs, parsed only if it nests within a bound.

What was parsed is checked, copied and encoded by code that calls itself at each level. Within the
bound none of it meets the interpreter's limit. The gateway and the compiler parse with `load_json`.
"""

import codecs
import json
from typing import Any

from symphony_kernel.protocol.limits import JSON_DEPTH_MAX


class DeepJsonError(ValueError):
    """JSON nests too deep."""

    def __init__(self) -> None:
        super().__init__(f"nests its lists and objects more than {JSON_DEPTH_MAX} deep")


def load_json(data: bytes) -> Any:
    """Return the value of JSON in UTF-8, which may begin with a byte order mark.

    Raises ValueError: it is not JSON; DeepJsonError.
    """
    # Decoded here: json.loads also takes UTF-16, whose values the gateway does not count. Not by
    # the codec utf-8-sig: a contained compiler cannot load it.
    text = data.removeprefix(codecs.BOM_UTF8).decode()
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise DeepJsonError from None
    if data.count(b"[") + data.count(b"{") > JSON_DEPTH_MAX and nests_deeper(value, JSON_DEPTH_MAX):
        raise DeepJsonError
    return value


def nests_deeper(value: Any, most: int) -> bool:
    """Return whether lists and objects of a JSON value nest more than `most` deep."""
    level, depth = [value], 0
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        if depth > most:
            return True
        level = [
            child for each in level for child in (each.values() if isinstance(each, dict) else each)
        ]
    return False


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
