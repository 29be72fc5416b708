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
from symphony_kernel.fairness.cpu_accounts import Beside
from symphony_kernel.fairness.device_shares import Plan, Turn
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.fairness.step_cost import Load, StepCost
from symphony_kernel.grammar.matcher import Guide
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
from symphony_kernel.request import Work
from symphony_kernel.scheduler.admission import Admission, Pager


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
    beside: Beside = field(default_factory=Beside)


class Part:
    """A work's share of a step: its tokens [start, start + count)."""

    __slots__ = ("count", "start", "work")

    def __init__(self, work: Work, start: int, count: int) -> None:
        self.work = work
        self.start = start
        self.count = count


class Step:
    """One formed step: `parts[i]` is row i of the batch, or its row `adopted[i]`."""

    __slots__ = (
        "adopted", "batch", "began", "decodes", "ended", "guessed", "launched", "loads", "parts",
        "probe", "tokens",
    )  # fmt: skip

    def __init__(
        self, parts: list[Part], batch: Batch, tokens: int, adopted: list[int] | None = None
    ) -> None:
        self.parts = parts
        self.batch = batch
        self.tokens = tokens  # new ones
        self.launched = 0.0  # clock seconds
        self.began = self.ended = 0.0  # between which the device computed it, once it has
        self.decodes = 0  # rows of preds with a single token
        self.loads: dict[str, Load] = {}  # of its tenants
        self.probe = False  # see `Plan.probe`
        self.guessed: list[tuple[str, int]] = []  # rows for preds to come: tenant, entry
        self.adopted = adopted  # of a draft: the batch's rows that are its parts'


class Formed:
    """What came of one look at the queue."""

    __slots__ = ("failed", "step", "unready", "waiting")

    def __init__(self) -> None:
        self.step: Step | None = None
        self.waiting: list[Work] = []  # for pages
        self.failed: list[tuple[Work, Errno]] = []  # taken out of the queue
        self.unready = False  # some wait for a grammar that is being compiled


class _Room:
    """What a step that is being formed has left."""

    __slots__ = (
        "costs", "gap", "held", "limited", "load", "mask", "masks", "parked", "plan", "prefill",
        "prefilled", "seconds", "tokens", "turn",
    )  # fmt: skip

    def __init__(
        self, tokens: int, prefill: int, costs: StepCost, plan: Plan | None, gap: float
    ) -> None:
        self.tokens = tokens
        self.prefill = prefill  # of them, for prompts; below 0 after a tree that was taken whole
        self.costs = costs
        self.plan = plan
        self.gap = gap  # seconds that it may take with prompts
        self.turn: Turn | None = None  # whose turn it is; None: no tenant's
        self.seconds = _ENDLESS if plan is None else plan.seconds
        self.load = Load()
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

    def fitting(self, work: Work, most: int, new: bool) -> int:
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
        if work.options.parents is None:
            most = min(most, max(plan.tokens - self.load.tokens, 0))
            if turn is not None and work.count > 1 and not behind:
                most = min(most, int(turn.tokens))
        count = most
        while count > 0 and not self._fits(plan, turn, work, count):
            whole = work.count == 1 or work.options.parents is not None
            count = 0 if whole else count * 3 // 4
        if 0 < count < most and count < PREFILL_TOKENS_MIN:
            count = 0  # too few to be worth a row
        if not count and behind:
            count = most if work.options.parents is not None else min(most, PREFILL_TOKENS_MIN)
        return count

    def _fits(self, plan: Plan, turn: Turn | None, work: Work, count: int) -> bool:
        rows = self.costs.row_seconds(work, work.placed, count)
        reserve = 0.0 if turn is None or work.count == 1 else turn.reserve
        if turn is not None and plan.slope * count + rows + reserve > turn.seconds * _ROUNDING:
            return False
        load, costs = self.load, self.costs
        seconds = costs.base(load.tokens + count) + costs.rows_seconds(load) + rows + reserve
        bound = self.seconds if work.count == 1 else min(self.seconds, self.gap)
        return seconds <= bound * _ROUNDING

    def took(self, work: Work, count: int, new: bool) -> None:
        """A work has got so many tokens of the step."""
        plan, turn = self.plan, self.turn
        if plan is None:
            return
        if turn is not None:
            spent = plan.slope * count + self.costs.row_seconds(work, work.placed, count)
            turn.seconds -= spent
            if work.count == 1:
                turn.reserve = max(turn.reserve - spent, 0.0)
            turn.rows -= new
            turn.tokens -= count
            turn.behind = False
        self.load.add(work, work.placed, count)


