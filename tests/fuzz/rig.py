"""Where cases are played: a kernel, two workers and a gateway in virtual time, and what must hold.

What is looked at, all along and at the end: no exception in kernel, worker or loop; each call
answers what the ABI has for it; each run ends by itself; afterwards nothing is held and all counts
agree; another tenant's program got what it would have got alone.
"""

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from symphony_kernel import tiny_model
from symphony_kernel.executor.base import Executor
from symphony_kernel.executor.models.assets import ModelAssets, load_assets
from symphony_kernel.executor.simulated import CostModel, SimulatedExecutor
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.ipc.server import Server
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.config import TierConfig
from symphony_kernel.platform.clock import Clock, RealClock, VirtualClock
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.limits import TENANT_PAGES_TIMES_UNUSED
from symphony_kernel.protocol.sessions import Dialer, LinkLostError, SessionLink
from symphony_kernel.scheduler.prediction import PredictionOptions
from symphony_runtime.abi import LIP, table
from symphony_runtime.compiler.validation import CompileOutcome, check_and_compile
from symphony_runtime.engine.fiber import Fiber
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.worker import Worker

from tests.fuzz.disk import give_disk
from tests.fuzz.gateway import FuzzGateway
from tests.fuzz.guest import CALLS, player
from tests.fuzz.journal import Journal
from tests.fuzz.values import CONTEXT
from tests.support.executor.byte_model import byte_assets
from tests.support.kernel.crashes import close_or_abort, doom, kill
from tests.support.kernel.rig import poisoned
from tests.support.memory_links import MemoryLink, attach_peer, memory_pair

WORKERS = ("worker-0", "worker-1")
TENANTS = ("t0", "t1")  # of the hostile guests; the victim has its own
WALL_MS = 3_600_000
LIMITS = {
    "wall_ms": WALL_MS, "cpu_ms": 2_000, "memory_bytes": 1 << 20, "tokens": 1 << 20,
    "kv_tokens": 1 << 16,
}  # fmt: skip
SECRET = b"secret"
PLAYER = "player"  # the program of every guest
NATIVE_WALL_MS = 60_000
_NATIVE_SECONDS = 120.0  # of real time, for one case
_ERRNOS = frozenset(table().errno.values())
_KINDS = {call.name: call.kind for call in table().calls}
_NOTHING = frozenset(
    ("send", "log", "random", "kv_append", "kv_truncate", "kv_save", "kv_remove", "kv_advise",
     "kv_grant", "kv_close", "channel_send", "cancel", "constraint_close", "constraint_close")
)  # fmt: skip
_WASI_MAX = 76  # the largest of its errnos


