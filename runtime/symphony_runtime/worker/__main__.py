"""A worker's process: `python -m symphony_runtime.worker`.

One JSON line of configuration on stdin: {"name", "secret", "kernel_socket", "gateway_socket", ..}
(`WorkerConfig`). On stdout: {"event": "ready", "pid"} once both links are up. It ends with its
stdin, or on SIGTERM.
"""

import asyncio
import gc
import importlib
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from symphony_kernel.platform.log_format import log_to_stderr
from symphony_kernel.platform.malloc import trim_regularly
from symphony_kernel.protocol.heartbeat import beat
from symphony_kernel.protocol.links import Link, connect_unix
from symphony_kernel.protocol.sessions import LinkLostError

from symphony_runtime import event_loop
from symphony_runtime.abi import allowed_imports
from symphony_runtime.engine.settings import cache_identity
from symphony_runtime.sandboxing.contain import Contained, ContainmentError, contain
from symphony_runtime.worker.worker import Worker

_log = logging.getLogger("symphony.worker")

# Between two attempts to connect: at a start the other role comes up soon.
_PAUSE_S, _PAUSE_S_MAX = 0.002, 0.1
# Modules that Python and its packages would import at first use.
_LATE = (
    "encodings.idna",
    "encodings.unicode_escape",
    "encodings.utf_16_le",
    "jinja2.debug",
    "jinja2.ext",
    "traceback",
)
_STDIN = 0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The configuration; `secret` proves this worker to kernel and gateway."""

    name: str
    secret: bytes
    kernel_socket: Path
    gateway_socket: Path
    beat_seconds: float = 0.0  # between two "alive" events; 0: none
    number: int = 0  # among the workers of this server
    require_containment: bool = False

    @classmethod
    def parse(cls, line: str) -> "WorkerConfig":
        """Return the configuration in a JSON line. Raise ValueError, KeyError or TypeError."""
        data = json.loads(line)
        data["secret"] = bytes.fromhex(data["secret"])
        for socket in ("kernel_socket", "gateway_socket"):
            data[socket] = Path(data[socket])
        return cls(**data)


def lock_down(config: WorkerConfig) -> Contained:
    """Load what would be read from disk later, then give up files.

    Raise ContainmentError.
    """
    for name in _LATE:
        importlib.import_module(name)
    cache_identity()
    allowed_imports()
    found = contain(config.number, required=config.require_containment)
    if found.missing:
        _log.warning("contained less than it could be: %s", found.summary())
    return found


def tune() -> None:
    """Reduce thread switches' latency and the cost of garbage collection."""
    # The epoch ticker needs the GIL for a moment while guests run: keep its wait short.
    sys.setswitchinterval(0.0005)
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)


async def keep_linked(
    path: Path,
    attach: Callable[[Link], Awaitable[asyncio.Event]],
    linked: asyncio.Event,
    after: asyncio.Event | None = None,
) -> None:
    """Connect to a role, again whenever the link ends; `linked` is set while it is up.

    `after` must be set first: the event of a link that this one depends on.
    """
    pause = _PAUSE_S
    while True:
        if after is not None:
            await after.wait()
        try:
            lost = await attach(await connect_unix(path))
        except (OSError, LinkLostError) as error:
            _log.debug("no link to %s: %s", path.name, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_S_MAX)
            continue
        linked.set()
        pause = _PAUSE_S
        await lost.wait()
        linked.clear()
        _log.warning("the link to %s ended", path.name)


def write_event(event: str) -> None:
    """Write an event for the supervisor."""
    sys.stdout.write(json.dumps({"event": event, "pid": os.getpid()}) + "\n")
    sys.stdout.flush()


def watch_stdin(stop: asyncio.Event) -> None:
    """Set `stop` when the supervisor's end of stdin is closed."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(_STDIN, 4096):
            loop.remove_reader(_STDIN)
            stop.set()

    loop.add_reader(_STDIN, read)


async def serve(config: WorkerConfig, contained: Contained) -> None:
    """Run a worker until `stop`."""
    stop, kernel, gateway = asyncio.Event(), asyncio.Event(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    watch_stdin(stop)
    early_ms = event_loop.EARLY_MS
    worker = Worker(config.name, config.secret, now=time.monotonic, early_ms=early_ms)
    worker.about = {"containment": contained.achieved}
    worker.on_retire = stop.set
    tune()

    async def tell_ready() -> None:
        await kernel.wait()
        await gateway.wait()
        write_event("ready")
        await beat(config.beat_seconds, lambda: write_event("alive"))

    tasks: list[asyncio.Task[None]] = [
        asyncio.create_task(keep_linked(config.kernel_socket, worker.attach_kernel, kernel)),
        asyncio.create_task(
            keep_linked(config.gateway_socket, worker.attach_gateway, gateway, after=kernel)
        ),
        asyncio.create_task(tell_ready()),
    ]
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([stopped, *tasks[:2]], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done() and task is not tasks[2]:
            task.result()  # it ends only with a bug of ours: raise that
        task.cancel()
    await worker.stop()


def main() -> None:
    log_to_stderr(logging.INFO, "%(levelname)s %(name)s: %(message)s")
    config = WorkerConfig.parse(sys.stdin.buffer.readline().decode())
    try:
        contained = lock_down(config)  # before the loop, whose threads would not be contained
    except ContainmentError as error:
        sys.exit(f"{config.name}: {error}")
    trim_regularly()  # a contained thread
    event_loop.run(serve(config, contained))


if __name__ == "__main__":
    main()
