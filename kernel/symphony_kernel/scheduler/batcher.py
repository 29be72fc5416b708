"""Level 2, what runs now: forms one step from the works that wait, in fair order.

A step is full at STEP_TOKENS_MAX new tokens or STEP_ROWS_MAX rows. A prompt is taken a quantum at a
time: after each, whoever has had less service comes first, so that decodes (which cost little) find
room in every step and a prompt gets what they leave. A tree is taken whole or not at all.

Where several tenants are present each first has its turn, with its part of the step's time, rows
and tokens (`device_shares`). What is left goes in fair order, until the step would take
longer than their shares allow. While works wait for the next step, others with worse claims may
fill this one, but get no further ahead than one step's service.

A pred reserves the room for all its tokens when its first chunk is taken. So one that has started
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
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    DECODE_GAP_MS_DEFAULT,
    MASKS_MS_MAX,
    PAGES_PASSED_STEPS_MAX,
    PREFILL_QUANTUM_TOKENS,
    PREFILL_TOKENS_MIN,
    STEP_ROWS_MAX,
    STEP_TOKENS_MAX,
)
from symphony_kernel.protocol.pred_options import DEFAULT, Get
from symphony_kernel.request import Request
from symphony_kernel.scheduler.admission import Admission, Admitted


@dataclass(frozen=True, slots=True)
class StepLimits:
    """How large one step may be."""

    tokens: int = STEP_TOKENS_MAX
    rows: int = STEP_ROWS_MAX
    quantum: int = PREFILL_QUANTUM_TOKENS
    # How long one with prompts beside others' decodes may take; inf: any time.
    decode_gap_ms: float = DECODE_GAP_MS_DEFAULT
    # Steps that take no longer together are told of together: others' prompts may have their share
    # of all of them in one. 0: they have it of each.
    lot_ms: float = 0.0
    # What tenants may have of processors beside steps; by default there is enough for everybody.
    beside: CpuOptions = field(default_factory=CpuOptions)


class Chunk:
    """A work's share of a step: its tokens [start, start + count)."""

    __slots__ = ("count", "request", "start")

    def __init__(self, request: Request, start: int, count: int) -> None:
        self.request = request
        self.start = start
        self.count = count


class Step:
    """One formed step: `chunks[i]` is row i of the batch, or its row `adopted[i]`."""

    __slots__ = (
        "adopted",
        "batch",
        "began",
        "chunks",
        "decodes",
        "ended",
        "guessed",
        "launched",
        "loads",
        "probe",
        "tokens",
    )  # fmt: skip

    def __init__(
        self, chunks: list[Chunk], batch: Batch, tokens: int, adopted: list[int] | None = None
    ) -> None:
        self.chunks = chunks
        self.batch = batch
        self.tokens = tokens  # new ones
        self.launched = 0.0  # clock seconds
        self.began = self.ended = 0.0  # between which the device computed it, once it has
        self.decodes = 0  # rows of preds with a single token
        self.loads: dict[str, StepLoad] = {}  # of its tenants
        self.probe = False  # see `StepBudget.probe`
        self.guessed: list[tuple[str, int]] = []  # rows for preds to come: tenant, entry
        self.adopted = adopted  # of a draft: the batch's rows that are its parts'


class FormedStep:
    """What came of one look at the queue."""

    __slots__ = ("failed", "step", "unready", "waiting")

    def __init__(self) -> None:
        self.step: Step | None = None
        self.waiting: list[Request] = []  # for pages
        self.failed: list[tuple[Request, Errno]] = []  # taken out of the queue
        self.unready = False  # some wait for a grammar that is being compiled


