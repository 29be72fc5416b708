"""Results at the places of a step, by the native kernels (see sampling.h).

Semantics and noise are those of `executor.sampling`, the oracle. The tokens are the same, unless
two scores lie so close that the last bit of a logarithm decides.
"""

from collections.abc import Sequence
from ctypes import c_int32, c_void_p
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import Row
from symphony_kernel.executor.bitmask import tokens_in
from symphony_kernel.executor.native.library import Library
from symphony_kernel.executor.sampling import SamplingRequest, mass_wanted, problem_of
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

# `Place` of sampling.h.
_PLACE = np.dtype(
    [
        ("seed", "<u8"),
        ("allow", "<u8"),
        ("bias_tokens", "<u8"),
        ("bias_values", "<u8"),
        ("seen", "<u8"),
        ("of", "<u8"),
        ("out", "<u8"),
        ("top_p", "<f8"),
        ("min_p", "<f8"),
        ("temperature", "<f4"),
        ("top_k", "<i4"),
        ("get", "<i4"),
        ("count", "<i4"),
        ("bias_count", "<i4"),
        ("position", "<i4"),
        ("seen_count", "<i4"),
        ("repetition", "<f4"),
        ("forbidden", "<i4"),
        ("unused", "<i4"),
    ]
)
_PLAIN = Sampling()
_NOTHING = np.array(
    (0, 0, 0, 0, 0, 0, 0, 1.0, 0.0, 0.0, 0, int(Get.NONE), 0, 0, 0, 0, 1.0, 0, 0), _PLACE
).tobytes()


PlaceRequest: TypeAlias = SamplingRequest | Row  # of a row: the result at its only token


class NativeSampler:
    """Samples on the threads of a decoder, or alone. All calls come from one thread."""

    def __init__(
        self, library: Library, vocab_size: int, threads: int = 1, decoder: int | None = None
    ) -> None:
        self.vocab_size = vocab_size
        self._decoder = decoder
        create = library.function("symphony_sampler_create", c_int32, c_int32, result=c_void_p)
        self._destroy = library.function("symphony_sampler_destroy", c_void_p)
        self._answer = library.function(
            "symphony_sampler_answer",
            c_void_p, c_void_p, c_void_p, c_int32, c_void_p,
            result=c_int32,
        )  # fmt: skip
        self.address = create(vocab_size, threads)
        if not self.address:
            raise MemoryError("no memory to sample")
        self._places = ResultPlaces(self)

    def close(self) -> None:
        """Free the memory; call it before the decoder is destroyed."""
        if self.address:
            self._destroy(self.address)
            self.address = 0

    def answer(
        self, logits: int, requests: Sequence[SamplingRequest]
    ) -> list[bytes | SyscallError]:
        """Do as `executor.sampling.answer` with the logits at an address."""
        places = self._places
        masks = [
            0 if request.mask is None else int(request.mask.ctypes.data) for request in requests
        ]
        places.set_requests(requests, masks if any(masks) else None)
        self.answer_places(logits, places)
        return places.answers()

    def answer_places(self, logits: int, places: "ResultPlaces") -> None:
        """Write the results at these places, from the logits at an address."""
        if self._answer(self.address, self._decoder, places.address, places.count, logits):
            raise MemoryError("no memory to sample")


