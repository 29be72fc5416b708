"""Trails as bytes, for the journal and durable files.

msgpack [version, [item, ..], [number of an item, or -1, ..]]: the items are spans [context, length,
tokens, positions, parents, adapter (if any)] and trails [before, span, ranges]. Items refer to
earlier items by their numbers (-1: none); the last list has the packed trails. Shared spans and
trails are written once. Arrays of numbers are little-endian.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgpack
import numpy as np

from symphony_kernel.executor.base import Int32, Int64
from symphony_kernel.kvfs.lineage.spans import Span, Trail, spans_of
from symphony_kernel.protocol.limits import FILE_ENTRIES_MAX, LINEAGE_ENTRIES_MAX

_VERSION: Final = 1
_NONE: Final = -1
_Made = TypeVar("_Made", Span, Trail)
_LONGEST: Final = max(FILE_ENTRIES_MAX, LINEAGE_ENTRIES_MAX)


class LineageError(ValueError):
    """Bytes that are not packed trails."""


def pack(trails: Sequence[Trail | None]) -> bytes:
    """Return trails as bytes; `unpack` restores what they share."""
    items: list[list[Any]] = []
    numbers: dict[Span | Trail | None, int] = {None: _NONE}

    def add(item: Span | Trail, packed: list[Any]) -> None:
        numbers[item] = len(items)
        items.append(packed)

    def add_trail(trail: Trail | None) -> None:
        for part in [] if trail is None else _new(trail, numbers):
            add(part, [numbers[part.before], numbers[part.span], _bytes(part.ranges, "<i8")])

    for span in spans_of(trails):
        add_trail(span.context)
        add(span, _pack_span(span, numbers[span.context]))
    for trail in trails:
        add_trail(trail)
    data: bytes = msgpack.packb([_VERSION, items, [numbers[trail] for trail in trails]])
    return data


def unpack(data: bytes) -> list[Trail | None]:
    """Return the trails that were packed; LineageError for other bytes."""
    try:
        version, items, heads = msgpack.unpackb(data)
        if version != _VERSION:
            raise LineageError(f"lineage of version {version!r}")
        made: list[Span | Trail] = []
        for item in items:
            made.append(_unpack_trail(item, made) if len(item) == 3 else _unpack_span(item, made))
        return [_trail(made, number) for number in heads]
    except LineageError:
        raise
    except Exception as error:  # of msgpack, of a wrong type, of a wrong shape
        raise LineageError(f"no lineage: {error}") from error


def _new(trail: Trail, numbers: dict[Span | Trail | None, int]) -> list[Trail]:
    new: list[Trail] = []
    part: Trail | None = trail
    while part is not None and part not in numbers:
        new.append(part)
        part = part.before
    return new[::-1]


def _pack_span(span: Span, context: int) -> list[Any]:
    parents = None if span.parents is None else _bytes(span.parents, "<i4")
    tokens, positions = _bytes(span.tokens, "<u4"), _bytes(span.positions, "<i4")
    packed = [context, span.length, None if span.lost else tokens, positions, parents]
    return [*packed, span.adapter] if span.adapter else packed


def _unpack_span(item: list[Any], made: list[Span | Trail]) -> Span:
    context, length, tokens, positions, parents, *more = item
    _require(len(more) <= 1 and all(type(each) is str for each in more), "an adapter")
    _require(type(length) is int and 0 < length <= _LONGEST, "a span's length")
    if tokens is None:
        return Span.make_lost(length)
    above = None if parents is None else _array(parents, "<i4", length).astype(np.int32)
    if above is not None:
        _require(bool((above >= -1).all() and (above < np.arange(length)).all()), "parents")
    return Span(
        _trail(made, context),
        _array(tokens, "<u4", length).astype(np.uint32),
        _array(positions, "<i4", length).astype(np.int32),
        above,
        more[0] if more else "",
    )


def _unpack_trail(item: list[Any], made: list[Span | Trail]) -> Trail:
    before, number, packed = item
    span = _made(made, number, Span)
    ranges = _array(packed, "<i8", len(packed) // 8).astype(np.int64).reshape(-1, 2)
    starts, ends = ranges[:, 0], ranges[:, 1]
    _require(bool(len(ranges) and (starts >= 0).all() and (starts < ends).all()), "ranges")
    _require(bool((ends <= span.length).all()), "ranges")
    _require(int((ends - starts).sum()) <= _LONGEST, "ranges")
    return Trail(_trail(made, before), span, ranges)


def _trail(made: list[Span | Trail], number: object) -> Trail | None:
    return None if number == _NONE else _made(made, number, Trail)


def _made(made: list[Span | Trail], number: object, kind: type[_Made]) -> _Made:
    item = made[number] if type(number) is int and 0 <= number < len(made) else None
    if not isinstance(item, kind):
        raise LineageError(f"no lineage: the number of a {kind.__name__} is invalid")
    return item


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise LineageError(f"no lineage: {what} is invalid")


def _bytes(values: "Int32 | Int64 | np.typing.NDArray[np.uint32]", kind: str) -> bytes:
    return values.astype(kind).tobytes()


def _array(data: Any, kind: str, n: int) -> "np.typing.NDArray[Any]":
    array = np.frombuffer(data, kind)
    _require(len(array) == n, "an array's length")
    return array
