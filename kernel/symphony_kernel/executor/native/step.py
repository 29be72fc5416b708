"""A step as C reads it: flat arrays, and the results that it wants.

Most steps decode: each row has one new token and wants a result at it. Such a step reuses arrays,
and writes its requests only where they change. Other steps make new arrays.
"""

from collections.abc import Mapping, Sequence
from ctypes import Structure, addressof, c_int32, c_void_p, pointer
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.adapters.packing import PackedAdapter
from symphony_kernel.executor.base import Int32, Row, UInt32
from symphony_kernel.executor.bitmask import BitmaskBuffers
from symphony_kernel.executor.native.sampling import NativeSampler, ResultPlaces
from symphony_kernel.executor.sampling import SamplingRequest
from symphony_kernel.protocol.errno import SyscallError

UInt64 = npt.NDArray[np.uint64]
_ROWS_MIN, _TABLES_MIN = 16, 256
_BYTES = 4  # of an int32


class StepRows(Structure):
    """`StepRows` of attention.h."""

    _fields_ = (
        ("rows", c_int32),
        ("tokens", c_int32),
        ("offsets", c_void_p),
        ("starts", c_void_p),
        ("table_offsets", c_void_p),
        ("tables", c_void_p),
        ("positions", c_void_p),
        ("parents", c_void_p),
        ("trees", c_void_p),
    )


class StepTokens(Structure):
    """`StepTokens` of decoder.h."""

    _fields_ = (
        ("tokens", c_void_p),
        ("wanted", c_void_p),
        ("wanted_count", c_int32),
        ("adapters", c_void_p),
    )


@dataclass(slots=True)
class FlatStep:
    """A step's rows as C reads them, and what else a step has."""

    rows: StepRows
    kept: tuple[npt.NDArray[np.generic], ...]  # what `rows` points to
    positions: Int32  # [tokens]
    tokens: UInt32  # [tokens]
    wanted: Int32  # [w] indices of tokens with results
    wanting: list[int]  # the rows with places


def flat_step(rows: Sequence[Row]) -> FlatStep:
    """Return the arrays of a step of at least one row, in the order of the rows."""
    count = len(rows)
    offsets = list(accumulate([len(row.tokens) for row in rows], initial=0))
    pages = list(accumulate([len(row.block_table) for row in rows], initial=0))
    wanting = [i for i, row in enumerate(rows) if len(row.places)]
    wanted = _wanted(rows, wanting, offsets)
    # One array: the address of each takes longer than what is in it.
    heads = np.array([*offsets, *pages, *[row.start for row in rows]], np.int32)
    numbers = np.concatenate(
        [heads, *[row.block_table for row in rows], *[row.positions for row in rows]],
        dtype=np.int32,
    )
    address = numbers.ctypes.data
    tables = len(heads)
    first = tables + pages[-1]  # where the positions begin
    structure = StepRows(
        rows=count,
        tokens=offsets[-1],
        offsets=address,
        table_offsets=address + _BYTES * (count + 1),
        starts=address + _BYTES * 2 * (count + 1),
        tables=address + _BYTES * tables,
        positions=address + _BYTES * first,
    )
    kept: tuple[npt.NDArray[np.generic], ...] = (numbers,)
    if any(row.parents is not None for row in rows):
        parents, trees = _trees(rows, offsets)
        structure.parents, structure.trees = parents.ctypes.data, trees.ctypes.data
        kept = (numbers, parents, trees)
    tokens = np.concatenate([row.tokens for row in rows], dtype=np.uint32)
    return FlatStep(structure, kept, numbers[first:], tokens, wanted, wanting)


def _wanted(rows: Sequence[Row], wanting: list[int], offsets: list[int]) -> Int32:
    places = [rows[i].places for i in wanting]
    if not places:
        return np.empty(0, np.int32)
    wanted = np.concatenate(places, dtype=np.int32)
    if len(rows) > 1:
        wanted += np.repeat([offsets[i] for i in wanting], [len(given) for given in places])
    return wanted


def _trees(
    rows: Sequence[Row], offsets: list[int]
) -> "tuple[Int32, np.ndarray[tuple[int], np.dtype[np.uint8]]]":
    parents = np.full(offsets[-1], -1, np.int32)
    for row, begin in zip(rows, offsets, strict=False):
        if row.parents is not None:
            parents[begin : begin + len(row.tokens)] = row.parents
    return parents, np.array([row.parents is not None for row in rows], np.uint8)


