"""Tokens a minute: a tenant over its rate is slowed down, its LIPs in turn, and no other."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from symphony_kernel.fairness.rate_limit import RateLimiter
from symphony_kernel.kvfs.quotas import UNLIMITED
from symphony_kernel.platform.clock import VirtualClock
from symphony_kernel.protocol.errno import Errno

from tests.support.kernel.crashes import CrashingKernelRig, with_crashing_kernel
from tests.support.kernel.rig import A, start, tokens
from tests.support.refusals import raises_errno
from tests.support.run_by import run_by
from tests.support.worker.guests import DECODE
from tests.support.worker.rig import TENANT, WorkerRig

RATE = 60  # tokens a minute: one a second


class File:
    """Counts what is given back."""

    def __init__(self) -> None:
        self.unreserved = 0

    def unreserve(self) -> None:
        self.unreserved += 1


class Pred:
    """As much of a request as the rate limiter looks at."""

    def __init__(self, name: str, root: int, count: int = 1, tenant: str = "acme") -> None:
        self.name, self.root, self.count, self.tenant = name, root, count, tenant
        self.instance, self.file, self.finished = root, File(), False
        self.ended: list[Any] = []

    def done(self, result: Any) -> None:
        self.ended.append(result)


class Queue:
    """A scheduler that notes what comes."""

    def __init__(self) -> None:
        self.came: list[str] = []
        self.waited: list[tuple[str, float]] = []  # held requests, with the times of their calls
        self.cancelled: list[str] = []
        self.forgotten: list[tuple[int, int | None]] = []

    def submit(self, request: Any) -> None:
        self.came.append(request.name)

    def cancel(self, request: Any) -> None:
        self.cancelled.append(request.name)

    def drop_requests(self, root: int, instance: int | None = None) -> None:
        self.forgotten.append((root, instance))

    def charge_run(self, root: int, tenant: str, weight: float, cost: float) -> None: ...

    def trace_run(self, root: int) -> None: ...

    def trace_fork(self, root: int, file: int, source: int, length: int) -> None: ...

    def trace_held(self, request: Any, since: float) -> None:
        self.waited.append((request.name, since))


class Stage:
    """A throttle before a queue, in virtual time."""

    def __init__(self, clock: VirtualClock) -> None:
        self.queue, self.reached, self.woken = Queue(), [], 0
        self.rate_limiter: Any = RateLimiter(self.queue, clock.now, self.reached.append, self._wake)

    reached: list[str]

    def _wake(self) -> None:
        self.woken += 1

    def submit(self, *requests: Pred) -> None:
        for request in requests:
            self.rate_limiter.submit(request)


def with_stage(test: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
    """Run a test in virtual time with a rate for the tenant "acme"."""
    clock = VirtualClock()

    async def main() -> None:
        stage = Stage(clock)
        stage.rate_limiter.set_rate("acme", RATE)
        await test(stage)

    clock.run(main())


def test_tenant_without_a_rate_calls_the_scheduler_directly() -> None:
    stage = Stage(VirtualClock())
    assert stage.rate_limiter.submit == stage.queue.submit
    stage.rate_limiter.set_rate("acme", RATE)
    assert stage.rate_limiter.submit != stage.queue.submit
    assert stage.rate_limiter.tokens_left("acme") == [RATE, 0]
    assert stage.rate_limiter.tokens_left("others") is None
    stage.rate_limiter.set_rate("acme", UNLIMITED)
    assert stage.rate_limiter.submit == stage.queue.submit


@run_by(with_stage)
async def test_preds_over_the_rate_wait_and_lips_alternate(stage: Stage) -> None:
    stage.submit(Pred("large", 1, count=RATE + 2))
    assert stage.rate_limiter.tokens_left("acme") == [0, 3_000]
    stage.submit(*(Pred(f"a{i}", 1) for i in range(3)), Pred("b0", 2))
    stage.submit(Pred("other", 3, tenant="others"))
    assert stage.rate_limiter.tokens_left("acme") == [0, 7_000]
    assert stage.queue.came == ["large", "other"]
    assert stage.reached == ["acme"]
    await asyncio.sleep(3.01)
    assert stage.queue.came[2:] == ["a0"]
    await asyncio.sleep(3)
    assert stage.queue.came[2:] == ["a0", "b0", "a1", "a2"]
    assert [name for name, _ in stage.queue.waited] == ["a0", "b0", "a1", "a2"]
    assert len({since for _, since in stage.queue.waited}) == 1, "all were held at once"
    assert stage.woken > 0
    # Unused tokens may be taken at once, a minute's worth at most.
    await asyncio.sleep(600)
    assert stage.rate_limiter.tokens_left("acme") == [RATE, 0]


@run_by(with_stage)
async def test_refunded_tokens_release_held_preds_before_their_time(stage: Stage) -> None:
    stage.submit(Pred("large", 1, count=2 * RATE), Pred("held", 2, count=5), Pred("last", 2))
    stage.rate_limiter.refund("acme", RATE + 3)
    stage.rate_limiter.refund("others", RATE)  # it has no rate
    assert stage.queue.came == ["large"]  # a step may be forming
    await asyncio.sleep(0.01)
    assert stage.queue.came == ["large", "held"]
    assert stage.rate_limiter.tokens_left("acme") == [0, 3_990]
    stage.rate_limiter.refund("acme", 10 * RATE)
    await asyncio.sleep(0.01)
    assert stage.queue.came == ["large", "held", "last"]
    assert stage.rate_limiter.tokens_left("acme") == [RATE - 1, 0]


@run_by(with_stage)
async def test_held_runs_are_those_whose_preds_wait(stage: Stage) -> None:
    assert stage.rate_limiter.held_runs("acme") == []
    stage.submit(Pred("large", 1, count=RATE), Pred("a", 1), Pred("b", 2), Pred("b", 2))
    assert stage.rate_limiter.held_runs("acme") == [1, 2]
    assert stage.rate_limiter.held_runs("others") == []
    await asyncio.sleep(600)
    assert stage.rate_limiter.held_runs("acme") == []


@run_by(with_stage)
async def test_held_pred_can_be_cancelled_and_dropped(stage: Stage) -> None:
    stage.submit(Pred("large", 1, count=RATE))
    gone, lost, kept = Pred("gone", 1), Pred("lost", 2), Pred("kept", 3)
    stage.submit(gone, lost, kept)
    stage.rate_limiter.cancel(gone)
    assert (gone.ended, gone.finished) == ([-Errno.ECANCELED], True)
    stage.rate_limiter.drop_requests(2)
    assert (lost.ended, lost.finished, lost.file.unreserved) == ([], True, 1)
    assert stage.queue.forgotten == [(2, None)]
    await asyncio.sleep(30)
    assert stage.queue.came == ["large", "kept"]
    stage.rate_limiter.cancel(kept)
    assert stage.queue.cancelled == ["kept"]


class Counted(Pred):
    """Counts how often its number of tokens is read."""

    asked = 0

    @property
    def count(self) -> int:
        Counted.asked += 1
        return 2

    @count.setter
    def count(self, _: int) -> None: ...


@run_by(with_stage)
async def test_tokens_left_does_not_scan_held_preds(stage: Stage) -> None:
    # Each request of an OpenAI route asks it, and a tenant may hold a hundred thousand preds.
    stage.submit(Pred("large", 1, count=RATE))
    held = [Counted(f"held{i}", i % 3) for i in range(30)]
    stage.submit(*held)
    asked = Counted.asked
    assert stage.rate_limiter.tokens_left("acme") == [0, 61_000]
    assert Counted.asked == asked
    stage.rate_limiter.cancel(held[0])
    stage.rate_limiter.drop_requests(1)
    assert stage.rate_limiter.tokens_left("acme") == [0, 39_000]
    await asyncio.sleep(3600)
    assert len(stage.queue.came) == 1 + 19
    assert stage.rate_limiter.tokens_left("acme") == [RATE, 0]


@run_by(with_stage)
async def test_changed_rate_applies_at_once(stage: Stage) -> None:
    stage.submit(Pred("large", 1, count=10 * RATE), Pred("held", 1), Pred("more", 1))
    stage.rate_limiter.set_rate("acme", 60 * RATE)
    await asyncio.sleep(10)
    assert stage.queue.came == ["large", "held", "more"]
    stage.submit(Pred("much", 1, count=100 * RATE), Pred("last", 1))
    stage.rate_limiter.set_rate("acme", UNLIMITED)
    assert stage.queue.came[3:] == ["much", "last"]
    stage.rate_limiter.close()


def test_program_over_its_rate_is_slowed_to_the_rate() -> None:
    clock = VirtualClock()

    async def continuation() -> None:
        async with WorkerRig(clock=clock) as rig:
            await rig.gateway.ask("limit_tenant", tenant=TENANT, limits={"tokens_per_minute": RATE})
            began = clock.now()
            for _ in range(2):
                assert (await rig.run(DECODE, bytes([RATE]), seconds=1_000)).status == "exited"
            assert 60 <= clock.now() - began < 62
            assert await rig.gateway.ask("tokens_left", tenant=TENANT) == [0, 1_000]
            found = (await rig.gateway.ask("metrics"))["tenants"][TENANT]
            assert found["hit:tokens_per_minute"] >= 1
            await rig.gateway.ask("limit_tenant", tenant=TENANT, limits={"tokens_per_minute": None})
            assert await rig.gateway.ask("tokens_left", tenant=TENANT) is None

    clock.run(continuation())


@run_by(with_crashing_kernel, "tmp_path")
async def test_recovered_kernel_keeps_limits_and_held_preds(rig: CrashingKernelRig) -> None:
    own = {"tokens_per_minute": RATE, "kv_names": 7}
    await rig.gateway.ask("limit_tenant", tenant="t", limits=own)
    await start(rig, 1, tenant="t")
    await rig.worker.pred(1, A, tokens(*range(1, RATE + 1)))
    held = rig.worker.pred(1, A, tokens(1))
    await asyncio.sleep(0.1)
    assert not held.done()
    rig.die_and_boot()
    assert isinstance(await asyncio.wait_for(held, 90), bytes)
    assert rig.kernel._kvfs.tenant("t").limits.names == 7
    left = (await rig.gateway.ask("tokens_left", tenant="t")).value
    assert left is not None
    assert left[0] < RATE


@pytest.mark.parametrize(
    "limits", [[], {"live_runs": 1}, {"kv_names": -1}, {"kv_names": "x"}, {"kv_names": True}]
)
async def test_invalid_tenant_limit_is_refused(limits: Any) -> None:
    async with WorkerRig() as rig:
        with raises_errno(Errno.EINVAL):
            await rig.gateway.ask("limit_tenant", tenant=TENANT, limits=limits)
