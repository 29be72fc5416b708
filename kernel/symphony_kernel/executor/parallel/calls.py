"""The calls that rank 0 sends to the others, as bytes.

A call of a network or of its pages is a length (u32, little-endian) and a msgpack array, [name,
arguments...]. An array is sent as [type, shape, bytes]. The rows of a step are joined, array by
array, so that a step of many rows is few objects. Requests at their places stay with rank 0.
"""

import struct
from collections.abc import Callable, Sequence
from typing import IO, Any, Final

import msgpack
import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Int32, Row

_LENGTH: Final = struct.Struct("<I")


def pack(*call: Any) -> bytes:
    """Return the bytes of a call or of a reply."""
    body: bytes = msgpack.packb(
        [
            (part.dtype.str, part.shape, part.tobytes()) if isinstance(part, np.ndarray) else part
            for part in call
        ]
    )
    return _LENGTH.pack(len(body)) + body


def receive(stream: IO[bytes]) -> list[Any] | None:
    """Return the next call or reply, its arrays writable; None at the end of the stream.

    The stream is buffered: `read` returns less than it was asked for only at the end.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    if len(body) < length:
        return None
    return [_array(*part) if type(part) is list else part for part in msgpack.unpackb(body)]


def _array(dtype: str, shape: list[int], data: bytes) -> npt.NDArray[Any]:
    return np.frombuffer(data, dtype).reshape(shape).copy()


def pack_rows(rows: Sequence[Row]) -> tuple[npt.NDArray[Any], ...]:
    """Return a step's counts, tokens, positions, tables, places and parents as arrays.

    The counts are [rows, 5]: new tokens, pages, places, 1 if it has parents, start.
    """
    counts = np.array(
        [
            (len(r.tokens), len(r.block_table), len(r.places), r.parents is not None, r.start)
            for r in rows
        ],
        np.int32,
    )
    parents = [row.parents for row in rows if row.parents is not None]
    return (
        counts,
        np.concatenate([row.tokens for row in rows]).astype(np.uint32, copy=False),
        _joined([row.positions for row in rows]),
        _joined([row.block_table for row in rows]),
        _joined([row.places for row in rows]),
        _joined(parents) if parents else np.empty(0, np.int32),
    )


def _joined(parts: Sequence[Int32]) -> Int32:
    return np.concatenate(parts).astype(np.int32, copy=False)


def unpack_rows(packed: Sequence[npt.NDArray[Any]]) -> list[Row]:
    """Return the rows of `pack_rows`; they want no results at their places."""
    counts, *joined = packed
    new, pages, places, trees, starts = counts.T
    tokens, positions, tables, wanted, parents = map(
        _row_parts, joined, (new, new, pages, places, new * trees)
    )
    rows = []
    for start, tree in zip(starts.tolist(), trees.tolist(), strict=True):
        ancestors = parents()  # empty for a row without parents
        rows.append(
            Row(
                tokens=tokens(), positions=positions(), start=start, block_table=tables(),
                places=wanted(), parents=ancestors if tree else None,
            )
        )  # fmt: skip
    return rows


def _row_parts(values: npt.NDArray[Any], counts: Int32) -> Callable[[], npt.NDArray[Any]]:
    """Return a function that returns one row's part after the other."""
    return iter(np.split(values, np.cumsum(counts)[:-1])).__next__
