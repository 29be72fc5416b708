"""The gateway's process: `python -m symphony_runtime.gateway`, started by the supervisor.

stdin brings one JSON line of configuration, then notices about other roles; its end means that the
supervisor is gone. Events leave as JSON lines on stdout, logs on stderr. Exit code 2: the
configuration cannot be served, and another start would not help.
"""

import asyncio
import gc
import io
import json
import logging
import os
import signal
import sys
from typing import Any

from symphony_kernel.platform.log_format import log_to_stderr
from symphony_kernel.platform.malloc import trim_regularly
from symphony_kernel.protocol.heartbeat import ALIVE, beat
from symphony_kernel.protocol.role_processes import Processes

from symphony_runtime import event_loop
from symphony_runtime.gateway.app import serve
from symphony_runtime.gateway.config import ConfigError, GatewayConfig
from symphony_runtime.gateway.links.links import Worker
from symphony_runtime.gateway.links.models import Models
from symphony_runtime.gateway.links.startup import StartupProgress
from symphony_runtime.malloc import give_back_memory

_COLLECTOR_THRESHOLDS = (5_000, 20, 20)  # objects, then young and middle collections


async def _run(config: GatewayConfig) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    progress, processes = StartupProgress(), Processes()
    await loop.connect_read_pipe(lambda: _Supervisor(progress, processes), sys.stdin)
    async with serve(config, progress, processes if config.processes else None) as gateway:
        gateway.services.runs.worker_assignment.on_retire = _report_retired
        ready: dict[str, Any] = {"event": "ready", "pid": os.getpid(), "port": gateway.port}
        if gateway.default_key is not None:
            ready["default_key"] = gateway.default_key
        _emit(ready)
        linking = asyncio.create_task(_report_links(gateway.services.runs.models))
        # The first request need not wait for a compiler.
        preparing = asyncio.create_task(gateway.services.programs.shipped.prepare())
        # The objects of the start stay: the collector need not visit them again.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*_COLLECTOR_THRESHOLDS)
        beating = asyncio.create_task(beat(config.beat_seconds, lambda: _emit(ALIVE)))
        await stop.wait()
        preparing.cancel()
    linking.cancel()
    beating.cancel()


class _Supervisor(asyncio.Protocol):
    """The supervisor's end of stdin. When it closes, the gateway exits."""

    def __init__(self, progress: StartupProgress, processes: Processes) -> None:
        self._progress, self._processes = progress, processes
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            notice = json.loads(line)
            if not self._processes.read_notice(notice):
                self._progress.handle_notice(notice)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        logging.getLogger(__name__).error("the supervisor is gone: exiting")
        os._exit(1)  # the next start fails the runs that were live


def _emit(event: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def _report_links(models: Models) -> None:
    """Tell the supervisor when every kernel has been linked once."""
    for model in models:
        await model.kernel.linked.wait()
    _emit({"event": "linked"})


def _report_retired(worker: Worker) -> None:
    if worker.process is not None:
        _emit({"event": "retired", "role": worker.name, "start": worker.process.start})


def _log_level() -> str:
    wanted = os.environ.get("SYMPHONY_LOG", "warning").upper()
    return wanted if wanted in ("DEBUG", "INFO", "WARNING", "ERROR") else "WARNING"


def main() -> int:
    """Run the gateway until SIGTERM; return the exit code."""
    log_to_stderr(_log_level(), "%(levelname)s %(name)s: %(message)s")
    give_back_memory()
    trim_regularly()
    try:
        # Unbuffered: the lines that follow are for the event loop.
        with io.FileIO(sys.stdin.fileno(), closefd=False) as first:
            config = GatewayConfig.parse(json.loads(first.readline()))
        event_loop.run(_run(config))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
