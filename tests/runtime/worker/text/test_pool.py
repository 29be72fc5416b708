"""The text pool: whose slice is next, what an end takes out of it, and what it may hold."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from symphony_kernel.protocol.errno import Errno, LimitError
from symphony_kernel.protocol.limits import TOKENIZE_BYTES_MAX
from symphony_runtime.worker.fairness.run_queue import RunQueue
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.text.pool import LARGE_PIECE_CHARS, SLICE_NS, TextPool
from symphony_runtime.worker.text.tokenizer import Pieces

from tests.support.executor.byte_model import byte_assets
from tests.support.waiting import spin, wait_until
from tests.support.worker.guests import call, forever, main
from tests.support.worker.instances import new_instance
from tests.support.worker.rig import WorkerRig

SLICES = 1e9 / SLICE_NS  # in a second
MIB = 1 << 20


class CountingTextPool:
    """A pool with threads; `order`: whose texts were done, `spent`: what was charged."""

    def __init__(self, threads: int = 2) -> None:
        self.turns = RunQueue()
        self.pool = TextPool(asyncio.get_running_loop(), self._charge, threads)
        self.order: list[str] = []
        self.spent: dict[str, int] = {}
        self.memory_bytes: int | None = None  # of each tenant
        self._next = 0

    def _charge(self, instance: Instance, spent_ns: int) -> None:
        tenant = instance.run.share.tenant
        self.spent[tenant] = self.spent.get(tenant, 0) + spent_ns

    def instance(self, tenant: str) -> Instance:
        self._next += 1
        limits = {} if self.memory_bytes is None else {"memory_total_bytes": self.memory_bytes}
        return new_instance(self.turns, tenant, self._next, limits)

    def submit(self, tenant: str, pieces: Pieces, size: int = MIB, label: str = "") -> Instance:
        instance = self.instance(tenant)
        self.pool.submit(instance, pieces, size, lambda _: self.order.append(label or tenant))
        return instance

    async def idle(self, seconds: float = 30) -> None:
        await wait_until(lambda: not len(self.pool), seconds)


@asynccontextmanager
async def pool_of_texts() -> AsyncIterator[CountingTextPool]:
    texts = CountingTextPool()
    try:
        yield texts
    finally:
        texts.pool.close()


@pytest.fixture
def texts() -> AbstractAsyncContextManager[CountingTextPool]:
    return pool_of_texts()


def work(slices: int, each: float = 1.5 / SLICES) -> Pieces:
    for _ in range(slices):
        spin(each)
        yield 1
    return b"done"


async def test_pool_short_text_beside_a_flood_waits_for_a_slice(texts: CountingTextPool) -> None:
    for _ in range(64):
        texts.submit("flood", work(10))
    await asyncio.sleep(5 / SLICES)
    texts.submit("victim", work(1), size=5_000)
    await wait_until(lambda: "victim" in texts.order)
    flood = texts.spent["flood"]
    # A slice of the flood in each thread before it, one after, and those of the first wait.
    assert flood < 30 * SLICE_NS, flood
    assert texts.order.count("flood") <= 3


async def test_pool_tenants_with_texts_have_the_same_time(texts: CountingTextPool) -> None:
    for _ in range(12):
        texts.submit("many", work(20))
    texts.submit("one", work(20))
    await wait_until(lambda: "one" in texts.order)
    apart = abs(texts.spent["many"] - texts.spent["one"])
    assert apart < 8 * SLICE_NS, texts.spent


async def test_pool_ended_instance_is_dropped_within_a_slice(texts: CountingTextPool) -> None:
    began: list[int] = []

    def text(number: int) -> Pieces:
        began.append(number)
        yield from work(1_000)
        return b""

    instances = [texts.submit("flood", text(number)) for number in range(64)]
    await asyncio.sleep(3 / SLICES)
    held = instances[0].run.share.memory.held
    assert held == 64 * MIB
    for instance in instances:
        texts.pool.cancel(instance)
    assert len(texts.pool) == 0
    assert instances[0].run.share.memory.held == 0
    await asyncio.sleep(10 / SLICES)
    spent = texts.spent["flood"]
    await asyncio.sleep(10 / SLICES)
    assert texts.spent["flood"] == spent, "nothing goes on"
    assert len(began) <= 2, "texts of one tenant are worked on one after the other"
    assert texts.order == []


async def test_pool_tenants_shorter_text_goes_first(texts: CountingTextPool) -> None:
    for number in range(4):
        texts.submit("tenant", work(4), label=f"long {number}")
    texts.submit("tenant", work(1), size=100, label="short")
    await texts.idle()
    assert texts.order[0] == "short"


async def test_pool_large_pieces_leave_a_thread_to_others(texts: CountingTextPool) -> None:
    gate, inside = threading.Event(), threading.Semaphore(0)

    def large() -> Pieces:
        yield LARGE_PIECE_CHARS + 1
        inside.release()
        gate.wait(30)
        yield 0
        return b""

    for tenant in ("a", "b", "c"):
        texts.submit(tenant, large())
    await asyncio.to_thread(inside.acquire)
    try:
        for _ in range(5):
            texts.submit("victim", work(1), size=5_000)
        await wait_until(lambda: texts.order.count("victim") == 5)
        assert not inside.acquire(blocking=False), "one at a time"
    finally:
        gate.set()
    await texts.idle()
    assert sorted(texts.order) == ["a", "b", "c", *["victim"] * 5]


async def test_pool_resting_tenant_has_no_slice(texts: CountingTextPool) -> None:
    texts.instance("other")
    texts.instance("rests")
    share = texts.turns.throttle("rests")
    assert share is not None
    texts.submit("rests", work(1))
    texts.submit("other", work(1))
    await asyncio.sleep(10 / SLICES)
    assert texts.order == ["other"]
    texts.turns.unthrottle(share)
    texts.pool.serve()
    await texts.idle()
    assert texts.order == ["other", "rests"]


async def test_pool_texts_count_as_the_tenants_memory(texts: CountingTextPool) -> None:
    texts.memory_bytes = 3 * MIB
    for _ in range(3):
        texts.submit("tenant", work(2))
    with pytest.raises(LimitError) as caught:
        texts.submit("tenant", work(2))
    assert (caught.value.errno, caught.value.limit) == (Errno.ENOMEM, "memory_total_bytes")
    texts.submit("other", work(2))
    await texts.idle()
    assert texts.turns.share_of("tenant").memory.held == 0
    texts.submit("tenant", work(1))
    await texts.idle()


async def test_pool_failed_text_tells_its_error(texts: CountingTextPool) -> None:
    def text() -> Pieces:
        yield 0
        raise ValueError("no")

    got: list[bytes | Exception] = []
    texts.pool.submit(texts.instance("tenant"), text(), 1, got.append)
    await texts.idle()
    assert isinstance(got[0], ValueError)


async def test_pool_panics_tell_an_error_and_take_no_thread(texts: CountingTextPool) -> None:
    class Panic(BaseException):
        """As a panic in Rust reaches Python."""

    def text() -> Pieces:
        yield 0
        raise Panic("no")

    got: list[bytes | Exception] = []
    for _ in range(3):
        texts.pool.submit(texts.instance("tenant"), text(), 1, got.append)
    texts.submit("other", work(1))
    await texts.idle(5)
    assert texts.order == ["other"]
    assert [str(error) for error in got] == ["Panic: no"] * 3
    assert isinstance(got[0], Exception)


TOKENIZE = call("tokenize", 0, TOKENIZE_BYTES_MAX, 0, 0)


def with_long_text(body: str) -> str:
    """A program that does something with the longest text in its memory."""
    fill = f"(memory.fill (i32.const 0) (i32.const 97) (i32.const {TOKENIZE_BYTES_MAX}))"
    return main(fill + body, pages=17)


async def test_tokenize_queued_texts_past_the_tenants_memory_are_refused() -> None:
    """Two programs whose memories fit, with room for the text of one."""
    length = TOKENIZE_BYTES_MAX
    program = with_long_text(TOKENIZE)
    memory = 17 * (64 << 10)
    async with WorkerRig(assets=byte_assets()) as rig:
        limits = {"memory_total_bytes": 2 * memory + length + length // 2}
        runs = [await rig.start(program, limits=limits) for _ in range(2)]
        codes = sorted([(await run.ended).exit_code for run in runs])
        assert codes == [-Errno.ENOMEM, length]


async def test_tokenize_ended_run_leaves_the_pool_and_its_cpu_limit_holds() -> None:
    """A limit of CPU time ends a program in the midst of its text, after slices."""
    program = with_long_text(f"{forever(f'(drop {TOKENIZE})')} (i32.const 0)")
    async with WorkerRig(assets=byte_assets()) as rig:
        runs = [await rig.start(program, limits={"cpu_ms": 20_000}) for _ in range(8)]
        await wait_until(lambda: len(rig.worker.texts) == 8)
        for run in runs:
            run.kill()
        for run in runs:
            assert (await run.ended).status == "killed"
        assert len(rig.worker.texts) == 0
