"""The simulated executor: no device and no model, for tests and measurements.

A cost model under an injected clock says how long a step takes. The "model" is a hash: each slot of
the pool keeps a hash of a token, its position and all that it could see. A distribution is a
function of all slots visible at its place. So wrong pages, a lost copy or a stale entry change the
output, and the same entries give the same output in any batch and any chunks. With zero costs and
without `hashed` it takes no time, for measuring host overhead; its results are then constants of
the right size.
"""

import asyncio
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from symphony_kernel.executor.base import (
    AdapterSize,
    Batch,
    Int32,
    Int64,
    KVArray,
    KVLayout,
    ModelInfo,
    Results,
    Row,
    prepare_pages,
)
from symphony_kernel.executor.bitmask import fill_bitmask, tokens_in
from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.platform.clock import Clock
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions, Sampling

_T = TypeVar("_T")
UInt64 = npt.NDArray[np.uint64]
Float32 = npt.NDArray[np.float32]

VOCAB_SIZE_DEFAULT = 4_096
MAX_CONTEXT_DEFAULT = 32_768
PAGES_DEFAULT = 8_192
HIDDEN_SIZE = 32

_LOGIT_BITS = 24  # bits of the hash: exact in a float32
_LOGITS_SPREAD = 16.0  # logits lie in [0, this)
_PAIR = np.dtype([("token", "<u4"), ("value", "<f4")])
_ZERO_PAIR = bytes(8)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Durations in microseconds. A row of one new token is a decode row."""

    fixed_us: float = 0.0
    prefill_token_us: float = 0.0
    decode_row_us: float = 0.0
    context_token_us: float = 0.0  # for each entry that a row can see
    page_move_us: float = 0.0  # for each page saved or loaded

    def seconds(self, batch: Batch) -> float:
        decodes = sum(1 for row in batch.rows if len(row.tokens) == 1)
        context = sum(row.start + len(row.tokens) for row in batch.rows)
        microseconds = (
            self.fixed_us
            + self.decode_row_us * decodes
            + self.prefill_token_us * (batch.tokens - decodes)
            + self.context_token_us * context
        )
        return 1e-6 * microseconds + self.move_seconds(batch)

    def move_seconds(self, batch: Batch) -> float:
        """Return the part of it that saves and loads take."""
        moved: int = sum(part.shape[1] for part in (batch.saves, batch.loads) if part is not None)
        return 1e-6 * self.page_move_us * moved


def simulated_model(
    vocab_size: int = VOCAB_SIZE_DEFAULT, max_context: int = MAX_CONTEXT_DEFAULT
) -> ModelInfo:
    """Return a simulated model's description; its end of sequence is token 0."""
    return ModelInfo("simulated", vocab_size, (0,), None, max_context, "float32", HIDDEN_SIZE)


class SimulatedPages:
    """Frames and host slots of the simulated executor (see `base.Pages`).

    A slot has two numbers: a hash of its token and position, which stands for K, and a hash of that
    and of all that the entry can see, which stands for V. Without frames no page is kept.
    """

    layout = KVLayout(1, 1, 1, "uint64")

    def __init__(self, frames: int) -> None:
        self._kept = frames > 0
        self._slots: UInt64 = np.zeros((2, frames * PAGE_TOKENS), np.uint64)
        self.entries, self.values = self._slots  # views; an entry of 0 was never written
        self._frames = self._slots.reshape(2, -1, PAGE_TOKENS)
        self._host: UInt64 = np.zeros((0, 2, PAGE_TOKENS), np.uint64)

    def open_host(self, pages: int) -> None:
        self._host = np.zeros((pages if self._kept else 0, 2, PAGE_TOKENS), np.uint64)

    def host_page(self, slot: int) -> memoryview:
        page = self._host[slot] if self._kept else np.zeros((2, PAGE_TOKENS), np.uint64)
        return page.data.cast("B")

    def save(self, frames: Int32, slots: Int32) -> None:
        self._host[slots] = self._frames[:, frames].transpose(1, 0, 2)

    def load(self, slots: Int32, frames: Int32) -> None:
        self._frames[:, frames] = self._host[slots].transpose(1, 0, 2)

    def settle(self) -> float:
        return 0.0

    def copy(self, group: Int64) -> None:
        source, destination = group
        self._slots[:, destination] = self._slots[:, source]

    def poison(self, frames: Int32) -> None:
        self._frames[0, frames] = 0  # a row that reads them raises a KernelBug

    def read_frames(self, frames: Int32) -> KVArray:
        return np.ascontiguousarray(self._frames[None, :, frames, :, None, None])

    def write_frames(self, frames: Int32, values: KVArray) -> None:
        self._frames[:, frames] = values[0, ..., 0, 0]

    def read_host(self, slots: Int32) -> KVArray:
        return self._host[slots].transpose(1, 0, 2)[None, ..., None, None].copy()

    def write_host(self, slots: Int32, values: KVArray) -> None:
        self._host[slots] = values[0, ..., 0, 0].transpose(1, 0, 2)


