"""Trails as bytes: what comes back is what was packed, and no bytes do harm."""

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_kernel.kvfs.lineage.packing import LineageError, pack, unpack
from symphony_kernel.kvfs.lineage.spans import Span, Trail, lost_trail, spans_of

from tests.support.kernel.recompute import HashDevice, Workbench, random_files


def told(trail: Trail | None) -> list[Any]:
    """Return all that a trail says, as plain values."""
    spans = spans_of([trail])
    numbers = {span: number for number, span in enumerate(spans)}

    def parts(each: Trail | None) -> list[Any]:
        found = [] if each is None else each.parts()
        return [(numbers[part.span], part.ranges.tolist()) for part in found]

    return [parts(trail)] + [
        (parts(s.context), s.length, s.lost, s.tokens.tolist(), s.positions.tolist(),
         None if s.parents is None else s.parents.tolist())
        for s in spans
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_packed_trails_are_unpacked_unchanged(seed: int) -> None:
    bench = Workbench(HashDevice(400))
    files = random_files(bench, np.random.default_rng(seed), 40)
    trails = [file.lineage for file in files] + [None, lost_trail(7)]
    back = unpack(pack(trails))
    assert [told(each) for each in back] == [told(each) for each in trails]
    flags = [(each.length, each.closed, each.linear) for each in back if each is not None]
    assert flags == [(each.length, each.closed, each.linear) for each in trails if each is not None]
    assert len(spans_of(back)) == len(spans_of(trails)), "what was shared is shared"
    bench.close_all()


def test_adapters_of_spans_are_packed() -> None:
    first = Span(None, np.arange(9, dtype=np.uint32), np.arange(9, dtype=np.int32), adapter="t/1")
    trail = Trail(None, first, np.array([[0, 9]]))
    second = Span(trail, np.arange(3, dtype=np.uint32), np.arange(9, 12, dtype=np.int32))
    whole = Trail(trail, second, np.array([[0, 3]]))
    (found,) = unpack(pack([whole]))
    assert found is not None
    assert [part.span.adapter for part in found.parts()] == ["t/1", ""]
    assert not found.linear
    assert not found.closed
    for adapter in (b"t/1", 7, None):
        item = [-1, 1, bytes(4), bytes(4), None, adapter]
        with pytest.raises(LineageError):
            unpack(msgpack.packb([1, [item], []]))


def test_empty_list_is_packed() -> None:
    assert unpack(pack([])) == []
    assert unpack(pack([None, None])) == [None, None]


def numbers(kind: str, *values: int) -> bytes:
    return np.array(values, kind).tobytes()


ONE = [-1, 2, numbers("<u4", 5, 6), numbers("<i4", 0, 1), None]
TRAIL = [-1, 0, numbers("<i8", 0, 2)]


def test_bytes_made_by_hand_are_unpacked() -> None:
    [trail] = unpack(msgpack.packb([1, [ONE, TRAIL], [1]]))
    assert trail is not None
    assert trail.linear
    assert trail.span.tokens.tolist() == [5, 6]


@pytest.mark.parametrize(
    "value",
    [
        None, [], [2, [], []], [1, [], [0]], [1, [ONE], [0]], [1, [ONE, TRAIL], [2]],
        [1, [ONE, TRAIL], [True]], [1, [ONE, TRAIL], ["1"]], [1, [TRAIL, ONE], [0]],
        [1, [ONE, [-1, 1, TRAIL[2]]], [1]], [1, [ONE, [1, 0, TRAIL[2]]], [1]],
        [1, [ONE, [-1, 0, numbers("<i8", 0, 3)]], [1]],
        [1, [ONE, [-1, 0, numbers("<i8", -1, 1)]], [1]],
        [1, [ONE, [-1, 0, numbers("<i8", 1, 1)]], [1]], [1, [ONE, [-1, 0, numbers("<i8", 0)]], [1]],
        [1, [ONE, [-1, 0, b""]], [1]], [1, [ONE, [-1, 0, "ab"]], [1]],
        [1, [[-1, 3, *ONE[2:]], TRAIL], [1]], [1, [[-1, 0, b"", b"", None], TRAIL], [1]],
        [1, [[-1, 1 << 40, None, None, None], TRAIL], [1]], [1, [[5, *ONE[1:]], TRAIL], [1]],
        [1, [[*ONE[:4], numbers("<i4", -1, 1)], TRAIL], [1]],
        [1, [[*ONE[:4], numbers("<i4", -2, -1)], TRAIL], [1]],
        [1, [ONE, [-1, 0, numbers("<i8", 0, 1 << 62, 0, 1 << 62)]], [1]], [1, 7, [1]],
        [1, [ONE, TRAIL], 9], [1, [[1], TRAIL], []], {"a": 1},
    ],
)  # fmt: skip
def test_invalid_trail_is_refused(value: Any) -> None:
    with pytest.raises(LineageError):
        unpack(msgpack.packb(value))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_valid(data: st.DataObject) -> None:
    span = Span(None, np.arange(9, dtype=np.uint32), np.arange(9, dtype=np.int32))
    trail = Trail(None, span, np.array([[1, 4], [6, 9]]))
    tree = Span(trail, np.arange(3, dtype=np.uint32), np.zeros(3, np.int32), np.array([-1, 0, 0]))
    packed = bytearray(pack([Trail(trail, tree, np.array([[0, 2]]))]))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = unpack(bytes(packed))
    except LineageError:
        return
    for each in found:
        assert told(each)
