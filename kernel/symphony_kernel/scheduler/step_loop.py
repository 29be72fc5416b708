"""The step loop: launches the scheduler's steps and returns their results to it.

    plan -> look -> scheduler.poll -> executor -> end -> scheduler.complete -> look
                    scheduler.form_lookahead -> executor  scheduler.adopt_lookahead

Everything is a plain callback of the event loop. No task, timeout object or wake-up lies between
the end of a step and the launch of the next one. The next step is launched before the replies
are sent, so that they are written while the device computes. Look-ahead steps go to the device
beforehand (`scheduler.lookahead`), so that it need not wait for the loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from symphony_kernel.executor.base import Batch, Executor, Results
from symphony_kernel.executor.device_queue import StepFuture
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.protocol.errno import KernelBug
from symphony_kernel.protocol.limits import DEVICE_PAUSE_MS_MAX
from symphony_kernel.scheduler.batcher import Step
from symphony_kernel.scheduler.prediction import LookAheadStep
from symphony_kernel.scheduler.scheduler import Scheduler

_log = logging.getLogger(__name__)
_PAUSE_SECONDS_MAX: Final = DEVICE_PAUSE_MS_MAX / 1000
_T = TypeVar("_T")


@dataclass(slots=True)
class DeviceStatistics:
    """Where the device's time went, in milliseconds.

    A pause is the time between two steps in which the device computed nothing. Pauses longer than
    DEVICE_PAUSE_MS_MAX mean that there was no work, and are not counted.
    """

    device_busy_ms: float = 0.0
    device_pauses: int = 0
    device_pause_ms: float = 0.0
    device_steps_ahead: int = 0  # look-ahead steps that were adopted
    device_steps_in_vain: int = 0  # look-ahead steps that were computed and not used


class StepLoop:
    """Keeps one executor busy.

    `flush` sends replies; `failed` takes faults of the kernel.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        kvfs: KVFS,
        executor: Executor,
        flush: Callable[[], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._scheduler = scheduler
        self._kvfs = kvfs
        self._executor = executor
        self._start = getattr(executor, "start", None) or self._start_task
        self._follows = bool(getattr(executor, "follows", False))
        self._following: deque[StepFuture[Results]] = deque()  # of look-ahead steps, in order
        self._tasks: set[asyncio.Task[Results]] = set()
        self._flush, self._failed = flush, failed
        self._computing = 0  # steps given to the executor
        self.running = False
        self._planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._when_idle: list[Callable[[], None]] = []
        self._quiet = 0  # actions of `when_quiet` that have started and not ended
        self._drained: asyncio.Event | None = None
        self._ended = 0.0  # when the last step ended on the device
        self.statistics = DeviceStatistics()

    # -- Control -------------------------------------------------------------------------------
    def run(self) -> None:
        self.running = True
        self.plan()

    @property
    def rests(self) -> bool:
        """Whether nothing computes and nothing is planned that would launch a step."""
        busy = self._computing or self._planned or self._quiet or self._when_idle
        return self.running and not busy and self._timer is None

    def halt(self) -> None:
        self.running = False
        self._cancel_timer()

    async def stop(self) -> None:
        self.halt()
        if self._computing:
            self._drained = asyncio.Event()
            await self._drained.wait()

    def plan(self) -> None:
        """Look for steps to launch in the loop's next turn: something has changed."""
        if not self._planned:
            self._planned = True
            asyncio.get_running_loop().call_soon(self.look)

    def when_idle(self, action: Callable[[], None]) -> None:
        """Call `action` when no step computes, before the next one is launched."""
        self._when_idle.append(action)
        self._scheduler.lookahead.revoke()

    def when_quiet(self, request: Callable[[], Awaitable[_T]]) -> "asyncio.Future[_T]":
        """Start `request` when no step computes and no copy is due; return its result.

        No step is launched until it has ended.
        """
        ended: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self.when_idle(partial(self._begin_quiet, request, ended))
        self.plan()
        return ended

    def _begin_quiet(
        self, request: Callable[[], Awaitable[_T]], ended: "asyncio.Future[_T]"
    ) -> None:
        if self._kvfs.transfers_pending:
            self._give_moves()
        if self._computing:
            self._when_idle.append(partial(self._begin_quiet, request, ended))
            return
        self._quiet += 1
        task = asyncio.ensure_future(request())
        task.add_done_callback(partial(self._end_quiet, ended))

    def _end_quiet(self, ended: "asyncio.Future[_T]", task: "asyncio.Future[_T]") -> None:
        self._quiet -= 1
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if not ended.done():
            if error is not None:
                ended.set_exception(error)
            else:
                ended.set_result(task.result())
        self.plan()

    # -- Launching -----------------------------------------------------------------------------
    def look(self) -> None:
        self._planned = False
        try:
            self._launch()
            self._flush()  # requests that could not be placed have been answered
        except Exception as error:  # the kernel's own fault
            self._failed(error)

    def _timer_fired(self) -> None:
        self._timer = None
        self.look()

    def _launch(self) -> bool:
        self._cancel_timer()
        self._scheduler.answer_predicted()
        launched = False
        while self.running and self._may_launch():
            polled = self._scheduler.poll()
            if isinstance(polled, Step):
                if self._kvfs.transfers_pending:
                    self._give_moves(polled.batch)
                self._give(polled.batch, polled)
                launched = True
            elif polled is None or polled.seconds:
                if self._kvfs.transfers.urgent and not self._computing:
                    self._give_moves()
                if polled is not None:
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(polled.seconds, self._timer_fired)
                break
        if self._follows and self.running and not (self._when_idle or self._quiet):
            self._give_lookahead()
        return launched

    def _give_lookahead(self) -> None:
        while (lookahead := self._scheduler.form_lookahead()) is not None:
            if self._kvfs.transfers_pending:
                self._give_moves(lookahead.batch)
            self._computing += 1
            outcome = self._start(lookahead.batch)
            self._following.append(outcome)
            outcome.then(partial(self._lookahead_ended, lookahead))

    def _may_launch(self) -> bool:
        if self._quiet:
            return False
        if not self._when_idle:
            return True
        if self._computing:
            return False  # the end of the last step calls this again
        actions, self._when_idle = self._when_idle, []
        for action in actions:
            action()
        return not (self._quiet or self._when_idle)

    def _give_moves(self, batch: Batch | None = None) -> None:
        """Give the executor the page copies due before the next rows, the last in `batch`."""
        transfers = self._kvfs.take_transfers()
        if transfers and batch is not None:
            last = transfers.pop()
            batch.copies, batch.poison = last.copies, last.poison
            batch.saves, batch.loads, batch.note = last.saves, last.loads, last.note
        for each in transfers:
            self._give(each, None)

    def _give(self, batch: Batch, step: Step | None) -> None:
        self._computing += 1
        self._start(batch).then(partial(self._computed, batch, step))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- Ends ----------------------------------------------------------------------------------
    def _computed(self, batch: Batch, step: Step | None, outcome: StepFuture[Results]) -> None:
        self._count(outcome)
        self._end(batch, step, outcome)

    def _lookahead_ended(self, lookahead: LookAheadStep, outcome: StepFuture[Results]) -> None:
        self._following.popleft()
        computed = outcome.error is None and lookahead.follow.tokens is not None
        try:
            self._scheduler.lookahead.step_ended(lookahead, outcome.value if computed else [])
        except Exception as error:  # the kernel's own fault
            self._failed(error)
            return
        if lookahead.follow.tokens is None:
            self._one_ended()
        else:
            self._count(outcome)
            self.statistics.device_steps_ahead += lookahead.step is not None
            self.statistics.device_steps_in_vain += lookahead.step is None
        self._end(lookahead.batch, lookahead.step, outcome)

    def _end(self, batch: Batch, step: Step | None, outcome: StepFuture[Results]) -> None:
        """Handle the end of a step, or of page copies alone."""
        try:
            if outcome.error is None:
                self._kvfs.finish_transfers(batch)
                if step is not None:
                    self._complete(step, outcome)
            else:  # the device's fault: rows and written files get EIO, and the kernel continues
                what = "page copies" if step is None else f"a step of {len(step.chunks)} rows"
                _check_fault(outcome.error, f"{what} failed")
                self._kvfs.fail_transfers(batch)
                if step is not None:
                    self._scheduler.fail(step)
            adopts = step is not None and self.running
            self._continue(adopted=adopts and self._scheduler.adopt_lookahead() is not None)
        except Exception as error:  # the kernel's own fault
            self._failed(error)

    def _complete(self, step: Step, outcome: StepFuture[Results]) -> None:
        results, ended = outcome.value, None
        step.began, step.ended = outcome.began, outcome.ended
        if step.adopted is not None:
            results, ended = [results[row] for row in step.adopted], outcome.ended
        self._scheduler.complete(step, results, ended)

    def _continue(self, adopted: bool) -> None:
        if adopted and self._following[0].done:
            return  # the adopted step has ended already: its own callback continues
        if self._launch() and not adopted:
            # The device's thread needs the interpreter to start the step: yield to it.
            self.plan()
        else:
            self._flush()

    def _one_ended(self) -> None:
        self._computing -= 1
        if not self._computing and self._drained is not None:
            self._drained.set()

    def _count(self, outcome: StepFuture[Results]) -> None:
        self._one_ended()
        counts = self.statistics
        counts.device_busy_ms += 1000 * (outcome.ended - outcome.began)
        pause = outcome.began - self._ended
        if pause < _PAUSE_SECONDS_MAX:
            counts.device_pauses += 1
            counts.device_pause_ms += 1000 * max(pause, 0.0)
        self._ended = outcome.ended

    def _start_task(self, batch: Batch) -> StepFuture[Results]:
        outcome: StepFuture[Results] = StepFuture()
        loop = asyncio.get_running_loop()
        outcome.began = loop.time()

        def ended(task: "asyncio.Task[Results]") -> None:
            self._tasks.discard(task)
            outcome.began = max(outcome.began, self._ended)  # steps do not overlap
            outcome.ended = loop.time()
            if task.cancelled():
                return
            error = task.exception()
            if error is None:
                outcome.set_result(task.result())
            else:
                outcome.set_exception(error)

        task = loop.create_task(self._executor.run(batch))
        self._tasks.add(task)
        task.add_done_callback(ended)
        return outcome


def _check_fault(error: BaseException, words: str) -> None:
    """Log a fault of the device; raise a fault of the kernel."""
    if isinstance(error, KernelBug) or not isinstance(error, Exception):
        raise error
    _log.error("%s", words, exc_info=error)
