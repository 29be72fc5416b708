"""A step's rows as the native kernels take them: a few flat arrays, made in one pass."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from symphony_kernel.executor.base import Int32, Row, UInt32
from symphony_kernel.executor.native.attention import FlatRows, UInt8


@dataclass(slots=True)
class FlatStep:
    """A step, flat. Tokens stand in the order of the rows."""

    tokens: UInt32  # [n]
    rows: FlatRows
    wanted: Int32  # [w] indices into the tokens whose distributions are wanted, row after row
    wants: Int32  # [rows] how many of them each row has


def flat_step(rows: Sequence[Row]) -> FlatStep:
    """Return the flat form of at least one row."""
    offsets = _offsets([len(row.tokens) for row in rows])
    wants = np.array([len(row.places) for row in rows], np.int32)
    wanted = np.concatenate([row.places for row in rows], dtype=np.int32)
    parents, trees = _trees(rows)
    return FlatStep(
        tokens=np.concatenate([row.tokens for row in rows], dtype=np.uint32),
        rows=FlatRows(
            offsets=offsets,
            starts=np.array([row.start for row in rows], np.int32),
            table_offsets=_offsets([len(row.block_table) for row in rows]),
            tables=np.concatenate([row.block_table for row in rows], dtype=np.int32),
            positions=np.concatenate([row.positions for row in rows], dtype=np.int32),
            parents=parents,
            trees=trees,
        ),
        wanted=wanted + np.repeat(offsets[:-1], wants),
        wants=wants,
    )


def _offsets(counts: list[int]) -> Int32:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _trees(rows: Sequence[Row]) -> tuple[Int32 | None, UInt8 | None]:
    """Return the parents of all tokens, and which rows have any; nothing where none has."""
    given = [row.parents for row in rows]
    if all(parents is None for parents in given):
        return None, None
    plain = [np.full(len(row.tokens), -1, np.int32) for row in rows]
    filled = [own if own is not None else none for own, none in zip(given, plain, strict=True)]
    trees = np.array([parents is not None for parents in given], np.uint8)
    return np.concatenate(filled, dtype=np.int32), trees
