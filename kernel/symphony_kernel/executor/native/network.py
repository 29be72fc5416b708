"""A network on the native kernels: a whole step in one call (see decoder.h)."""

from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int32, c_void_p
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from symphony_kernel.executor.base import Int32, Int64, Row, UInt32
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.loader import Weights
from symphony_kernel.executor.models.quantization import quantize
from symphony_kernel.executor.models.rope import frequencies
from symphony_kernel.executor.native.attention import (
    AttentionShape,
    FlatRows,
    PagePool,
    PoolShape,
    StepRows,
)
from symphony_kernel.executor.native.library import Library
from symphony_kernel.executor.native.sampling import NativeSampler
from symphony_kernel.executor.sampling import Ask
from symphony_kernel.protocol.errno import SyscallError

_POSITIONS_MIN = 1024


class _Part(IntEnum):
    """`Part` of decoder.h."""

    QUERY = 0
    KEY = 1
    VALUE = 2
    OUTPUT = 3
    GATE = 4
    UP = 5
    DOWN = 6
    INPUT_NORM = 7
    QUERY_NORM = 8
    KEY_NORM = 9
    MIDDLE_NORM = 10
    HEAD = 11
    LAST_NORM = 12


class _Fault(IntEnum):
    """`Fault` of decoder.h."""

    NONE = 0
    MEMORY = 1
    TOKEN = 2
    PAGE = 3
    POSITION = 4


PHASES = ("plan", "norm", "qkv", "attention", "output", "gate_up", "down", "head")


