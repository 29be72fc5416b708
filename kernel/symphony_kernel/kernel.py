"""The kernel: process table, KVFS, syscalls, scheduler and executor on one event loop.

    link -> Port -> syscalls -> scheduler -> step loop -> executor -> step loop -> replies -> link

Frames are handled as they arrive and never wait. Their requests and replies are picked up once per
turn of the loop. The step loop launches steps. While a step computes, frames still arrive, and a
full batch goes to the executor as a look-ahead step. All replies that one frame or step causes
leave in one frame per worker.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import msgpack

from symphony_kernel.executor.base import Executor, Int32
from symphony_kernel.fairness.cpu_reports import charge_report
from symphony_kernel.fairness.fair_queue import TenantWeights
from symphony_kernel.fairness.rate_limit import RateLimiter
from symphony_kernel.grammar.compiler import GrammarCompiler
from symphony_kernel.ipc.peers import Port, WorkerPort, describe
from symphony_kernel.journal.hooks import HeldSession, JournalHooks
from symphony_kernel.journal.recovery import LOG_BYTES, JournaledParts, JournalRecovery, KernelState
from symphony_kernel.journal.seeds import Seeds
from symphony_kernel.journal.store import Found, Store
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.maintenance.upkeep import Maintenance
from symphony_kernel.maintenance.watchdog import Watchdog
from symphony_kernel.options import KernelOptions
from symphony_kernel.platform.clock import Clock, RealClock
from symphony_kernel.processes.table import Instance, ProcessTable
from symphony_kernel.protocol import messages as m
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import FILE_ENTRIES_MAX
from symphony_kernel.protocol.links import Link, decode
from symphony_kernel.protocol.sessions import SessionLink, SessionState
from symphony_kernel.scheduler.prediction import Predictor
from symphony_kernel.scheduler.prefix_sharing import PrefixSharing
from symphony_kernel.scheduler.scheduler import Scheduler
from symphony_kernel.scheduler.step_loop import StepLoop
from symphony_kernel.syscalls.adapters import Adapters
from symphony_kernel.syscalls.durable_names import DurableNameService
from symphony_kernel.syscalls.pending import Pred, Result
from symphony_kernel.syscalls.table import Syscalls
from symphony_kernel.syscalls.validation import tenant_limits
from symphony_kernel.syscalls.views import ViewCalls

__all__ = ["Kernel", "KernelOptions", "Port", "describe"]

_log = logging.getLogger(__name__)


class Kernel:
    """The composition root: makes all parts and connects them, on one event loop."""

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
        tier_bytes = places.disk_slots * places.page_bytes
        self._about = {**about, "disk_tier_bytes": tier_bytes}
        self._executor = executor
        # The recorder or the replay. None: there is no journal (see `start_journal`).
        self.hooks: JournalHooks | None = None
        # Handlers of events that no frame causes, by the event's name in the journal. Arguments
        # must be msgpack-able so that the journal can record them.
        self.internal_events: dict[str, Callable[..., None]] = {
            "entered": self._replay_attach,
            "left": self._replay_detach,
            "checked": self._run_check,
        }
        self._checks: list[int] = []  # seqs of integrity checks that the gateway has asked for
        self._recovery: JournalRecovery | None = None
        self._seeds = Seeds()
        # Files, scheduler, processes, syscalls, step loop: each part uses those made before it. The
        # lambdas are calls in the other direction, which come only once all parts are made.
        self._kvfs = KVFS(
            executor.frame_count,
            self._now,
            options.tenants,
            prefix_cache_share=options.prefix_cache_share,
            places=options.places,
        )
        self._scheduler = self._make_scheduler(options)
        self._weights = TenantWeights(self._scheduler.set_tenant_weight, options.tenant_weights)
        self._rate_limiter = RateLimiter(
            self._scheduler,
            self._clock.now,
            lambda tenant: self._kvfs.tenant(tenant).account.hit("tokens_per_minute"),
            lambda: self._step_loop.plan(),
        )
        self._processes = ProcessTable(self._kvfs, self._rate_limiter, self._send_exceeded)
        self.durable_names = DurableNameService(
            self._kvfs,
            executor,
            options.durable,
            lambda function: self._step_loop.when_quiet(function),
            self._handle_outside_frames,
            self.stop_with,
            self._clock.now,
        )
        self._adapters = self._make_adapters()
        self._syscalls = self._make_syscalls()
        self._views = ViewCalls(
            self._kvfs, self._syscalls.named, self._charge_view, self._clock.now
        )
        self._workers: dict[str, WorkerPort] = {}
        self._gateway: Port | None = None
        self._ports_to_flush: set[WorkerPort] = set()  # they have replies to send
        self._step_loop: StepLoop = StepLoop(
            self._scheduler, self._kvfs, executor, self.flush, self.stop_with
        )
        self._maintenance = self._make_maintenance(options)
        # The tiers weigh recomputing by the scheduler's speed, and report pages that have arrived.
        self._kvfs.tiers.token_seconds = self._scheduler.token_seconds
        self._kvfs.tiers.on_arrived = self._kvfs.tiers.on_spilled = self._pages_arrived
        self._stopped = asyncio.Event()  # by `close` or by a failure
        self._failure: BaseException | None = None

    def _make_scheduler(self, options: KernelOptions) -> Scheduler:
        model = self._executor.model
        predictor: Predictor | None = None
        if options.predictions is not None and getattr(self._executor, "follows", False):
            entries_max = min(FILE_ENTRIES_MAX, model.max_context)
            ends = frozenset(model.eos)
            predictor = Predictor(self._kvfs.pool, entries_max, ends, options.predictions)
            self._kvfs.watch_edits(predictor.drop_file)
        return Scheduler(
            self._clock,
            model.vocab_size,
            self._kvfs.eviction,
            options.steps,
            self._send_traced,
            options.anticipation(),
            predictor,
            model.hidden_size,
            PrefixSharing(self._kvfs, lambda name, tokens: self._rate_limiter.refund(name, tokens)),
            bool(getattr(self._executor, "launches_ahead", False)),
            model.windows,
        )

    def _make_adapters(self) -> Adapters:
        adapters = Adapters(
            self._executor, self._kvfs, self._adapters_called, self._send_gateway,
            self._handle_outside_frames, self._charge_view,
            threads=isinstance(self._clock, RealClock),
        )  # fmt: skip
        self.internal_events["adapter loaded"] = adapters.adapter_loaded
        return adapters

    def _make_syscalls(self) -> Syscalls:
        """Make the syscall table and register the internal events of its parts."""
        model = self._executor.model
        syscalls = Syscalls(
            self._kvfs,
            self._processes,
            self._rate_limiter,
            model,
            self._reply,
            self._seeds.draw,
            self.durable_names.durable_names,
            GrammarCompiler(
                self._about.get("tokenizer") or b"",
                model.vocab_size,
                model.eos,
                self._scheduler.tenant_weight,
            ),
            self._handle_outside_frames,
            self._scheduler.cpu_accounts,
            self._clock,
            self._adapters,
        )
        self.constraints = syscalls.constraints
        self.internal_events["compiled"] = self.constraints.compiled
        self.internal_events["released"] = syscalls.release
        self.internal_events |= self.durable_names.serve(
            syscalls.named, self._send_gateway, self._finish_turn
        )
        return syscalls

    def _make_maintenance(self, options: KernelOptions) -> Maintenance:
        return Maintenance(
            self._kvfs,
            self._executor,
            options.places,
            options.audit,
            lambda: self._scheduler.idle,
            self._check_integrity,
            self.stop_with,
            Watchdog(self._scheduler, self._step_loop, options.stall_seconds),
        )

    # -- Peers ---------------------------------------------------------------------------------
    def welcome_peer(self, name: str, link: Link) -> Port:
        """Make the port of "gateway" or of a worker, and send `Welcome`.

        A connected peer of that name is cut off; with a gateway all instances end.
        """
        port = self._make_port(name, link)
        port.send(self.welcome())
        return port

    def welcome(self) -> m.Welcome:
        return m.Welcome(os.getpid(), self._about)

    def _make_port(self, name: str, link: Link) -> Port:
        self._replace_peer(name, link)
        if name == "gateway":
            self._gateway = Port(self, name, link)
            return self._gateway
        port = self._workers[name] = WorkerPort(self, name, link)
        return port

    def attach_session(self, session: SessionLink, name: str) -> Port:
        """Make the port of a session, a new one or one from the journal. Sends no `Welcome`."""
        port = self._make_port(name, session)
        session.receive(port.on_frame, port.on_closed)
        return port

    def make_session(self, state: SessionState, name: str) -> SessionLink:
        """Return the kernel's end of a peer's session."""
        return HeldSession(state, name, lambda: self.hooks)

    def _replace_peer(self, name: str, link: Link) -> None:
        """Record that a peer attaches, and cut off the peer that has its name."""
        session = link.id if isinstance(link, SessionLink) else b""
        self._record("entered", [name, session], lambda: self._cut_off(name))
        if self.hooks is not None and not self.hooks.depth:
            # What this turn has for other peers must leave before the new peer gets its `Welcome`.
            self.flush()

    def _cut_off(self, name: str) -> None:
        if (old := self.port(name)) is not None:
            old.cut_off("it has connected again")

    def _replay_attach(self, name: str, session: bytes) -> None:
        """Handle the event that `_replace_peer` recorded."""
        self.attach_session(self.make_session(SessionState(session), name), name)

    def _replay_detach(self, name: str) -> None:
        """Handle the event that `detach` recorded."""
        port = self.port(name)
        assert port is not None
        port.on_closed()

    def port(self, name: str) -> Port | None:
        """Return the port of "gateway" or of a worker; None: it is not connected."""
        return self._gateway if name == "gateway" else self._workers.get(name)

    def detach(self, port: Port) -> None:
        """Forget a peer that is gone. A worker's instances end; without a gateway all end."""
        self._record("left", [port.name], lambda: self._detach(port))

    def _detach(self, port: Port) -> None:
        if isinstance(port, WorkerPort):
            gone = self._processes.end_worker(port.name)
            del self._workers[port.name]
            self._ports_to_flush.discard(port)
        else:
            gone = self._processes.end_worker()
            self._gateway = None
            self.durable_names.requests.detached()
            self._adapters.detached()
        _log.info("%s has disconnected; %d instances ended with it", port.name, len(gone))
        self._finish_turn()

    def handle_message(self, port: Port, message: m.Message) -> None:
        """Handle any message but `Calls`; MessageError if this peer may not send it."""
        gateway = not isinstance(port, WorkerPort)
        if isinstance(message, m.Spent):
            paces = charge_report(
                self._processes,
                self._scheduler.cpu_accounts,
                self._clock.now(),
                port.name,
                message.times,
                gateway=gateway,
                replaying=self.hooks is not None and self.hooks.replaying,
            )
            for pace in paces:
                port.send(pace)
        elif gateway and isinstance(message, m.Register):
            self._answer(message.seq, lambda: self._register(message))
        elif gateway and isinstance(message, m.End):
            self._answer(message.seq, lambda: self._processes.end(message.instance))
            self._adapters.instance_ended()
        elif gateway and isinstance(message, m.Ask):
            self._handle_ask(message)
        else:
            raise m.MessageError(f"{port.name} may not send {type(message).__name__}")
        self._finish_turn()

    def execute_calls(self, port: WorkerPort, calls: list[Any]) -> None:
        self._syscalls.execute(port.name, calls)
        self._syscalls.send_replies(self.flush)

    def calls_executed(self, count: int) -> None:
        """Form the next batch after a frame of `count` calls, now or at the turn's end."""
        # Now where each run may have made its one call. Else frames of other runs, or of more
        # branches, may have arrived already, and the batch will be larger with them.
        recorded = self.hooks is not None and self.hooks.depth
        if count == self._processes.runs_live and not recorded:
            self._step_loop.look()
        else:
            self._step_loop.plan()

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

    def _handle_ask(self, message: m.Ask) -> None:
        if message.what == "check_integrity":
            self._checks.append(message.seq)
            self._step_loop.when_idle(self._run_checks)
        elif not (self.durable_names.requests.handle(message) or self._adapters.handle(message)):
            self._answer(message.seq, lambda: self._look_up(message.what, dict(message.args)))

    def _look_up(self, what: str, args: dict[str, Any]) -> Any:
        if not args and what in ("statistics", "metrics"):
            return self.statistics() if what == "statistics" else self.metrics()
        if not args and what in ("workers", "waiting"):
            return sorted(self._workers) if what == "workers" else self._scheduler.waiting()
        one = ("tenant",)
        # Handler, required and optional arguments.
        queries: dict[str, tuple[Callable[..., Any], tuple[str, ...], tuple[str, ...]]] = {
            "lips": (self._processes.tenant_runs, one, ()),
            "set_tenant_weight": (self._weights.set, ("tenant", "weight"), ()),
            "limit_tenant": (self._limit_tenant, ("tenant", "limits"), ()),
            "tokens_left": (self._rate_limiter.tokens_left, one, ()),
            "held_runs": (self._rate_limiter.held_runs, one, ()),
            "forget_prefixes": (self._kvfs.prefix_cache.forget_tenant, one, ()),
            "kv_list": (self._syscalls.named.kv_list, one, ("prefix", "after", "limit")),
            "kv_stat": (self._syscalls.named.kv_stat, ("tenant", "path"), ()),
            "kv_pages": (self._views.kv_pages, ("tenant", "path"), ("after", "limit")),
            "kv_prefixes": (self._views.kv_prefixes, one, ("depth", "limit")),
        }
        if what not in queries:
            raise SyscallError(Errno.ENOSYS, f"the kernel has no query {what!r}")
        handler, needed, more = queries[what]
        if not set(needed) <= set(args) <= {*needed, *more}:
            words = f"{what}: its arguments are {', '.join((*needed, *more))}"
            raise SyscallError(Errno.EINVAL, words)
        if not isinstance(args["tenant"], str):
            raise SyscallError(Errno.EINVAL, f"{what}: tenant must be a string")
        return handler(**args)

    def _adapters_called(self) -> Iterator[str]:
        """Yield the adapters of calls under way."""
        for operation in self._processes.operations():
            if isinstance(operation, Pred) and operation.options.adapter:
                yield operation.options.adapter

    def _charge_view(self, tenant: str, seconds: float) -> None:
        if self.hooks is None or not self.hooks.replaying:
            self._scheduler.cpu_accounts.charge_reported(tenant, seconds, self._clock.now())

    def _limit_tenant(self, tenant: str, limits: Any) -> int:
        limited = self._kvfs.limit(tenant, tenant_limits(limits))
        self._rate_limiter.set_rate(tenant, limited.limits.tokens_per_minute)
        return 0

    def _answer(self, seq: int, handle: Callable[[], Any]) -> None:
        try:
            answer = m.Answer(seq, 0, handle())
        except SyscallError as error:
            answer = m.Answer(seq, -error.errno, error.detail)
        self._send_gateway(answer)

    def _send_gateway(self, message: m.Message) -> None:
        if self._gateway is not None:
            self._gateway.send(message)

    def _run_checks(self) -> None:
        """Run all checks that the gateway has asked for. No step computes now."""
        for seq in tuple(self._checks):
            self.handle_event("checked", [seq])

    def _run_check(self, seq: int) -> None:
        self._checks.remove(seq)
        if self.hooks is None or not self.hooks.replaying:
            self._answer(seq, self._check_integrity)

    def _check_integrity(self) -> int:
        self._processes.check_integrity()
        return 0

    def _send_exceeded(self, instance: int, reason: str) -> None:
        self._send_gateway(m.Exceeded(instance, reason))

    def _send_traced(self, root: int, events: list[Any]) -> None:
        self._send_gateway(m.Traced(root, events))

    def statistics(self) -> dict[str, Any]:
        """Return all counters, as the gateway gets them."""
        recovery = self._recovery
        return {
            **self._processes.statistics(),
            **self._syscalls.statistics(),
            **self._scheduler.statistics(),
            **asdict(self._step_loop.statistics),
            "computes": self._executor.computes,
            "compiled": hasattr(Scheduler, "__mypyc_attrs__"),
            **(recovery.statistics() if recovery else {"journal": False}),
            "workers": sorted(self._workers),
            **self._kvfs.statistics(),
            **self.durable_names.durable_names.statistics(),
            **self._adapters.statistics(),
            **asdict(self._maintenance.statistics),
            "stalls": self._maintenance.watchdog.found,
        }

    def metrics(self) -> dict[str, Any]:
        """Return the statistics of a scrape: with `histograms` and `tenants`, both by name."""
        return {
            **self.statistics(),
            "histograms": self._scheduler.histograms(),
            "tenants": self._processes.tenants(),
        }

    # -- Internal events: what no frame causes ---------------------------------------------------
    def handle_event(self, what: str, arguments: list[Any]) -> None:
        """Record and handle one of `internal_events`. Arguments must be msgpack-able."""
        self._record(what, arguments, partial(self.internal_events[what], *arguments))

    def _record(self, what: str, arguments: list[Any], handle: Callable[[], None]) -> None:
        """Record an event, unless it follows from a recorded one, and handle it."""
        hooks = self.hooks
        if hooks is None:
            handle()
            return
        if not hooks.depth:
            hooks.record_event(what.encode(), msgpack.packb(arguments))
        hooks.depth += 1
        handle()
        hooks.depth -= 1

    def _handle_outside_frames(self, what: str, arguments: list[Any]) -> None:
        """Handle an event of the disk, the grammar compiler or a timer, in a turn of its own."""
        try:
            self.handle_event(what, arguments)
            self._finish_turn()
        except Exception as error:  # a fault of the kernel's own
            self.stop_with(error)

    def _now(self) -> float:
        """Return the time that calls see: with a journal, the turn's recorded time."""
        return self._clock.now() if self.hooks is None else self.hooks.now()

    # -- The journal -----------------------------------------------------------------------------
    def start_journal(
        self,
        store: Store,
        found: Found | None = None,
        log_bytes: int = LOG_BYTES,
        threads: bool = True,
    ) -> None:
        """Recover from a dead kernel's journal, if `found`, and write one from now on.

        Call it before peers attach. With `threads`, threads write the snapshots. Raises as
        `JournalRecovery.start`.
        """
        recovery = self.make_recovery(store, log_bytes, threads)
        if found is not None:
            self.durable_names.pause()
        recovery.start(found)
        self._recovery = recovery

    def make_recovery(self, store: Store, log_bytes: int, threads: bool) -> JournalRecovery:
        """Return this kernel's recovery, which is not started yet."""
        parts = JournaledParts(
            self._kvfs,
            self._processes,
            self._syscalls.context,
            self._rate_limiter,
            self._executor.frame_count,
            self._clock.now,
            others={
                "seeds": self._seeds,
                "saving": self.durable_names.durable_names,
                "requests": self.durable_names.requests,
                "constraints": self.constraints,
                "held": self._syscalls.call_queue,
                "adapters": self._adapters,
            },
            code={"syscalls": self._syscalls, "named calls": self._syscalls.named},
        )
        return JournalRecovery(self, parts, store, log_bytes, threads)

    def model(self) -> tuple[dict[str, Any], int, int]:
        """Return `Welcome`'s description of the model, the device's frames and all pages."""
        return self._about, self._executor.frame_count, self._kvfs.pool.pages

    def set_hooks(self, hooks: JournalHooks | None) -> None:
        """Let the recorder or the replay observe the kernel; None: neither."""
        self.hooks = hooks
        self._kvfs.set_observer(hooks)
        self._syscalls.listen_with(hooks)
        if hooks is not None and hooks.replaying:
            self.constraints.pause()
            self._adapters.pause()

    def capture_state(self) -> KernelState:
        """Return the state of the kernel itself that a snapshot contains."""
        peers: list[list[Any]] = []
        for port in [*([self._gateway] if self._gateway else []), *self._workers.values()]:
            link = port.link
            state = link.state() if isinstance(link, SessionLink) else SessionState(b"")
            peers.append([port.name, state.id, state.received, state.sent, state.kept])
        return KernelState(peers, list(self._checks))

    def restore_state(self, state: KernelState) -> None:
        """Restore what `capture_state` returned."""
        for name, *session in state.peers:
            self.attach_session(self.make_session(SessionState(*session), name), name)
        self._checks = list(state.checks)

    def replay_frame(self, peer: str, body: bytes) -> None:
        """Handle a peer's recorded frame again."""
        port = self.port(peer)
        assert port is not None
        if isinstance(port.link, SessionLink):
            port.link.received += 1
        port.on_frame(decode(body))

    def replay_sent(self, peer: str, body: bytes) -> None:
        """Keep a frame that was sent, for a peer that has not received it."""
        if (port := self.port(peer)) is not None and isinstance(port.link, HeldSession):
            port.link.send_recorded(body)

    def resume(self) -> None:
        """Resume after a replay. Peers without a session have gone with their links."""
        for port in [*self._workers.values(), *([self._gateway] if self._gateway else [])]:
            if isinstance(port.link, SessionLink) and not port.link.id:
                port.on_closed()
        if self._checks:
            self._step_loop.when_idle(self._run_checks)
        for tenant in self._kvfs.tenants.values():
            self._rate_limiter.set_rate(tenant.name, tenant.limits.tokens_per_minute)
        self.durable_names.resume()
        self._adapters.resume()
        self._syscalls.resume()

    # -- Replies ---------------------------------------------------------------------------------
    def _reply(self, caller: Instance, seq: int, result: Result) -> None:
        port = self._workers[caller.worker]
        replies = port.replies
        if not replies:
            self._ports_to_flush.add(port)
        replies.append((caller.id, seq, result))

    def _finish_turn(self) -> None:
        self.flush()
        self._step_loop.plan()

    def flush(self) -> None:
        """Send all replies, and commit the turn to the journal."""
        self._syscalls.context.send_records()
        while self._ports_to_flush:
            self._ports_to_flush.pop().flush()
        if self.hooks is not None:
            self.hooks.commit()

    # -- Steps -----------------------------------------------------------------------------------
    def _pages_arrived(self, _pages: Int32) -> None:
        """Retry admission: pages arrived from disk or failed to, or a tier has room again."""
        self._scheduler.pages_arrived()
        self._step_loop.plan()

    async def run(self) -> None:
        """Launch steps until `close`. Any exception: the kernel itself failed and is stopped."""
        if self._failure is None:
            await self._maintenance.open()
            if not self._stopped.is_set():
                self._step_loop.run()
            await self._stopped.wait()
        if self._failure is not None:
            raise self._failure

    def stop_with(self, error: BaseException) -> None:
        """Stop everything after a failure of the kernel itself. `run` raises the first error."""
        if self._failure is None:
            self._failure = error
        if self.hooks is not None:
            self.hooks.abandon()
        self._step_loop.halt()
        self._stopped.set()

    async def close(self) -> None:
        """End all links and instances, then wait for running steps.

        The journal keeps the state from before this call.
        """
        if self.hooks is not None:
            self.hooks.abandon()
        for port in [*self._workers.values(), *([self._gateway] if self._gateway else [])]:
            port.link.close()
            port.on_closed()
        self._syscalls.end()
        self._rate_limiter.close()
        await self._adapters.close()
        await self.durable_names.close(wait=self._step_loop.running)
        await self._step_loop.stop()
        self._maintenance.close()
        await self._executor.close()
        self._stopped.set()
