"""Answers to the places of a step by the native kernels (see sampling.h).

The same semantics and the same noise as `executor.sampling`, which is the oracle: the tokens are
the same, unless two scores lie so close that the last bit of a logarithm decides.
"""

from collections.abc import Sequence
from ctypes import c_int32, c_void_p
from dataclasses import dataclass

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
        self._known: dict[int, _Wanted] = {}  # of the last step
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
        return self.answer_at(logits.data_ptr(), asks)

    def answer_at(self, logits: int, asks: Sequence[Ask]) -> list[bytes | SyscallError]:
        """Answer from the logits at an address."""
        # Programs share options, and keep them from step to step: by identity, while they live.
        known: dict[int, _Wanted] = {}
        wanted: list[_Wanted] = []
        for ask in asks:
            key = id(ask.options)
            mine = known.get(key) or self._known.get(key)
            if mine is None:
                mine = _wanted(ask.options, self._vocab_size)
            known[key] = mine
            wanted.append(mine)
        self._known = known
        counts = [len(ask.positions) for ask in asks]
        templates = b"".join(
            [each.template * count for each, count in zip(wanted, counts, strict=True)]
        )
        places = np.frombuffer(bytearray(templates), _PLACE)
        if any(each.draws for each in wanted):
            seeds = np.repeat(np.array([ask.seed for ask in asks], np.uint64), counts)
            places["key"] = noise_keys(seeds, np.concatenate([ask.positions for ask in asks]))
        sizes = np.repeat([each.size for each in wanted], counts)
        ends = np.cumsum(sizes)
        out = np.empty(ends[-1], np.uint8)
        places["out"] = ends - sizes + out.ctypes.data
        given = places.ctypes.data, len(places), logits
        if self._answer(self._sampler, self._decoder, *given):
            raise MemoryError("no memory to sample")
        return _parts(out.tobytes(), counts, wanted)


@dataclass(slots=True)
class _Wanted:
    """What some options want of each place. It keeps them: no others can have their identity."""

    options: PredOptions
    template: bytes  # a `_PLACE` but for its key and where its answer goes
    size: int  # bytes of an answer
    problem: SyscallError | None  # why there is none
    kept: list[npt.NDArray[np.generic]]  # what the template points to

    @property
    def draws(self) -> bool:
        """Whether chance has a part."""
        return self.options.get is Get.SAMPLE


def _wanted(options: PredOptions, vocab_size: int) -> _Wanted:
    problem = problem_of(options, vocab_size)
    if problem is not None:
        return _Wanted(options, np.array(_NOTHING, _PLACE).tobytes(), 0, problem, [])
    kept: list[npt.NDArray[np.generic]] = []
    template = np.array(_template(options, kept), _PLACE).tobytes()
    return _Wanted(options, template, options.place_bytes(vocab_size), None, kept)


_NOTHING = (0, 0, 0, 0, 0, 0, 1.0, 0.0, 0.0, 0, int(Get.NONE), 0, 0, 0)


def _template(options: PredOptions, kept: list[npt.NDArray[np.generic]]) -> tuple[float, ...]:
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


def _parts(data: bytes, counts: list[int], wanted: list[_Wanted]) -> list[bytes | SyscallError]:
    results: list[bytes | SyscallError] = []
    begin = 0
    for count, each in zip(counts, wanted, strict=True):
        end = begin + count * each.size
        results.append(each.problem or data[begin:end])
        begin = end
    return results
