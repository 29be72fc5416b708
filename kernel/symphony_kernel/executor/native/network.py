"""A network on the native kernels: a whole step in one call (see decoder.h)."""

import logging
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_int32, c_void_p
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from symphony_kernel.executor.adapters.files import AdapterFile
from symphony_kernel.executor.adapters.packing import PackedAdapter
from symphony_kernel.executor.base import Float32, Results, Row
from symphony_kernel.executor.bitmask import BitmaskBuffers, RowMasks
from symphony_kernel.executor.models.config import ModelConfig
from symphony_kernel.executor.models.loader import QuantizedTensors
from symphony_kernel.executor.models.quantization import (
    Quantization,
    QuantizedMatrix,
    plain,
    quantize,
)
from symphony_kernel.executor.models.rope import frequencies
from symphony_kernel.executor.models.weights import (
    Product,
    QuantizedLayerWeights,
    take_embedding,
    take_head_matrix,
    take_last_norm,
)
from symphony_kernel.executor.native.library import Function, Library
from symphony_kernel.executor.native.pages import AttentionShape, NativePages, PoolShape
from symphony_kernel.executor.native.sampling import NativeSampler
from symphony_kernel.executor.native.step import PreparedStep
from symphony_kernel.executor.sampling import SamplingRequest
from symphony_kernel.protocol.errno import SyscallError

_log = logging.getLogger(__name__)

_POSITIONS_MIN = 1024


# `Part` and `Fault` of decoder.h.
_Part = IntEnum(
    "_Part",
    "QUERY KEY VALUE OUTPUT GATE UP DOWN INPUT_NORM QUERY_NORM KEY_NORM MIDDLE_NORM HEAD LAST_NORM",
    start=0,
)
_Fault = IntEnum("_Fault", "NONE MEMORY TOKEN PAGE POSITION UNANSWERED", start=0)
# Products that are one matrix to the decoder.
_FUSED = (
    (Product.QUERY, Product.KEY, Product.VALUE),
    (Product.OUTPUT,),
    (Product.GATE, Product.UP),
    (Product.DOWN,),
)
PHASES = ("plan", "norm", "qkv", "attention", "output", "gate_up", "down", "head", "answers")


class _DecoderShape(AttentionShape):
    """`DecoderShape` of decoder.h: the fields of attention, and these."""

    _fields_ = (  # type: ignore[assignment]
        ("hidden", c_int32),
        ("middle", c_int32),
        ("vocab", c_int32),
        ("qkv_bias", c_int32),
        ("output_bias", c_int32),
        ("mlp_bias", c_int32),
        ("qk_norm", c_int32),
    )


class QuantizedRows(Structure):
    """`QuantizedRows` of product_quantized.h: a `QuantizedMatrix`, which must stay alive."""

    _fields_ = (
        ("values", c_void_p),
        ("scales", c_void_p),
        ("minimums", c_void_p),
        ("bits", c_int32),
        ("group", c_int32),
        ("has_minimums", c_int32),
    )

    @classmethod
    def of(cls, matrix: QuantizedMatrix) -> "QuantizedRows":
        minimums = None if matrix.minimums is None else matrix.minimums.data_ptr()
        return cls(matrix.values.data_ptr(), matrix.scales.data_ptr(), minimums, *matrix.format)


# What to answer about a step, for C: a sampler, places, their number, and the address that says
# that the masks are ready.
_ResultArguments: TypeAlias = tuple[int | None, int | None, int, int | None]
_NO_RESULTS: _ResultArguments = (None, None, 0, None)


