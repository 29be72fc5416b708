"""The kernel: process table, KVFS, syscalls, scheduler and executor on one event loop.

    link -> Port -> syscalls -> scheduler -> stepper -> executor -> stepper -> replies -> link

Frames are handled as they come and never wait; what they leave behind (works, replies) is picked up
once a turn. The stepper launches steps: while one computes, frames go on coming in, and a step that
is full already goes to the executor behind it. The replies that a frame or a step gives rise to
leave in one frame a worker.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import msgpack

from symphony_kernel.executor.base import Executor, Int32
from symphony_kernel.fairness.cpu_reports import CpuReports
from symphony_kernel.fairness.fair_queue import TenantWeights
from symphony_kernel.fairness.rate_limit import RateLimiter
from symphony_kernel.grammar.compiler import GrammarCompiler
from symphony_kernel.ipc.peers import GatewayPort, Port, WorkerPort, after_hello, describe
from symphony_kernel.journal.hooks import HeldSession, JournalHooks
from symphony_kernel.journal.recovery import LOG_BYTES, JournaledParts, JournalRecovery, Remembered
from symphony_kernel.journal.seeds import Seeds
from symphony_kernel.journal.store import Found, Store
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.maintenance.counters import count_all
from symphony_kernel.maintenance.upkeep import Maintenance
from symphony_kernel.maintenance.watchdog import Watchdog
from symphony_kernel.options import KernelOptions
from symphony_kernel.platform.clock import Clock, RealClock
from symphony_kernel.processes.table import Instance, ProcessTable
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.links import Link, decode
from symphony_kernel.protocol.sessions import SessionLink, SessionState
from symphony_kernel.scheduler.prediction import Predictor
from symphony_kernel.scheduler.scheduler import Scheduler
from symphony_kernel.scheduler.step_loop import StepLoop
from symphony_kernel.syscalls.durable_names import DurableNameService
from symphony_kernel.syscalls.pending import Result
from symphony_kernel.syscalls.table import Syscalls
from symphony_kernel.syscalls.validation import tenant_limits

__all__ = ["Kernel", "KernelOptions", "Port", "describe"]

_log = logging.getLogger(__name__)


class Kernel:
    """Everything behind the links. Made, run and used on one event loop."""

    def __init__(
        self,
        executor: Executor,
        about: dict[str, Any],
        clock: Clock | None = None,
        options: KernelOptions | None = None,
    ) -> None:
        options = options or KernelOptions()
        self._clock: Clock = clock or RealClock()
        places = options.places
        self._about = {**about, "disk_tier_bytes": places.disk_slots * places.page_bytes}
        self._executor = executor
        self.hooks: JournalHooks | None = None  # with a journal (`keep_journal`)
        # What may happen that no peer says, by name; its arguments are plain values.
        self.internal_events: dict[str, Callable[..., None]] = {
            "entered": self._entered,
            "left": self._left,
            "checked": self._checked,
        }
        self._checks: list[int] = []  # asked for, by seq
        self._recovery: JournalRecovery | None = None
        self._seeds = Seeds()
        self._kvfs = KVFS(
            executor.frame_count,
            self._now,
            options.limits(executor.frame_count),
            prefix_cache_share=options.prefix_cache_share,
            places=options.places,
        )
        self._scheduler = Scheduler(
            self._clock,
            executor.frame_count,
            executor.model.vocab_size,
            options.steps,
            self._traced,
            options.anticipation(),
            self._kvfs.eviction,
            Predictor.for_executor(executor, self._kvfs, options.predictions),
        )
        self._weights = TenantWeights(self._scheduler.set_tenant_weight, options.tenant_weights)
        self._rate_limiter = RateLimiter(
            self._scheduler,
            self._clock.now,
            lambda tenant: self._kvfs.tenant(tenant).account.hit("tokens_per_minute"),
            lambda: self._stepper.plan(),
        )
        self._processes = ProcessTable(self._kvfs, self._rate_limiter, self._exceeded)
        self._cpu_reports = CpuReports(self._processes, self._scheduler.cpu_accounts, self._clock)
        self._durable_names = DurableNameService(
            self._kvfs,
            executor,
            options.durable,
            lambda work: self._stepper.when_quiet(work),
            self._happen_beside,
            self.stop_with,
            self._clock.now,
        )
        self._syscalls = self._make_syscalls()
        self._workers: dict[str, WorkerPort] = {}
        self._gateway: GatewayPort | None = None
        self._dirty: set[WorkerPort] = set()  # with replies that wait
        self._stepper: StepLoop = StepLoop(
            self._scheduler, self._kvfs, executor, self._flush, self.stop_with
        )
        self._maintenance = self._make_upkeep(options)
        self._kvfs.tiers.token_seconds = self._scheduler.token_seconds
        self._kvfs.tiers.on_arrived = self._kvfs.tiers.on_spilled = self._pages_arrived
        self._over = asyncio.Event()  # closed, or gone wrong
        self._failure: BaseException | None = None

    def _make_syscalls(self) -> Syscalls:
        """Return what executes calls; what the disk says of names may happen from now on."""
        syscalls = Syscalls(
            self._kvfs,
            self._processes,
            self._rate_limiter,
            self._executor.model,
            self._reply,
            self._seeds.draw,
            self._durable_names.durable_names,
            GrammarCompiler.of(self._about, self._executor.model, self._weights.weight),
            self._happen_beside,
            self._scheduler.cpu_accounts,
            self._clock,
        )
        self.constraints = syscalls.constraints
        self.internal_events["compiled"] = self.constraints.compiled
        self.internal_events["released"] = syscalls.release
        self.internal_events |= self._durable_names.serve(
            syscalls.named, self._answer_gateway, self._turn_over
        )
        return syscalls

    def _make_upkeep(self, options: KernelOptions) -> Maintenance:
        return Maintenance(
            self._kvfs,
            self._executor,
            options.places,
            options.audit,
            lambda: self._scheduler.idle,
            self._check_integrity,
            self.stop_with,
            Watchdog(self._scheduler, self._stepper, options.stall_seconds),
        )

    # -- Peers ---------------------------------------------------------------------------------
    def attach_worker(self, name: str, link: Link) -> None:
        """Serve a worker over a link that nobody receives from yet, a memory link for instance.

        It is believed to be who it is; a `Hello` that comes first is ignored.
        """
        port = self.welcome_worker(name, link)
        link.receive(after_hello(port), port.on_closed)

    def attach_gateway(self, link: Link) -> None:
        """Serve the gateway over a link that nobody receives from yet, as `attach_worker`."""
        port = self.welcome_gateway(link)
        link.receive(after_hello(port), port.on_closed)

    def welcome_worker(self, name: str, link: Link) -> WorkerPort:
        """Return the port that takes a worker's frames; one with its name ends first."""
        port = self.enter_worker(name, link)
        port.send(self.welcome())
        return port

    def welcome_gateway(self, link: Link) -> GatewayPort:
        """Return the port that takes the gateway's frames; an older one and all instances end."""
        port = self.enter_gateway(link)
        port.send(self.welcome())
        return port

    def welcome(self) -> m.Welcome:
        """Return what a new peer is told first."""
        return m.Welcome(os.getpid(), self._about)

    def enter_worker(self, name: str, link: Link) -> WorkerPort:
        """As `welcome_worker`, for a peer that is welcomed elsewhere: a session's."""
        self._enters(name, link)
        port = self._workers[name] = WorkerPort(self, name, link)
        return port

    def enter_gateway(self, link: Link) -> GatewayPort:
        """As `welcome_gateway`, for a peer that is welcomed elsewhere: a session's."""
        self._enters("gateway", link)
        port = self._gateway = GatewayPort(self, "gateway", link)
        return port

    def enter(self, session: SessionLink, name: str) -> Port:
        """Give a session its port: one that begins, or one that a kernel before had."""
        port: Port
        if name == "gateway":
            port = self.enter_gateway(session)
        else:
            port = self.enter_worker(name, session)
        session.receive(port.on_frame, port.on_closed)
        return port

    def session(self, state: SessionState, name: str) -> SessionLink:
        """Return the end of a peer's session."""
        return HeldSession(state, name, lambda: self.hooks)

    def _enters(self, name: str, link: Link) -> None:
        """Somebody is about to get a port; who has it now leaves."""
        hooks = self.hooks
        if hooks is not None and not hooks.inside:
            session = link.id if isinstance(link, SessionLink) else b""
            hooks.happened(b"entered", msgpack.packb([name, session]))
            hooks.inside += 1
            self._leave(name)
            hooks.inside -= 1
            self._flush()  # before it is welcomed, and with what the turn has for others
        else:
            self._leave(name)

    def _leave(self, name: str) -> None:
        if (old := self.port(name)) is not None:
            old.cut_off("it has connected again")

    def _entered(self, name: str, session: bytes) -> None:
        """What a replay makes of `_enters`."""
        self.enter(self.session(SessionState(session), name), name)

    def _left(self, name: str) -> None:
        """What a replay makes of `detach`."""
        port = self.port(name)
        assert port is not None
        port.on_closed()

    def port(self, name: str) -> Port | None:
        """Return the port of "gateway" or of a worker, if there is one."""
        return self._gateway if name == "gateway" else self._workers.get(name)

    def detach(self, port: Port) -> None:
        """A peer is gone: a worker's instances end, the gateway's end with all others."""
        hooks = self.hooks
        if hooks is None or hooks.inside:
            self._detach(port)
            return
        hooks.happened(b"left", msgpack.packb([port.name]))
        hooks.inside += 1
        self._detach(port)
        hooks.inside -= 1

    def _detach(self, port: Port) -> None:
        if isinstance(port, WorkerPort):
            gone = self._processes.end_worker(port.name)
            del self._workers[port.name]
            self._dirty.discard(port)
        else:
            gone = self._processes.end_worker()
            self._gateway = None
            self._durable_names.requests.detached()
        _log.info("%s is gone, and with it %d instances", port.name, len(gone))
        self._turn_over()

    def take(self, port: Port, message: m.Message) -> None:
        """Do what a peer says.

        Raises:
            MessageError: it may not say that.
        """
        gateway = isinstance(port, GatewayPort)
        if isinstance(message, m.Spent):
            self._cpu_reports.charge_report(port, message.times, self.hooks, gateway=gateway)
        elif gateway and isinstance(message, m.Register):
            self._answer(message.seq, lambda: self._register(message))
        elif gateway and isinstance(message, m.End):
            self._answer(message.seq, lambda: self._processes.end(message.instance))
        elif gateway and isinstance(message, m.Ask):
            self._ask(message)
        else:
            raise m.MessageError(f"{port.name} may not send {type(message).__name__}")
        self._turn_over()

    def take_calls(self, port: WorkerPort, calls: list[Any]) -> None:
        """Execute a worker's calls."""
        self._syscalls.execute(port.name, calls)
        self._syscalls.send_replies(self._flush)

    def calls_taken(self, count: int) -> None:
        """A frame of so many calls is executed: look what there is to compute.

        At once where each LIP may have made its one call; else other frames may be there already,
        of others or of branches, with which the step will be larger.
        """
        inside = self.hooks is not None and self.hooks.inside
        if count == self._processes.runs_live and not inside:
            self._stepper.look()
        else:
            self._stepper.plan()

    # -- The gateway's requests ------------------------------------------------------------------
    def _register(self, message: m.Register) -> int:
        if message.worker not in self._workers:
            raise SyscallError(Errno.EPIPE, f"{message.worker} is not connected")
        self._processes.register(
            message.instance,
            message.tenant,
            message.worker,
            message.parent,
            message.stage,
            message.options,
        )
        return 0

    def _ask(self, message: m.Ask) -> None:
        if message.what == "check_integrity":
            self._checks.append(message.seq)
            self._stepper.when_idle(self._check)
        elif not self._durable_names.requests.handle(message):
            self._answer(message.seq, lambda: self._look_up(message.what, dict(message.args)))

    def _look_up(self, what: str, args: dict[str, Any]) -> Any:
        if not args and what in ("statistics", "metrics"):
            return self.statistics() if what == "statistics" else self.metrics()
        if not args and what in ("workers", "waiting"):
            return sorted(self._workers) if what == "workers" else self._scheduler.waiting()
        one = ("tenant",)
        anticipation: dict[str, tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...]]] = {
            "lips": (self._processes.tenant_runs, one, ()),
            "set_tenant_weight": (self._weights.set, ("tenant", "weight"), ()),
            "limit_tenant": (self._limit_tenant, ("tenant", "limits"), ()),
            "tokens_left": (self._rate_limiter.tokens_left, one, ()),
            "forget_prefixes": (self._kvfs.prefix_cache.forget_tenant, one, ()),
            "kv_list": (self._syscalls.named.kv_list, one, ("prefix", "after", "limit")),
            "kv_stat": (self._syscalls.named.kv_stat, ("tenant", "path"), ()),
        }
        if what not in anticipation:
            raise SyscallError(Errno.ENOSYS, f"nobody answers {what!r}")
        asked, needed, more = anticipation[what]
        if not set(needed) <= set(args) <= {*needed, *more}:
            raise SyscallError(Errno.EINVAL, f"{what}: wanted are {', '.join((*needed, *more))}")
        if not isinstance(args["tenant"], str):
            raise SyscallError(Errno.EINVAL, f"{what}: tenant is a string")
        return asked(**args)

    def _limit_tenant(self, tenant: str, limits: Any) -> int:
        limited = self._kvfs.limit(tenant, tenant_limits(limits))
        self._rate_limiter.set_rate(tenant, limited.limits.tokens_per_minute)
        return 0

    def _answer(self, seq: int, work: Callable[[], Any]) -> None:
        try:
            answer = m.Answer(seq, 0, work())
        except SyscallError as error:
            answer = m.Answer(seq, -error.errno, error.detail)
        self._answer_gateway(answer)

    def _answer_gateway(self, answer: m.Answer) -> None:
        if self._gateway is not None:
            self._gateway.send(answer)

    def _check(self) -> None:
        """No step computes: check what was asked for."""
        for seq in tuple(self._checks):
            self.happen("checked", [seq])

    def _checked(self, seq: int) -> None:
        self._checks.remove(seq)
        if self.hooks is None or not self.hooks.replaying:
            self._answer(seq, self._check_integrity)

    def _check_integrity(self) -> int:
        self._processes.check_integrity()
        return 0

    def _exceeded(self, instance: int, reason: str) -> None:
        if self._gateway is not None:
            self._gateway.send(m.Exceeded(instance, reason))

    def _traced(self, root: int, events: list[Any]) -> None:
        if self._gateway is not None:
            self._gateway.send(m.Traced(root, events))

    def statistics(self) -> dict[str, Any]:
        """Return all counters, as the gateway gets them."""
        counted = count_all(
            self._processes, self._syscalls, self._scheduler, self._kvfs, self._stepper,
            self._executor, self._workers, self._recovery,
        )  # fmt: skip
        saving, maintenance = (
            self._durable_names.durable_names.statistics(),
            self._maintenance.statistics,
        )
        return {
            **counted,
            **saving,
            **asdict(maintenance),
            "stalls": self._maintenance.stalls_found,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the counters with `histograms` by name and `tenants` by name: for a scrape."""
        return {
            **self.statistics(),
            "histograms": self._scheduler.histograms(),
            "tenants": self._processes.tenants(),
        }

    # -- What no peer says -----------------------------------------------------------------------
    def happen(self, what: str, arguments: list[Any]) -> None:
        """Do one of `internal_events`, with plain values: a kernel to come may have to do it again."""
        hooks = self.hooks
        if hooks is None:
            self.internal_events[what](*arguments)
            return
        if not hooks.inside:
            hooks.happened(what.encode(), msgpack.packb(arguments))
        hooks.inside += 1
        self.internal_events[what](*arguments)
        hooks.inside -= 1

    def _happen_beside(self, what: str, arguments: list[Any]) -> None:
        """The disk has said something, or there is time for calls: no peer's frame leads to it."""
        try:
            self.happen(what, arguments)
            self._turn_over()
        except Exception as error:  # ours
            self.stop_with(error)

    def _now(self) -> float:
        """Return the time as calls see it: while there is a journal, the turn's."""
        return self._clock.now() if self.hooks is None else self.hooks.now()

    # -- The journal -----------------------------------------------------------------------------
    def keep_journal(
        self,
        store: Store,
        found: Found | None = None,
        log_bytes: int = LOG_BYTES,
        threads: bool = True,
    ) -> None:
        """Go on from the journal of a kernel that died, and keep one from now on.

        Before anybody calls. `threads`: images are written beside the loop.

        Raises:
            NoRoomError: the kernel can be used, without a journal.
            Exception: whatever a bad journal leads to; this kernel cannot be used.
        """
        recovery = self.make_keeper(store, log_bytes, threads)
        if found is not None:
            self._durable_names.pause()
        recovery.start(found)
        self._recovery = recovery

    def make_keeper(self, store: Store, log_bytes: int, threads: bool) -> JournalRecovery:
        """Return what keeps this kernel's journal, once it is started."""
        parts = JournaledParts(
            self._kvfs,
            self._processes,
            self._syscalls.context,
            self._rate_limiter,
            self._executor.frame_count,
            self._clock.now,
            others={
                "seeds": self._seeds,
                "saving": self._durable_names.durable_names,
                "requests": self._durable_names.requests,
                "constraints": self.constraints,
                "held": self._syscalls.call_queue,
            },
            code={"syscalls": self._syscalls, "named calls": self._syscalls.named},
        )
        return JournalRecovery(self, parts, store, log_bytes, threads)

    def model(self) -> tuple[dict[str, Any], int, int]:
        """Return what a `Welcome` says of the model, the device's frames, and all pages."""
        return self._about, self._executor.frame_count, self._kvfs.pool.pages

    def listen_with(self, hooks: JournalHooks | None) -> None:
        """Let a scribe hear all that happens, or nobody."""
        self.hooks = hooks
        self._kvfs.set_observer(hooks)
        self._syscalls.listen_with(hooks)
        if hooks is not None and hooks.replaying:
            self.constraints.pause()

    def remember(self) -> Remembered:
        """Return what of this kernel outlives it."""
        peers: list[list[Any]] = []
        for port in [*([self._gateway] if self._gateway else []), *self._workers.values()]:
            link = port.link
            state = link.state() if isinstance(link, SessionLink) else SessionState(b"")
            peers.append([port.name, state.id, state.received, state.sent, state.kept])
        return Remembered(peers, list(self._checks))

    def recall(self, remembered: Remembered) -> None:
        """Be what that says."""
        for name, *state in remembered.peers:
            self.enter(self.session(SessionState(*state), name), name)
        self._checks = list(remembered.checks)

    def replay_frame(self, peer: str, body: bytes) -> None:
        """Take a peer's frame again."""
        port = self.port(peer)
        assert port is not None
        if isinstance(port.link, SessionLink):
            port.link.received += 1
        port.on_frame(decode(body))

    def replay_sent(self, peer: str, body: bytes) -> None:
        """A frame was sent to a peer: it will be sent again to one that has not got it."""
        if (port := self.port(peer)) is not None and isinstance(port.link, HeldSession):
            port.link.leave(body)

    def resume(self) -> None:
        """Go on with what a replay has left; peers without a session have gone with the links."""
        for port in [*self._workers.values(), *([self._gateway] if self._gateway else [])]:
            if isinstance(port.link, SessionLink) and not port.link.id:
                port.on_closed()
        if self._checks:
            self._stepper.when_idle(self._check)
        for tenant in self._kvfs.tenants.values():
            self._rate_limiter.set_rate(tenant.name, tenant.limits.tokens_per_minute)
        self._durable_names.resume()
        self._syscalls.resume()

    def open_names(self, *, known: bool) -> None:
        """Clean up among durable files, and name them unless they are known. Blocks; OSError."""
        self._durable_names.open(known=known)

    def flush(self) -> None:
        """Send what has gathered."""
        self._flush()

    # -- Replies ---------------------------------------------------------------------------------
    def _reply(self, caller: Instance, seq: int, result: Result) -> None:
        port = self._workers[caller.worker]
        replies = port.replies
        if not replies:
            self._dirty.add(port)
        replies.append((caller.id, seq, result))

    def _turn_over(self) -> None:
        """Send what has gathered, and look at what there is to compute."""
        self._flush()
        self._stepper.plan()

    def _flush(self) -> None:
        self._syscalls.context.send_records()
        while self._dirty:
            self._dirty.pop().flush()
        if self.hooks is not None:
            self.hooks.commit()

    # -- Steps -----------------------------------------------------------------------------------
    def _pages_arrived(self, _pages: Int32) -> None:
        """Pages have come from disk, or will not come; or there is room where they may go."""
        self._scheduler.pages_arrived()
        self._stepper.plan()

    async def run(self) -> None:
        """Launch steps until `close`.

        Raises:
            KernelBug: (or whatever else went wrong in the kernel itself) nothing more will be done.
        """
        if self._failure is None:
            await self._maintenance.open()
            if not self._over.is_set():
                self._stepper.run()
            await self._over.wait()
        if self._failure is not None:
            raise self._failure

    def stop_with(self, error: BaseException) -> None:
        """The kernel itself has gone wrong: `run` raises this."""
        if self._failure is None:
            self._failure = error
        if self.hooks is not None:
            self.hooks.abandon()
        self._stepper.halt()
        self._over.set()

    async def close(self) -> None:
        """End all links and instances, then wait for the steps that compute.

        A journal keeps what there was before.
        """
        if self.hooks is not None:
            self.hooks.abandon()
        for port in [*self._workers.values(), *([self._gateway] if self._gateway else [])]:
            port.link.close()
            port.on_closed()
        self._syscalls.end()
        self._rate_limiter.close()
        await self._durable_names.close(wait=self._stepper.running)
        await self._stepper.stop()
        self._maintenance.close()
        await self._executor.close()
        self._over.set()
