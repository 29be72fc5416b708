"""Structured arguments that lie, nest, or are something else: EINVAL from every call."""

import asyncio

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno

from tests.support.executor.byte_model import byte_assets
from tests.support.worker.guests import Step, data, result
from tests.support.worker.rig import WorkerRig

AT = 10_000
CLAIM = b"\xdd\x00\x02\x00\x00"  # a list of 131,072
EINVAL = -Errno.EINVAL

MALFORMED: dict[str, bytes] = {
    "a byte that means nothing": b"\xc1",
    "nil": b"\xc0",
    "a number": b"\x07",
    "a text": b"\xa4text",
    "bytes": b"\xc4\x04byte",
    "a map cut off": b"\x81",
    "a map cut off at its value": b"\x81\xa1a",
    "a map of four billion": b"\xdf\xff\xff\xff\xff",
    "a list of four billion": b"\xdd\xff\xff\xff\xff",
    "a text of four gibibytes": b"\xdb\xff\xff\xff\xffx",
    "bytes of four gibibytes": b"\x81\xa1a\xc6\xff\xff\xff\xff",
    "an extension": msgpack.packb(msgpack.ExtType(5, b"x" * 100)),
    "a moment": msgpack.packb(msgpack.Timestamp(1, 1)),
    "a moment as a value": msgpack.packb({"input": msgpack.Timestamp(1, 1)}),
    "an extension as a value": msgpack.packb({"name": msgpack.ExtType(5, b"")}),
    "two values": msgpack.packb({}) + b"\xc0",
    "a key that is a number": msgpack.packb({7: 1}),
    "a key that is bytes": msgpack.packb({b"input": b""}),
    "a key that is a list": b"\x81\x90\xc0",
    "a key that is a map": b"\x81\x80\xc0",
    "an unknown key": msgpack.packb({"": 1}),
    "a key as long as can be": msgpack.packb({"x" * 40_000: 1}),
    "text that is none": b"\x81\xa4name\xa2\xff\xfe",
    "lists in lists": b"\x91" * 1000 + b"\xc0",
    "lists in lists, deeper than is read": b"\x91" * 2000 + b"\xc0",
    "maps in maps": b"\x81\xa1a" * 2000 + b"\xc0",
    "lists that claim to be long": CLAIM * 1000,
    "lists that claim to be long in a map": b"\x81\xa2at" + CLAIM * 1000 + b"\xc0",
    "thousands of lists": msgpack.packb({"at": [[]] * 20_000}),
    "thousands of maps": msgpack.packb({"bias": [{}] * 20_000}),
    "a list where a map must be": msgpack.packb([{"role": 7}]),
    "everything wrong": msgpack.packb(
        {"program": 7, "entry": [], "input": {}, "grants": "x", "name": 1, "url": [], "at": {}}
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
async def test_malformed_options_are_einval_in_every_call(what: str) -> None:
    content = MALFORMED[what]
    async with asyncio.timeout(60), WorkerRig(assets=byte_assets()) as rig:
        steps: list[Step] = [
            ("kv_create",),
            ("spawn", AT, len(content)),
            ("tool", AT, len(content)),
            ("http", AT, len(content)),
            ("pred", result(0), 0, 1, 0, AT, len(content)),
            ("generate", result(0), 0, 1, AT, len(content)),
            ("chat", AT, len(content), 0, 0),
            ("chat_with", AT, len(content), 0, 0),
            ("kv_len", result(0)),
        ]
        found = await rig.play(*steps, parts=(data(AT, content),))
        assert found[1:] == [EINVAL] * 7 + [0]


async def test_error_message_about_malformed_options_is_short(rig: WorkerRig) -> None:
    """A header's name of control characters, each of which is written as four."""
    request = msgpack.packb({"url": "http://a/", "headers": {"\x01" * 40_000: "x"}})
    found = await rig.play(
        ("http", AT, len(request)), ("last_error", 0, 0), parts=(data(AT, request),)
    )
    assert found[0] == EINVAL
    assert isinstance(found[1], int)
    assert 0 < found[1] <= 4096
