"""Level 2, what runs now: forms one step from the waiting requests, in fair order.

A step is full at its limits of new tokens (`step_sizes`) or rows. A prompt is taken a quantum at a
time: after each, the least served run comes first. So decodes, which cost little, are in every
step, and a prompt gets the tokens that they leave. A tree is taken whole or not at all.

Where several tenants are present, each first gets its share of the step (`device_shares`). What is
left goes in fair order. While requests wait for the next step, others with worse claims may fill
this one, but get at most one step's service ahead.

A pred reserves room for all its tokens when its first chunk is taken. So a pred that has started
can always finish, and two half-computed prompts cannot wait for each other's pages.
"""

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from symphony_kernel.executor.base import Batch, Int32, Row
from symphony_kernel.fairness.cpu_accounts import CpuOptions
from symphony_kernel.fairness.device_shares import StepBudget, TenantShare
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.fairness.step_cost import StepCost, StepLoad
from symphony_kernel.grammar.matcher import GrammarMatcher
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import (
    DECODE_GAP_MS_DEFAULT,
    GPU_PREFILL_QUANTUM_TOKENS,
    GPU_STEP_TOKENS_MAX,
    MASKS_MS_MAX,
    PAGE_TOKENS,
    PREFILL_QUANTUM_TOKENS,
    PREFILL_TOKENS_MIN,
    STEP_ROWS_MAX,
    STEP_TOKENS_MAX,
)
from symphony_kernel.protocol.pred_options import DEFAULT, Get
from symphony_kernel.request import Request
from symphony_kernel.scheduler.admission import Admission, Admitted
from symphony_kernel.scheduler.prefix_sharing import PrefixSharing


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How large one step may be."""

    tokens: int = STEP_TOKENS_MAX
    rows: int = STEP_ROWS_MAX
    quantum: int = PREFILL_QUANTUM_TOKENS
    # How long a step with prompts may take when others decode; inf: any time.
    decode_gap_ms: float = DECODE_GAP_MS_DEFAULT
    # Steps within this time are delivered together. Other tenants' prompts may have their share of
    # all of them in one step. 0: they have it of each step.
    delivery_ms: float = 0.0
    # What tenants may have of the processors in addition to steps; by default without bound.
    cpu: CpuOptions = field(default_factory=CpuOptions)


def step_sizes(computes: str) -> tuple[int, int]:
    """Return the most tokens of a step, and the quantum, for a device (`Executor.computes`)."""
    if computes == "cuda":
        return GPU_STEP_TOKENS_MAX, GPU_PREFILL_QUANTUM_TOKENS
    return STEP_TOKENS_MAX, PREFILL_QUANTUM_TOKENS


class Chunk:
    """The tokens [start, start + count) of a request that one step computes."""

    __slots__ = ("count", "request", "start")

    def __init__(self, request: Request, start: int, count: int) -> None:
        self.request = request
        self.start = start
        self.count = count


class Step:
    """One formed step: `chunks[i]` is row i of the batch, or its row `adopted[i]`."""

    __slots__ = (
        "adopted", "batch", "began", "chunks", "decodes", "ended", "launched", "loads", "own",
        "predicted", "probe", "shared", "tokens",
    )  # fmt: skip

    def __init__(
        self, chunks: list[Chunk], batch: Batch, tokens: int, adopted: list[int] | None = None
    ) -> None:
        self.chunks = chunks
        self.batch = batch
        self.tokens = tokens  # new ones
        self.launched = 0.0  # clock seconds
        self.began = self.ended = 0.0  # on the device, once it has ended
        self.decodes = 0  # rows of preds with a single token
        self.loads: dict[str, StepLoad] = {}  # by tenant
        self.probe = False  # see `StepBudget.probe`
        self.predicted: list[tuple[str, int]] = []  # rows of predictions: tenant, entry
        self.shared: list[int] = []  # keys of pages that it computes for others, too
        self.adopted = adopted  # of a look-ahead step: the batch's rows that were adopted
        self.own = 0  # of a mixed look-ahead step: chunks that it was formed with


@dataclass(slots=True, eq=False)
class FormedStep:
    """The result of one look at the queue."""

    step: Step | None = None
    failed: list[tuple[Request, Errno]] = field(default_factory=list)  # taken out of the queue
    unready: bool = False  # a request waits for a grammar that is being compiled


@dataclass(slots=True, eq=False)
class _StepSpace:
    """What a step that is being formed has left."""

    tokens: int
    prefill: int  # of them, for prompts; below 0 after a tree that was taken whole
    costs: StepCost
    budget: StepBudget | None
    gap: float  # seconds that it may take with prompts
    share: TenantShare | None = None  # of the tenant that fills the step now, if one does
    load: StepLoad = field(default_factory=StepLoad)
    prefilled: int = 0  # tokens that prompts have got
    formed: FormedStep = field(default_factory=FormedStep)
    chunks: dict[Request, Chunk] = field(default_factory=dict)
    limited: bool = False  # others must not get far ahead of a prompt that waits
    memory_limited: bool = False  # others must not get far ahead of the memory queue
    masks: float = 0.0  # seconds that the bitmasks of its rows take, as far as known
    mask: float = 0.0  # that of the row looked at last
    shared: list[int] = field(default_factory=list)  # see `Step.shared`
    left_out: int = 0  # requests whose next pages another step or row computes

    def add_prefill(self, tokens: int) -> None:
        self.prefill -= tokens
        self.prefilled += tokens

    def has_time_for(self, seconds: float) -> bool:
        """Whether a row's bitmask of `seconds` fits: all rows wait for the bitmasks."""
        self.mask = seconds
        return not self.masks or self.masks + seconds <= MASKS_MS_MAX / 1000

    def tokens_fitting(self, request: Request, most: int, new: bool) -> int:
        """Return how many of a request's next `most` tokens fit the step and the share.

        A tree fits as a whole or not at all. `new`: it would be another row.
        """
        budget, share = self.budget, self.share
        if budget is None or most <= 0:
            return most
        # A step's first row need not fit: the tenant furthest behind may have none that can run.
        behind = not self.load.tokens if share is None else share.furthest_behind
        if share is not None and share.rows < 1.0 and new and not behind:
            return 0
        if request.options.parents is None:
            most = min(most, max(budget.tokens - self.load.tokens, 0))
            if share is not None and request.count > 1 and not behind:
                most = min(most, max(int(share.tokens), 0))  # below 0 after a row that did not fit
        count = most
        while count > 0 and not self._fits(budget, share, request, count):
            whole = request.count == 1 or request.options.parents is not None
            count = 0 if whole else count * 3 // 4
        if 0 < count < most and count < PREFILL_TOKENS_MIN:
            count = 0  # too few to be worth a row
        if not count and behind:
            count = most if request.options.parents is not None else min(most, PREFILL_TOKENS_MIN)
        return count

    def _fits(
        self, budget: StepBudget, share: TenantShare | None, request: Request, count: int
    ) -> bool:
        rows = self.costs.row_seconds(request, request.placed, count)
        reserve = 0.0 if share is None or request.count == 1 else share.reserve
        if share is not None and budget.slope * count + rows + reserve > share.seconds * _ROUNDING:
            return False
        load, costs = self.load, self.costs
        seconds = costs.base(load.tokens + count) + costs.rows_seconds(load) + rows + reserve
        bound = budget.seconds if request.count == 1 else min(budget.seconds, self.gap)
        return seconds <= bound * _ROUNDING

    def add_tokens(self, request: Request, count: int, new: bool) -> None:
        budget, share = self.budget, self.share
        if budget is None:
            return
        if share is not None:
            spent = budget.slope * count + self.costs.row_seconds(request, request.placed, count)
            share.seconds -= spent
            if request.count == 1:
                share.reserve = max(share.reserve - spent, 0.0)
            share.rows -= new
            share.tokens -= count
            share.furthest_behind = False
        self.load.add(request, request.placed, count, self.costs.reach)