class _StepSpace:
    """What a step that is being formed has left."""

    __slots__ = (
        "costs", "gap", "held", "limited", "load", "mask", "masks", "parked", "plan", "prefill",
        "prefilled", "seconds", "tokens", "turn",
    )  # fmt: skip

    def __init__(
        self, tokens: int, prefill: int, costs: StepCost, plan: StepBudget | None, gap: float
    ) -> None:
        self.tokens = tokens
        self.prefill = prefill  # of them, for prompts; below 0 after a tree that was taken whole
        self.costs = costs
        self.plan = plan
        self.gap = gap  # seconds that it may take with prompts
        self.turn: TenantShare | None = None  # whose turn it is; None: no tenant's
        self.seconds = _ENDLESS if plan is None else plan.seconds
        self.load = StepLoad()
        self.prefilled = 0  # tokens that prompts have got
        self.limited = False  # others must not get far ahead of a prompt that waits
        self.held = False  # the pages that are free are for a work that has waited too long
        self.parked = False  # others must not get far ahead of a work that waits for frames
        self.masks = 0.0  # seconds that the masks of its rows take, as far as that is known
        self.mask = 0.0  # that of the row that was looked at last

    def prefilled_by(self, tokens: int) -> None:
        """A prompt has got so many tokens."""
        self.prefill -= tokens
        self.prefilled += tokens

    def has_time_for(self, seconds: float) -> bool:
        """Whether one more row whose mask takes so long does not make all others wait for it."""
        self.mask = seconds
        return not self.masks or self.masks + seconds <= MASKS_MS_MAX / 1000

    def fitting(self, request: Request, most: int, new: bool) -> int:
        """Return how many of a work's next `most` tokens the step has time for, and its turn.

        A tree fits as a whole or not at all. `new`: it would be another row.
        """
        plan, turn = self.plan, self.turn
        if plan is None or most <= 0:
            return most
        # A first row need not fit: the one furthest behind may have had none that can run.
        behind = not self.load.tokens if turn is None else turn.behind
        if turn is not None and turn.rows < 1.0 and new and not behind:
            return 0
        if request.options.parents is None:
            most = min(most, max(plan.tokens - self.load.tokens, 0))
            if turn is not None and request.count > 1 and not behind:
                most = min(most, max(int(turn.tokens), 0))  # below 0 behind a row that did not fit
        count = most
        while count > 0 and not self._fits(plan, turn, request, count):
            whole = request.count == 1 or request.options.parents is not None
            count = 0 if whole else count * 3 // 4
        if 0 < count < most and count < PREFILL_TOKENS_MIN:
            count = 0  # too few to be worth a row
        if not count and behind:
            count = most if request.options.parents is not None else min(most, PREFILL_TOKENS_MIN)
        return count

    def _fits(
        self, plan: StepBudget, turn: TenantShare | None, request: Request, count: int
    ) -> bool:
        rows = self.costs.row_seconds(request, request.placed, count)
        reserve = 0.0 if turn is None or request.count == 1 else turn.reserve
        if turn is not None and plan.slope * count + rows + reserve > turn.seconds * _ROUNDING:
            return False
        load, costs = self.load, self.costs
        seconds = costs.base(load.tokens + count) + costs.rows_seconds(load) + rows + reserve
        bound = self.seconds if request.count == 1 else min(self.seconds, self.gap)
        return seconds <= bound * _ROUNDING

    def took(self, request: Request, count: int, new: bool) -> None:
        """A work has got so many tokens of the step."""
        plan, turn = self.plan, self.turn
        if plan is None:
            return
        if turn is not None:
            spent = plan.slope * count + self.costs.row_seconds(request, request.placed, count)
            turn.seconds -= spent
            if request.count == 1:
                turn.reserve = max(turn.reserve - spent, 0.0)
            turn.rows -= new
            turn.tokens -= count
            turn.behind = False
        self.load.add(request, request.placed, count)


_ENDLESS: Final = float("inf")
_ROUNDING: Final = 1.0 + 1e-9
_READY: Final = Admitted.READY


def _constant(*values: int) -> Int32:
    array = np.array(values, dtype=np.int32)
    array.flags.writeable = False
    return array


_NOWHERE: Final = _constant()  # of no token
ONLY: Final = _constant(0)  # of a row's only one


