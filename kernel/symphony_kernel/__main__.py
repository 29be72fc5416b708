"""The kernel's process: `python -m symphony_kernel`, started by the supervisor.

stdin has one JSON line of configuration and stays open: its end means that the supervisor is gone.
Events leave on stdout as JSON lines, logs on stderr.
"""

import sys

if __name__ == "__main__":  # before the import of any module that may be compiled
    from symphony_kernel.compiled.loading import prefer_compiled

    RUNS = prefer_compiled()
else:
    RUNS = "interpreted: another process's"

import asyncio
import io
import json
import logging
import os
import selectors
import shutil
import signal
import time
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from symphony_kernel.config import (
    Configuration,
    ConfigurationError,
    digest_weights,
    make_executor,
    parse_configuration,
)
from symphony_kernel.executor.base import Executor
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.fairness.cpu_accounts import CpuOptions
from symphony_kernel.ipc.server import Server
from symphony_kernel.journal.recovery import LOG_BYTES, NoRoomError
from symphony_kernel.journal.store import Store
from symphony_kernel.kernel import Kernel, KernelOptions, describe
from symphony_kernel.kvfs.tenants import TenantLimits
from symphony_kernel.kvfs.tiers.config import pages_of, places_for
from symphony_kernel.maintenance.upkeep import AuditOptions
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.platform.cpu_count import usable_processors
from symphony_kernel.platform.cpu_pressure import CpuPressure
from symphony_kernel.platform.event_loop import PreciseTimerLoop
from symphony_kernel.platform.interpreter import settle, take_short_turns
from symphony_kernel.platform.log_format import log_to_stderr
from symphony_kernel.platform.malloc import trim_regularly
from symphony_kernel.protocol.heartbeat import beat
from symphony_kernel.protocol.limits import (
    BESIDE_STEPS_SHARE,
    DELIVERY_BATCH_MS_MAX,
    STALL_SECONDS,
    TENANT_PAGES_SHARE_MAX,
)
from symphony_kernel.protocol.role_processes import Processes
from symphony_kernel.scheduler.batcher import StepLimits, step_sizes
from symphony_kernel.syscalls.durable_names import DurableOptions

_log = logging.getLogger(__name__)
_PROGRESS_SHARE_MIN = 0.05  # between two progress events


async def boot(configuration: Configuration) -> int:
    """Start the kernel, run it until it must stop, and return the exit code."""
    stop, processes = asyncio.Event(), Processes()
    # 1. Signals and stdin: from here on the supervisor can stop the kernel.
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    supervisor = _Supervisor(stop, processes, configuration.run_directory)
    await loop.connect_read_pipe(lambda: supervisor, sys.stdin)
    # 2. The clock.
    clock = RealClock()
    # 3. The executor: the device, the model's weights and the pool of pages.
    loading = asyncio.create_task(
        asyncio.to_thread(make_executor, configuration, clock, _Progress().report)
    )
    if not await _first(loading, stop):
        sys.stdout.flush()
        os._exit(0)  # a thread that loads a model cannot be stopped
    executor, assets = loading.result()
    # 4. The kernel: KVFS over the executor's pages, the process table, syscalls, the scheduler.
    options = _options(configuration, executor)
    kernel = revive(configuration, lambda: Kernel(executor, describe(assets), clock, options))
    try:
        await asyncio.to_thread(kernel.constraints.grammars.prepare)
    except ValueError as error:  # programs that use one get ENOSYS
        _log.warning("constraints cannot be used with this tokenizer: %s", error)
    # 5. Garbage collection and the GIL.
    settle()
    # 6. The step loop.
    running = asyncio.create_task(kernel.run())
    # 7. The server: from now on the gateway and the workers can connect.
    server = Server(kernel, configuration.secrets, processes if configuration.processes else None)
    await server.listen(configuration.socket)
    emit("ready", pid=os.getpid(), model=assets.model.name, pages=executor.frame_count)
    beating = asyncio.create_task(beat(configuration.beat_seconds, lambda: emit("alive")))
    # 8. Until the supervisor stops the kernel, or the kernel itself fails.
    failed = await _first(running, stop)
    beating.cancel()
    await server.close()
    await kernel.close()
    await running
    return 1 if failed else 0


