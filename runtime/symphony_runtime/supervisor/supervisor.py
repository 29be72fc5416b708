"""The supervisor: starts, watches, restarts and stops the roles.

boot       lock the data directory -> run directory, secrets -> kernels, workers, gateway
a role     see `role`: a death or a hang starts it again
announced  when all roles are ready, and the gateway, ready long before a large model is loaded, has
           met the kernel ({"event": "linked"})
SIGTERM    the gateway drains its runs and stops, then the workers, then the kernel
"""

import asyncio
import contextlib
import fcntl
import os
import resource
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from symphony.client.places import ServerPlace
from symphony_kernel.platform.disk_space import usual_reserve
from symphony_kernel.protocol.role_processes import Started, notice

from symphony_runtime.config.announcement import announce, withdraw
from symphony_runtime.config.otlp import traces_endpoint
from symphony_runtime.config.serve import ServeOptions
from symphony_runtime.sandboxing.contain import open_to_workers
from symphony_runtime.supervisor import environment as role_environment
from symphony_runtime.supervisor.console import Console
from symphony_runtime.supervisor.models import ModelPlaces, model_places
from symphony_runtime.supervisor.role import BEAT_SECONDS, Role, RoleSpec, SupervisorError
from symphony_runtime.supervisor.service_manager import notify

_GATEWAY_STOP_SECONDS = 15.0  # in addition to the time that runs get
_DESCRIPTORS_MIN = 256  # open files that a process must be allowed
_RUN_PREFIX = "symphony-"
_PATH_BYTES_MAX = 4096
_SOCKET_PATH_BYTES_MAX = 100  # the system's limit is 108

# Options that a role gets under their own names.
_KERNEL_OPTIONS = (
    "audit_seconds", "delivery_ms", "device", "disk_bytes_max", "disk_pool_tokens", "dtype",
    "executor", "host_pool_tokens", "max_decode_gap_ms", "pool_bytes",
    "prefix_cache_share", "publish", "quantize", "simulated", "tenant_disk_tokens_max",
    "tenant_durable_bytes_max", "tenant_host_tokens_max", "tenant_weights", "tensor_parallel",
    "threads",
)  # fmt: skip
_GATEWAY_OPTIONS = (
    "behind_proxy", "cors_origins", "disk_bytes_max", "drain_seconds", "host", "http",
    "memory_free_bytes_min", "otlp", "port", "program_unused_days_max", "queue_seconds_max",
    "require_containment", "run_kept_seconds_max", "runs_live_max", "secrets_plain_loopback",
    "slow_bytes_a_second", "slow_grace_seconds", "slow_reader_seconds", "store",
    "tenant_kept_bytes_max", "tenant_runs_kept_max", "tenant_runs_live_max", "tenants",
    "draft_tokens", "tool_format", "tools", "workers_per_tenant",
)  # fmt: skip