class Batcher:
    """Forms steps. `pages` is the size of the pool: what needs more can never run."""

    def __init__(
        self,
        pages: int,
        limits: StepLimits | None = None,
        admission: Admission | None = None,
        costs: StepCost | None = None,
    ) -> None:
        self._costs = costs or StepCost()
        self._pages = pages
        self._limits = limits or StepLimits()
        self._admission = admission

    @property
    def limits(self) -> StepLimits:
        """How large a step may be."""
        return self._limits

    def form(
        self,
        queue: FairQueue,
        prefill: int | None = None,
        plan: StepBudget | None = None,
        gap: float = _ENDLESS,
    ) -> FormedStep:
        """Take the next step's works from the queue, with at most `prefill` tokens of prompts.

        With a `plan` prompts have what is in it, while the step takes no longer than `gap` seconds.
        A work that has been passed over for long while it waited for pages gets the next free ones,
        unless nothing else could run.
        """
        prefill = self._limits.tokens if prefill is None else prefill
        formed = self._form(queue, prefill, plan, gap, hold_pages=True)
        if formed.step is None and formed.waiting and not formed.failed:
            formed = self._form(queue, prefill, plan, gap, hold_pages=False)
        for request in formed.waiting:
            request.passed += 1
        return formed

    def form_under_pressure(
        self, queue: FairQueue, prefill: int, plan: StepBudget | None, gap: float
    ) -> FormedStep:
        """Form a step when nothing computes and `form` has found nothing for want of frames.

        First what is parked longest takes what nobody holds. If that is not enough, works that were
        admitted hold the rest: they go on, and nobody else gets a frame.
        """
        admission = self._admission
        assert admission is not None
        failed: list[tuple[Request, Errno]] = []
        forced = admission.force(failed)
        admission.hold(not forced)
        formed = self._form(queue, prefill, plan, gap, hold_pages=False, limited=forced)
        admission.hold(False)
        formed.failed += failed
        if formed.step is None and not formed.failed:
            formed.waiting = admission.waiting
        return formed

    def reserve_ahead(self, request: Request) -> None:
        """Do what can be done for a work while a step computes: give it its pages."""
        if self._admission is not None:
            self._admission.reserve_ahead(request)
            return
        try:
            request.file.reserve(request.count)
            request.reserved = True
        except SyscallError:
            return  # `form` tries again and knows what to do about it

    def keep(self, request: Request) -> bool:
        """Admit a work that goes on from one that ran; return whether it lacks nothing."""
        if self._admission is not None:
            return self._admission.keep(request)
        self.reserve_ahead(request)
        return request.reserved

    # -- Forming -------------------------------------------------------------------------------
    def _form(
        self,
        queue: FairQueue,
        prefill: int,
        plan: StepBudget | None,
        gap: float,
        hold_pages: bool,
        limited: bool = True,
    ) -> FormedStep:
        formed, admission = FormedStep(), self._admission
        chunks: dict[Request, Chunk] = {}
        probe = False
        room = _StepSpace(self._limits.tokens, prefill, self._costs, plan, gap)
        if limited and admission is not None and admission.parked:
            room.limited = room.parked = admission.begin(formed.failed)
        if plan is not None:
            for turn in plan.turns:
                if queue.focus(turn.tenant):
                    room.turn = turn
                    self._fill(queue, room, chunks, formed, hold_pages)
            queue.unfocus()
            room.turn = None
            if not room.parked and not formed.waiting and not formed.unready:
                queue.restore()
            if chunks:
                queue.limit_tenants(plan.ceiling)
                room.limited = True
                probe = plan.probe
        self._fill(queue, room, chunks, formed, hold_pages)
        queue.restore()
        self._use_up(queue, chunks, room)
        if chunks:
            taken = list(chunks.values())
            batch = Batch([_row(chunk) for chunk in taken])
            formed.step = Step(taken, batch, self._limits.tokens - room.tokens)
            formed.step.probe = probe
        return formed

    def _fill(
        self,
        queue: FairQueue,
        room: "_StepSpace",
        chunks: dict[Request, Chunk],
        formed: FormedStep,
        hold_pages: bool,
    ) -> None:
        """Take works until nothing fits any more, or all that is left is set aside."""
        admission = self._admission
        while room.tokens and (request := queue.first()) is not None:
            if room.limited and queue.pass_over():
                if room.parked and admission is not None:
                    admission.passed_over()
                continue
            single = request.count == 1
            chunk = None if single else chunks.get(request)
            if chunk is None and len(chunks) == self._limits.rows:
                break
            count = 1 if single else self._chunk(request, room)
            if room.plan is not None and count:
                count = room.fitting(request, count, chunk is None)
                if count == 0:
                    queue.pass_first()
                    continue
            if count == 0:
                if not self._leave_for_later(queue, room, request):
                    break
                continue
            if chunk is None:
                if request.matcher is not None and not _has_mask(request.matcher, room, formed):
                    queue.set_aside()  # whoever waits is among the first of the next step
                    continue
                if request.reserved:
                    pass
                elif admission is not None:
                    became = admission.admit(request)
                    if became is not _READY:
                        if isinstance(became, Errno):
                            formed.failed.append((request, became))
                        continue
                else:
                    errno = self._reserve(request, room.held)
                    if errno is not None:
                        room.held |= self._refuse(queue, request, errno, formed) and hold_pages
                        continue
                chunk = chunks[request] = Chunk(request, request.placed, 0)
                if request.matcher is not None:  # not before: others wait for pages, or frames
                    room.masks += room.mask
            assert count > 0
            room.took(request, count, not chunk.count)
            queue.serve(count)
            chunk.count += count
            room.tokens -= count
            if not single:
                room.prefilled_by(count)

    def _chunk(self, request: Request, room: "_StepSpace") -> int:
        count, most = request.remaining, room.prefill
        if (
            request.options.parents is not None
        ):  # among a step's first it may take more than its time
            early = room.prefilled < PREFILL_TOKENS_MIN and most > 0
            return count if count <= room.tokens and (count <= most or early) else 0
        return min(count, room.tokens, max(most, 0), self._limits.quantum)

    def _leave_for_later(self, queue: FairQueue, room: "_StepSpace", request: Request) -> bool:
        """Pass over a prompt or tree that has no room; return whether others may have some."""
        if room.prefill <= 0 and not queue.decodes:
            return False
        room.limited = True
        queue.limit_others(self._limits.tokens)
        # Of a tree that is too large for what is left: a prompt may still fit in.
        if request.options.parents is not None or not queue.set_prompts_aside():
            queue.set_aside()
        return True

    def _reserve(self, request: Request, held: bool) -> Errno | None:
        """Reserve a work's room; return why it has none, EAGAIN when it should wait for pages."""
        needed = request.count
        try:
            if held and request.file.pages_needed(needed):
                return Errno.EAGAIN
            request.file.reserve(needed)
        except SyscallError as error:
            later = error.errno is Errno.ENOMEM and request.file.pages_needed(needed) <= self._pages
            return Errno.EAGAIN if later else error.errno
        request.reserved = True
        return None

    def _refuse(self, queue: FairQueue, request: Request, errno: Errno, formed: FormedStep) -> bool:
        """Note why a work cannot run; return whether it has waited for pages too long."""
        if errno is Errno.EAGAIN:
            queue.set_aside()
            formed.waiting.append(request)
            return request.passed >= PAGES_PASSED_STEPS_MAX
        queue.drop()
        formed.failed.append((request, errno))
        return False

    def _use_up(self, queue: FairQueue, chunks: dict[Request, Chunk], room: "_StepSpace") -> None:
        """When rows ran out before tokens did, let the prompts in the step have the rest."""
        if room.tokens == 0 or room.prefill <= 0 or len(chunks) < self._limits.rows:
            return
        for chunk in chunks.values():
            count = min(chunk.request.remaining, room.tokens, room.prefill)
            count = room.fitting(chunk.request, count, False)
            if count > 0:
                room.took(chunk.request, count, False)
                queue.extend(chunk.request, count)
                chunk.count += count
                room.tokens -= count
                room.prefilled_by(count)