class PreparedStep:
    """One step, ready for C; filled on one thread and computed on another, in turn.

    `rows` and `tokens` are the addresses of its `StepRows` and `StepTokens`.
    """

    def __init__(self, sampler: NativeSampler, adapters: Mapping[str, PackedAdapter]) -> None:
        """`adapters` are the loaded ones, also later ones."""
        self._loaded = adapters
        self._adapters: UInt64 | None = None  # of the rows: addresses, 0: none
        self.places = ResultPlaces(sampler)
        self.mask_buffers = BitmaskBuffers(sampler.vocab_size)  # of its constrained rows
        self.count = 0  # number of rows
        self._rows, self._tokens = StepRows(), StepTokens()
        self.rows, self.tokens = addressof(self._rows), addressof(self._tokens)
        self._flat: FlatStep | None = None  # the arrays, unless the step only decodes
        self._wanting: list[int] | None = None  # rows with results, None: all
        self._decoding = False  # whether the structures point to the arrays below
        self._allocate_rows(_ROWS_MIN)
        self._allocate_tables(_TABLES_MIN)

    def fill(self, rows: Sequence[Row]) -> None:
        """Become a step of at least one row."""
        self.count = len(rows)
        masks = self._mask_addresses(
            [index for index, row in enumerate(rows) if row.matcher is not None]
        )
        self._fill_adapters(rows)
        for row in rows:
            if len(row.tokens) != 1 or len(row.places) != 1 or row.parents is not None:
                self._fill(rows, masks)
                return
        self._fill_decodes(rows, masks)

    def set_tokens(self, tokens: list[int]) -> None:
        """Set each row's token, in a step that only decodes."""
        assert self._decoding
        self._new_tokens[: self.count] = tokens

    @property
    def wanted_count(self) -> int:
        return int(self._tokens.wanted_count)

    @property
    def positions(self) -> Int32:
        return self._positions[: self.count] if self._flat is None else self._flat.positions

    def results(self) -> list[bytes | SyscallError]:
        answers = self.places.answers()
        if self._wanting is None:
            return answers
        results: list[bytes | SyscallError] = [b""] * self.count
        for index, answer in zip(self._wanting, answers, strict=True):
            results[index] = answer
        return results

    def _fill_adapters(self, rows: Sequence[Row]) -> None:
        loaded, tokens = self._loaded, self._tokens
        if not loaded or not any(row.options.adapter for row in rows):
            tokens.adapters = None
            return
        found = [loaded.get(row.options.adapter) for row in rows]
        addresses = [0 if each is None else each.address for each in found]
        self._adapters = np.array(addresses, np.uint64)
        tokens.adapters = self._adapters.ctypes.data

    # -- Steps that decode -----------------------------------------------------------------------
    def _mask_addresses(self, constrained: list[int]) -> list[int] | None:
        """Return the address of each row's mask (0: none); None: no row has a mask."""
        if not constrained:
            return None
        self.mask_buffers.reserve(len(constrained))
        masks = [0] * self.count
        for row, address in zip(constrained, self.mask_buffers.addresses, strict=False):
            masks[row] = address
        return masks

    def _fill_decodes(self, rows: Sequence[Row], masks: list[int] | None) -> None:
        count = len(rows)
        if count > len(self._new_tokens):
            self._allocate_rows(count)
        lengths = [len(row.block_table) for row in rows]
        entries = sum(lengths)
        if entries > len(self._tables):
            self._allocate_tables(entries)
        if count == 1:
            row = rows[0]
            self._new_tokens[0], self._positions[0] = row.tokens[0], row.positions[0]
            self._starts[0] = row.start
            self._tables[:entries] = row.block_table
            self._table_offsets[1] = entries
        else:
            np.concatenate([row.tokens for row in rows], out=self._new_tokens[:count])
            np.concatenate([row.positions for row in rows], out=self._positions[:count])
            self._starts[:count] = [row.start for row in rows]
            np.concatenate([row.block_table for row in rows], out=self._tables[:entries])
            np.cumsum(lengths, out=self._table_offsets[1 : count + 1])
        if not self._decoding:
            self._point_to_decodes()
        self._rows.rows = self._rows.tokens = self._tokens.wanted_count = count
        self.places.set_requests(rows, masks)

    def _allocate_rows(self, rows: int) -> None:
        size = 1 << (rows - 1).bit_length()
        self._starts, self._positions = np.zeros(size, np.int32), np.zeros(size, np.int32)
        self._new_tokens = np.zeros(size, np.uint32)
        self._table_offsets = np.zeros(size + 1, np.int32)
        self._numbers = np.arange(size + 1, dtype=np.int32)  # each row has one token, all wanted
        self._decoding = False

    def _allocate_tables(self, entries: int) -> None:
        self._tables = np.zeros(1 << (entries - 1).bit_length(), np.int32)
        self._decoding = False

    def _point_to_decodes(self) -> None:
        rows, tokens = self._rows, self._tokens
        rows.offsets = tokens.wanted = self._numbers.ctypes.data
        rows.starts, rows.positions = self._starts.ctypes.data, self._positions.ctypes.data
        rows.table_offsets = self._table_offsets.ctypes.data
        rows.tables = self._tables.ctypes.data
        rows.parents = rows.trees = None
        tokens.tokens = self._new_tokens.ctypes.data
        self._flat, self._wanting, self._decoding = None, None, True

    # -- All other steps -------------------------------------------------------------------------
    def _fill(self, rows: Sequence[Row], masks: list[int] | None) -> None:
        step = self._flat = flat_step(rows)
        self._decoding, self._wanting = False, step.wanting
        pointer(self._rows)[0] = step.rows
        tokens = self._tokens
        tokens.tokens, tokens.wanted = step.tokens.ctypes.data, step.wanted.ctypes.data
        tokens.wanted_count = len(step.wanted)
        self.places.set_requests(
            [
                SamplingRequest(row.options, row.seed, row.positions[row.places])
                for row in map(rows.__getitem__, step.wanting)
            ],
            None if masks is None else [masks[index] for index in step.wanting],
        )