@dataclass(frozen=True)
class Setting:
    """What a case is played on."""

    pages: int = 64
    host: int = 0
    a_frame: int = 1
    predictions: bool = True
    step_ms: float = 10.0
    tenant_pages: int = 0  # 0: all of them
    native: bool = False  # the embedded model on the device's own thread, in real time
    disk: int = 0  # slots of a disk tier
    faults: tuple[str, ...] = ()  # of its file: see `disk.FAULTS`
    journal: bool = False  # the kernel may die, and comes back

    @property
    def rich(self) -> bool:
        """Whether the victim holds pages for a while: see `victim`."""
        return bool(self.disk or self.journal)

    @property
    def places(self) -> TierConfig:
        """How many pages there are; where the disk's are `disk.give_disk` says."""
        slots = self.host + self.disk
        # With a disk there are as many pages as there are places.
        pages_a_frame = 1 + -(-slots // self.pages) if self.disk else self.a_frame
        return TierConfig(host_slots=self.host, pages_a_frame=pages_a_frame)

    def entitles(self, pages: int) -> bool:
        """Whether a tenant gets so many pages, however much others hold.

        Where there are more pages than frames each of the others leaves an eighth of what it holds,
        and so does who asks. Where there are not, the pool may be full.
        """
        if self.native:
            return True
        there = self.places.pages(self.pages)
        left = there // (1 + TENANT_PAGES_TIMES_UNUSED * len(TENANTS))
        return there > self.pages and left >= pages + -(-pages // TENANT_PAGES_TIMES_UNUSED)


@dataclass
class Seen:
    """What has happened: calls made, by name, and what was wrong."""

    calls: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)  # what befell disk and kernel, by name

    def result(self, call: int, args: tuple[int, ...], result: int) -> None:
        module, name = CALLS[call]
        self.calls[name] += 1
        if not _is_documented(module, name, result):
            self.wrong.append(f"{name}{args} answered {result}")


def _is_documented(module: str, name: str, result: int) -> bool:
    if module != LIP:
        return 0 <= result <= _WASI_MAX
    if result < 0:
        return -result in _ERRNOS
    if name in _NOTHING:
        return result == 0
    return result > 0 if _KINDS[name] == "ticket" else True


@lru_cache(maxsize=1)
def compiled_player() -> CompileOutcome:
    outcome = check_and_compile(player(), own=True)
    assert not outcome.problems, outcome.problems
    return outcome


class _Inline(ThreadPoolExecutor):
    """Threads would be late in virtual time: it jumps to the next timer while they work."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class _Looking(Worker):
    """A worker whose guests' results are looked at."""

    fiber: type[Fiber]

    def _start_instance(self, instance: Instance, module: str, entry: str) -> bool:
        begun = super()._start_instance(instance, module, entry)
        if begun:  # a subclass of the same layout: nothing has run yet
            instance.fiber.__class__ = self.fiber
        return begun


def _looking(seen: Seen) -> type[Fiber]:
    class LookingFiber(Fiber):
        __slots__ = ()

        def resume(self, result: int, wide: bool = False) -> None:
            seen.result(self.call, self.args, result)
            super().resume(result, wide)

    return LookingFiber


class FuzzRig:
    """Enter it to have all roles up; `close` looks whether all has come back."""

    secret = SECRET

    def __init__(
        self, clock: Clock, setting: Setting, rng: Random, folder: Path | None = None
    ) -> None:
        """`folder`: where the journal goes, if there is one."""
        self._clock, self.setting, self._rng = clock, setting, rng
        self.seen = Seen()
        self.workers: dict[str, _Looking] = {}
        self._links: dict[str, MemoryLink] = {}  # of workers and kernel
        self._kernel_links: list[MemoryLink] = []  # its ends, where it has a journal
        self._gateway_links: dict[str, MemoryLink] = {}
        self.calm = {name: asyncio.Lock() for name in WORKERS}  # one thing at a time befalls one
        self._running: asyncio.Task[None] | None = None
        self._journal = Journal(folder, rng) if folder is not None else None
        self._compared = False  # kernel and journal, before the first death
        self.over = asyncio.Event()  # a kernel has ended by itself
        self.losses = 0  # kernels, or sessions of them, that took runs along

    async def open(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._unheard)
        self.gateway = FuzzGateway(self._rng)
        self.gateway.programs[PLAYER] = compiled_player()
        if self._journal is not None:
            self._dialer = Dialer("gateway", "gateway", SECRET, self.gateway.on_kernel, self)
        await self._begin_kernel()
        for name in WORKERS:
            await self.begin_worker(name)

    # -- The kernel ----------------------------------------------------------------------------
    async def _begin_kernel(self) -> None:
        journal = self._journal
        self.kernel = self._make_kernel() if journal is None else journal.boot(self._make_kernel)
        self._running = asyncio.create_task(self.kernel.run())
        self._running.add_done_callback(self._kernel_ended)
        self.server = Server(self.kernel, dict.fromkeys((*WORKERS, "evil", "gateway"), SECRET))
        if journal is None:
            ours, theirs = memory_pair()
            attach_peer(self.kernel, "gateway", theirs)
            ours.receive(self.gateway.on_kernel, lambda: None)
            self.gateway.use(ours)
        else:
            try:
                await self._introduce()
            except LinkLostError:  # its session is not known any more: another one begins
                await self._introduce()

    def _make_kernel(self) -> Kernel:
        setting = self.setting
        executor, assets = self._native() if setting.native else self._simulated()
        options = KernelOptions(
            predictions=PredictionOptions(least=0, odd=0, vain=0) if setting.predictions else None,
            places=setting.places,
            tenants=TenantLimits(setting.tenant_pages) if setting.tenant_pages else None,
        )
        kernel = Kernel(executor, describe(assets), self._clock, poisoned(options))
        if setting.disk:
            give_disk(kernel, setting.disk, setting.faults, self._rng, self.seen.met)
        return kernel

    def _kernel_ended(self, running: "asyncio.Task[None]") -> None:
        if running is self._running:
            self.over.set()

    async def fell_kernel(self, how: str, damage: str, rng: Random) -> None:
        """Let the kernel die or stop, its journal be damaged perhaps, and another one come."""
        async with contextlib.AsyncExitStack() as stack:
            for lock in self.calm.values():
                await stack.enter_async_context(lock)
            assert self._journal is not None
            self.seen.met[damage or how] += 1
            self._compare()
            await self._end_kernel(how, rng)
            if damage:
                self._journal.harm(damage, rng)
            await asyncio.sleep(rng.choice((0, 0.001, 0.02)))
            before = self.losses
            await self._begin_kernel()
            for name in WORKERS:
                self.losses += await self._link_again(name)
            if self.losses > before:
                self.seen.met["lost"] += 1
                if not damage:
                    self.seen.wrong.append(f"a kernel came back ({how}) and knew nothing")

    def _compare(self) -> None:
        """The journal says what the kernel is, to the page.

        But of what was computed again, since there are tiers or an earlier kernel's death, it notes
        where it came from, and when is the device's doing.
        """
        setting, again = self.setting, self._compared
        self._compared = True
        if not (again or setting.host or setting.a_frame > 1) and self._journal is not None:
            found = self._journal.differences(self.kernel, self._make_kernel())
            self.seen.wrong += [f"the journal is not what the kernel is: {each}" for each in found]

    async def _end_kernel(self, how: str, rng: Random) -> None:
        if how == "stop":
            running = self._leave_running()
            self._kernel_links = []
            await self.kernel.close()
            await running
            return
        fallen = asyncio.Event()

        def fall() -> None:
            if not fallen.is_set():
                fallen.set()
                self._drop_kernel(rng)

        if how == "doom":
            doom(self.kernel, rng, fall)
            for _ in range(100):
                await asyncio.sleep(0.001)
                if fallen.is_set():
                    return
        fall()

    def _leave_running(self) -> "asyncio.Task[None]":
        running, self._running = self._running, None
        assert running is not None
        return running

    def _drop_kernel(self, rng: Random) -> None:
        running = self._leave_running()
        kill(self.kernel)
        running.cancel()
        links, self._kernel_links = self._kernel_links, []
        close_or_abort(links, rng)

    # -- SessionEvents, of the gateway -----------------------------------------------------------
    def session_begun(self, session: SessionLink, welcome: m.Welcome) -> None:
        self.gateway.use(session)

    def session_resumed(self, welcome: m.Welcome) -> None:
        pass

    def session_cut(self) -> None:
        pass

    def session_ended(self) -> None:
        self.losses += 1
        self.gateway.lose_kernel()

    def _simulated(self) -> tuple[Executor, ModelAssets]:
        asyncio.get_running_loop().set_default_executor(_Inline())
        # No token ends a text: else grammars would be compiled by a process, in real time.
        setting, assets = self.setting, byte_assets(ends=False)
        assets = replace(assets, model=replace(assets.model, max_context=CONTEXT))
        cost = CostModel(fixed_us=1000 * setting.step_ms, prefill_token_us=20, page_move_us=50)
        return SimulatedExecutor(self._clock, setting.pages, assets.model, cost), assets

    def _native(self) -> tuple[Executor, ModelAssets]:
        executor = TorchExecutor.load(
            tiny_model.path(), device="cpu", threads=2, pool_bytes=64 << 20
        )
        return executor, load_assets(tiny_model.path())

    def _unheard(self, _loop: Any, context: dict[str, Any]) -> None:
        self.seen.wrong.append(f"unheard: {context.get('message')}: {context.get('exception')!r}")

    async def begin_worker(self, name: str) -> None:
        """Start a worker, in place of one that has died."""
        worker = _Looking(
            name, SECRET, self._clock.now, self._rng.randbytes, self._clock.now,
        )  # fmt: skip
        worker.fiber = _looking(self.seen)
        if not self.setting.native:
            worker.texts._executor = _Inline()
        self.workers[name] = worker
        await self._link_to_kernel(name)
        ours, theirs = memory_pair()
        self.gateway.attach(name, ours)
        self._gateway_links[name] = theirs
        await worker.attach_gateway(theirs)

    async def _link_to_kernel(self, name: str) -> None:
        ours, theirs = memory_pair()
        self._links[name] = ours
        self._kernel_links.append(theirs)
        self.server.accept(theirs)
        await self.workers[name].attach_kernel(ours)

    async def _link_again(self, name: str) -> bool:
        """Link a worker; whether its session was not known any more and another one has begun."""
        try:
            await self._link_to_kernel(name)
        except LinkLostError:
            await self._link_to_kernel(name)
            return True
        return False

    async def _introduce(self) -> None:
        """Link the gateway to a kernel with a journal."""
        ours, theirs = memory_pair()
        self._kernel_links.append(theirs)
        self.server.accept(theirs)
        await self._dialer.connect(ours)

    async def cut(self, name: str) -> None:
        """Cut a worker's link to the kernel, and let it come back."""
        self._links[name].abort()
        await asyncio.sleep(self._rng.choice((0, 0.001, 0.02)))
        await self._link_again(name)

    async def kill_worker(self, name: str) -> None:
        worker = self.workers[name]
        self._links[name].abort()
        self._gateway_links[name].abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        self._look_at(worker)
        worker.close()
        await asyncio.sleep(self._rng.choice((0, 0.01)))
        await self.begin_worker(name)

    def _look_at(self, worker: Worker) -> None:
        self.seen.wrong += [f"a worker's fault: {fault!r}" for fault in worker.faults]
        worker.faults.clear()

    async def close(self) -> None:
        """Look whether all has come back, and end."""
        try:
            await asyncio.wait_for(self.gateway.wait_idle(), 60)
        except TimeoutError:
            self.seen.wrong.append(f"never heard of the ends of {sorted(self.gateway.live)}")
        await self._check()
        for worker in self.workers.values():
            self._look_at(worker)
            if worker.instances:
                self.seen.wrong.append(f"instances left: {sorted(worker.instances)}")
            worker.close()
        self.seen.wrong += [f"the gateway: {error!r}" for error in self.gateway.errors]
        self._count_pages()
        running = self._leave_running()
        await self.kernel.close()
        await running

    def _count_pages(self) -> None:
        found = self.kernel.statistics()
        for name in ("tiers_spilled_pages", "tiers_read_pages"):
            self.seen.met[name] += found[name]

    async def _check(self) -> None:
        ask = self.gateway.ask
        for tenant in ("t0", "t1", "victim"):
            for named in await ask("kv_list", tenant=tenant):
                await ask("kv_remove", tenant=tenant, path=named["path"])
        await ask("check_integrity")
        found = await ask("statistics")
        for name in ("instances", "files", "handles", "waiting", "lips_running"):
            if found[name]:
                self.seen.wrong.append(f"left at the end: {found[name]} {name}")
        free = found["pages_free"] + found["prefix_cache_idle_pages"]
        if free < found["pages"]:
            self.seen.wrong.append(f"pages: {free} of {found['pages']} are free")

    @property
    def failed(self) -> bool:
        return self.over.is_set()

    def why(self) -> str:
        running = self._running
        return repr(running.exception()) if running is not None and running.done() else ""


def played(
    setting: Setting, rng: Random, case: Callable[[FuzzRig], Coroutine[Any, Any, None]]
) -> tuple[Seen, float]:
    """Play a case; return what was seen, and the processor's seconds that it took."""
    clock: Clock = RealClock() if setting.native else VirtualClock()
    began = time.thread_time()
    with contextlib.ExitStack() as stack:
        folder = None
        if setting.journal:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "journal"
        rig = FuzzRig(clock, setting, rng, folder)
        try:
            if isinstance(clock, VirtualClock):
                clock.run(_whole(rig, case))
            else:
                asyncio.run(asyncio.wait_for(_whole(rig, case), _NATIVE_SECONDS))
        except Exception as error:
            rig.seen.wrong.append(f"{type(error).__name__}: {error}")
    return rig.seen, time.thread_time() - began


async def _whole(rig: FuzzRig, case: Callable[[FuzzRig], Coroutine[Any, Any, None]]) -> None:
    await rig.open()
    playing = asyncio.ensure_future(case(rig))
    failing = asyncio.ensure_future(rig.over.wait())
    await asyncio.wait({playing, failing}, return_when=asyncio.FIRST_COMPLETED)
    failing.cancel()
    if rig.failed:
        rig.seen.wrong.append(f"the kernel has stopped: {rig.why()}")
        playing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await playing
        for worker in rig.workers.values():
            worker.close()
        return
    await playing
    await rig.close()