# -- Rows --------------------------------------------------------------------------------------
def _row(chunk: Chunk) -> Row:
    request, start, count = chunk.request, chunk.start, chunk.count
    if request.count == 1 and request.options is DEFAULT:  # most rows there are
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


def _has_mask(matcher: GrammarMatcher, room: _StepSpace, formed: FormedStep) -> bool:
    """Whether a row's mask can be made in this step."""
    if not matcher.ready():
        formed.unready = True
        return False
    return room.has_time_for(matcher.seconds)


def _matcher(request: Request, start: int, count: int) -> GrammarMatcher | None:
    """Return the guide of a row with the tokens [start, start + count), if it is asked about."""
    matcher = request.matcher
    if matcher is None or start + count < request.count or request.options.get is Get.NONE:
        return None
    matcher.set_prefix(request.tokens[:start])
    return matcher


def _places(request: Request, start: int, count: int) -> Int32:
    """Return the places of the work's tokens [start, start + count) that are asked about."""
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


def add_result(chunk: Chunk, result: bytes, vocab_size: int) -> bytes:
    """Add a chunk's result to its work's; return all of it, in the order asked for, at the end."""
    request = chunk.request
    place_bytes = request.options.place_bytes(vocab_size)
    if request.result is None:
        request.result = bytearray(request.options.places(request.count) * place_bytes)
    whole, at = request.result, request.options.at
    if at == "last":
        if result:
            whole[:] = result
    elif at == "all":
        whole[chunk.start * place_bytes : (chunk.start + chunk.count) * place_bytes] = result
    else:
        _scatter(whole, result, place_bytes, chunk)
    return bytes(whole) if request.computed == request.count else b""


def _scatter(whole: bytearray, result: bytes, place_bytes: int, chunk: Chunk) -> None:
    """Put a chunk's places to where the caller listed them."""
    taken = 0
    for index, place in enumerate(chunk.request.options.at):
        assert isinstance(place, int)
        if chunk.start <= place < chunk.start + chunk.count:
            piece = result[taken * place_bytes : (taken + 1) * place_bytes]
            whole[index * place_bytes : (index + 1) * place_bytes] = piece
            taken += 1
