"""The supervisor: starts the roles, watches them, starts them again, stops them all.

boot       lock the data directory -> run directory, secrets -> kernel, workers, gateway
a role     gets one JSON line on stdin and says {"event": "ready"} on stdout when it is; its
           stdin stays open and ends with us, however we end: then it exits
announced  when all are ready and the gateway, ready long before a large model is loaded, has met
           the kernel ({"event": "linked"})
a death    the role is started again, after a pause that grows, for as long as GIVE_UP_SECONDS
           without being ready; one that never was ready ends everything after START_ATTEMPTS, or at
           once where its configuration is wrong
a hang     a role says that it is alive every BEAT_SECONDS; of one that was ready and has been
           silent for SILENT_BEATS of these the gateway hears, for `/readyz`, and after
           `hang_seconds` it is killed, and so started again
SIGTERM    the gateway drains its runs and stops, then the workers, then the kernel
"""

import asyncio
import contextlib
import fcntl
import json
import os
import resource
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from symphony_kernel.platform.disk_space import usual_reserve
from symphony_kernel.platform.log_format import printable
from symphony_kernel.protocol.role_processes import Started, notice

from symphony_runtime.config.serve import (
    ServeOptions,
    ServerPlace,
    read_place,
    remove_place,
    user_server_file,
    write_place,
)
from symphony_runtime.sandboxing.contain import open_to_workers
from symphony_runtime.supervisor import environment as role_environment
from symphony_runtime.supervisor.child_output import (
    event_of,
    lines,
    progress_of,
    refusal_of,
    retired_of,
)
from symphony_runtime.supervisor.console import Console

START_ATTEMPTS = 3
GIVE_UP_SECONDS = 300.0
BEAT_SECONDS = 0.25
SILENT_BEATS = 3  # so that a second has not passed when it is told
CONFIGURATION_WRONG = 2  # a role's exit code: starting it again would not help
_PAUSE_SECONDS = (0.05, 5.0)  # before a role is started again: first and longest
_SETTLED_SECONDS = 10.0  # a role that lived so long begins with the first pause again
_STOP_SECONDS = 5.0  # from a role's SIGTERM to its SIGKILL
_GATEWAY_STOP_SECONDS = 15.0  # beside the time that runs get
_DESCRIPTORS_MIN = 256  # that a process must be allowed to have open
_RUN_PREFIX = "symphony-"
_PATH_BYTES_MAX = 4096
_SOCKET_PATH_BYTES_MAX = 100  # the system's limit is 108
_LINE_BYTES_MAX = 1 << 20  # of a role's output
_WORDS_KEPT = 30  # last lines of a role's stderr, shown if it ends everything


class SupervisorError(Exception):
    """The server cannot go on; the words are for the operator."""


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """How a role is started."""

    name: str
    module: str
    config: dict[str, Any]
    environment: Mapping[str, str]
    stop_seconds: float = _STOP_SECONDS
    beat_seconds: float = 0.0  # between its signs of life; 0: it gives none
    hang_seconds: float = 0.0  # of silence after it was ready, until it is killed; 0: never