class Supervisor:
    """One server: its roles, from boot to drain."""

    def __init__(self, options: ServeOptions, console: Console, run_dir: Path) -> None:
        self._options = options
        self._console = console
        self._models = model_places(options, run_dir)
        for model in self._models[1:]:
            model.run.mkdir(mode=0o700)
            open_to_workers(model.run)
        specs = role_specs(options, run_dir)
        self._roles = [
            Role(
                spec, console, self._forward_progress, self._announce_process, self._report_silence
            )
            for spec in specs
        ]
        self._retiring: set[asyncio.Task[None]] = set()
        self._gateway = self._roles[-1]
        self._kernels = self._roles[: len(self._models)]
        self._workers = self._roles[len(self._models) : -1]
        self._gateway.on_retired = self._retire  # only the gateway may retire a role
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self) -> None:
        """Serve until a signal, then drain. SupervisorError: a role does not start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        keepers = [asyncio.create_task(role.keep()) for role in self._roles]
        serving = asyncio.create_task(self._serve())
        try:
            tasks: list[asyncio.Task[None]] = [*keepers, serving]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for keeper in keepers:
                if keeper.done():
                    keeper.result()
            await self._drain()
        finally:
            serving.cancel()
            for role in self._roles:
                role.kill()
            await asyncio.gather(*keepers, serving, return_exceptions=True)
            withdraw(self._options.data_dir, os.getpid())

    async def _serve(self) -> None:
        """Announce the server when all roles are ready; return at the first signal."""
        waiting = asyncio.create_task(self._wait_until_ready())
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({waiting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not stopped.done():
            self._announce()
            await stopped
        waiting.cancel()

    async def _wait_until_ready(self) -> bool:
        for role in self._roles:
            await role.ready.wait()
        await self._gateway.linked.wait()
        return True

    def _announce(self) -> None:
        data_dir = self._options.data_dir.resolve()
        host = self._options.host
        shown = f"[{host}]" if ":" in host else host
        port = self._gateway.about["port"]
        self._gateway.spec.config["port"] = port  # a restarted gateway must keep the port
        scheme = "https" if self._options.tls_cert else "http"
        url = f"{scheme}://{shown}:{port}"
        place = ServerPlace(url, data_dir / "default.key", os.getpid())
        announce(place)
        key = self._gateway.about.get("default_key")
        if key is not None:
            self._console.say(
                f"key of the tenant `default` (shown once, kept in {place.key_file}):"
            )
            self._console.say(f"    {key}")
        names = [str(kernel.about["model"]) for kernel in self._kernels]
        shown = ", ".join(  # clients need the name
            name if name == model.source else f"{name} ({model.source})"
            for name, model in zip(names, self._models, strict=True)
        )
        self._console.say(f"serving {shown} on {url}")
        notify(f"READY=1\nSTATUS=serving {', '.join(names)} on {url}")

    def _forward_progress(self, role: str, event: dict[str, Any] | None) -> None:
        """Tell the gateway a role's progress, for `/readyz`."""
        if role != self._gateway.spec.name:
            progress = {key: (event or {}).get(key) for key in ("what", "share")}
            self._gateway.send_notice(role, {"event": "progress", "role": role, **progress})

    def _report_silence(self, role: str, silent: bool) -> None:
        """Tell the gateway which role hangs, for `/readyz`."""
        if role != self._gateway.spec.name:
            notice = {"event": "silence", "role": role, "silent": silent}
            self._gateway.send_notice(f"silence of {role}", notice)

    def _announce_process(self, role: str, started: Started) -> None:
        """Tell kernels and gateway the process of a role: they accept no other."""
        for receiver in (*self._kernels, self._gateway):
            if receiver.spec.name != role:
                receiver.send_notice(f"process of {role}", notice(role, started))

    def _retire(self, role: str, start: int) -> None:
        """Make sure that a worker ends after the gateway has retired it."""
        for each in self._workers:
            if each.spec.name == role:
                task = asyncio.get_running_loop().create_task(each.retire(start))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)

    def _signalled(self) -> None:
        (self._stop_now if self._stop.is_set() else self._stop).set()

    async def _drain(self) -> None:
        self._console.say("draining; once more to stop at once")
        notify("STOPPING=1\nSTATUS=draining")
        stopping = asyncio.create_task(self._stop_in_order())
        at_once = asyncio.create_task(self._stop_now.wait())
        tasks: set[asyncio.Task[Any]] = {stopping, at_once}
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        if not stopping.done():
            for role in self._roles:
                role.kill()
        await stopping

    async def _stop_in_order(self) -> None:
        await self._gateway.stop()  # first: its runs need the other roles
        await asyncio.gather(*(role.stop() for role in self._workers))
        await asyncio.gather(*(role.stop() for role in self._kernels))


def role_specs(options: ServeOptions, run_dir: Path) -> list[RoleSpec]:
    """Return how to start the kernels, each worker and the gateway, in this order; OSError."""
    models = model_places(options, run_dir)
    to_kernel = {name: secrets.token_hex(32) for each in models for name in each.worker_names}
    gateway_secret, gateway_socket = secrets.token_hex(32), str(run_dir / "gateway.sock")
    beat = {"beat_seconds": BEAT_SECONDS}
    gateway = {
        "secrets": to_kernel,
        "secret": gateway_secret,
        "kernel_socket": models[0].socket,
        "models": [each.gateway_config() for each in models] if len(models) > 1 else [],
        "kv_directories": [str(each.kv) for each in models],
        "socket": gateway_socket,
        "processes": True,
        **beat,
        **_gateway_config(options),
    }
    common = {
        "require_containment": options.require_containment, "gateway_socket": gateway_socket, **beat
    }  # fmt: skip
    spec = partial(RoleSpec, beat_seconds=BEAT_SECONDS, hang_seconds=options.hang_seconds)
    kernel_environment = role_environment.of_kernel(os.environ)
    worker_environment = role_environment.of_worker(os.environ)
    return [
        *(
            spec(
                each.kernel,
                "symphony_kernel",
                {
                    "secrets": {"gateway": gateway_secret}
                    | {name: to_kernel[name] for name in each.worker_names},
                    **beat,
                    **_kernel_config(options, each, run_dir, len(models)),
                },
                kernel_environment,
            )
            for each in models
        ),
        *(
            spec(
                name,
                "symphony_runtime.worker",
                {
                    "name": name,
                    "number": number,
                    "secret": to_kernel[name],
                    "kernel_socket": each.socket,
                    **common,
                },
                worker_environment,
            )
            for each in models
            for number, name in zip(each.workers, each.worker_names, strict=True)
        ),
        spec(
            "gateway",
            "symphony_runtime.gateway",
            gateway,
            role_environment.of_gateway(
                os.environ,
                postgresql=bool(options.store),
                traces=bool(traces_endpoint(options.otlp, os.environ)),
            ),
            stop_seconds=options.drain_seconds + _GATEWAY_STOP_SECONDS,
        ),
    ]


