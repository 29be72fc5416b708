"""The scheduler as the kernel sees it: requests in, steps out, results back.

    submit -> fair_queue (who may run) -> batcher (what runs now) -> Step -> complete -> done

The scheduler runs nothing and never blocks: `poll` returns the step to launch, or how long to
wait. All of it runs on the event loop's thread.
"""

from collections.abc import Sequence
from math import inf, isinf
from typing import Any, Final

from symphony_kernel.fairness.cpu_accounts import CpuAccounts
from symphony_kernel.fairness.device_shares import DeviceShares, StepBudget
from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.fairness.step_cost import FORMED, StepCost, StepLoad, total_load
from symphony_kernel.grammar.matcher import GrammarMatcher
from symphony_kernel.kvfs.tiers.eviction import Eviction
from symphony_kernel.platform.clock import Clock
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import PAGES_WAIT_MS_MAX
from symphony_kernel.request import Request
from symphony_kernel.scheduler.admission import Admission
from symphony_kernel.scheduler.anticipation import Anticipation
from symphony_kernel.scheduler.batcher import Batcher, Chunk, Step, StepLimits, add_result
from symphony_kernel.scheduler.lookahead import LookAhead
from symphony_kernel.scheduler.metrics import SchedulerMetrics
from symphony_kernel.scheduler.prediction import LookAheadStep, Prediction, Predictor
from symphony_kernel.scheduler.prefix_sharing import PrefixSharing
from symphony_kernel.scheduler.trace import Emit, Traces

_STEPS_AHEAD_MAX: Final = 2  # one computes, and a full one may wait behind it
_LARGE_RESULT_BYTES: Final = 16 << 10
_RESULT_BYTE_SECONDS: Final = 2.5e-9  # of the kernel's thread, to send one byte of a result
_MASKS_SECONDS: Final = 0.0005  # of bitmasks: less is charged later
_SOON_SECONDS: Final = 1e-6  # no timer is finer
_GRAMMARS_SECONDS: Final = 0.002  # until the next look at a grammar that is being compiled