_ENDLESS: Final = float("inf")
_ROUNDING: Final = 1.0 + 1e-9
LEFT_OUT_MAX: Final = 256  # requests a step that are looked at to see whether they can share
_READY: Final = Admitted.READY


def _constant(*values: int) -> Int32:
    array = np.array(values, dtype=np.int32)
    array.flags.writeable = False
    return array


_NOWHERE: Final = _constant()  # places of a row without results
ONLY: Final = _constant(0)  # the place of a row's only token


class Batcher:
    """Forms steps."""

    def __init__(
        self,
        queue: FairQueue,
        admission: Admission,
        limits: StepLimits | None = None,
        costs: StepCost | None = None,
        sharing: PrefixSharing | None = None,
    ) -> None:
        self._queue = queue
        self._sharing = sharing
        self._costs = costs or StepCost()
        self.limits = limits or StepLimits()
        self._admission = admission

    def form(
        self,
        prefill: int | None = None,
        budget: StepBudget | None = None,
        gap: float = _ENDLESS,
        without_frames: bool = False,
        following: int = 0,
    ) -> FormedStep:
        """Take the next step's requests from the queue.

        Prompts get at most `prefill` tokens. With a `budget` they get what is in it, while the step
        takes at most `gap` seconds.

        `without_frames`: nothing computes, and no request could run for lack of frames. First the
        oldest request of the memory queue takes the frames that are not held. If those are too few,
        admitted requests hold the rest: these run, and no other request gets a frame.

        `following` rows of one token each continue the step in front. They are in the same step.
        """
        admission = self._admission
        prefill = self.limits.tokens if prefill is None else prefill
        most = self.limits.tokens - following
        space = _StepSpace(most, prefill, self._costs, budget, gap)
        failed = space.formed.failed
        admission.frames_held = without_frames and not admission.force_first(failed)
        if len(admission.memory_queue) and not admission.frames_held:
            space.limited = space.memory_limited = admission.admit_queued(failed)
        formed = self._form(space)
        admission.frames_held = False
        return formed

    # -- Forming -------------------------------------------------------------------------------
    def _form(self, space: _StepSpace) -> FormedStep:
        queue, budget = self._queue, space.budget
        formed, chunks = space.formed, space.chunks
        probe = False
        if budget is not None:
            for share in budget.shares:
                if queue.focus_tenant(share.tenant):
                    space.share = share
                    self._fill(space)
            queue.unfocus()
            space.share = None
            if not space.memory_limited and not formed.unready:
                queue.restore()
            if chunks:
                queue.limit_tenants(budget.counter_max)
                space.limited = True
                probe = budget.probe
        self._fill(space)
        queue.restore()
        self._fill_rest(space)
        if chunks:
            taken = list(chunks.values())
            batch = Batch([_row(chunk) for chunk in taken])
            formed.step = Step(taken, batch, sum(chunk.count for chunk in taken))
            formed.step.probe = probe
            formed.step.shared = space.shared
        return formed

    def _fill(self, space: _StepSpace) -> None:
        """Take requests until no more fits, or all that remain are set aside."""
        queue, admission = self._queue, self._admission
        formed, chunks = space.formed, space.chunks
        while space.tokens and (request := queue.first()) is not None:
            if space.limited and queue.skip_if_ahead():
                if space.memory_limited:
                    admission.far_ahead = True
                continue
            single = request.count == 1
            chunk = None if single else chunks.get(request)
            if chunk is None and len(chunks) == self.limits.rows:
                break
            shares = not single and request.shares
            if shares and chunk is None and not self._share(request, space):
                continue
            count = 1 if single else self._chunk_size(request, space)
            if space.budget is not None and count:
                count = space.tokens_fitting(request, count, chunk is None)
                if count == 0:
                    queue.skip_tenant()
                    continue
            if count == 0:
                if not self._skip_prompt(space, request):
                    break
                continue
            if shares and not (count := self._whole_pages(request, count, chunk)):
                queue.set_aside()
                continue
            if chunk is None:
                if request.matcher is not None and not _has_mask(request.matcher, space, formed):
                    queue.set_aside()  # it is among the first of the next step
                    continue
                if not request.reserved and (became := admission.admit(request)) is not _READY:
                    if isinstance(became, Errno):
                        formed.failed.append((request, became))
                    continue
                chunk = chunks[request] = Chunk(request, request.placed, 0)
                if request.matcher is not None:  # only now is it certain that it runs
                    space.masks += space.mask
            assert count > 0
            if shares:
                self._note_computing(request, count, space)
            space.add_tokens(request, count, not chunk.count)
            queue.serve(count)
            chunk.count += count
            space.tokens -= count
            if not single:
                space.add_prefill(count)

    def _share(self, request: Request, space: _StepSpace) -> bool:
        """Give a request the cached pages of its prompt; return whether it computes more now.

        If it computes none now, it is in the queue no longer, until `restore` or for good.
        """
        sharing, queue = self._sharing, self._queue
        if sharing is None:
            return True
        if sharing.is_computed(request):
            space.left_out += 1
            if space.left_out < LEFT_OUT_MAX:
                queue.set_aside()
            else:
                queue.skip_tenant()
            return False
        if not sharing.may_take(request):
            return True
        if not request.reserved and (became := self._admission.admit(request)) is not _READY:
            if isinstance(became, Errno):
                space.formed.failed.append((request, became))
            return False
        queue.skip_tokens(request, sharing.take(request))
        return True

    def _whole_pages(self, request: Request, count: int, chunk: Chunk | None) -> int:
        """Return how many of `count` tokens to compute: a part of a page cannot be shared."""
        if count == request.remaining:
            return count
        whole = count - (request.placed + count) % PAGE_TOKENS
        if whole <= 0 and chunk is None and self.limits.quantum < PAGE_TOKENS:
            return count
        return max(whole, 0)

    def _note_computing(self, request: Request, count: int, space: _StepSpace) -> None:
        if self._sharing is not None:
            space.shared += self._sharing.compute(request, request.placed, count)

    def _chunk_size(self, request: Request, space: _StepSpace) -> int:
        count, most = request.remaining, space.prefill
        if request.options.parents is not None:
            # One of a step's first prompts may take more than the time for prompts.
            early = space.prefilled < PREFILL_TOKENS_MIN and most > 0
            return count if count <= space.tokens and (count <= most or early) else 0
        return min(count, space.tokens, max(most, 0), self.limits.quantum)

    def _skip_prompt(self, space: _StepSpace, request: Request) -> bool:
        """Pass over a prompt or tree that has no room; return whether others may fit."""
        queue = self._queue
        if space.prefill <= 0 and not queue.decodes:
            return False
        space.limited = True
        queue.limit_tenant_runs(self.limits.tokens)
        # A prompt may still fit where a tree is too large.
        if request.options.parents is not None or not queue.skip_tenant_of_prompts():
            queue.set_aside()
        return True

    def _fill_rest(self, space: _StepSpace) -> None:
        chunks = space.chunks
        if space.tokens == 0 or space.prefill <= 0 or len(chunks) < self.limits.rows:
            return
        for chunk in chunks.values():
            count = min(chunk.request.remaining, space.tokens, space.prefill)
            count = space.tokens_fitting(chunk.request, count, False)
            if chunk.request.shares and count > 0:
                count = self._whole_pages(chunk.request, count, chunk)
                self._note_computing(chunk.request, count, space)
            if count > 0:
                space.add_tokens(chunk.request, count, False)
                self._queue.extend(chunk.request, count)
                chunk.count += count
                space.tokens -= count
                space.add_prefill(count)


