"""The scheduler as the kernel sees it: works come in, steps come out, results go back.

    submit -> fair_queue (who may run) -> batcher (what runs now) -> Step -> complete -> work.done

It runs nothing and waits for nothing itself: `poll` says which step to launch, or how long to wait
before asking again. Everything happens on the event loop's thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf
from typing import Any, Final

from symphony_kernel.executor.base import Results
from symphony_kernel.fairness.cpu_accounts import CpuAccounts
from symphony_kernel.fairness.device_shares import DeviceShares, StepBudget
from symphony_kernel.fairness.fair_queue import FairQueue, FairQueueStatistics
from symphony_kernel.fairness.step_cost import FORMED, StepCost, StepLoad
from symphony_kernel.grammar.matcher import GrammarMatcher
from symphony_kernel.kvfs.tiers.eviction import Eviction
from symphony_kernel.platform.clock import Clock
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    PAGES_WAIT_MS_MAX,
    PREFILL_QUANTUM_TOKENS,
    PREFILL_TOKENS_MIN,
)
from symphony_kernel.request import Request
from symphony_kernel.scheduler.admission import Admission
from symphony_kernel.scheduler.anticipation import Anticipation
from symphony_kernel.scheduler.batcher import Batcher, Chunk, Step, StepLimits, add_result
from symphony_kernel.scheduler.lookahead import LookAhead
from symphony_kernel.scheduler.metrics import SchedulerMetrics
from symphony_kernel.scheduler.prediction import LookAheadStep, Prediction, Predictor
from symphony_kernel.scheduler.trace import Emit, Traces

_STEPS_AHEAD_MAX: Final = 2  # one computes, and a full one may wait behind it
_LARGE_RESULT_BYTES: Final = 16 << 10
_RESULT_BYTE_SECONDS: Final = 2.5e-9  # of the kernel's thread, that sending a byte of one takes
_MASKS_SECONDS: Final = 0.0005  # of making masks that a LIP is charged for at once
_SOON_SECONDS: Final = 1e-6  # no timer is finer
_GRAMMARS_SECONDS: Final = 0.002  # until somebody looks again whether one has been compiled


@dataclass(frozen=True, slots=True)
class SchedulerStatistics:
    """What has run since the start; times in milliseconds."""

    queue: FairQueueStatistics
    waiting_for_pages: int
    steps: int
    rows: int
    decode_rows: int
    decode_steps: int  # with at least one decode row
    tokens_computed: int
    prefill_tokens: int
    decode_tokens: int
    preds: int
    preds_starved: int  # ended with ENOMEM, so that others could go on
    preemptions: int  # files in use gave up pages, so that somebody with a better claim could run
    rebuilt_tokens: int  # computed again, since their K and V were in no tier
    preds_guessed: int  # computed before they came
    preds_guessed_in_vain: int  # rows that were computed for a pred that did not come
    step_ms: float  # sum over all steps


class Scheduler:
    """Both levels. `pages` is the size of the executor's pool.

    With `eviction` works wait for frames in fair order (`admission`); without, files keep theirs.
    """

    def __init__(
        self,
        clock: Clock,
        pages: int,
        vocab_size: int,
        limits: StepLimits | None = None,
        traced: Emit | None = None,
        anticipation: Anticipation | None = None,
        eviction: Eviction | None = None,
        predictions: Predictor | None = None,
    ) -> None:
        self._clock = clock
        self._vocab_size = vocab_size
        self._costs = StepCost()
        self._queue = FairQueue(self._costs)
        self._traces = Traces(traced or (lambda _root, _events: None))
        self._admission: Admission | None = None
        if eviction is not None:
            self._admission = Admission(self._queue, eviction, self._fail, self._traces.moved)
        self._batcher = Batcher(pages, limits, self._admission, self._costs)
        self._anticipation = anticipation or Anticipation()
        limits = self._batcher.limits
        self._shares = DeviceShares(
            self._queue,
            self._costs,
            limits.rows,
            limits.tokens,
            limits.lot_ms / 1000,
            self._busy_tenants,
        )
        self.processors = CpuAccounts(self._queue, self._shares.present, limits.beside)
        self._steps: list[Step] = []  # launched and not completed, in order
        self._waiting: list[Request] = []  # for pages, as of the last look at the queue
        self._victims = 1  # of these, when it is time for some to fail
        self._changed = clock.now()  # when something last happened that may have freed pages
        self._completed = clock.now()  # when the last step was
        self._predictions = predictions
        self._lookaheads = LookAhead(
            self._queue, self._batcher, predictions, self._anticipation.soon
        )
        self._kept: list[tuple[Request, Prediction]] = []  # with results that were there before
        self._metrics = SchedulerMetrics()
        self._turn: float | None = None  # when the works came that `poll` has not seen
        self._replies: dict[int, int] | None = None  # while `complete` gives them: each LIP's

    # -- Works ---------------------------------------------------------------------------------
    def submit(self, request: Request) -> None:
        """Queue a pred; `request.done` hears of its end."""
        prediction = self._claim(request) if self._predictions is not None else None
        if self._replies is None:
            if prediction is None and self._lookaheads.there and not self._is_ahead(request):
                self._lookaheads.revoke()
            if self._turn is None:
                self._turn = self._clock.now()
            self._anticipation.heard(request.root, self._turn)
        else:  # it waited behind a pred that has just been answered: nobody else need answer
            self._replies[request.root] = self._replies.get(request.root, 0) - 1
        if request.root not in self._metrics.lips:
            self._metrics.submitted(request.root, self._turn or self._clock.now())
        if self._traces.runs:
            self._traces.submitted(request, self._clock.now())
        if prediction is not None:
            self._take_in(request, prediction)
            return
        if self._steps and not self._waiting:
            self._batcher.reserve_ahead(request)
        self._queue.push(request)

    def cancel(self, request: Request) -> None:
        """Drop a pred wherever it is; its `done` hears ECANCELED. No effect once it has ended."""
        if request.recompute is not None:  # its own end is the work's, too
            request = request.recompute
        if not request.finished:
            self._take_out(request)
            self._fail(request, Errno.ECANCELED)

    def forget(self, root: int, instance: int | None = None) -> None:
        """Drop all work of an instance, or of the whole LIP, which has ended; nobody is told."""
        gone = self._admission.forget(root, instance) if self._admission is not None else []
        if self._predictions is not None:
            self._predictions.forget(root, instance)
        gone += [w for w, _ in self._kept if w.root == root and instance in (None, w.instance)]
        if instance is None:
            gone += self._queue.forget_lip(root)
            self._anticipation.forget(root)
            self._metrics.forget(root)
            self._traces.close(root, self._clock.now())
        else:
            gone += self._queue.forget_instance(root, instance)
        gone += [
            chunk.request
            for step in self._steps
            for chunk in step.chunks
            if chunk.request.root == root and instance in (None, chunk.request.instance)
        ]
        for request in gone:
            if not request.finished:
                request.finished = True
                request.file.unreserve()
        self._lookaheads.revoke()
        self._changed = self._clock.now()

    def trace(self, root: int) -> None:
        """Tell of a LIP's preds and steps from now on, until it is forgotten."""
        self._traces.open(root, self._clock.now())

    def charge(self, root: int, tenant: str, weight: float, tokens: float) -> None:
        """Charge a LIP for what the device does beside its works: as for so many tokens."""
        seconds = tokens * self._costs.service_seconds
        self._queue.charge(root, tenant, weight, seconds)
        self._queue.pay(tenant, seconds)

    def set_tenant_weight(self, tenant: str, weight: float) -> None:
        """Give a tenant a share relative to the others' (1 by default)."""
        self._queue.set_tenant_weight(tenant, weight)

    # -- Steps ---------------------------------------------------------------------------------
    @property
    def idle(self) -> bool:
        """Whether nothing waits and no step is under way."""
        return not (self._steps or self._queue.requests or self._parked or self._kept)

    # -- Stalls (see `maintenance.watchdog`) -------------------------------------------------------
    @property
    def owing(self) -> bool:
        """Whether works wait, and for nothing but a step."""
        admission = self._admission
        if admission is not None and admission.disk_works:
            return False
        return not self.idle or bool(admission is not None and admission.blocked)

    @property
    def progress(self) -> int:
        """A number that grows with whatever is done."""
        counts = self._metrics
        return counts.steps + counts.preds + counts.starved

    def describe(self) -> str:
        """Return what waits, in words for the log of a fault."""
        queue, admission = self._queue, self._admission
        steps = [
            f"{len(s.chunks)} works, {[p.request.describe() for p in s.chunks[:4]]}, adopted {s.adopted}"
            for s in self._steps
        ]
        blocked = len(admission.blocked) if admission is not None else 0
        return (
            f"steps {steps}; {queue.requests} works queued ({queue.decodes} decodes, {queue.tokens} "
            f"tokens), the first {(first := queue.first()) and first.describe()}; "
            f"{len(self._waiting)} wait for pages, {self._parked} parked, {blocked} blocked, "
            f"{len(self._kept)} kept; {len(self._lookaheads)} drafts"
        )

    def mend(self) -> None:
        """Forget steps that nobody computes, and look again at what waits for others."""
        self._lookaheads.forget()
        phantoms, self._steps = self._steps, []
        for step in phantoms:
            for chunk in step.chunks:
                if not chunk.request.finished:
                    self._fail_running(chunk.request, Errno.EIO)
        if self._admission is not None:
            self._admission.unblock()

    def give_up(self) -> int:
        """End all works with EIO; return how many."""
        self.mend()
        gone = self._queue.everything() + (
            self._admission.waiting if self._admission is not None else []
        )
        for request in gone:
            self._take_out(request)
            self._fail(request, Errno.EIO)
        return len(gone)

    def pages_arrived(self) -> None:
        """Pages have come from disk: who waited for them looks again."""
        if self._admission is not None:
            self._admission.unblock()

    def token_seconds(self) -> float:
        """Return what a token of a prompt takes in a step, as learned here; 0.0: not known yet."""
        return self._costs.token_seconds

    @property
    def steps_in_flight(self) -> int:
        """Steps launched and not completed."""
        return len(self._steps)

    def poll(self) -> Step | float | None:
        """Return the step to launch now, the seconds after which to ask again, or None.

        None means: nothing can change until a work comes or a step completes.
        """
        self._turn = None
        if not (self._queue.requests or self._parked) or len(self._steps) >= _STEPS_AHEAD_MAX:
            return None
        now = self._clock.now()
        if self._steps:
            ahead = not self._lookaheads and self._may_run_ahead(now)
            return self._form(now) if ahead else None
        # Prompts leave room for decodes that come: only rows can be too few for them.
        wait = 0.0
        limits = self._batcher.limits
        if not self._queue.requests:
            return self._form(now)
        if self._ready < limits.rows or self._anticipation.any_expected(self._queue.precedes):
            wait = self._anticipation.wait_seconds(now, self._queue)
        return wait if wait > _SOON_SECONDS else self._form(now)

    def lookahead(self) -> LookAheadStep | None:
        """Return a step that the device may go on with, if nobody else wants to run."""
        if len(self._steps) != 1 or self._waiting or self._parked:
            return None
        step, lookaheads = self._steps[0], self._lookaheads
        return lookaheads.make(step) if self._may_follow(step, 1 + len(lookaheads)) else None

    def adopt(self) -> Step | None:
        """Return the step that the device went on with behind one that has just ended."""
        step = self._lookaheads.adopt()
        if step is not None:
            self._launched(step, self._clock.now())
        if step is None or not self._may_follow(step, 1):
            self._lookaheads.revoke()
        return step

    def draft_ended(self, lookahead: LookAheadStep, results: Results) -> None:
        """The device is done with a draft, before `complete`; without results it has failed."""
        self._lookaheads.ended(lookahead, results)

    def answer_kept(self) -> None:
        """End the preds whose results were there before they came."""
        while self._kept:
            kept, self._kept = self._kept, []
            now = self._clock.now()
            self._metrics.completing(now)
            for request, prediction in kept:
                if not request.finished:
                    self._answer_kept(request, prediction, now)

    def revoke_drafts(self) -> None:
        """Let the device not begin what it goes on with; what it has begun it ends."""
        self._lookaheads.revoke()

    def complete(
        self,
        step: Step,
        results: Sequence[bytes | SyscallError],
        ended: float | None = None,
    ) -> None:
        """Take the results of the oldest step, in the order of its rows.

        `ended` says when, in the clock's seconds, if it was told of late.
        """
        self._ended(step)
        vocab_size = self._vocab_size
        now = self._clock.now() if ended is None else ended
        self._metrics.completing(now)
        if self._traces.runs:
            self._traces.stepped(step, now)
        replies = self._replies = {}
        for chunk, result in zip(step.chunks, results, strict=True):
            request = chunk.request
            request.computed += chunk.count
            if request.matcher is not None:
                self._charge_masks(request, request.matcher)
            if request.finished:
                continue
            if request.matcher is not None and _comes_again(result):
                self._put_back(chunk, request.matcher)
                continue
            errno = request.file.error if isinstance(result, bytes) else result.errno
            if errno is not None:
                self._fail_running(request, errno)
                replies[request.root] = replies.get(request.root, 0) + 1
                continue
            assert isinstance(result, bytes)
            whole = result
            if chunk.count != request.count:
                whole = add_result(chunk, result, vocab_size)
            if request.computed == request.count:
                self._finish(request, whole)
                if request.recomputes:
                    continue
                replies[request.root] = replies.get(request.root, 0) + 1
        self._replies = None
        self._answered(step, replies, ended)

    def fail(self, step: Step) -> None:
        """The executor could not compute the oldest step: each of its works ends with EIO."""
        self._ended(step)
        for chunk in step.chunks:
            if not chunk.request.finished:
                self._fail_running(chunk.request, Errno.EIO)
        self._answered(step, {})

    def statistics(self) -> SchedulerStatistics:
        """Return the counters."""
        counts = self._metrics
        return SchedulerStatistics(
            queue=self._queue.statistics(),
            waiting_for_pages=self._parked or len(self._waiting),
            steps=counts.steps,
            rows=counts.rows,
            decode_rows=counts.decode_rows,
            decode_steps=counts.decode_steps,
            tokens_computed=counts.prefill_tokens + counts.decode_rows,
            prefill_tokens=counts.prefill_tokens,
            decode_tokens=counts.decode_rows,
            preds=counts.preds,
            preds_starved=counts.starved,
            preemptions=self._admission.preemptions if self._admission is not None else 0,
            rebuilt_tokens=self._admission.rebuilt_tokens if self._admission is not None else 0,
            preds_guessed=self._predictions.hits if self._predictions is not None else 0,
            preds_guessed_in_vain=self._predictions.misses if self._predictions is not None else 0,
            step_ms=1000 * counts.step_seconds,
        )

    def waiting(self) -> dict[str, Any]:
        """Return what waits, by tenant {name: [tokens, weight]}, and what was computed so far.

        `tokens` computed in `seconds` of steps, since the start. Looks at every waiting work.
        """
        tenants = {name: list(found) for name, found in self._queue.waiting().items()}
        for request in self._admission.waiting if self._admission is not None else ():
            tenants.setdefault(request.tenant, [0, 1.0])[0] += request.remaining
        counts = self._metrics
        computed = counts.prefill_tokens + counts.decode_rows
        return {"tenants": tenants, "tokens": computed, "seconds": counts.step_seconds}

    def lips_running(self) -> int:
        """Return how many LIPs have a row in a step that computes now."""
        return len({chunk.request.root for step in self._steps for chunk in step.chunks})

    def histograms(self) -> dict[str, dict[str, Any]]:
        """Return what is counted by size: name -> a `Histogram.view`."""
        return {name: each.view() for name, each in self._metrics.histograms.items()}

    # -- Within --------------------------------------------------------------------------------
    def _claim(self, request: Request) -> Prediction | None:
        """Return the guess that was computed for a pred which has come, if it can have it."""
        assert self._predictions is not None
        prediction = self._predictions.claim(request)
        if prediction is None:
            return None
        free = not (self._waiting or self._parked) and self._replies is None
        if free and self._batcher.keep(request) and self._predictions.settle(prediction):
            self._predictions.claimed()
            return prediction
        self._predictions.not_settled(prediction)
        return None

    def _take_in(self, request: Request, prediction: Prediction) -> None:
        if prediction.result is None:
            self._lookaheads.take_in(prediction, request)
            return
        self._queue.serve_at_once(request)
        self._kept.append((request, prediction))

    def _charge_masks(self, request: Request, matcher: GrammarMatcher) -> None:
        """Charge a LIP for its masks; its tenant pays for them with the step."""
        spent = matcher.spent
        if spent < _MASKS_SECONDS or not self._queue.knows(request.root):
            return
        matcher.spent = 0.0
        self._queue.charge(request.root, request.tenant, request.weight, spent)

    def _put_back(self, chunk: Chunk, matcher: GrammarMatcher) -> None:
        """A row's mask was not there in time: it is computed again."""
        matcher.retry()
        chunk.request.computed -= chunk.count
        chunk.request.placed -= chunk.count
        self._queue.put_back(chunk.request)

    def _answer_kept(self, request: Request, prediction: Prediction, now: float) -> None:
        assert prediction.lookahead is not None
        assert prediction.lookahead.step is not None
        result = prediction.result
        if self._traces.runs:
            self._traces.kept(request, prediction.lookahead.step, now)
        request.computed = 1
        self._metrics.kept(request)
        self._anticipation.replied(request.root, now)
        errno = result.errno if isinstance(result, SyscallError) else request.file.error
        if errno is not None:
            self._fail(request, errno)
        else:
            assert isinstance(result, bytes)
            self._finish(request, result)

    def _may_run_ahead(self, now: float) -> bool:
        """Whether a step may go behind one that computes.

        It must be full, and nobody who comes while the other computes may have a better claim than
        those who fill it: a stream beside a LIP of a thousand branches would be in every second
        step only, and twice as long a wait behind prompts would break the bound on gaps.
        """
        limits, ready = self._batcher.limits, self._ready
        full = ready >= limits.rows or (ready > 0 and self._queue.tokens >= limits.tokens)
        if not full or self._queue.several or self._prompts_are_bounded(now):
            return False
        precedes = self._queue.precedes
        if self._anticipation.any_expected(precedes):
            return False
        computing = {
            chunk.request.root
            for step in self._steps
            for chunk in step.chunks
            if chunk.request.placed == chunk.request.count
        }
        return not any(map(precedes, computing))

    def _prompts_are_bounded(self, now: float) -> bool:
        """Whether prompts wait while other LIPs decode, so that steps must be short."""
        queue = self._queue
        if queue.requests == queue.decodes or isinf(self._batcher.limits.decode_gap_ms):
            return False
        if any(step.decodes for step in self._steps):
            return True
        if queue.lips_active > 1:
            return queue.decodes > 0 or self._anticipation.anybody_decodes(now)
        first = queue.first()
        return first is not None and self._anticipation.anybody_decodes(now, besides=first.root)

    @property
    def _parked(self) -> int:
        """Works that wait for frames, beside the queue."""
        return self._admission.parked if self._admission is not None else 0

    def _busy_tenants(self) -> set[str]:
        """Return the tenants whose works compute, or wait for frames."""
        computing = {name for step in self._steps for name in step.loads}
        return (
            computing.union(self._admission.tenants) if self._admission is not None else computing
        )

    def _take_out(self, request: Request) -> None:
        """Take a work out of wherever it waits."""
        if not self._queue.remove(request) and self._admission is not None:
            self._admission.remove(request)

    @property
    def _ready(self) -> int:
        """Works that do not wait for pages."""
        return self._queue.requests - len(self._waiting)

    def _form(self, now: float) -> Step | float | None:
        formed = self._batcher.form(self._queue, *self._room(now))
        if formed.step is None and self._parked and not (self._steps or formed.failed):
            formed = self._batcher.form_under_pressure(self._queue, *self._room(now))
        self._waiting = formed.waiting
        for request, errno in formed.failed:
            self._fail(request, errno)
        step = formed.step
        if step is not None:
            step.launched = now
            self._launched(step, now)
            return step
        if formed.failed:
            return 0.0  # what came of their ends may run
        if formed.unready and not self._steps:
            return _GRAMMARS_SECONDS
        if not formed.waiting or self._steps or (self._admission and self._admission.disk_works):
            return None
        return self._wait_for_pages(now)

    def _launched(self, step: Step, now: float) -> None:
        """Note whose rows a step has, before its works become something else."""
        self._metrics.launched(step)
        self._steps.append(step)
        loads, stepwise = step.loads, set[str]()
        for chunk in step.chunks:
            request = chunk.request
            load = loads.get(request.tenant)
            if load is None:
                load = loads[request.tenant] = StepLoad()
            load.add(request, chunk.start, chunk.count)
            if chunk.count > 1 or request.continuation is None:
                load.features[FORMED] = 1.0
                if request.count == 1:
                    stepwise.add(request.tenant)
        for tenant, entry in step.guessed:
            if tenant not in loads:
                loads[tenant] = StepLoad()
            loads[tenant].add_entry(entry)
            stepwise.add(tenant)
        self._shares.launched(loads, stepwise, now)

    def _may_follow(self, step: Step, more: int) -> bool:
        """Whether the device may follow a step with so many more of the same rows."""
        if not self._queue.requests:
            several = self._queue.several
            return not several or self._shares.may_follow(step.loads, self._clock.now())
        if self._waiting or self._parked or not self._queue.several:
            return False
        seconds = sum([self._costs.seconds(load) for load in step.loads.values()])
        return self._shares.all_ahead(step.loads, more, seconds)

    def _is_ahead(self, request: Request) -> bool:
        """Whether a work that has just come would wait for those of the steps there are."""
        if not (self._steps and self._queue.several):
            return False
        step = self._steps[-1]
        seconds = sum([self._costs.seconds(load) for load in step.loads.values()])
        return self._shares.is_ahead(request.tenant, step.loads, seconds)

    def _room(self, now: float) -> tuple[int, StepBudget | None, float]:
        """Return how many tokens of prompts fit beside decodes, how the step is divided among
        several tenants, and how many seconds it may take with prompts, as the operator bounds it.
        """
        limits, plan = self._batcher.limits, self._shares.plan(now)
        bounded = self._prompts_are_bounded(now)
        gap = limits.decode_gap_ms / 1000 if bounded else inf
        if plan is not None:
            return limits.tokens, plan, gap
        decodes = min(self._queue.decodes, limits.rows - 1, limits.tokens // 2)
        room = limits.tokens - decodes
        if bounded:
            fits = self._costs.prompt_tokens(
                decodes, gap, PREFILL_TOKENS_MIN, PREFILL_QUANTUM_TOKENS
            )
            room = min(room, fits)
        return room, None, gap

    def _wait_for_pages(self, now: float) -> float:
        """Nothing can run for want of pages: wait a little for a program to free some.

        After that the most served LIP's pred fails, so that the others can go on; when that frees
        nothing either, twice as many do, so that thousands do not hold up the last one for long.
        """
        left = self._changed + PAGES_WAIT_MS_MAX / 1000 - now
        if left > _SOON_SECONDS:
            return left
        victims = sorted(self._waiting, key=lambda request: -self._queue.served(request.root))
        self._waiting = victims[self._victims :]
        for victim in victims[: self._victims]:
            self._take_out(victim)
            self._metrics.starved += 1
            self._fail(victim, Errno.ENOMEM)
        self._victims *= 2
        return PAGES_WAIT_MS_MAX / 1000

    def _finish(self, request: Request, result: bytes) -> None:
        request.finished = True
        if request.recomputes:
            request.done(result)
            return
        if request.options.keep:
            request.commit()
        else:
            request.file.unreserve()
        self._metrics.finished(request)
        if self._predictions is not None:
            self._predictions.ended(request, result)
        request.done(result)
        if len(result) >= _LARGE_RESULT_BYTES:  # they are sent while the next step computes
            seconds = _RESULT_BYTE_SECONDS * len(result)
            self.processors.called(
                request.root, request.tenant, request.weight, seconds, self._clock.now()
            )

    def _fail_running(self, request: Request, errno: Errno) -> None:
        """Fail a work of which a chunk may still be queued."""
        if request.remaining:
            self._queue.remove(request)
        self._fail(request, errno)

    def _fail(self, request: Request, errno: Errno) -> None:
        request.finished = True
        request.file.unreserve()
        if self._predictions is not None:
            self._predictions.drop(request.file)
        self._lookaheads.revoke()
        self._changed = self._clock.now()
        if self._traces.runs:
            self._traces.ended(request, self._changed, errno)
        request.done(-errno)

    def _ended(self, step: Step) -> None:
        assert self._steps[0] is step, "steps end in the order in which they were launched"
        self._steps.pop(0)

    def _answered(self, step: Step, replies: dict[int, int], ended: float | None = None) -> None:
        self._changed = self._clock.now()
        now = self._changed if ended is None else ended
        # A step that was told of late may have ended before the one before it was told of: then
        # nobody knows how long it took.
        seconds = max(now - max(step.launched, self._completed), 0.0)
        self._completed = max(now, self._completed)
        self._waiting, self._victims = [], 1
        self._metrics.stepped(step, seconds)
        formed = step.adopted is None
        self._shares.ended(step.loads, seconds, formed, step.probe, self._changed)
        if seconds or ended is None:
            self._learn(step, seconds)
        self._anticipation.stepped(replies, now, seconds)

    def _learn(self, step: Step, seconds: float) -> None:
        load = StepLoad()
        for each in step.loads.values():
            load = load.plus(each)
        load.features[FORMED] = 1.0 if step.adopted is None else 0.0
        self._costs.learn(load, seconds)


def _comes_again(result: bytes | SyscallError) -> bool:
    return isinstance(result, SyscallError) and result.errno is Errno.EAGAIN