_ENDLESS: Final = float("inf")
_ROUNDING: Final = 1.0 + 1e-9
_READY: Final = Admission.READY


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
        pager: Pager | None = None,
        costs: StepCost | None = None,
    ) -> None:
        self._costs = costs or StepCost()
        self._pages = pages
        self._limits = limits or StepLimits()
        self._pager = pager

    @property
    def limits(self) -> StepLimits:
        """How large a step may be."""
        return self._limits

    def form(
        self,
        queue: FairQueue,
        prefill: int | None = None,
        plan: Plan | None = None,
        gap: float = _ENDLESS,
    ) -> Formed:
        """Take the next step's works from the queue, with at most `prefill` tokens of prompts.

        With a `plan` prompts have what is in it, while the step takes no longer than `gap` seconds.
        A work that has been passed over for long while it waited for pages gets the next free ones,
        unless nothing else could run.
        """
        prefill = self._limits.tokens if prefill is None else prefill
        formed = self._form(queue, prefill, plan, gap, hold_pages=True)
        if formed.step is None and formed.waiting and not formed.failed:
            formed = self._form(queue, prefill, plan, gap, hold_pages=False)
        for work in formed.waiting:
            work.passed += 1
        return formed

    def form_under_pressure(
        self, queue: FairQueue, prefill: int, plan: Plan | None, gap: float
    ) -> Formed:
        """Form a step when nothing computes and `form` has found nothing for want of frames.

        First what is parked longest takes what nobody holds. If that is not enough, works that were
        admitted hold the rest: they go on, and nobody else gets a frame.
        """
        pager = self._pager
        assert pager is not None
        failed: list[tuple[Work, Errno]] = []
        forced = pager.force(failed)
        pager.hold(not forced)
        formed = self._form(queue, prefill, plan, gap, hold_pages=False, limited=forced)
        pager.hold(False)
        formed.failed += failed
        if formed.step is None and not formed.failed:
            formed.waiting = pager.waiting
        return formed

    def reserve_ahead(self, work: Work) -> None:
        """Do what can be done for a work while a step computes: give it its pages."""
        if self._pager is not None:
            self._pager.reserve_ahead(work)
            return
        try:
            work.file.reserve(work.count)
            work.reserved = True
        except SyscallError:
            return  # `form` tries again and knows what to do about it

    def keep(self, work: Work) -> bool:
        """Admit a work that goes on from one that ran; return whether it lacks nothing."""
        if self._pager is not None:
            return self._pager.keep(work)
        self.reserve_ahead(work)
        return work.reserved

    # -- Forming -------------------------------------------------------------------------------
    def _form(
        self,
        queue: FairQueue,
        prefill: int,
        plan: Plan | None,
        gap: float,
        hold_pages: bool,
        limited: bool = True,
    ) -> Formed:
        formed, pager = Formed(), self._pager
        parts: dict[Work, Part] = {}
        probe = False
        room = _Room(self._limits.tokens, prefill, self._costs, plan, gap)
        if limited and pager is not None and pager.parked:
            room.limited = room.parked = pager.begin(formed.failed)
        if plan is not None:
            for turn in plan.turns:
                if queue.focus(turn.tenant):
                    room.turn = turn
                    self._fill(queue, room, parts, formed, hold_pages)
            queue.unfocus()
            room.turn = None
            if not room.parked and not formed.waiting and not formed.unready:
                queue.restore()
            if parts:
                queue.limit_tenants(plan.ceiling)
                room.limited = True
                probe = plan.probe
        self._fill(queue, room, parts, formed, hold_pages)
        queue.restore()
        self._use_up(queue, parts, room)
        if parts:
            taken = list(parts.values())
            batch = Batch([_row(part) for part in taken])
            formed.step = Step(taken, batch, self._limits.tokens - room.tokens)
            formed.step.probe = probe
        return formed

    def _fill(
        self,
        queue: FairQueue,
        room: "_Room",
        parts: dict[Work, Part],
        formed: Formed,
        hold_pages: bool,
    ) -> None:
        """Take works until nothing fits any more, or all that is left is set aside."""
        pager = self._pager
        while room.tokens and (work := queue.first()) is not None:
            if room.limited and queue.pass_over():
                if room.parked and pager is not None:
                    pager.passed_over()
                continue
            single = work.count == 1
            part = None if single else parts.get(work)
            if part is None and len(parts) == self._limits.rows:
                break
            count = 1 if single else self._chunk(work, room)
            if room.plan is not None and count:
                count = room.fitting(work, count, part is None)
                if count == 0:
                    queue.pass_first()
                    continue
            if count == 0:
                if not self._leave_for_later(queue, room, work):
                    break
                continue
            if part is None:
                if work.guide is not None and not _has_mask(work.guide, room, formed):
                    queue.set_aside()  # whoever waits is among the first of the next step
                    continue
                if work.reserved:
                    pass
                elif pager is not None:
                    became = pager.admit(work)
                    if became is not _READY:
                        if isinstance(became, Errno):
                            formed.failed.append((work, became))
                        continue
                else:
                    errno = self._reserve(work, room.held)
                    if errno is not None:
                        room.held |= self._refuse(queue, work, errno, formed) and hold_pages
                        continue
                part = parts[work] = Part(work, work.placed, 0)
                if work.guide is not None:  # not before: others wait for pages, or frames
                    room.masks += room.mask
            room.took(work, count, not part.count)
            queue.serve(count)
            part.count += count
            room.tokens -= count
            if not single:
                room.prefilled_by(count)

    def _chunk(self, work: Work, room: "_Room") -> int:
        count, most = work.remaining, room.prefill
        if work.options.parents is not None:  # among a step's first it may take more than its time
            early = room.prefilled < PREFILL_TOKENS_MIN and most > 0
            return count if count <= room.tokens and (count <= most or early) else 0
        return min(count, room.tokens, max(most, 0), self._limits.quantum)

    def _leave_for_later(self, queue: FairQueue, room: "_Room", work: Work) -> bool:
        """Pass over a prompt or tree that has no room; return whether others may have some."""
        if room.prefill <= 0 and not queue.decodes:
            return False
        room.limited = True
        queue.limit_others(self._limits.tokens)
        # Of a tree that is too large for what is left: a prompt may still fit in.
        if work.options.parents is not None or not queue.set_prompts_aside():
            queue.set_aside()
        return True

    def _reserve(self, work: Work, held: bool) -> Errno | None:
        """Reserve a work's room; return why it has none, EAGAIN when it should wait for pages."""
        needed = work.count
        try:
            if held and work.file.pages_needed(needed):
                return Errno.EAGAIN
            work.file.reserve(needed)
        except SyscallError as error:
            later = error.errno is Errno.ENOMEM and work.file.pages_needed(needed) <= self._pages
            return Errno.EAGAIN if later else error.errno
        work.reserved = True
        return None

    def _refuse(self, queue: FairQueue, work: Work, errno: Errno, formed: Formed) -> bool:
        """Note why a work cannot run; return whether it has waited for pages too long."""
        if errno is Errno.EAGAIN:
            queue.set_aside()
            formed.waiting.append(work)
            return work.passed >= PAGES_PASSED_STEPS_MAX
        queue.drop()
        formed.failed.append((work, errno))
        return False

    def _use_up(self, queue: FairQueue, parts: dict[Work, Part], room: "_Room") -> None:
        """When rows ran out before tokens did, let the prompts in the step have the rest."""
        if room.tokens == 0 or room.prefill <= 0 or len(parts) < self._limits.rows:
            return
        for part in parts.values():
            count = min(part.work.remaining, room.tokens, room.prefill)
            count = room.fitting(part.work, count, False)
            if count > 0:
                room.took(part.work, count, False)
                queue.extend(part.work, count)
                part.count += count
                room.tokens -= count
                room.prefilled_by(count)


