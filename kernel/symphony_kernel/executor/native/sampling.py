"""Answers to the places of a step by the native kernels (see sampling.h).

The same semantics and the same noise as `executor.sampling`, which is the oracle: the tokens are
the same, unless two scores lie so close that the last bit of a logarithm decides.
"""

from collections.abc import Sequence
from ctypes import c_int32, c_void_p
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from symphony_kernel.executor.base import Int32
from symphony_kernel.executor.native.library import Library
from symphony_kernel.executor.sampling import SamplingRequest, mass_wanted, problem_of, tokens_in
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

# `Place` of sampling.h.
_PLACE = np.dtype(
    [
        ("seed", "<u8"),
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
        ("position", "<i4"),
    ]
)
_PLAIN = Sampling()


class AskedSampling(Protocol):
    """What is asked at some places: an `SamplingRequest`, or a row that asks about its only token."""

    @property
    def options(self) -> PredOptions:
        """What of the distribution."""

    @property
    def seed(self) -> int:
        """Of the noise, u64."""

    @property
    def positions(self) -> Int32:
        """[p] of the places' tokens."""


class NativeSampler:
    """Answers on the threads of a decoder, or alone. All calls come from one thread."""

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
        """Give the memory back, before its decoder goes."""
        if self.address:
            self._destroy(self.address)
            self.address = 0

    def answer(self, logits: Tensor, asks: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
        """Return each ask's bytes or error (see `executor.sampling.answer`)."""
        return self.answer_at(logits.data_ptr(), asks)

    def answer_at(self, logits: int, asks: Sequence[SamplingRequest]) -> list[bytes | SyscallError]:
        """Answer from the logits at an address."""
        places = self._places
        masks = [0 if ask.mask is None else int(ask.mask.ctypes.data) for ask in asks]
        places.ask(asks, masks if any(masks) else None)
        self.answer_places(logits, places)
        return places.answers()

    def answer_places(self, logits: int, places: "ResultPlaces") -> None:
        """Answer what is asked at these places."""
        if self._answer(self.address, self._decoder, places.address, places.count, logits):
            raise MemoryError("no memory to sample")


class ResultPlaces:
    """What is asked at a step's places, as C reads it, and room for the answers.

    Kept from step to step: programs share options and keep them, so that most steps ask as the last
    one did, but for positions.
    """

    def __init__(self, sampler: NativeSampler) -> None:
        self._vocab_size = sampler.vocab_size
        self.count = 0
        self.address = 0  # of [count] `_PLACE`
        self._asked: list[tuple[int, int]] = []  # identity of options, and places
        self._masks: list[int] | None = None
        self._wanted: list[_Wanted] = []  # of each ask; they keep the options alive
        self._draws = False
        self._places = np.empty(0, _PLACE)
        self._out: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._ends: list[int] = []  # of each ask's answers in `_out`

    def ask(self, asks: Sequence[AskedSampling], masks: list[int] | None = None) -> None:
        """Ask this now.

        `masks` says of each ask where it will say, before it is answered, what each of its places
        allows, in the place of the options' `allow`; 0: nowhere. [ceil(vocab_size / 32)] words.
        """
        asked = [(id(ask.options), len(ask.positions)) for ask in asks]
        if asked != self._asked or masks != self._masks:
            self._write(asks, masks)
            self._asked, self._masks = asked, masks
        if self._draws:
            counts = [count for _, count in asked]
            self._places["seed"] = np.repeat(
                np.array([ask.seed for ask in asks], np.uint64), counts
            )
            self._places["position"] = np.concatenate([ask.positions for ask in asks])

    def answers(self) -> list[bytes | SyscallError]:
        """Return each ask's bytes or error, when C has written them."""
        data = self._out.tobytes()
        results: list[bytes | SyscallError] = []
        begin = 0
        for end, each in zip(self._ends, self._wanted, strict=True):
            results.append(each.problem or data[begin:end])
            begin = end
        return results

    def _write(self, asks: Sequence[AskedSampling], masks: list[int] | None) -> None:
        known = {id(each.options): each for each in self._wanted}
        wanted: list[_Wanted] = []
        for ask in asks:
            mine = known.get(id(ask.options))
            if mine is None:
                mine = known[id(ask.options)] = _wanted(ask.options, self._vocab_size)
            wanted.append(mine)
        counts = [len(ask.positions) for ask in asks]
        templates = b"".join(
            [each.template * count for each, count in zip(wanted, counts, strict=True)]
        )
        self._wanted = wanted
        self._draws = any(each.draws for each in wanted)
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
    """What some options want of each place. It keeps them: no others can have their identity."""

    options: PredOptions
    template: bytes  # a `_PLACE` but for the noise and where its answer goes
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
    template = np.array(_template(options, vocab_size, kept), _PLACE).tobytes()
    return _Wanted(options, template, options.place_bytes(vocab_size), None, kept)


_NOTHING = (0, 0, 0, 0, 0, 0, 1.0, 0.0, 0.0, 0, int(Get.NONE), 0, 0, 0)


def _template(
    options: PredOptions, vocab_size: int, kept: list[npt.NDArray[np.generic]]
) -> tuple[float, ...]:
    sampling = options.sampling or _PLAIN

    def address(values: npt.NDArray[np.generic]) -> int:
        kept.append(values)
        return int(values.ctypes.data)

    allow = bias_tokens = bias_values = of = 0
    if options.allow is not None:
        allow = address(np.frombuffer(options.allow, np.uint8))
    tokens, values = _biases(options, vocab_size)
    if len(tokens):
        bias_tokens, bias_values = address(tokens), address(values)
    if options.of:
        of = address(np.array(options.of, np.uint32))
    count = {Get.TOP: options.top, Get.OF: len(options.of)}.get(options.get, options.logprobs)
    return (
        0, allow, bias_tokens, bias_values, of, 0,
        mass_wanted(sampling.top_p), sampling.min_p, sampling.temperature, sampling.top_k,
        int(options.get), count, len(tokens), 0,
    )  # fmt: skip


def _biases(
    options: PredOptions, vocab_size: int
) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    """Return the tokens whose logits grow, [n], and by how much; a token may be there twice."""
    tokens = np.array([token for token, _ in options.bias], np.uint32)
    values = np.array([value for _, value in options.bias], np.float32)
    if options.bias_mask is None:
        return tokens, values
    mask, value = options.bias_mask
    chosen = np.flatnonzero(tokens_in(mask, vocab_size)).astype(np.uint32)
    more = np.full(len(chosen), value, np.float32)
    return np.concatenate((tokens, chosen)), np.concatenate((values, more))