# -- Rows --------------------------------------------------------------------------------------
def _row(chunk: Chunk) -> Row:
    request, start, count = chunk.request, chunk.start, chunk.count
    if request.count == 1 and request.options is DEFAULT:  # as most rows are
        length = request.file.length
        return Row(
            request.tokens, request.positions, length, request.file.block_table(length + 1), ONLY
        )
    before = request.file.length + start
    whole = count == request.count
    parents = request.options.parents
    return Row(
        tokens=request.tokens if whole else request.tokens[start : start + count],
        positions=request.positions if whole else request.positions[start : start + count],
        start=before,
        block_table=request.file.block_table(before + count),
        places=_places(request, start, count),
        options=request.options,
        parents=None if parents is None else np.array(parents, dtype=np.int32),
        seed=request.seed,
        matcher=None if request.matcher is None else _matcher(request, start, count),
    )


def _has_mask(matcher: GrammarMatcher, space: _StepSpace, formed: FormedStep) -> bool:
    if not matcher.ready():
        formed.unready = True
        return False
    return space.has_time_for(matcher.seconds)


def _matcher(request: Request, start: int, count: int) -> GrammarMatcher | None:
    """Return the matcher of a row with these tokens, if the row has results."""
    matcher = request.matcher
    if matcher is None or start + count < request.count or request.options.get is Get.NONE:
        return None
    matcher.set_prefix(request.tokens[:start])
    return matcher