# -- Rows --------------------------------------------------------------------------------------
def _row(part: Part) -> Row:
    work, start, count = part.work, part.start, part.count
    if work.count == 1 and work.options is DEFAULT:  # most rows there are
        length = work.file.length
        return Row(work.tokens, work.positions, length, work.file.block_table(length + 1), ONLY)
    before = work.file.length + start
    whole = count == work.count
    parents = work.options.parents
    return Row(
        tokens=work.tokens if whole else work.tokens[start : start + count],
        positions=work.positions if whole else work.positions[start : start + count],
        start=before,
        block_table=work.file.block_table(before + count),
        places=_places(work, start, count),
        options=work.options,
        parents=None if parents is None else np.array(parents, dtype=np.int32),
        seed=work.seed,
        guide=None if work.guide is None else _guide(work, start, count),
    )


def _has_mask(guide: Guide, room: _Room, formed: Formed) -> bool:
    """Whether a row's mask can be made in this step."""
    if not guide.ready():
        formed.unready = True
        return False
    return room.has_time_for(guide.seconds)


def _guide(work: Work, start: int, count: int) -> Guide | None:
    """Return the guide of a row with the tokens [start, start + count), if it is asked about."""
    guide = work.guide
    if guide is None or start + count < work.count or work.options.get is Get.NONE:
        return None
    guide.tell(work.tokens[:start])
    return guide