class _DecoderShape(Structure):
    _fields_ = (
        ("layers", c_int32),
        ("hidden", c_int32),
        ("middle", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("vocab", c_int32),
        ("element_bytes", c_int32),
        ("threads", c_int32),
        ("norm_epsilon", c_float),
        ("qkv_bias", c_int32),
        ("output_bias", c_int32),
        ("mlp_bias", c_int32),
        ("qk_norm", c_int32),
        ("quantized", c_int32),
    )


class _StepTokens(Structure):
    _fields_ = (("tokens", c_void_p), ("wanted", c_void_p), ("wanted_count", c_int32))


@dataclass(slots=True)
class Step:
    """A step's rows, flat: what attention reads, the tokens, and the places that are wanted."""

    rows: FlatRows
    tokens: UInt32  # [tokens]
    wanted: Int32  # [w] of them
    wanting: list[int]  # the rows that want any


def flat_step(rows: Sequence[Row]) -> Step:
    """Return the arrays of a step of at least one row, in the order of the rows."""
    if len(rows) == 1 and rows[0].parents is None:
        return _step_of_one(rows[0])
    offsets = _offsets([len(row.tokens) for row in rows])
    parents, trees = _trees(rows, offsets)
    wanting = [i for i, row in enumerate(rows) if len(row.places)]
    places = [rows[i].places for i in wanting]
    wanted = np.concatenate(places, dtype=np.int32) if places else np.empty(0, np.int32)
    if len(rows) > 1 and places:
        wanted += np.repeat(offsets[wanting], [len(given) for given in places])
    flat = FlatRows(
        offsets=offsets,
        starts=np.array([row.start for row in rows], np.int32),
        table_offsets=_offsets([len(row.block_table) for row in rows]),
        tables=np.concatenate([row.block_table for row in rows], dtype=np.int32),
        positions=np.concatenate([row.positions for row in rows], dtype=np.int32),
        parents=parents,
        trees=trees,
    )
    return Step(
        flat, np.concatenate([row.tokens for row in rows], dtype=np.uint32), wanted, wanting
    )


def _step_of_one(row: Row) -> Step:
    """The same in a fraction of the time: between two steps of a lone stream it counts."""
    flat = FlatRows(
        offsets=np.array((0, len(row.tokens)), np.int32),
        starts=np.array((row.start,), np.int32),
        table_offsets=np.array((0, len(row.block_table)), np.int32),
        tables=np.ascontiguousarray(row.block_table, np.int32),
        positions=np.ascontiguousarray(row.positions, np.int32),
    )
    tokens = np.ascontiguousarray(row.tokens, np.uint32)
    wanted = np.ascontiguousarray(row.places, np.int32)
    return Step(flat, tokens, wanted, [0] if len(wanted) else [])


def _offsets(counts: list[int]) -> Int32:
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def _trees(
    rows: Sequence[Row], offsets: Int32
) -> "tuple[Int32, np.ndarray[tuple[int], np.dtype[np.uint8]]] | tuple[None, None]":
    if all(row.parents is None for row in rows):
        return None, None
    parents = np.full(offsets[-1], -1, np.int32)
    for row, begin in zip(rows, offsets, strict=False):
        if row.parents is not None:
            parents[begin : begin + len(row.tokens)] = row.parents
    return parents, np.array([row.parents is not None for row in rows], np.uint8)


class NativeNetwork:
    """A decoder and its page pool in the kernels' own layouts (see `network.Network`).

    `logits_places` is for how many places the logits are computed within the step itself.
    """

    def __init__(
        self,
        library: Library,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        *,
        pages: int,
        threads: int,
        logits_places: int,
        quantized: bool = False,
    ) -> None:
        self.config = config
        self._logits_places = logits_places
        self._pool = PagePool(library, _pool_shape(config, dtype, pages, threads))
        shape = _decoder_shape(config, dtype, threads, quantized)
        create = library.function(
            "symphony_decoder_create",
            POINTER(_DecoderShape), POINTER(AttentionShape), c_void_p,
            result=c_void_p,
        )  # fmt: skip
        self._destroy = library.function("symphony_decoder_destroy", c_void_p)
        self._decoder = create(byref(shape), byref(self._pool.structure), self._pool.address)
        if not self._decoder:
            raise MemoryError("no memory for the weights, or no threads")
        self._step = library.function(
            "symphony_decoder_step",
            c_void_p, POINTER(StepRows), POINTER(_StepTokens), c_void_p, c_int32,
            result=c_int32,
        )  # fmt: skip
        self._more_logits = library.function(
            "symphony_decoder_logits", c_void_p, c_int32, c_int32, c_void_p
        )
        self._rotate = library.function(
            "symphony_decoder_set_rotation", c_void_p, c_void_p, c_void_p, c_int32
        )
        self._set_profile = library.function("symphony_decoder_set_profile", c_void_p, c_void_p)
        self._cosines = self._sines = torch.empty(0)
        self._sampler = NativeSampler(library, config.vocab_size, threads, self._decoder)
        try:
            self._embedding = _Filler(library, self._decoder, config, weights, quantized).fill()
        except BaseException:
            self.release()
            raise
        self._logits = torch.empty(0, config.vocab_size)
        self._logits_at = 0  # their address
        self._room = 0  # for so many places
        self._computed = 0
        self._profile = np.zeros(len(PHASES))

    def copy(self, group: Int64) -> None:
        """Copy slots of all layers."""
        self._pool.copy(group)

    def poison(self, pages: Int32) -> None:
        """Fill pages with NaN."""
        self._pool.poison(pages)

    def forward(self, rows: Sequence[Row]) -> list[int]:
        """Compute the rows' entries, and the logits of as many places as fit."""
        step = flat_step(rows)
        wanted = len(step.wanted)
        self._computed = min(wanted, self._logits_places)
        if self._room < self._computed:
            self._room = self._computed
            self._logits = torch.empty(self._room, self.config.vocab_size)
            self._logits_at = self._logits.data_ptr()
        tokens = _StepTokens(step.tokens.ctypes.data, step.wanted.ctypes.data, wanted)
        given = byref(step.rows.structure()), byref(tokens), self._logits_at, self._computed
        fault = self._step(self._decoder, *given)
        if fault == _Fault.POSITION:
            self._reach(int(step.rows.positions.max()) + 1)
            fault = self._step(self._decoder, *given)
        if fault == _Fault.MEMORY:
            raise MemoryError("no memory for a step")
        if fault:
            raise IndexError(f"a step names a {_Fault(fault).name.lower()} that there is not")
        return step.wanting

    def logits(self, first: int, count: int) -> Tensor:
        """Return the logits of places of the last step."""
        self._compute(first, count)
        return self._logits[:count]

    def answer(self, first: int, asks: Sequence[Ask]) -> list[bytes | SyscallError]:
        """Answer from the logits of places of the last step."""
        self._compute(first, sum(len(ask.positions) for ask in asks))
        return self._sampler.answer_at(self._logits_at, asks)

    def _compute(self, first: int, count: int) -> None:
        if first + count > self._computed or first:
            self._computed = 0  # written over
            self._more_logits(self._decoder, first, count, self._logits_at)

    def release(self) -> None:
        """Give weights and pool back."""
        self._sampler.close()
        if self._decoder:
            self._destroy(self._decoder)
            self._decoder = 0
        self._pool.close()

    def profile(self, on: bool) -> dict[str, float]:
        """Return the seconds of each phase since it was switched on, and switch it on or off."""
        found = dict(zip(PHASES, self._profile.tolist(), strict=True))
        self._profile[:] = 0.0
        self._set_profile(self._decoder, self._profile.ctypes.data if on else None)
        return found

    def _reach(self, positions: int) -> None:
        """Have the rotations of so many positions."""
        if positions <= len(self._cosines):
            return
        count = max(_POSITIONS_MIN, 1 << (positions - 1).bit_length())
        inverse, scale = frequencies(self.config.rope, self.config.head_dim)
        angles = torch.arange(count, dtype=torch.float32)[:, None] * inverse
        self._cosines, self._sines = angles.cos() * scale, angles.sin() * scale
        tables = self._cosines.data_ptr(), self._sines.data_ptr()
        self._rotate(self._decoder, *tables, count)


class _Filler:
    """Hands a checkpoint's tensors to a decoder, one after the other."""

    def __init__(
        self,
        library: Library,
        decoder: int,
        config: ModelConfig,
        weights: Weights,
        quantized: bool,
    ) -> None:
        given = c_void_p, c_int32, c_int32, c_void_p
        self._set_matrix = library.function("symphony_decoder_set_matrix", *given)
        self._set_quantized = library.function(
            "symphony_decoder_set_quantized", c_void_p, c_int32, c_int32, c_void_p, c_void_p
        )
        self._quantized = quantized
        self._set_bias = library.function("symphony_decoder_set_bias", *given)
        self._set_norm = library.function("symphony_decoder_set_norm", *given)
        self._set_embedding = library.function("symphony_decoder_set_embedding", c_void_p, c_void_p)
        self._decoder = decoder
        self._config = config
        self._weights = weights

    def fill(self) -> Tensor:
        """Take all tensors and return the embedding, which the decoder goes on reading."""
        config, weights = self._config, self._weights
        vocab = config.vocab_size, config.hidden_size
        embedding = weights.take("model.embed_tokens.weight", *vocab).contiguous()
        self._set_embedding(self._decoder, embedding.data_ptr())
        for layer in range(config.layers):
            self._layer(layer)
        self._norm(_Part.LAST_NORM, 0, "model.norm", config.hidden_size)
        if config.tied:
            weights.drop("lm_head.weight")
        head = embedding if config.tied else weights.take("lm_head.weight", *vocab)
        self._pack(_Part.HEAD, 0, head)
        return embedding

    def _layer(self, layer: int) -> None:
        config = self._config
        hidden, middle, dim = config.hidden_size, config.intermediate_size, config.head_dim
        wide, narrow = config.heads * dim, config.kv_heads * dim
        prefix = f"model.layers.{layer}."
        for part, name, outputs, inputs, bias in (
            (_Part.QUERY, "self_attn.q_proj", wide, hidden, config.qkv_bias),
            (_Part.KEY, "self_attn.k_proj", narrow, hidden, config.qkv_bias),
            (_Part.VALUE, "self_attn.v_proj", narrow, hidden, config.qkv_bias),
            (_Part.OUTPUT, "self_attn.o_proj", hidden, wide, config.output_bias),
            (_Part.GATE, "mlp.gate_proj", middle, hidden, config.mlp_bias),
            (_Part.UP, "mlp.up_proj", middle, hidden, config.mlp_bias),
            (_Part.DOWN, "mlp.down_proj", hidden, middle, config.mlp_bias),
        ):
            self._pack(part, layer, self._weights.take(f"{prefix}{name}.weight", outputs, inputs))
            if bias:
                values = self._weights.take(f"{prefix}{name}.bias", outputs).float().contiguous()
                self._set_bias(self._decoder, part, layer, values.data_ptr())
        self._norm(_Part.INPUT_NORM, layer, f"{prefix}input_layernorm", hidden)
        self._norm(_Part.MIDDLE_NORM, layer, f"{prefix}post_attention_layernorm", hidden)
        if config.qk_norm:
            self._norm(_Part.QUERY_NORM, layer, f"{prefix}self_attn.q_norm", dim)
            self._norm(_Part.KEY_NORM, layer, f"{prefix}self_attn.k_norm", dim)

    def _pack(self, part: _Part, layer: int, matrix: Tensor) -> None:
        if self._quantized:
            found = quantize(matrix)
            values, scales = found.values.data_ptr(), found.scales.data_ptr()
            self._set_quantized(self._decoder, part, layer, values, scales)
            return
        matrix = matrix.contiguous()
        self._set_matrix(self._decoder, part, layer, matrix.data_ptr())

    def _norm(self, part: _Part, layer: int, name: str, size: int) -> None:
        values = self._weights.take(f"{name}.weight", size).float().contiguous()
        self._set_norm(self._decoder, part, layer, values.data_ptr())


def _pool_shape(config: ModelConfig, dtype: torch.dtype, pages: int, threads: int) -> PoolShape:
    return PoolShape(
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        element_bytes=dtype.itemsize,
        pages=pages,
        windows=config.windows,
        norm_epsilon=config.norm_epsilon,
        threads=threads,
    )


def _decoder_shape(
    config: ModelConfig, dtype: torch.dtype, threads: int, quantized: bool
) -> _DecoderShape:
    return _DecoderShape(
        layers=config.layers,
        hidden=config.hidden_size,
        middle=config.intermediate_size,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocab=config.vocab_size,
        element_bytes=dtype.itemsize,
        threads=threads,
        norm_epsilon=config.norm_epsilon,
        qkv_bias=config.qkv_bias,
        output_bias=config.output_bias,
        mlp_bias=config.mlp_bias,
        qk_norm=config.qk_norm,
        quantized=quantized,
    )