class Wait:
    """Poll again after `seconds`: no step can be launched yet."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds  # 0.0: at once


class Scheduler:
    """Both levels of scheduling. `eviction` frees frames for requests in fair order."""

    def __init__(
        self,
        clock: Clock,
        vocab_size: int,
        eviction: Eviction,
        limits: StepLimits | None = None,
        traced: Emit | None = None,
        anticipation: Anticipation | None = None,
        predictor: Predictor | None = None,
        hidden_size: int = 0,
        sharing: PrefixSharing | None = None,
        launches_ahead: bool = False,
        windows: tuple[int | None, ...] = (),
    ) -> None:
        self._clock = clock
        self._vocab_size, self._hidden_size = vocab_size, hidden_size
        self._costs = StepCost(windows)
        self._queue = FairQueue(self._costs)
        self.tenant_weight = self._queue.tenant_weight
        self.set_tenant_weight = self._queue.set_tenant_weight
        self._traces = Traces(traced or (lambda _root, _events: None), clock.now)
        self._admission = Admission(self._queue, eviction, self._fail, self._traces)
        self._memory_queue = self._admission.memory_queue
        self.pages_arrived = self._admission.unblock
        self._batcher = Batcher(self._queue, self._admission, limits, self._costs, sharing)
        self._sharing = sharing
        self._anticipation = anticipation or Anticipation()
        limits = self._batcher.limits
        self._shares = DeviceShares(
            self._queue,
            self._costs,
            limits.rows,
            limits.tokens,
            limits.delivery_ms / 1000,
            self._busy_tenants,
        )
        self.cpu_accounts = CpuAccounts(self._queue, self._shares.present, limits.cpu)
        self._steps: list[Step] = []  # launched and not completed, in order
        self._victims = 1  # requests that fail next if no frame becomes free
        self._changed = clock.now()  # when pages may last have been freed
        self._completed = clock.now()  # when the last step completed
        self._predictor = predictor
        self._launches_ahead = launches_ahead
        self.lookahead = LookAhead(
            self._queue,
            self._admission,
            predictor,
            self._anticipation.answers_soon,
            launches_ahead,
        )
        # Requests whose results were computed before they came.
        self._precomputed: list[tuple[Request, Prediction]] = []
        self._metrics = SchedulerMetrics()
        self._arrived: float | None = None  # when the first request came since the last `poll`
        self._replies: dict[int, int] | None = None  # by run, while `complete` calls `done`

    # -- Requests ------------------------------------------------------------------------------
    def submit(self, request: Request) -> None:
        """Queue a request; `request.done` is called when it ends."""
        if self._traces.runs:
            self._traces.submitted(request, self._clock.now())
        prediction = self._claim(request) if self._predictor is not None else None
        if self._replies is None:
            if prediction is None and self.lookahead.steps and not self._is_ahead(request):
                self.lookahead.revoke()
            if self._arrived is None:
                self._arrived = self._clock.now()
            self._anticipation.request_arrived(request.root, self._arrived)
        else:  # it waited behind a pred that has just ended: the run owes no reply to that one
            self._replies[request.root] = self._replies.get(request.root, 0) - 1
        if request.root not in self._metrics.runs:
            self._metrics.submitted(request.root, self._arrived or self._clock.now())
        if prediction is not None:
            self._accept_predicted(request, prediction)
            return
        if self._steps and not request.shares:  # which may need fewer pages when it runs
            self._admission.reserve_ahead(request)
        self._queue.push(request)

    def cancel(self, request: Request) -> None:
        """End a request with ECANCELED. No effect once it has ended."""
        if request.recompute is not None:  # when the recompute ends, so does the request
            request = request.recompute
        if not request.finished:
            self._take_out(request)
            self._fail(request, Errno.ECANCELED)

    def drop_requests(self, root: int, instance: int | None = None) -> None:
        """Drop all requests of an instance, or of a whole run, which has ended.

        Their `done` is not called.
        """
        gone = self._admission.drop_requests(root, instance)
        if self._predictor is not None:
            self._predictor.drop_requests(root, instance)
        gone += [
            w for w, _ in self._precomputed if w.root == root and instance in (None, w.instance)
        ]
        gone += self._queue.drop_requests(root, instance)
        if instance is None:
            self._anticipation.forget_run(root)
            self._metrics.forget_run(root)
            self._traces.close(root, self._clock.now())
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
        self.lookahead.revoke()
        self._changed = self._clock.now()

    def trace_run(self, root: int) -> None:
        """Emit trace events for a run until it ends."""
        self._traces.open(root, self._clock.now())

    def trace_fork(self, root: int, file: int, source: int, length: int) -> None:
        """Record that a traced run has forked a file, by the numbers of both."""
        self._traces.forked(root, file, source, length)

    def trace_held(self, request: Request, since: float) -> None:
        """Record that a rate limit has held a pred back until it was submitted."""
        self._traces.held(request, since)

    def charge_run(self, root: int, tenant: str, weight: float, tokens: float) -> None:
        """Charge a run for device time outside its requests, as for so many tokens."""
        seconds = tokens * self._costs.service_seconds
        self._queue.charge_run(root, tenant, weight, seconds)
        self._queue.charge_tenant(tenant, seconds)

    @property
    def idle(self) -> bool:
        """Whether no request waits and no step is in flight."""
        return not (self._steps or self._queue.requests or self._memory_queue or self._precomputed)

    # -- For `maintenance.watchdog` ------------------------------------------------------------
    @property
    def owing(self) -> bool:
        """Whether requests wait for nothing but a step."""
        if self._admission.disk_busy:
            return False
        return not self.idle or bool(self._admission.blocked)

    @property
    def progress(self) -> int:
        """A number that grows with each step and each ended pred."""
        counts = self._metrics
        return counts.steps + counts.preds + counts.starved

    def describe(self) -> str:
        """Return in words what is known about waiting requests."""
        queue = self._queue
        steps = [
            f"{len(s.chunks)} rows, {[p.request.describe() for p in s.chunks[:4]]}, "
            f"adopted {s.adopted}"
            for s in self._steps
        ]
        return (
            f"steps {steps}; {queue.requests} requests queued ({queue.decodes} decodes, "
            f"{queue.tokens} tokens), first {(first := queue.first()) and first.describe()}; "
            f"{len(self._memory_queue)} in the memory queue, {len(self._admission.blocked)} "
            f"blocked, {len(self._precomputed)} precomputed; "
            f"{len(self.lookahead)} look-ahead steps"
        )

    def mend(self) -> None:
        """Drop the steps in flight, which no device computes, and retry blocked requests."""
        self.lookahead.forget()
        phantoms, self._steps = self._steps, []
        for step in phantoms:
            if self._sharing is not None:
                self._sharing.ended(step.shared)
            for chunk in step.chunks:
                if not chunk.request.finished:
                    self._fail_running(chunk.request, Errno.EIO)
        self._admission.unblock()

    def give_up(self) -> int:
        """End all requests with EIO; return their number."""
        self.mend()
        gone = [*self._queue.all_requests(), *self._memory_queue]
        for request in gone:
            self._take_out(request)
            self._fail(request, Errno.EIO)
        return len(gone)

    def token_seconds(self) -> float:
        """Return the measured seconds of a prompt token; 0.0: not known yet."""
        return self._costs.token_seconds

    # -- Steps ---------------------------------------------------------------------------------
    def poll(self) -> Step | Wait | None:
        """Return the step to launch now, or how long to wait.

        None: nothing to launch until a request comes or a step completes.
        """
        self._arrived = None
        if not (self._queue.requests or self._memory_queue):
            return None
        if len(self._steps) >= _STEPS_AHEAD_MAX:
            return None
        now = self._clock.now()
        if self._steps:
            ahead = not self.lookahead and self._may_run_ahead(now)
            return self._form(now) if ahead else None
        if not self._queue.requests:
            return self._form(now)
        # Prompts leave tokens for decodes that are about to come: only rows can run out.
        rows = self._batcher.limits.rows
        if self._queue.requests < rows or self._anticipation.any_expected(self._queue.precedes):
            seconds = self._anticipation.wait_seconds(now, self._queue)
            if seconds > _SOON_SECONDS:
                return Wait(seconds)
        return self._form(now)

    def form_lookahead(self) -> LookAheadStep | None:
        if len(self._steps) != 1 or self._memory_queue:
            return None
        step, ahead = self._steps[0], self.lookahead
        if self._may_follow(step, 1 + len(ahead)):
            return ahead.form(step)
        mixed = self._launches_ahead and not len(ahead) and self._queue.requests
        return self._form_mixed(step) if mixed and not self._queue.several else None

    def adopt_lookahead(self) -> Step | None:
        """Return the look-ahead step that the device started when the last step ended."""
        step = self.lookahead.adopt()
        if step is not None:
            if not step.own:
                self._steps.append(step)
            self._note_launched(step, step.chunks[step.own :], self._clock.now())
        if step is None or not self._may_follow(step, 1):
            self.lookahead.revoke()
        return step

    def answer_predicted(self) -> None:
        while self._precomputed:
            precomputed, self._precomputed = self._precomputed, []
            now = self._clock.now()
            self._metrics.completing(now)
            for request, prediction in precomputed:
                if not request.finished:
                    self._answer_prediction(request, prediction, now)

    def complete(
        self,
        step: Step,
        results: Sequence[bytes | SyscallError],
        ended: float | None = None,
    ) -> None:
        """Take the results of the oldest step, in the order of its rows.

        `ended` is when it ended, in the clock's seconds, if the loop learned of it late.
        """
        self._ended(step)
        now = self._clock.now() if ended is None else ended
        self._metrics.completing(now)
        if self._traces.runs:
            results = self._traces.stepped(step, results, now)
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
            if chunk.count > 1 and request.shares and self._sharing is not None:
                self._sharing.offer(request)
            whole = result
            if chunk.count != request.count:
                whole = add_result(chunk, result, self._vocab_size, self._hidden_size)
            if request.computed == request.count:
                self._finish(request, whole)
                if request.recomputes:
                    continue
                replies[request.root] = replies.get(request.root, 0) + 1
        self._replies = None
        self._answered(step, replies, ended)

    def fail(self, step: Step) -> None:
        """End the requests of the oldest step with EIO: the executor could not compute it."""
        self._ended(step)
        for chunk in step.chunks:
            if not chunk.request.finished:
                self._fail_running(chunk.request, Errno.EIO)
        self._answered(step, {})

    def statistics(self) -> dict[str, Any]:
        """Return what waits and counters since the start, by their names in the metrics."""
        counts, queue, predictor = self._metrics, self._queue, self._predictor
        computing = {chunk.request.root for step in self._steps for chunk in step.chunks}
        return {
            "waiting": queue.requests,
            "waiting_tokens": queue.tokens,
            "lips_waiting": queue.runs_active,
            "lips_running": len(computing),
            "waiting_for_pages": len(self._memory_queue),
            "steps": counts.steps,
            "rows": counts.rows,
            "decode_rows": counts.decode_rows,
            "decode_steps": counts.decode_steps,
            "mean_batch_rows": counts.rows / counts.steps if counts.steps else 0.0,
            "mean_decode_rows": (
                counts.decode_rows / counts.decode_steps if counts.decode_steps else 0.0
            ),
            "tokens_computed": counts.prefill_tokens + counts.decode_rows,
            "prefill_tokens": counts.prefill_tokens,
            "decode_tokens": counts.decode_rows,
            "preds": counts.preds,
            "preds_starved": counts.starved,
            "preemptions": self._admission.preemptions,
            "rebuilt_tokens": self._admission.recomputed_tokens,
            "preds_guessed": predictor.hits if predictor is not None else 0,
            "preds_guessed_in_vain": predictor.misses if predictor is not None else 0,
            "step_ms": 1000 * counts.step_seconds,
        }

    def waiting(self) -> dict[str, Any]:
        """Return waiting tokens by tenant, {name: [tokens, weight]}, and the work so far.

        `tokens` were computed in `seconds` of steps since the start. Looks at each waiting request.
        """
        tenants: dict[str, list[float]] = {}
        for request in [*self._queue.all_requests(), *self._memory_queue]:
            weight = self._queue.tenant_weight(request.tenant)
            tenants.setdefault(request.tenant, [0, weight])[0] += request.remaining
        counts = self._metrics
        computed = counts.prefill_tokens + counts.decode_rows
        return {"tenants": tenants, "tokens": computed, "seconds": counts.step_seconds}

    def histograms(self) -> dict[str, dict[str, Any]]:
        return {name: each.view() for name, each in self._metrics.histograms.items()}

    # -- Internal ------------------------------------------------------------------------------
    def _claim(self, request: Request) -> Prediction | None:
        """Return the prediction that computes a new pred, if its result can be used."""
        assert self._predictor is not None
        prediction = self._predictor.claim(request)
        if prediction is None:
            return None
        others_wait = self._memory_queue or self._replies is not None
        admitted = not others_wait and self._admission.readmit(request)
        return prediction if self._predictor.settle(prediction, admitted=admitted) else None

    def _accept_predicted(self, request: Request, prediction: Prediction) -> None:
        if prediction.result is None:
            self.lookahead.add_claimed(prediction, request)
            return
        self._queue.serve_new(request)
        self._precomputed.append((request, prediction))

    def _charge_masks(self, request: Request, matcher: GrammarMatcher) -> None:
        spent = matcher.spent
        if spent < _MASKS_SECONDS or not self._queue.has_run(request.root):
            return
        matcher.spent = 0.0
        self._queue.charge_run(request.root, request.tenant, request.weight, spent)

    def _put_back(self, chunk: Chunk, matcher: GrammarMatcher) -> None:
        """Queue a row again whose bitmask was not ready in time."""
        matcher.retry()
        chunk.request.computed -= chunk.count
        chunk.request.placed -= chunk.count
        self._queue.put_back(chunk.request)

    def _answer_prediction(self, request: Request, prediction: Prediction, now: float) -> None:
        assert prediction.lookahead is not None
        assert prediction.lookahead.step is not None
        result = prediction.result
        if self._traces.runs and isinstance(result, bytes):
            result = self._traces.predicted(request, prediction.lookahead.step, result, now)
        request.computed = 1
        self._metrics.predicted(request)
        self._anticipation.replied(request.root, now)
        errno = result.errno if isinstance(result, SyscallError) else request.file.error
        if errno is not None:
            self._fail(request, errno)
        else:
            assert isinstance(result, bytes)
            self._finish(request, result)

    def _may_run_ahead(self, now: float) -> bool:
        """Whether a full step may be queued behind one that computes.

        No request that comes meanwhile may have a better claim than the step's. Otherwise a stream
        next to a run with a thousand branches would be in every second step only, and a wait behind
        two steps of prompts would break the bound on the time between tokens.
        """
        limits, ready = self._batcher.limits, self._queue.requests
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
        """Whether steps must be short, because prompts wait while other runs decode."""
        queue = self._queue
        if queue.requests == queue.decodes or isinf(self._batcher.limits.decode_gap_ms):
            return False
        if any(step.decodes for step in self._steps):
            return True
        if queue.runs_active > 1:
            return queue.decodes > 0 or self._anticipation.any_decoding(now)
        first = queue.first()
        return first is not None and self._anticipation.any_decoding(now, besides=first.root)

    def _busy_tenants(self) -> set[str]:
        computing = {name for step in self._steps for name in step.loads}
        computing.update(self._memory_queue.tenants)
        return computing

    def _take_out(self, request: Request) -> None:
        if not self._queue.remove(request):
            self._admission.remove(request)

    def _form(self, now: float) -> Step | Wait | None:
        formed = self._batcher.form(*self._step_space(now))
        if formed.step is None and self._memory_queue and not (self._steps or formed.failed):
            formed = self._batcher.form(*self._step_space(now), without_frames=True)
        for request, errno in formed.failed:
            self._fail(request, errno)
        step = formed.step
        if step is not None:
            step.launched = now
            self._launched(step, now)
            return step
        if formed.failed:
            return Wait(0.0)  # their ends may have let others run
        if formed.unready and not self._steps:
            return Wait(_GRAMMARS_SECONDS)
        if not self._memory_queue or self._steps or self._admission.disk_busy:
            return None
        return self._wait_for_pages(now)

    def _form_mixed(self, before: Step) -> LookAheadStep | None:
        """Form the step behind a computing one of generations and of queued requests.

        Only if all requests have room in it: else generations would keep theirs until they end.
        """
        continuing = self.lookahead.continuing_generations(before)
        if continuing is None:
            return None
        following, now = len(continuing), self._clock.now()
        if following + self._queue.requests > self._batcher.limits.rows:
            return None
        prefill, budget, gap = self._step_space(now, following)
        if budget is not None:
            return None
        formed = self._batcher.form(prefill, None, gap, following=following)
        for request, errno in formed.failed:
            self._fail(request, errno)
        step = formed.step
        if step is None:
            return None
        step.launched = now
        self._steps.append(step)
        self._note_launched(step, step.chunks, now)
        return self.lookahead.join(before, continuing, step)

    def _launched(self, step: Step, now: float) -> None:
        self._steps.append(step)
        self._note_launched(step, step.chunks, now)

    def _note_launched(self, step: Step, chunks: list[Chunk], now: float) -> None:
        """Record the loads of a step's chunks, before their requests are renewed."""
        loads, stepwise = step.loads, set[str]()
        for chunk in chunks:
            request = chunk.request
            load = loads.get(request.tenant)
            if load is None:
                load = loads[request.tenant] = StepLoad()
            load.add(request, chunk.start, chunk.count, self._costs.reach)
            step.decodes += request.count == 1
            if chunk.count > 1 or request.continuation is None:
                load.features[FORMED] = 1.0
                if request.count == 1:
                    stepwise.add(request.tenant)
        for tenant, entry in step.predicted:
            if tenant not in loads:
                loads[tenant] = StepLoad()
            loads[tenant].add_entry(entry, self._costs.reach)
            stepwise.add(tenant)
        self._shares.launched(loads, stepwise, now)

    def _may_follow(self, step: Step, more: int) -> bool:
        """Whether the device may compute so many more steps of the same rows."""
        if not self._queue.requests:
            several = self._queue.several
            return not several or self._shares.may_follow(step.loads, self._clock.now())
        if self._memory_queue or not self._queue.several:
            return False
        return self._queue.least_counter > self._shares.reached(step.loads, more)

    def _is_ahead(self, request: Request) -> bool:
        """Whether a new request must wait for one more step of the newest step's tenants."""
        queue, tenant = self._queue, request.tenant
        if not (self._steps and queue.several and tenant in queue.present):
            return False
        loads = self._steps[-1].loads
        return tenant not in loads and queue.counter(tenant) > self._shares.reached(loads, 1)

    def _step_space(self, now: float, following: int = 0) -> tuple[int, StepBudget | None, float]:
        """Return the prompt tokens, the tenants' budget and the seconds of the next step.

        The tokens fit next to the decodes, and to `following` rows. The seconds are for a step with
        prompts, as `decode_gap_ms` allows.
        """
        limits, budget = self._batcher.limits, self._shares.plan(now)
        bounded = self._prompts_are_bounded(now)
        gap = limits.decode_gap_ms / 1000 if bounded else inf
        if budget is not None:
            return limits.tokens, budget, gap
        decodes = min(self._queue.decodes + following, limits.rows - 1, limits.tokens // 2)
        room = limits.tokens - decodes
        if bounded:
            room = min(room, self._costs.prompt_tokens(decodes, gap))
        return room, None, gap

    def _wait_for_pages(self, now: float) -> Wait:
        """Wait for a program to free frames; after PAGES_WAIT_MS_MAX fail a request.

        It is the request with the worst claim, so that the others can run. When that frees nothing,
        twice as many fail, so that thousands of them do not delay the last one for long.
        """
        left = self._changed + PAGES_WAIT_MS_MAX / 1000 - now
        if left > _SOON_SECONDS:
            return Wait(left)
        claims = self._queue.counters
        victims = sorted(self._memory_queue, key=lambda request: claims(request.root), reverse=True)
        for victim in victims[: self._victims]:
            self._take_out(victim)
            self._metrics.starved += 1
            self._fail(victim, Errno.ENOMEM)
        self._victims *= 2
        return Wait(PAGES_WAIT_MS_MAX / 1000)

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
        if self._predictor is not None:
            self._predictor.expect_next(request, result)
        request.done(result)
        if len(result) >= _LARGE_RESULT_BYTES:  # the loop sends them while the next step computes
            seconds = _RESULT_BYTE_SECONDS * len(result)
            self.cpu_accounts.charge_calls(
                request.root, request.tenant, request.weight, seconds, self._clock.now()
            )

    def _fail_running(self, request: Request, errno: Errno) -> None:
        """Fail a request of which a chunk may still be queued."""
        if request.remaining:
            self._queue.remove(request)
        self._fail(request, errno)

    def _fail(self, request: Request, errno: Errno) -> None:
        request.finished = True
        request.file.unreserve()
        if self._predictor is not None:
            self._predictor.drop_file(request.file)
        self.lookahead.revoke()
        self._changed = self._clock.now()
        if self._traces.runs:
            self._traces.ended(request, self._changed, errno)
        request.done(-errno)

    def _ended(self, step: Step) -> None:
        assert self._steps[0] is step, "steps end in the order in which they were launched"
        self._steps.pop(0)
        if step.shared and self._sharing is not None:
            self._sharing.ended(step.shared)

    def _answered(self, step: Step, replies: dict[int, int], ended: float | None = None) -> None:
        self._changed = self._clock.now()
        now = self._changed if ended is None else ended
        # The loop may learn of a step's end late, after it learned of the step before. Then the
        # step's time is unknown.
        seconds = max(now - max(step.launched, self._completed), 0.0)
        self._completed = max(now, self._completed)
        self._victims = 1
        self._metrics.stepped(step, seconds)
        formed = step.adopted is None
        self._shares.ended(step.loads, seconds, formed, step.probe, self._changed)
        if seconds or ended is None:
            load = total_load(step.loads.values())
            load.features[FORMED] = float(formed)
            self._costs.learn(load, seconds)
        self._anticipation.step_ended(replies, now, seconds)


def _comes_again(result: bytes | SyscallError) -> bool:
    return isinstance(result, SyscallError) and result.errno is Errno.EAGAIN