def _places(work: Work, start: int, count: int) -> Int32:
    """Return the places of the work's tokens [start, start + count) that are asked about."""
    options = work.options
    if options.get is Get.NONE:
        return _NOWHERE
    if options.at == "last":
        if start + count < work.count:
            return _NOWHERE
        return ONLY if count == 1 else np.array([count - 1], dtype=np.int32)
    if options.at == "all":
        return np.arange(count, dtype=np.int32)
    asked = np.array(options.at, dtype=np.int32) - start
    return asked[(asked >= 0) & (asked < count)]


def add_result(part: Part, result: bytes, vocab_size: int) -> bytes:
    """Add a chunk's result to its work's; return all of it, in the order asked for, at the end."""
    work = part.work
    place_bytes = work.options.place_bytes(vocab_size)
    if work.result is None:
        work.result = bytearray(work.options.places(work.count) * place_bytes)
    whole, at = work.result, work.options.at
    if at == "last":
        if result:
            whole[:] = result
    elif at == "all":
        whole[part.start * place_bytes : (part.start + part.count) * place_bytes] = result
    else:
        _scatter(whole, result, place_bytes, part)
    return bytes(whole) if work.computed == work.count else b""


def _scatter(whole: bytearray, result: bytes, place_bytes: int, part: Part) -> None:
    """Put a chunk's places to where the caller listed them."""
    taken = 0
    for index, place in enumerate(part.work.options.at):
        assert isinstance(place, int)
        if part.start <= place < part.start + part.count:
            piece = result[taken * place_bytes : (taken + 1) * place_bytes]
            whole[index * place_bytes : (index + 1) * place_bytes] = piece
            taken += 1