class ResultPlaces:
    """The wanted results of a step's places, as C reads them, and their buffers.

    Kept from step to step. Programs share and keep their options, so that in most steps only the
    positions change.
    """

    def __init__(self, sampler: NativeSampler) -> None:
        self._vocab_size = sampler.vocab_size
        self.count = 0
        self.address = 0  # of [count] `_PLACE`
        self._last_requests: list[tuple[int, int]] = []  # identity of options, and number of places
        self._masks: list[int] | None = None
        self._wanted: list[_Wanted] = []  # one a request; they keep the options alive
        self._draws = False
        self.wants_hidden = False  # whether a request wants what no sampler has
        self._places = np.empty(0, _PLACE)
        self._out: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._ends: list[int] = []  # each request's end in `_out`

    def set_requests(
        self, requests: Sequence[PlaceRequest], masks: list[int] | None = None
    ) -> None:
        """Set the requests of the next step.

        `masks` has an address for each request, [ceil(vocab_size / 32)] words. Before the results
        are computed, the mask of its places is written there and replaces the options' `allow`. 0:
        none.
        """
        counted = [(id(request.options), len(request.positions)) for request in requests]
        if counted != self._last_requests or masks != self._masks:
            self._write(requests, masks)
            self._last_requests, self._masks = counted, masks
        if self._draws:
            counts = [count for _, count in counted]
            self._places["seed"] = np.repeat(
                np.array([request.seed for request in requests], np.uint64), counts
            )
            self._places["position"] = np.concatenate([request.positions for request in requests])

    def answers(self) -> list[bytes | SyscallError]:
        """Return each request's bytes or error, after C has written them."""
        data = self._out.tobytes()
        results: list[bytes | SyscallError] = []
        begin = 0
        for end, each in zip(self._ends, self._wanted, strict=True):
            results.append(each.problem or data[begin:end])
            begin = end
        return results

    def _write(self, requests: Sequence[PlaceRequest], masks: list[int] | None) -> None:
        known = {id(each.options): each for each in self._wanted}
        wanted: list[_Wanted] = []
        for request in requests:
            mine = known.get(id(request.options))
            if mine is None:
                mine = known[id(request.options)] = _wanted(request.options, self._vocab_size)
            wanted.append(mine)
        counts = [len(request.positions) for request in requests]
        templates = b"".join(
            [each.template * count for each, count in zip(wanted, counts, strict=True)]
        )
        self._wanted = wanted
        self._draws = any(each.options.get is Get.SAMPLE for each in wanted)
        self.wants_hidden = any(each.options.get is Get.HIDDEN for each in wanted)
        places = self._places = np.frombuffer(bytearray(templates), _PLACE)
        self.count = len(places)
        sizes = np.repeat(np.array([each.size for each in wanted], np.int64), counts)
        ends = np.cumsum(sizes)
        self._out = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        if masks is not None:
            allow = np.repeat(np.array(masks, np.uint64), counts)
            np.copyto(places["allow"], allow, where=allow != 0)
        places["out"] = ends - sizes + self._out.ctypes.data
        self.address = places.ctypes.data
        self._ends = [int(ends[last - 1]) if last else 0 for last in np.cumsum(counts)]


@dataclass(slots=True)
class _Wanted:
    """What some options want at each place; keeps them, so that ids stay unique."""

    options: PredOptions
    template: bytes  # a `_PLACE` without noise and output address
    size: int  # bytes of a result
    problem: SyscallError | None  # why there is no result
    kept: Sequence[npt.NDArray[np.generic]]  # what the template points to


def _wanted(options: PredOptions, vocab_size: int) -> _Wanted:
    problem = problem_of(options, vocab_size)
    if problem is not None or options.get is Get.HIDDEN:
        return _Wanted(options, _NOTHING, 0, problem, [])
    sampling = options.sampling or _PLAIN
    tokens, values = _biases(options, vocab_size)
    allow = np.frombuffer(options.allow or b"", np.uint8)
    seen, penalty = _seen(options, vocab_size)
    of = np.array(options.of, np.uint32)
    kept: list[npt.NDArray[np.generic]] = [allow, tokens, values, seen, of]
    count = {Get.TOP: options.top, Get.OF: len(options.of)}.get(options.get, options.logprobs)
    place = (
        0, *(int(each.ctypes.data) if len(each) else 0 for each in kept), 0,
        mass_wanted(sampling.top_p), sampling.min_p, sampling.temperature, sampling.top_k,
        int(options.get), count, len(tokens), 0, len(seen), penalty,
        int(options.forbidden), 0,
    )  # fmt: skip
    template = np.array(place, _PLACE).tobytes()
    return _Wanted(options, template, options.place_bytes(vocab_size, 0), None, kept)


def _seen(options: PredOptions, vocab_size: int) -> tuple[npt.NDArray[np.uint32], float]:
    """Return the tokens whose repetition is penalized, [n], and the penalty."""
    if options.repetition is None:
        return np.empty(0, np.uint32), 1.0
    mask, penalty = options.repetition
    return np.flatnonzero(tokens_in(mask, vocab_size)).astype(np.uint32), penalty


def _biases(
    options: PredOptions, vocab_size: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    """Return the tokens with a bias, [n], and their biases; a token may occur twice."""
    tokens = np.array([token for token, _ in options.bias], np.uint32)
    values = np.array([value for _, value in options.bias], np.float32)
    if options.bias_mask is None:
        return tokens, values
    mask, value = options.bias_mask
    chosen = np.flatnonzero(tokens_in(mask, vocab_size)).astype(np.uint32)
    more = np.full(len(chosen), value, np.float32)
    return np.concatenate((tokens, chosen)), np.concatenate((values, more))