def _places(request: Request, start: int, count: int) -> Int32:
    """Return the places of tokens [start, start + count) that have results."""
    options = request.options
    if options.get is Get.NONE:
        return _NOWHERE
    if options.at == "last":
        if start + count < request.count:
            return _NOWHERE
        return ONLY if count == 1 else np.array([count - 1], dtype=np.int32)
    if options.at == "all":
        return np.arange(count, dtype=np.int32)
    asked = np.array(options.at, dtype=np.int32) - start
    return asked[(asked >= 0) & (asked < count)]


def add_result(chunk: Chunk, result: bytes, vocab_size: int, hidden_size: int) -> bytes:
    """Add a chunk's result to its request's; return all of it after the last chunk.

    The result is in the order that the caller asked for.
    """
    request = chunk.request
    place_bytes = request.options.place_bytes(vocab_size, hidden_size)
    if request.result is None:
        request.result = bytearray(request.options.places(request.count) * place_bytes)
    whole, at = request.result, request.options.at
    if at == "last":
        if result:
            whole[:] = result
    elif at == "all":
        whole[chunk.start * place_bytes : (chunk.start + chunk.count) * place_bytes] = result
    else:
        span = range(chunk.start, chunk.start + chunk.count)
        for taken, index in enumerate([i for i, place in enumerate(at) if place in span]):
            piece = result[taken * place_bytes : (taken + 1) * place_bytes]
            whole[index * place_bytes : (index + 1) * place_bytes] = piece
    return bytes(whole) if request.computed == request.count else b""