def _options(configuration: Configuration, executor: Executor) -> KernelOptions:
    """Return the options of the configuration, for this executor."""
    processors = usable_processors()
    on_processors = executor.computes in ("native", "torch")
    tokens, quantum = step_sizes(executor.computes)
    return KernelOptions(
        steps=StepLimits(
            tokens=tokens,
            quantum=quantum,
            decode_gap_ms=configuration.max_decode_gap_ms or inf,
            delivery_ms=min(configuration.delivery_ms, DELIVERY_BATCH_MS_MAX),
            cpu=CpuOptions(
                BESIDE_STEPS_SHARE * processors,
                CpuPressure().short,
                device_share=1.0 / processors if on_processors else 0.0,
            ),
        ),
        prefix_cache_share=configuration.prefix_cache_share,
        places=places_for(
            executor,
            configuration.host_pool_tokens,
            configuration.disk_pool_tokens,
            configuration.disk_directory,
            reserve_bytes=configuration.disk_reserve_bytes,
            disk_bytes_max=configuration.disk_bytes_max,
        ),
        tenants=TenantLimits(
            int(executor.frame_count * TENANT_PAGES_SHARE_MAX),
            host_pages=pages_of(configuration.tenant_host_tokens_max),
            disk_pages=pages_of(configuration.tenant_disk_tokens_max),
            durable_bytes=configuration.tenant_durable_bytes_max,
        ),
        audit=AuditOptions(configuration.audit_seconds),
        stall_seconds=STALL_SECONDS,
        tenant_weights=configuration.tenant_weights,
        durable=DurableOptions(
            configuration.kv,
            configuration.publish,
            partial(digest_weights, configuration),
            reserve_bytes=configuration.disk_reserve_bytes,
        ),
    )


def revive(
    configuration: Configuration, make: Callable[[], Kernel], log_bytes: int = LOG_BYTES
) -> Kernel:
    """Return a kernel that has recovered from its journal, or an empty one with a log line.

    After `log_bytes` of records it writes a new snapshot.
    """
    kernel = make()
    if configuration.journal is None:
        _open_names(kernel, known=False)
        return kernel
    store = Store(configuration.journal, configuration.identity(*kernel.model()))
    found = None
    try:
        found = store.find(time.monotonic(), configuration.ended)
        _open_names(kernel, known=found is not None)
        try:
            kernel.start_journal(store, found, log_bytes)
        except Exception as error:
            if found is None or isinstance(error, NoRoomError):
                raise
            _log.exception("the kernel cannot recover from its journal")
            store.set_aside("recovery failed")
            kernel = make()
            _open_names(kernel, known=False)
            kernel.start_journal(store, log_bytes=log_bytes)
    except (OSError, NoRoomError) as error:
        _log.error("THERE IS NO JOURNAL: %s; if the kernel dies, all runs are lost", error)
        if isinstance(error, OSError) and found is None:
            _open_names(kernel, known=False)
    return kernel


def _open_names(kernel: Kernel, *, known: bool) -> None:
    try:
        kernel.durable_names.open(known=known)
    except OSError as error:
        raise ConfigurationError(f"durable KV files cannot be used: {error}") from error


async def _first(task: "asyncio.Task[Any]", stop: asyncio.Event) -> bool:
    """Wait for the task or the stop; return whether the task has ended."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    return task.done()


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop with timers below a millisecond, for the scheduler's waits."""
    if sys.platform != "linux":
        # Only select() has timeouts below a millisecond; other selectors round up.
        return asyncio.SelectorEventLoop(selectors.SelectSelector())
    return PreciseTimerLoop()


class _Supervisor(asyncio.Protocol):
    """The supervisor's end of stdin: its notices, and its death."""

    def __init__(
        self, stop: asyncio.Event, processes: Processes, run_directory: Path | None
    ) -> None:
        self._stop = stop
        self._run_directory = run_directory
        self._processes = processes
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._processes.read_notice(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Stop the kernel, and remove sockets and journal: no other role does."""
        if self._run_directory is not None:
            shutil.rmtree(self._run_directory, ignore_errors=True)
        self._stop.set()


class _Progress:
    """Turns the loader's many reports into a few events."""

    def __init__(self) -> None:
        self._reported = -1.0

    def report(self, share: float) -> None:
        """Send the share of the model that is loaded."""
        if share - self._reported >= _PROGRESS_SHARE_MIN or share >= 1.0 > self._reported:
            self._reported = share
            emit("progress", what="loading the model", share=round(share, 3))


def emit(event: str, **what: Any) -> None:
    """Send one event to the supervisor."""
    sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run a kernel; return 0 when it was stopped, 1 when it failed, 2 for a bad configuration.

    An unusable model counts as a bad configuration, because another start would not help.
    """
    log_to_stderr(logging.INFO, "kernel: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    _log.info("its modules are %s", RUNS)
    try:
        # Unbuffered, because the event loop reads all later lines.
        with io.FileIO(sys.stdin.fileno(), closefd=False) as first:
            configuration = parse_configuration(first.readline().decode())
    except ConfigurationError as error:
        _log.error("%s", error)
        return 2
    take_short_turns()
    trim_regularly()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(boot(configuration))
    except (CheckpointError, ConfigurationError) as error:
        emit("refused", words=str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