class NativeNetwork:
    """A decoder and its page pool in the kernels' own layouts (see `network.Network`).

    A step computes the logits of at most `logits_places` places within itself.
    """

    computes = "native"

    def __init__(
        self,
        library: Library,
        config: ModelConfig,
        weights: QuantizedTensors,
        dtype: torch.dtype,
        *,
        pages: int,
        threads: int,
        logits_places: int,
        quantization: Quantization = Quantization.NONE,
    ) -> None:
        self.config = config
        self._logits_places = logits_places
        wide = dtype.itemsize == 2 and library.widens
        if wide:
            _log.info("bfloat16 is multiplied as float32 (SYMPHONY_PRODUCTS)")
        pool = PoolShape(
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            element_bytes=dtype.itemsize,
            pages=pages,
            windows=config.windows,
            norm_epsilon=config.norm_epsilon,
            threads=threads,
            wide=wide,
        )
        self.pages = NativePages(library, pool)
        create = library.function(
            "symphony_decoder_create", POINTER(_DecoderShape), c_void_p, result=c_void_p
        )
        self._destroy = library.function("symphony_decoder_destroy", c_void_p)
        self._decoder = create(byref(self._shape()), self.pages.address)
        if not self._decoder:
            self.pages.close()
            raise MemoryError("no memory for the weights, or no threads")
        self._step = library.function(
            "symphony_decoder_step",
            c_void_p, c_void_p, c_void_p, c_void_p, c_int32, c_void_p, c_void_p, c_int32, c_void_p,
            result=c_int32,
        )  # fmt: skip
        self._more_logits = library.function(
            "symphony_decoder_logits", c_void_p, c_int32, c_int32, c_void_p
        )
        self._more_hidden = library.function(
            "symphony_decoder_hidden", c_void_p, c_int32, c_int32, c_void_p
        )
        self._rotate = library.function(
            "symphony_decoder_set_rotation", c_void_p, c_void_p, c_void_p, c_int32
        )
        self._ring = library.function("symphony_decoder_ring", c_void_p, c_int32)
        self._set_profile = library.function("symphony_decoder_set_profile", c_void_p, c_void_p)
        self._cosines = self._sines = torch.empty(0)
        self._sampler = NativeSampler(library, config.vocab_size, threads, self._decoder)
        try:
            filler = _Filler(library, self._decoder, config, weights, quantization)
            self._embedding = filler.fill()
        except BaseException:
            self.release()
            raise
        self._logits = torch.empty(0, config.vocab_size)
        self._logits_at = 0  # their address
        self._prepared: list[PreparedStep] = []  # the free ones
        self.adapters: dict[str, PackedAdapter] = {}
        self._factors = torch.float32 if wide else dtype
        self._portions = PreparedStep(self._sampler, self.adapters)  # of `forward`
        self._computed = 0
        self._profile = np.zeros(len(PHASES))

    def pack_adapter(self, adapter: AdapterFile) -> PackedAdapter:
        return PackedAdapter(adapter.products(), self.config, self._factors)

    def ring(self, bell: int) -> None:
        """Make the next step write to an eventfd, as soon as it computes (see team.h)."""
        self._ring(self._decoder, bell)

    def prepare(self, rows: Sequence[Row]) -> PreparedStep | None:
        """Return the step in C's arrays; None: it has too many places, or wants hidden states."""
        if sum(len(row.places) for row in rows) > self._logits_places:
            return None
        step = (
            self._prepared.pop() if self._prepared else PreparedStep(self._sampler, self.adapters)
        )
        step.fill(rows)
        if step.places.wants_hidden:
            self._prepared.append(step)
            return None
        return step

    def mask_buffers(self, step: PreparedStep) -> BitmaskBuffers:
        return step.mask_buffers

    def compute(self, step: PreparedStep, masks: Callable[[], RowMasks] | None = None) -> Results:
        """Compute a step and its results in one call; afterwards the step is free again.

        It takes two calls if the masks are not ready when the logits are.
        """
        places = step.places
        ready = None if masks is None else step.mask_buffers.ready_at
        wanted = self._sampler.address, places.address, places.count, ready
        if not self._run(step, step.wanted_count, wanted):
            assert masks is not None
            masks()
            self._sampler.answer_places(self._logits_at, places)
        results = step.results()
        self._prepared.append(step)
        return results

    def forward(self, rows: Sequence[Row]) -> list[int]:
        """Compute the rows' entries, and the logits of as many places as fit."""
        self._portions.fill(rows)
        self._computed = min(self._portions.wanted_count, self._logits_places)
        if self._portions.places.wants_hidden:
            self._computed = 0  # `answer` computes the logits that are wanted
        self._run(self._portions, self._computed, _NO_RESULTS)
        return [index for index, row in enumerate(rows) if len(row.places)]

    def answer(self, first: int, requests: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
        count = sum(len(request.positions) for request in requests)
        if first + count > self._computed or first:
            self._computed = 0  # overwritten
            self._reserve(count)
            self._more_logits(self._decoder, first, count, self._logits_at)
        return self._sampler.answer(self._logits_at, requests)

    def hidden(self, first: int, count: int) -> Float32:
        values = np.empty((count, self.config.hidden_size), np.float32)
        self._more_hidden(self._decoder, first, count, values.ctypes.data)
        return values

    def _run(self, step: PreparedStep, count: int, wanted: _ResultArguments) -> bool:
        """Compute a step, the logits of its first `count` places, and results from them.

        Returns whether the results are there: not if the masks were not ready in time.
        """
        self._reserve(count)
        given = step.rows, step.tokens, self._logits_at, count, *wanted
        fault = self._step(self._decoder, *given)
        if fault == _Fault.POSITION:
            self._extend_rotation(int(step.positions.max()) + 1)
            fault = self._step(self._decoder, *given)
        if fault == _Fault.UNANSWERED:
            return False
        if fault == _Fault.MEMORY:
            raise MemoryError("no memory for a step")
        if fault:
            raise IndexError(f"a step names a {_Fault(fault).name.lower()} out of range")
        return True

    def _reserve(self, count: int) -> None:
        """Have room for the logits of so many places."""
        if count > len(self._logits):
            self._logits = torch.empty(count, self.config.vocab_size)
            self._logits_at = self._logits.data_ptr()

    def release(self) -> None:
        self._sampler.close()
        if self._decoder:
            self._destroy(self._decoder)
            self._decoder = 0
        self.pages.close()

    def profile(self, on: bool) -> dict[str, float]:
        """Switch profiling on or off; return each phase's seconds since the last switch."""
        found = dict(zip(PHASES, self._profile.tolist(), strict=True))
        self._profile[:] = 0.0
        self._set_profile(self._decoder, self._profile.ctypes.data if on else None)
        return found

    def _shape(self) -> _DecoderShape:
        config, attention = self.config, self.pages.structure
        return _DecoderShape(
            *(getattr(attention, name) for name, _ in AttentionShape._fields_),
            hidden=config.hidden_size,
            middle=config.intermediate_size,
            vocab=config.vocab_size,
            qkv_bias=config.qkv_bias,
            output_bias=config.output_bias,
            mlp_bias=config.mlp_bias,
            qk_norm=config.qk_norm,
        )

    def _extend_rotation(self, positions: int) -> None:
        """Extend the rotation tables to at least `positions` positions."""
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
        weights: QuantizedTensors,
        quantization: Quantization,
    ) -> None:
        def setter(name: str, *arguments: type) -> Function:
            return library.function(f"symphony_decoder_set_{name}", c_void_p, *arguments)

        one = c_int32, c_int32, c_void_p  # a part, a layer, an address
        self._set_matrix = setter("matrix", *one)
        self._set_quantized = setter("quantized", c_int32, c_int32, POINTER(QuantizedRows))
        self._set_bias, self._set_norm = setter("bias", *one), setter("norm", *one)
        self._set_embedding = setter("embedding", c_void_p)
        self._decoder, self._quantization = decoder, quantization
        self._config, self._weights = config, weights

    def fill(self) -> Tensor:
        """Take all tensors; return the embedding, which the decoder keeps reading."""
        config, weights = self._config, self._weights
        embedding = take_embedding(config, weights).contiguous()
        self._set_embedding(self._decoder, embedding.data_ptr())
        for layer in range(config.layers):
            self._layer(layer)
        self._vector(self._set_norm, _Part.LAST_NORM, 0, take_last_norm(config, weights))
        head = take_head_matrix(config, weights, embedding)
        if isinstance(head, Tensor):
            head = self._quantization.applied(head, head=True)
        self._pack(_Part.HEAD, 0, head)
        return embedding

    def _layer(self, layer: int) -> None:
        given = QuantizedLayerWeights(self._config, self._weights, layer)
        for products in _FUSED:
            for product, matrix in zip(products, self._matrices(given, products), strict=True):
                self._pack(_Part[product.name], layer, matrix)
                bias = given.bias(product)
                if bias is not None:
                    self._vector(self._set_bias, _Part[product.name], layer, bias)
        norms = given.norms()
        self._vector(self._set_norm, _Part.INPUT_NORM, layer, norms.input)
        self._vector(self._set_norm, _Part.MIDDLE_NORM, layer, norms.middle)
        if norms.query is not None and norms.key is not None:
            self._vector(self._set_norm, _Part.QUERY_NORM, layer, norms.query)
            self._vector(self._set_norm, _Part.KEY_NORM, layer, norms.key)

    def _matrices(
        self, given: QuantizedLayerWeights, products: tuple[Product, ...]
    ) -> list[Tensor | QuantizedMatrix]:
        """Take products that are one matrix to the decoder, in one format."""
        matrices = [given.weight(product) for product in products]
        if all(isinstance(matrix, Tensor) for matrix in matrices):
            return [self._quantization.applied(matrix) for matrix in matrices]
        formats = {m.format if isinstance(m, QuantizedMatrix) else None for m in matrices}
        if len(formats) == 1:
            return matrices
        return [quantize(plain(matrix), bits=8, group=32) for matrix in matrices]

    def _pack(self, part: _Part, layer: int, matrix: Tensor | QuantizedMatrix) -> None:
        if isinstance(matrix, QuantizedMatrix):
            rows = QuantizedRows.of(matrix)
            self._set_quantized(self._decoder, part, layer, byref(rows))
            return
        matrix = matrix.contiguous()
        self._set_matrix(self._decoder, part, layer, matrix.data_ptr())

    def _vector(self, put: Function, part: _Part, layer: int, vector: Tensor) -> None:
        values = vector.float().contiguous()
        put(self._decoder, part, layer, values.data_ptr())
