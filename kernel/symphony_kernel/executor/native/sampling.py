"""Answers to the places of a step by the native kernels (see sampling.h).

The same semantics and the same noise as `executor.sampling`, which is the oracle: the tokens are
the same, unless two scores lie so close that the last bit of a logarithm decides.
"""

from collections.abc import Sequence
from ctypes import c_int32, c_void_p

import numpy as np
import numpy.typing as npt
from torch import Tensor

from symphony_kernel.executor.native.library import Library
from symphony_kernel.executor.sampling import Ask, noise_keys, problem_of
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.options import Get, PredOptions, Sampling

# `Place` of sampling.h.
_PLACE = np.dtype(
    [
        ("key", "<u8"),
        ("allow", "<u8"),
        ("bias_tokens", "<u8"),
        ("bias_values", "<u8"),
        ("of", "<u8"),
        ("out", "<u8"),
        ("top_p", "<f8"),
        ("min_p", "<f8"),
        ("temperature", "<f4"),
        ("top_k", "<i4"),
        ("get", "<i4"),
        ("count", "<i4"),
        ("bias_count", "<i4"),
        ("unused", "<i4"),
    ]
)
_PLAIN = Sampling()


class NativeSampler:
    """Answers on the threads of a decoder, or alone. All calls come from one thread."""

    def __init__(
        self, library: Library, vocab_size: int, threads: int = 1, decoder: int | None = None
    ) -> None:
        self._vocab_size = vocab_size
        self._decoder = decoder
        create = library.function("symphony_sampler_create", c_int32, c_int32, result=c_void_p)
        self._destroy = library.function("symphony_sampler_destroy", c_void_p)
        self._answer = library.function(
            "symphony_sampler_answer",
            c_void_p, c_void_p, c_void_p, c_int32, c_void_p,
            result=c_int32,
        )  # fmt: skip
        self._sampler = create(vocab_size, threads)
        if not self._sampler:
            raise MemoryError("no memory to sample")

    def close(self) -> None:
        """Give the memory back, before its decoder goes."""
        if self._sampler:
            self._destroy(self._sampler)
            self._sampler = 0

    def answer(self, logits: Tensor, asks: Sequence[Ask]) -> list[bytes | SyscallError]:
        """Return each ask's bytes or error (see `executor.sampling.answer`)."""
        vocab_size = self._vocab_size
        problems = [problem_of(ask.options, vocab_size) for ask in asks]
        counts = [len(ask.positions) for ask in asks]
        kept: list[npt.NDArray[np.generic]] = []  # what the places point to
        templates = [
            _NOTHING if problem else _template(ask.options, kept)
            for ask, problem in zip(asks, problems, strict=True)
        ]
        sizes = [
            0 if problem else ask.options.place_bytes(vocab_size)
            for ask, problem in zip(asks, problems, strict=True)
        ]
        places = np.repeat(np.array(templates, _PLACE), counts)
        seeds = np.array([ask.seed for ask in asks], np.uint64)
        positions = np.concatenate([ask.positions for ask in asks])
        places["key"] = noise_keys(np.repeat(seeds, counts), positions)
        bounds = np.cumsum([0, *np.repeat(sizes, counts)])
        out = np.empty(bounds[-1], np.uint8)
        places["out"] = bounds[:-1] + out.ctypes.data
        given = places.ctypes.data, len(places), logits.data_ptr()
        if self._answer(self._sampler, self._decoder, *given):
            raise MemoryError("no memory to sample")
        return _parts(out, counts, sizes, problems)


_NOTHING = (0, 0, 0, 0, 0, 0, 1.0, 0.0, 0.0, 0, int(Get.NONE), 0, 0, 0)


def _template(options: PredOptions, kept: list[npt.NDArray[np.generic]]) -> tuple[float, ...]:
    """Return the fields of a place but for its key and where its answer goes."""
    sampling = options.sampling or _PLAIN

    def address(values: npt.NDArray[np.generic]) -> int:
        kept.append(values)
        return int(values.ctypes.data)

    allow = bias_tokens = bias_values = of = 0
    if options.allow is not None:
        allow = address(np.frombuffer(options.allow, np.uint8))
    if options.bias:
        tokens, values = zip(*options.bias, strict=True)
        bias_tokens = address(np.array(tokens, np.uint32))
        bias_values = address(np.array(values, np.float32))
    if options.of:
        of = address(np.array(options.of, np.uint32))
    count = {Get.TOP: options.top, Get.OF: len(options.of)}.get(options.get, options.logprobs)
    return (
        0, allow, bias_tokens, bias_values, of, 0,
        sampling.top_p, sampling.min_p, sampling.temperature, sampling.top_k,
        int(options.get), count, len(options.bias), 0,
    )  # fmt: skip


def _parts(
    out: npt.NDArray[np.uint8],
    counts: list[int],
    sizes: list[int],
    problems: list[SyscallError | None],
) -> list[bytes | SyscallError]:
    data = out.tobytes()
    results: list[bytes | SyscallError] = []
    begin = 0
    for count, size, problem in zip(counts, sizes, problems, strict=True):
        end = begin + count * size
        results.append(problem or data[begin:end])
        begin = end
    return results
