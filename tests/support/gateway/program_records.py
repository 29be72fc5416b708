"""Records of a tenant's program that serves as a model, as its messages have them."""

import struct
from typing import Any

import msgpack

OPENING = b"\xff\xff\xff\xffLIP\x01"
STOP, LENGTH, TOOL_CALLS, CONTENT_FILTER, GOING = 0, 1, 2, 3, 255


def record(kind: str, payload: bytes) -> bytes:
    return struct.pack("<I", 1 + len(payload)) + kind.encode() + payload


def text(words: str, choice: int = 0, finish: int = GOING) -> bytes:
    return record("p", struct.pack("<HB", choice, finish) + words.encode())


def text_with(words: str, logprobs: Any, choice: int = 0, finish: int = GOING) -> bytes:
    head = struct.pack("<HBI", choice, finish, len(words.encode()))
    return record("l", head + words.encode() + msgpack.packb(logprobs))


def reasoning(words: str, choice: int = 0) -> bytes:
    return record("r", struct.pack("<H", choice) + words.encode())


def call(name: str, index: int = 0, choice: int = 0) -> bytes:
    return record("c", struct.pack("<HH", choice, index) + name.encode())


def arguments(words: str, index: int = 0, choice: int = 0) -> bytes:
    return record("a", struct.pack("<HH", choice, index) + words.encode())


def usage(prompt: int, cached: int, completion: int) -> bytes:
    return record("u", struct.pack("<III", prompt, cached, completion))


def failure(**fields: Any) -> bytes:
    return record("e", msgpack.packb({"code": "c", "param": "", "message": "m", **fields}))