class Role:
    """One role's process, and the next one when it dies."""

    def __init__(
        self,
        spec: RoleSpec,
        console: "Console",
        on_progress: Callable[[str, dict[str, Any] | None], None] = lambda _role, _event: None,
        on_process: Callable[[str, Started], None] = lambda _role, _started: None,
        on_silence: Callable[[str, bool], None] = lambda _role, _silent: None,
    ) -> None:
        """`on_progress` hears of a role how far it is (its event), and None when it begins.

        `on_process` hears of each process of it, `on_silence` when it hangs and when no longer.
        """
        self.spec = spec
        self._on_progress, self._on_process = on_progress, on_process
        self._on_silence = on_silence
        # What it says of other roles: who may is given one that listens.
        self.on_retired: Callable[[str, int], None] = lambda _role, _start: None
        self._notices: dict[str, dict[str, Any]] = {}  # the last of each key, for the process
        self.about: dict[str, Any] = {}  # of the last ready event
        self.ready = asyncio.Event()
        self.linked = asyncio.Event()  # a gateway has met the kernel
        self.starts = 0
        self._console = console
        self._process: asyncio.subprocess.Process | None = None
        self._words: deque[str] = deque(maxlen=_WORDS_KEPT)
        self._refusal: str | None = None  # why it cannot start as it is configured
        self._heard = False  # something since the last look
        self._silent = False  # for SILENT_BEATS
        self._stopping = asyncio.Event()

    async def keep(self) -> None:
        """Keep the role running until `stop`.

        A role that has been ready is started again for minutes: a full disk or a shortage of memory
        may pass.

        Raises:
            SupervisorError: it does not become ready in START_ATTEMPTS, or again for
                GIVE_UP_SECONDS.
        """
        attempts, pause = 0, _PAUSE_SECONDS[0]
        last_ready: float | None = None
        while not self._stopping.is_set():
            began = time.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            was_ready = self.ready.is_set()
            self.ready.clear()
            if "ended" in self.spec.config:
                self.spec.config["ended"] = code
            if was_ready:
                last_ready = time.monotonic()
            attempts += 1
            if last_ready is None:
                given_up = attempts == START_ATTEMPTS or code == CONFIGURATION_WRONG
            else:
                given_up = time.monotonic() - last_ready > GIVE_UP_SECONDS
            if given_up:
                raise SupervisorError(self._last_words(code))
            if time.monotonic() - began > _SETTLED_SECONDS:
                pause = _PAUSE_SECONDS[0]
            self._console.line(self.spec.name, f"ended ({_ending(code)}); starting it again")
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_SECONDS[1])

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left when its time is up."""
        self._stopping.set()
        process = self._process
        if process is None:
            return
        _signal(process, signal.SIGTERM)
        try:
            async with asyncio.timeout(self.spec.stop_seconds):
                await process.wait()
        except TimeoutError:
            self._console.line(self.spec.name, "did not stop in time; it is killed")
        self.kill()
        await process.wait()

    def tell(self, key: str, notice: dict[str, Any]) -> None:
        """Write a line to the role, and to the next process, unless a later one has its key."""
        self._notices[key] = notice
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps(notice).encode() + b"\n")

    async def retire(self, start: int) -> None:
        """Kill the process that was started so, unless it ends by itself in time."""
        process = self._process
        if process is None or self.starts != start:
            return  # it has
        try:
            async with asyncio.timeout(self.spec.stop_seconds):
                await process.wait()
        except TimeoutError:
            self._console.line(self.spec.name, "did not retire in time; it is killed")
            _kill_group(process)

    def kill(self) -> None:
        """SIGKILL the role's whole process group."""
        self._stopping.set()
        if self._process is not None:
            _kill_group(self._process)

    async def _run_once(self) -> int:
        self.starts += 1
        self._words.clear()
        self._refusal = None
        self._on_progress(self.spec.name, None)
        self._note_silence(False)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self.spec.module,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(self.spec.environment),
            # A Ctrl-C on the terminal is ours to handle. No session of its own: where the system
            # shares processors by sessions, the roles' threads would not be compared any more.
            process_group=0,
            limit=_LINE_BYTES_MAX,
        )
        self._process = process
        self._on_process(self.spec.name, Started(process.pid, self.starts))
        try:
            if self._stopping.is_set():  # it was asked to stop while it was started
                _signal(process, signal.SIGTERM)
            assert process.stdin is not None
            for line in (self.spec.config, *self._notices.values()):
                process.stdin.write(json.dumps(line).encode() + b"\n")
            reading = asyncio.gather(self._read_events(process), self._read_words(process))
            watching = asyncio.create_task(self._watch(process))
            code = await process.wait()
            watching.cancel()
            _kill_group(process)  # nothing that it started may outlive it
            await reading
            return code
        finally:
            _kill_group(process)
            self._process = None

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        """Tell of a process that was ready and is silent now, and kill it in the end.

        Looks are counted, not seconds: after a pause of the whole machine, or of this process, it
        has its time.
        """
        looks, beat, hang = 0, self.spec.beat_seconds, self.spec.hang_seconds
        while beat:
            await asyncio.sleep(beat)
            looks = 0 if self._heard or not self.ready.is_set() else looks + 1
            self._heard = False
            if self._stopping.is_set():
                continue
            self._note_silence(looks >= SILENT_BEATS)
            if hang and looks * beat > hang:
                self._console.line(self.spec.name, f"has said nothing for {hang:g} s; it is killed")
                _kill_group(process)

    def _note_silence(self, silent: bool) -> None:
        if silent != self._silent:
            self._silent = silent
            self._console.line(self.spec.name, "hangs" if silent else "hangs no longer")
            self._on_silence(self.spec.name, silent)

    async def _read_events(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in lines(process.stdout):
            self._heard = True
            event = event_of(line)
            if event is None:
                self._console.line(self.spec.name, line.decode("utf-8", "replace").rstrip())
            elif event.get("event") == "ready":
                self.about = event
                self.ready.set()
            elif event.get("event") == "linked":
                self.linked.set()
            elif event.get("event") == "progress":
                progress = progress_of(event)
                self._console.progress(self.spec.name, progress["what"], progress["share"])
                self._on_progress(self.spec.name, progress)
            elif event.get("event") == "refused":
                self._refusal = refusal_of(event)
            elif event.get("event") == "retired":
                self.on_retired(*retired_of(event))

    async def _read_words(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        async for line in lines(process.stderr):
            said = line.decode("utf-8", "replace").rstrip()
            words = printable(said.removeprefix(f"{self.spec.name}: "))
            self._words.append(words)
            self._console.line(self.spec.name, words)

    def _last_words(self, code: int) -> str:
        if self._refusal is not None:
            return f"{self.spec.name} does not start: {self._refusal}"
        said = "\n".join(f"    {line}" for line in self._words) or "    (it said nothing)"
        return f"{self.spec.name} does not start ({_ending(code)}):\n{said}"


class Supervisor:
    """One server: its roles, from boot to drain."""

    def __init__(self, options: ServeOptions, console: Console, run_dir: Path) -> None:
        self._options = options
        self._console = console
        specs = role_specs(options, run_dir)
        self._roles = [
            Role(spec, console, self._pass_on, self._introduce, self._tell_of_silence)
            for spec in specs
        ]
        self._retiring: set[asyncio.Task[None]] = set()
        self._gateway = self._roles[-1]
        self._gateway.on_retired = self._retire  # nobody else's word ends another
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()
        self._former: ServerPlace | None = None  # the server that this user's commands spoke to

    async def run(self) -> None:
        """Serve until a signal, then drain.

        Raises:
            SupervisorError: a role does not start.
        """
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
            remove_place(user_server_file(), os.getpid(), self._former)
            remove_place(self._options.data_dir / "server.json", os.getpid())

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
        self._gateway.spec.config["port"] = port  # the next one must be found where this one was
        scheme = "https" if self._options.tls_cert else "http"
        url = f"{scheme}://{shown}:{port}"
        place = ServerPlace(url, data_dir / "default.key", os.getpid())
        write_place(data_dir / "server.json", place)
        self._former = read_place(user_server_file())
        write_place(user_server_file(), place)
        key = self._gateway.about.get("default_key")
        if key is not None:
            self._console.say(
                f"key of the tenant `default` (shown once, kept in {place.key_file}):"
            )
            self._console.say(f"    {key}")
        self._console.say(f"serving {self._options.model} on {url}")

    def _pass_on(self, role: str, event: dict[str, Any] | None) -> None:
        """Tell the gateway how far a role is: it answers those who ask whether we are ready."""
        if role != self._gateway.spec.name:
            progress = {key: (event or {}).get(key) for key in ("what", "share")}
            self._gateway.tell(role, {"event": "progress", "role": role, **progress})

    def _tell_of_silence(self, role: str, silent: bool) -> None:
        """Tell the gateway which role hangs: it answers those who ask whether we are ready."""
        if role != self._gateway.spec.name:
            notice = {"event": "silence", "role": role, "silent": silent}
            self._gateway.tell(f"silence of {role}", notice)

    def _introduce(self, role: str, started: Started) -> None:
        """Tell kernel and gateway which process a role is: no other is let in for it."""
        for who in (self._roles[0], self._gateway):
            if who.spec.name != role:
                who.tell(f"process of {role}", notice(role, started))

    def _retire(self, role: str, start: int) -> None:
        """The gateway has told a worker to retire."""
        for each in self._roles[1:-1]:
            if each.spec.name == role:
                task = asyncio.get_running_loop().create_task(each.retire(start))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)

    def _signalled(self) -> None:
        (self._stop_now if self._stop.is_set() else self._stop).set()

    async def _drain(self) -> None:
        self._console.say("draining; once more to stop at once")
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
        *others, gateway = self._roles
        await gateway.stop()  # runs need the others until they have ended
        await asyncio.gather(*(role.stop() for role in others[1:]))
        await others[0].stop()


def role_specs(options: ServeOptions, run_dir: Path) -> list[RoleSpec]:
    """Return how to start the kernel, each worker and the gateway, in this order."""
    workers = [f"worker-{number}" for number in range(options.workers)]
    to_kernel = {name: secrets.token_hex(32) for name in ("gateway", *workers)}
    sockets = {
        "kernel_socket": str(run_dir / "kernel.sock"),
        "gateway_socket": str(run_dir / "gateway.sock"),
    }
    hang = options.hang_seconds
    kernel = {"secrets": to_kernel, "processes": True, **_kernel_config(options, run_dir)}
    gateway = {
        "secrets": {name: to_kernel[name] for name in workers},
        "secret": to_kernel["gateway"],
        "kernel_socket": sockets["kernel_socket"],
        "socket": sockets["gateway_socket"],
        "processes": True,
        **_gateway_config(options),
    }
    beat = {"beat_seconds": BEAT_SECONDS}
    return [
        RoleSpec(
            "kernel",
            "symphony_kernel",
            kernel | beat,
            role_environment.of_kernel(os.environ),
            beat_seconds=BEAT_SECONDS,
            hang_seconds=hang,
        ),
        *(
            RoleSpec(
                name,
                "symphony_runtime.worker",
                {
                    "name": name,
                    "number": number,
                    "secret": to_kernel[name],
                    "require_containment": options.require_containment,
                    **sockets,
                    **beat,
                },
                role_environment.of_worker(os.environ),
                beat_seconds=BEAT_SECONDS,
                hang_seconds=hang,
            )
            for number, name in enumerate(workers)
        ),
        RoleSpec(
            "gateway",
            "symphony_runtime.gateway",
            gateway | beat,
            role_environment.of_gateway(os.environ, postgresql=bool(options.store)),
            stop_seconds=options.drain_seconds + _GATEWAY_STOP_SECONDS,
            beat_seconds=BEAT_SECONDS,
            hang_seconds=hang,
        ),
    ]


def _kernel_config(options: ServeOptions, run_dir: Path) -> dict[str, Any]:
    return {
        "socket": str(run_dir / "kernel.sock"),
        "executor": options.executor,
        "model": options.model,
        "device": options.device,
        "dtype": options.dtype,
        "quantize": options.quantize,
        "tensor_parallel": options.tensor_parallel,
        "pool_bytes": options.pool_bytes,
        "prefix_cache_share": options.prefix_cache_share,
        "host_pool_tokens": options.host_pool_tokens,
        "disk_pool_tokens": options.disk_pool_tokens,
        "disk_directory": str(options.data_dir),
        "tenant_host_tokens_max": options.tenant_host_tokens_max,
        "tenant_disk_tokens_max": options.tenant_disk_tokens_max,
        "audit_seconds": options.audit_seconds,
        "max_decode_gap_ms": options.max_decode_gap_ms,
        "delivery_ms": options.delivery_ms,
        "tenant_weights": options.tenant_weights,
        "threads": options.threads,
        "kv": str(options.data_dir / "kv"),
        "publish": options.publish,
        "disk_reserve_bytes": _reserve(options),
        "disk_bytes_max": options.disk_bytes_max,
        "tenant_durable_bytes_max": options.tenant_durable_bytes_max,
        "journal": str(run_dir / "journal") if options.journal else None,
        "ended": None,
        "run_directory": str(run_dir),
        "simulated": options.simulated,
    }


def _reserve(options: ServeOptions) -> int:
    """Return the bytes to reserve on the data directory's disk."""
    if options.disk_reserve_bytes is not None:
        return options.disk_reserve_bytes
    return usual_reserve(options.data_dir)


def _limits(options: ServeOptions) -> dict[str, Any]:
    """Return the table of limits, with those that are options of their own where it is silent."""
    own = {
        "kv_durable_bytes": options.tenant_durable_bytes_max,
        "kv_host_tokens": options.tenant_host_tokens_max,
        "kv_disk_tokens": options.tenant_disk_tokens_max,
    }
    return {k: v for k, v in own.items() if v is not None} | options.limits


def _gateway_config(options: ServeOptions) -> dict[str, Any]:
    return {
        "data_dir": str(options.data_dir),
        "host": options.host,
        "port": options.port,
        "tls_cert": options.tls_cert and str(options.tls_cert.resolve()),
        "tls_key": options.tls_key and str(options.tls_key.resolve()),
        "behind_proxy": options.behind_proxy,
        "workers_per_tenant": options.workers_per_tenant,
        "runs_live_max": options.runs_live_max,
        "tenant_runs_live_max": options.tenant_runs_live_max,
        "run_kept_seconds_max": options.run_kept_seconds_max,
        "tenant_runs_kept_max": options.tenant_runs_kept_max,
        "tenant_kept_bytes_max": options.tenant_kept_bytes_max,
        "disk_reserve_bytes": _reserve(options),
        "disk_bytes_max": options.disk_bytes_max,
        "program_unused_days_max": options.program_unused_days_max,
        "drain_seconds": options.drain_seconds,
        "queue_seconds_max": options.queue_seconds_max,
        "memory_free_bytes_min": options.memory_free_bytes_min,
        "slow_grace_seconds": options.slow_grace_seconds,
        "slow_bytes_a_second": options.slow_bytes_a_second,
        "slow_reader_seconds": options.slow_reader_seconds,
        "tools": options.tools,
        "http": options.http,
        "limits": _limits(options),
        "tenants": options.tenants,
        "store": options.store,
        "secrets_plain_loopback": options.secrets_plain_loopback,
        "require_containment": options.require_containment,
    }


def serve(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    console = Console(sys.stderr.write, terminal=sys.stderr.isatty())
    try:
        _raise_descriptor_limit()
        with _locked(options.data_dir) as lock, _run_directory(lock) as run_dir:
            asyncio.run(_supervise(options, console, run_dir))
    except SupervisorError as error:
        console.say(str(error))
        return 1
    return 0


async def _supervise(options: ServeOptions, console: Console, run_dir: Path) -> None:
    await Supervisor(options, console, run_dir).run()


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[int]:
    """Hold the data directory: two servers in one would spoil it. Yields the locked file."""
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
        room = _SOCKET_PATH_BYTES_MAX - len(os.fsencode(parent)) - len("/symphony-12345678/")
        if room >= len("gateway.sock") and os.access(parent, os.W_OK) and _lets_workers_in(parent):
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
    """Whether who is no longer root gets through a directory; /run/user/0 lets nobody."""
    path = Path(parent).resolve()
    if not path.is_dir() or os.geteuid() != 0:
        return path.is_dir()
    return all(each.stat().st_mode & 0o001 for each in (path, *path.parents))


def _raise_descriptor_limit() -> None:
    """Thousands of runs are thousands of connections; the roles inherit the limit.

    Raises:
        SupervisorError: the system lets a process open too few.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS_MIN:
        raise SupervisorError(
            f"a process may open {hard} files here (RLIMIT_NOFILE), and a server needs at least "
            f"{_DESCRIPTORS_MIN}: `ulimit -n {_DESCRIPTORS_MIN}` before it, or LimitNOFILE= of its "
            "systemd unit, allows them"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)


def _kill_group(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ending(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
