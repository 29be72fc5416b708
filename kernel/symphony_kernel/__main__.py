"""The kernel's process: `python -m symphony_kernel`, started by the supervisor.

One JSON line of configuration comes on stdin, which then stays open: its end means that the
supervisor is gone. Events leave on stdout as JSON lines, logs on stderr.
"""

import sys

if __name__ == "__main__":  # before any module is imported of which there is a compiled one
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
from symphony_kernel.kvfs.tiers.config import pages_of, places_for
from symphony_kernel.maintenance.upkeep import AuditOptions
from symphony_kernel.platform.clock import RealClock
from symphony_kernel.platform.cpu_count import usable_processors
from symphony_kernel.platform.cpu_pressure import CpuPressure
from symphony_kernel.platform.event_loop import PreciseTimerLoop
from symphony_kernel.platform.interpreter import settle, take_short_turns
from symphony_kernel.platform.log_format import log_to_stderr
from symphony_kernel.protocol.heartbeat import beat
from symphony_kernel.protocol.limits import BESIDE_STEPS_SHARE, LOT_MS_MAX, STALL_SECONDS
from symphony_kernel.protocol.role_processes import Processes
from symphony_kernel.scheduler.batcher import StepLimits
from symphony_kernel.scheduler.prediction import PredictionOptions
from symphony_kernel.syscalls.durable_names import DurableOptions

_log = logging.getLogger(__name__)
_PROGRESS_SHARE_MIN = 0.05  # between two events


async def boot(configuration: Configuration) -> int:
    """Bring the kernel up, run it until it is told to stop, and return the exit code."""
    stop, processes = asyncio.Event(), Processes()
    # 1. The supervisor can stop us from here on: SIGTERM, or the end of stdin.
    await _watch(stop, processes, configuration.run_directory)
    # 2. Time.
    clock = RealClock()
    # 3. The executor: the device, the model's weights and the pool of pages.
    loading = asyncio.create_task(
        asyncio.to_thread(make_executor, configuration, clock, _Progress().report)
    )
    if not await _first(loading, stop):
        sys.stdout.flush()
        os._exit(0)  # a thread that loads a model cannot be told to stop
    executor, assets = loading.result()
    # 4. The kernel: KVFS over the executor's pages, the process table, syscalls, the scheduler.
    options = _options(configuration, executor)
    kernel = revive(configuration, lambda: Kernel(executor, describe(assets), clock, options))
    try:
        await asyncio.to_thread(kernel.constraints.prepare)
    except ValueError as error:  # it says so to whoever asks for one
        _log.warning("constraints cannot be used with this tokenizer: %s", error)
    # 5. Garbage, and turns.
    settle()
    # 6. The step loop.
    running = asyncio.create_task(kernel.run())
    # 7. The door: from now on the gateway and the workers may come in.
    server = Server(kernel, configuration.secrets, processes if configuration.processes else None)
    await server.listen(configuration.socket)
    emit("ready", pid=os.getpid(), model=assets.model.name, pages=executor.pages)
    beating = asyncio.create_task(beat(configuration.beat_seconds, lambda: emit("alive")))
    # 8. Until the supervisor stops us, or the kernel finds a fault in itself.
    failed = await _first(running, stop)
    beating.cancel()
    await server.close()
    await kernel.close()
    await running
    return 1 if failed else 0


def _options(configuration: Configuration, executor: Executor) -> KernelOptions:
    """Return what the operator has chosen, for this executor."""
    processors = usable_processors()
    on_processors = executor.computes in ("native", "torch")
    return KernelOptions(
        steps=StepLimits(
            decode_gap_ms=configuration.max_decode_gap_ms or inf,
            lot_ms=min(configuration.delivery_ms, LOT_MS_MAX),
            beside=CpuOptions(
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
        host_pages_max=pages_of(configuration.tenant_host_tokens_max),
        disk_pages_max=pages_of(configuration.tenant_disk_tokens_max),
        audit=AuditOptions(configuration.audit_seconds),
        stall_seconds=STALL_SECONDS,
        predictions=PredictionOptions() if configuration.predictions else None,
        tenant_weights=configuration.tenant_weights,
        durable_bytes_max=configuration.tenant_durable_bytes_max,
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
    """Return a kernel that goes on from its journal, or an empty one; it says why, if loudly.

    `log_bytes` of records make a new image due.
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
            _log.exception("the journal does not lead anywhere")
            store.set_aside("it cannot be followed")
            kernel = make()
            _open_names(kernel, known=False)
            kernel.start_journal(store, log_bytes=log_bytes)
    except (OSError, NoRoomError) as error:
        _log.error("THERE IS NO JOURNAL: %s; a kernel that dies takes all runs along", error)
        if isinstance(error, OSError) and found is None:
            _open_names(kernel, known=False)
    return kernel


def _open_names(kernel: Kernel, *, known: bool) -> None:
    try:
        kernel.open_durable_names(known=known)
    except OSError as error:
        raise ConfigurationError(f"durable KV files cannot be used: {error}") from error


async def _watch(stop: asyncio.Event, processes: Processes, run_directory: Path | None) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)
    supervisor = _Supervisor(stop, processes, run_directory)
    await loop.connect_read_pipe(lambda: supervisor, sys.stdin)


async def _first(task: "asyncio.Task[Any]", stop: asyncio.Event) -> bool:
    """Wait for the task or the stop; return whether the task has ended."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    return task.done()


def new_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop whose timers are as fine as the scheduler's waits."""
    if sys.platform != "linux":
        # select() keeps waits below a millisecond, which other ways round up to one.
        return asyncio.SelectorEventLoop(selectors.SelectSelector())
    return PreciseTimerLoop()


class _Supervisor(asyncio.Protocol):
    """What the supervisor says, and that it has gone."""

    def __init__(
        self, stop: asyncio.Event, processes: Processes, run_directory: Path | None
    ) -> None:
        self._stop = stop
        self._run_directory = run_directory
        self._processes = processes
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        """Some lines, or a part of one."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._processes.read_notice(json.loads(line))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The other end of stdin is closed: no other role removes the sockets and the journal."""
        if self._run_directory is not None:
            shutil.rmtree(self._run_directory, ignore_errors=True)
        self._stop.set()


class _Progress:
    """Turns a loader's many small reports into few events."""

    def __init__(self) -> None:
        self._told = -1.0

    def report(self, share: float) -> None:
        """Tell the supervisor which share of the model is loaded."""
        if share - self._told >= _PROGRESS_SHARE_MIN or share >= 1.0 > self._told:
            self._told = share
            emit("progress", what="loading the model", share=round(share, 3))


def emit(event: str, **what: Any) -> None:
    """Write one event for the supervisor."""
    sys.stdout.write(json.dumps({"event": event, **what}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run a kernel; 0 when it was told to stop, 1 when it failed, 2 for a bad configuration.

    A model that cannot be used is a bad configuration: another start would not help.
    """
    log_to_stderr(logging.INFO, "kernel: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    _log.info("its modules are %s", RUNS)
    try:
        # Unbuffered: the lines that follow are for the event loop.
        with io.FileIO(sys.stdin.fileno(), closefd=False) as first:
            configuration = parse_configuration(first.readline().decode())
    except ConfigurationError as error:
        _log.error("%s", error)
        return 2
    take_short_turns()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(boot(configuration))
    except (CheckpointError, ConfigurationError) as error:
        emit("refused", words=str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
