"""Untrusted MessagePack: claimed sizes cost nothing, and its contents are limited."""

import tracemalloc
from typing import Any

import msgpack
import pytest
from symphony_kernel.protocol.untrusted import unpack_untrusted

CLAIMS = b"\xdd\x00\x02\x00\x00"  # a list of 131,072 items, none of which are there
MANY = 1 << 20


def refused(data: bytes, containers: int = 8, **given: Any) -> str:
    with pytest.raises(ValueError, match="not msgpack") as caught:
        unpack_untrusted(data, containers, **given)
    return str(caught.value)


@pytest.mark.parametrize(
    "value", [None, 7, "text", b"bytes", [], {}, {"at": [1, 2, 3], "get": {"top": 2}}, [[[[1]]]]]
)
def test_value_that_is_well_formed_is_unpacked(value: Any) -> None:
    assert unpack_untrusted(msgpack.packb(value), 8) == value
    long = {"value": value, "filling": b"x" * 1000}
    assert unpack_untrusted(msgpack.packb(long), 9) == long


def test_claimed_sizes_take_no_memory() -> None:
    bomb = CLAIMS * 1000 + b"\x01"
    tracemalloc.start()
    for lists in (bomb, b"\xdc\xff\xff" * 1000, b"\x81\xa1a" + bomb, CLAIMS):
        refused(lists, containers=MANY, max_array_len=MANY, max_map_len=MANY)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000  # 80 times as much with memory for all the claimed items


def test_lists_and_maps_over_the_limit_are_refused() -> None:
    assert len(unpack_untrusted(msgpack.packb([[]] * 99), 100)) == 99
    assert "too many" in refused(msgpack.packb([[]] * 100), containers=100)
    assert "too many" in refused(msgpack.packb([{}] * 100), containers=100)
    assert "too many" in refused(msgpack.packb([[]] * 8))


@pytest.mark.parametrize("filling", [0, 1000])
@pytest.mark.parametrize(
    "end", [b"", b"\xc1", b"\xd9\xff", b"\xa1\xff", b"\x81\x01\x01", b"\x90" * 2]
)
def test_damaged_bytes_are_refused(end: bytes, filling: int) -> None:
    refused(b"\x92" + msgpack.packb(b"x" * filling) + end)


def test_lengths_and_keys_outside_the_callers_limits_are_refused() -> None:
    refused(msgpack.packb(list(range(100))), max_array_len=99)
    refused(msgpack.packb({str(n): n for n in range(100)}), max_map_len=99)
    numbered = msgpack.packb({7: 1})
    refused(numbered)
    assert unpack_untrusted(numbered, 1, strict_map_key=False) == {7: 1}