def _kernel_config(
    options: ServeOptions, model: ModelPlaces, run_dir: Path, models: int
) -> dict[str, Any]:
    return {name: getattr(options, name) for name in _KERNEL_OPTIONS} | {
        "processes": True,
        "model": model.source,
        "name": model.name,
        "socket": model.socket,
        "disk_directory": str(options.data_dir),
        # The budget is of all models; each takes at most half of its part for its disk tier.
        "disk_bytes_max": options.disk_bytes_max and options.disk_bytes_max // models,
        "kv": str(model.kv),
        "disk_reserve_bytes": _reserve(options),
        "journal": str(model.run / "journal") if options.journal else None,
        "ended": None,
        "run_directory": str(run_dir),
    }


def _reserve(options: ServeOptions) -> int:
    """Return the bytes to reserve on the data directory's disk."""
    if options.disk_reserve_bytes is not None:
        return options.disk_reserve_bytes
    return usual_reserve(options.data_dir)


def _limits(options: ServeOptions) -> dict[str, Any]:
    """Return the limits, including those that are options of their own."""
    own = {
        "kv_durable_bytes": options.tenant_durable_bytes_max,
        "kv_host_tokens": options.tenant_host_tokens_max,
        "kv_disk_tokens": options.tenant_disk_tokens_max,
    }
    return {k: v for k, v in own.items() if v is not None} | options.limits


def _gateway_config(options: ServeOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in _GATEWAY_OPTIONS} | {
        "data_dir": str(options.data_dir),
        "tls_cert": options.tls_cert and str(options.tls_cert.resolve()),
        "tls_key": options.tls_key and str(options.tls_key.resolve()),
        "disk_reserve_bytes": _reserve(options),
        "limits": _limits(options),
    }


def serve(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    console = Console(sys.stderr.write, terminal=sys.stderr.isatty())
    try:
        _raise_descriptor_limit()
        with _locked(options.data_dir) as lock, _run_directory(lock) as run_dir:
            try:
                supervisor = Supervisor(options, console, run_dir)
            except OSError as error:
                raise SupervisorError(f"cannot use {options.data_dir}: {error}") from error
            asyncio.run(supervisor.run())
    except SupervisorError as error:
        console.say(str(error))
        return 1
    return 0


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[int]:
    """Lock the data directory against a second server; yield the lock's descriptor."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SupervisorError(f"cannot use {data_dir}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield descriptor
    except BlockingIOError:
        raise SupervisorError(f"another server uses {data_dir}") from None
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _run_directory(lock: int) -> Iterator[Path]:
    """Make a private directory for the sockets, with a path short enough for them.

    The file `lock` names it, so that the next start removes what a killed server has left.
    """
    left = Path(os.fsdecode(os.pread(lock, _PATH_BYTES_MAX, 0)).strip("\0"))
    if left.is_absolute() and left.name.startswith(_RUN_PREFIX):
        shutil.rmtree(left, ignore_errors=True)
    wanted = [os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"]  # noqa: S108
    for parent in filter(None, wanted):
        name_bytes = _SOCKET_PATH_BYTES_MAX - len(os.fsencode(parent)) - len("/symphony-12345678/")
        if (
            name_bytes >= len("gateway.sock")
            and os.access(parent, os.W_OK)
            and _lets_workers_in(parent)
        ):
            break
    else:
        raise SupervisorError("no directory for sockets: set TMPDIR to one with a short path")
    path = Path(tempfile.mkdtemp(prefix=_RUN_PREFIX, dir=parent))  # mode 0700
    with contextlib.suppress(OSError):  # on a full disk it may stay behind
        os.ftruncate(lock, 0)
        os.pwrite(lock, os.fsencode(path), 0)
    open_to_workers(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _lets_workers_in(parent: str) -> bool:
    """Return whether a user other than root can enter a directory (not /run/user/0)."""
    path = Path(parent).resolve()
    if not path.is_dir() or os.geteuid() != 0:
        return path.is_dir()
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


def _raise_descriptor_limit() -> None:
    """Raise the limit of descriptors; the roles inherit it.

    Raises SupervisorError: the system allows a process too few.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS_MIN:
        raise SupervisorError(
            f"a process may open {hard} files here (RLIMIT_NOFILE), and a server needs at least "
            f"{_DESCRIPTORS_MIN}: `ulimit -n {_DESCRIPTORS_MIN}` before it, or LimitNOFILE= of its "
            "systemd unit, allows them"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