class SimulatedExecutor:
    """An `Executor` of `pages` frames; without `hashed`, results are constants."""

    computes = "simulated"

    def __init__(
        self,
        clock: Clock,
        pages: int = PAGES_DEFAULT,
        model: ModelInfo | None = None,
        costs: CostModel | None = None,
        hashed: bool = True,
    ) -> None:
        self._clock = clock
        self.frame_count = pages
        self.model = model or simulated_model()
        self._costs = costs or CostModel()
        self._free = self._costs == CostModel()
        self._hashed = hashed
        self._order = asyncio.Lock()
        self._last: Results = []  # of the last step, for a step that follows it
        self._adapters: set[str] = set()
        self.follows = not self._free  # without costs the device is never ahead of the loop
        if self._free and not hashed:  # takes no time, so needs no task
            self.start = self._answer_at_once
        self.pages = SimulatedPages(pages if hashed else 0)
        self._token_factors = _mix(np.arange(self.model.vocab_size, dtype=np.uint64)) | np.uint64(1)

    async def run(self, batch: Batch) -> list[bytes | SyscallError]:
        """Take the step's time, then compute its results.

        Raises KernelBug: a row reads a slot that no step has written.
        """
        async with self._order:
            last, self._last = self._last, []
            if batch.chain is not None and not batch.begin(last):
                self._prepare_pages(batch)
                return []
            if not self._free:
                await self._clock.sleep(self._costs.seconds(batch))
            self._last = batch.results = self._results(batch)
            return self._last

    def _results(self, batch: Batch) -> Results:
        if not self._hashed:
            return self._constants(batch)
        self._prepare_pages(batch)
        return [self._answer(row) for row in batch.rows]

    def _prepare_pages(self, batch: Batch) -> None:
        if self._hashed:
            prepare_pages(self.pages, batch)
            batch.moved_seconds = self._costs.move_seconds(batch)

    def open_host(self, pages: int) -> None:
        self.pages.open_host(pages)

    async def after_steps(self, work: Callable[[], _T]) -> _T:
        async with self._order:
            return work()

    def _answer_at_once(self, batch: Batch) -> StepFuture[Results]:
        outcome: StepFuture[Results] = StepFuture()
        outcome.began = outcome.ended = time.monotonic()
        asyncio.get_running_loop().call_soon(outcome.set_result, self._constants(batch))
        return outcome

    def load_adapter(self, identity: str, folder: Path) -> AdapterSize:
        """Load an adapter: its rows hash its identity, too. Only its size is read."""
        size = sum(each.stat().st_size for each in folder.iterdir())
        self._adapters.add(identity)
        return AdapterSize(size, 1)

    def drop_adapter(self, identity: str) -> None:
        self._adapters.discard(identity)

    async def close(self) -> None:
        async with self._order:
            pass

    # -- Zero time -----------------------------------------------------------------------------
    def _constants(self, batch: Batch) -> list[bytes | SyscallError]:
        results: list[bytes | SyscallError] = []
        for row in batch.rows:
            options, places = row.options, len(row.places)
            if options is DEFAULT and places == 1:  # the usual case, made cheap
                results.append(_ZERO_PAIR)
            else:
                size = options.place_bytes(self.model.vocab_size, self.model.hidden_size)
                results.append(bytes(size * places))
        return results

    # -- Hashes --------------------------------------------------------------------------------
    def _answer(self, row: Row) -> bytes | SyscallError:
        if row.options.adapter and row.options.adapter not in self._adapters:
            return SyscallError(Errno.EIO, "its adapter is not loaded")
        states = self._compute(row)[row.places]
        options = row.options
        if options.get is Get.NONE or not len(states):
            return b""
        if options.get is Get.HIDDEN:
            return _hidden(states, self.model.hidden_size).tobytes()
        logits = self._logits(states, options)
        if row.matcher is not None:
            vocab_size = self.model.vocab_size
            mask = np.zeros(-(-vocab_size // 32), np.uint32)
            error = fill_bitmask(row, mask, vocab_size)
            if error is not None:
                return error
            logits[:, ~tokens_in(mask, vocab_size)] = -np.inf
        if options.allow is not None and not np.isfinite(logits).any(axis=1).all():
            return SyscallError(Errno.EINVAL, "the allow mask allows no token")
        if not options.forbidden:
            return _encode(logits, row)
        unmasked = self._logits(states, replace(options, allow=None))
        return _encode(logits, row) + _forbidden(unmasked[0], logits[0])

    def _compute(self, row: Row) -> UInt64:
        """Write the row's new slots; return the state [q] after each new token."""
        slots = _slots(row)
        before, new = slots[: row.start], slots[row.start :]
        pages = self.pages
        if not pages.entries[before].all():
            raise KernelBug("a row reads a slot that was never written")
        seen_entries = pages.entries[before].sum(dtype=np.uint64, keepdims=True)
        seen_values = pages.values[before].sum(dtype=np.uint64, keepdims=True)
        entries = _mix(
            row.tokens.astype(np.uint64) << np.uint64(32) | row.positions.view(np.uint32)
        )
        if row.options.adapter:
            entries = _mix(entries ^ np.uint64(zlib.crc32(row.options.adapter.encode())))
        entries |= np.uint64(1)
        values = _mix(entries ^ _mix(seen_entries + _visible(entries, row.parents) - entries))
        pages.entries[new], pages.values[new] = entries, values
        return _mix(seen_values + _visible(values, row.parents))

    def _logits(self, states: UInt64, options: PredOptions) -> Float32:
        """Return logits [w, vocab_size], with bias and mask applied."""
        bits = (states[:, None] * self._token_factors) >> np.uint64(64 - _LOGIT_BITS)
        logits = bits.astype(np.float32) * np.float32(_LOGITS_SPREAD / 2**_LOGIT_BITS)
        if options.repetition is not None:  # all logits are positive
            seen, penalty = options.repetition
            logits[:, tokens_in(seen, logits.shape[1])] *= np.float32(1) / np.float32(penalty)
        for token, bias in options.bias:
            logits[:, token] += np.float32(bias)
        if options.bias_mask is not None:
            where, value = options.bias_mask
            logits += tokens_in(where, logits.shape[1]) * np.float32(value)
        if options.allow is not None:
            logits[:, ~tokens_in(options.allow, logits.shape[1])] = -np.inf
        return logits


def _mix(x: UInt64) -> UInt64:
    """Return splitmix64's finalizer of each element."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hidden(states: UInt64, width: int) -> npt.NDArray[np.float32]:
    """Return [w, width] numbers from -1 to 1 that the states determine."""
    factors = _mix(np.arange(1, width + 1, dtype=np.uint64)) | np.uint64(1)
    bits = (states[:, None] * factors) >> np.uint64(64 - _LOGIT_BITS)
    return (bits.astype(np.float32) * np.float32(2.0 ** (1 - _LOGIT_BITS)) - 1).astype("<f4")


def _slots(row: Row) -> Int64:
    pages = row.block_table.astype(np.int64)[:, None] * PAGE_TOKENS
    slots: Int64 = (pages + np.arange(PAGE_TOKENS)).reshape(-1)[: row.start + len(row.tokens)]
    return slots


def _visible(x: UInt64, parents: Int32 | None) -> UInt64:
    """Return for each new token the sum of `x` over the new tokens that it sees."""
    if parents is None:
        return np.cumsum(x, dtype=np.uint64)
    sums = x.copy()
    for node, parent in enumerate(parents):
        if parent >= 0:
            # Slices, because scalars warn when they overflow.
            sums[node : node + 1] += sums[parent : parent + 1]
    return sums


# -- Results -----------------------------------------------------------------------------------
def _encode(logits: Float32, row: Row) -> bytes:
    options = row.options
    if options.get is Get.LOGITS:
        return logits.astype("<f4").tobytes()
    logprobs = _log_softmax(logits)
    if options.get is Get.OF:
        return logprobs[:, list(options.of)].astype("<f4").tobytes()
    if options.get is Get.TOP:
        tokens = _best(logits, options.top)
    elif options.get is Get.SAMPLE and options.sampling and options.sampling.temperature > 0:
        tokens = _sample(logits, options.sampling, row.seed, row.positions[row.places])
    else:
        tokens = logits.argmax(axis=1)[:, None]
    if options.logprobs:
        tokens = np.concatenate((tokens, _best(logits, options.logprobs)), axis=1)
    pairs = np.empty(tokens.shape, _PAIR)
    pairs["token"], pairs["value"] = tokens, np.take_along_axis(logprobs, tokens, axis=1)
    return pairs.tobytes()


def _forbidden(before: Float32, after: Float32) -> bytes:
    """Return what a mask forbade at a place (see `FORBIDDEN_BYTES`)."""
    best, chances = int(before.argmax()), np.exp(_log_softmax(before[None])[0])
    allowed = np.isfinite(after)
    mass = max(1.0 - float(chances[allowed].sum()), 0.0)
    return struct.pack("<IfIf", np.count_nonzero(allowed), mass, best, np.log(chances[best]))


def _best(logits: Float32, count: int) -> Int64:
    best: Int64 = np.argsort(-logits, axis=1, kind="stable")[:, :count]
    return best


def _log_softmax(logits: Float32) -> Float32:
    shifted = logits - logits.max(axis=1, keepdims=True)
    logprobs: Float32 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logprobs


def _sample(logits: Float32, sampling: Sampling, seed: int, positions: Int32) -> Int64:
    """Return [w, 1] tokens: the best after filters and seeded Gumbel noise."""
    scaled = logits / np.float32(sampling.temperature)
    order = np.argsort(-scaled, axis=1, kind="stable")
    ranked = np.take_along_axis(scaled, order, axis=1)
    odds = np.exp(_log_softmax(ranked))
    drop = np.cumsum(odds, axis=1) - odds >= sampling.top_p
    drop |= odds < sampling.min_p * odds[:, :1]
    if sampling.top_k:
        drop[:, sampling.top_k :] = True
    drop[:, 0] = False
    ranked[drop] = -np.inf
    noise = np.take_along_axis(_noise(seed, positions, logits.shape[1]), order, axis=1)
    best = (ranked + noise).argmax(axis=1)[:, None]
    return np.take_along_axis(order, best, axis=1)


def _noise(seed: int, positions: Int32, vocab_size: int) -> npt.NDArray[np.float64]:
    """Return [w, vocab_size] Gumbel noise, a function of seed, position and token."""
    places = _mix(np.array([seed], np.uint64) ^ _mix(positions.astype(np.uint64)))
    tokens = np.arange(vocab_size, dtype=np.uint64)
    bits = _mix(places[:, None] + _mix(tokens)) >> np.uint64(11)
    uniform = (bits.astype(np.float64) + 0.5) / 2**53
    noise: npt.NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise
