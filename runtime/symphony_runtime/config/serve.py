"""What an operator may set: `symphony serve`'s options and the file behind `--config`.

The file is TOML with the options' names as keys; an option on the command line wins over it:

    model = "tiny"          # or a folder in Hugging Face layout
    host = "127.0.0.1"
    port = 8700
    workers = 1
    max_decode_gap_ms = 200 # a step with prompts beside others' decodes takes no longer
    delivery_ms = 25        # tokens of a generation come in lots, at most so late; 0: each at once

    [tenant_weights]        # shares of the device; 1 where none stands
    research = 2

What tenants and runs may use stands in its tables `limits` and `tenants`: see
`symphony_runtime.config.limits`. Which tools and which URLs programs may reach stands in its tables
`tools` and `http`: see `symphony_runtime.config.egress`.

Where a server is, is told in two small JSON files ({url, key_file, pid}): `server.json` in its data
directory, and one for the user, so that the other commands find it without being told.
"""

import json
import os
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from symphony_kernel.protocol.limits import (
    AUDIT_SECONDS,
    DECODE_GAP_MS_DEFAULT,
    DELIVERY_MS_DEFAULT,
    DELIVERY_MS_MAX,
    DRAIN_SECONDS_MAX,
    HANG_SECONDS,
    MEMORY_FREE_BYTES_MIN,
    PREFIX_CACHE_SHARE,
    QUEUE_SECONDS_MAX,
    RUN_KEPT_SECONDS_MAX,
    RUNS_LIVE_MAX,
    SLOW_BYTES_A_SECOND_MIN,
    SLOW_GRACE_SECONDS,
    SLOW_READER_SECONDS,
    TENANT_DURABLE_BYTES_MAX,
    TENANT_KEPT_BYTES_MAX,
    TENANT_RUNS_KEPT_MAX,
    TENANT_RUNS_LIVE_MAX,
    TENANT_WEIGHT_MAX,
    TENANT_WEIGHT_MIN,
)

from symphony_runtime.config.egress import parse_http, parse_tools
from symphony_runtime.config.limits import parse_limits, parse_tenants
from symphony_runtime.config.transport import TransportError, check_transport

WORKERS_MAX = 64
PROGRAM_DAYS_MAX = 36_500
DEVICES_MAX = 64


class OptionsError(Exception):
    """An option or the configuration file is wrong; the words are for the operator."""


def default_data_dir() -> Path:
    """Return where a server keeps its data unless it is told."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "symphony"


def user_server_file() -> Path:
    """Return the file that says where this user's server is."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "symphony" / "server.json"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `symphony serve`."""

    model: str = "tiny"
    host: str = "127.0.0.1"
    port: int = 8700  # 0: any free one
    tls_cert: Path | None = None  # PEM files: the gateway speaks TLS; both, or neither
    tls_key: Path | None = None
    behind_proxy: bool = False  # a proxy in front ends TLS
    workers: int = 1
    workers_per_tenant: bool = False  # no worker's process runs two tenants' programs
    data_dir: Path = field(default_factory=default_data_dir)
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "none"  # or "int8": the weights of products, on the CPU
    executor: str = "torch"
    tensor_parallel: int = 1  # devices that share the model, a process for each
    pool_bytes: int | None = None
    prefix_cache_share: float = PREFIX_CACHE_SHARE  # of the pool, for prefixes that programs offer
    # Room for KV pages that are not on the device, in tokens: in host memory (None: as much as the
    # device's pool has, as far as memory goes), and in a file in the data directory.
    host_pool_tokens: int | None = None
    disk_pool_tokens: int = 0
    tenant_host_tokens_max: int | None = None  # of them; None: all
    tenant_disk_tokens_max: int | None = None
    audit_seconds: float = AUDIT_SECONDS  # between two audits of an idle kernel; 0: none
    threads: int | None = None
    drain_seconds: float = DRAIN_SECONDS_MAX
    queue_seconds_max: float = QUEUE_SECONDS_MAX  # a run that would wait longer: 503; 0: any time
    memory_free_bytes_min: int = MEMORY_FREE_BYTES_MIN  # with less left: 503; 0: never
    slow_grace_seconds: float = SLOW_GRACE_SECONDS  # for clients that bring nothing of a body
    slow_bytes_a_second: int = SLOW_BYTES_A_SECOND_MIN  # that they bring, at least
    slow_reader_seconds: float = SLOW_READER_SECONDS  # for those that take nothing of an answer
    runs_live_max: int = RUNS_LIVE_MAX
    tenant_runs_live_max: int = TENANT_RUNS_LIVE_MAX
    run_kept_seconds_max: int = RUN_KEPT_SECONDS_MAX  # then an ended run is deleted
    tenant_runs_kept_max: int = TENANT_RUNS_KEPT_MAX  # of more the oldest are deleted
    tenant_kept_bytes_max: int = TENANT_KEPT_BYTES_MAX  # of their messages and logs, likewise
    # Of the data directory's disk, for deletions and ends of runs; None: see `usual_reserve`.
    disk_reserve_bytes: int | None = None
    disk_bytes_max: int | None = None  # of all that lies there; None: what the disk has
    program_unused_days_max: int = 0  # then a program that nobody runs goes; 0: never
    publish: bool = False  # programs may make KV files public: other tenants read them
    tenant_durable_bytes_max: int = TENANT_DURABLE_BYTES_MAX  # on disk, of one tenant's KV files
    require_containment: bool = False  # no worker that is contained less than this user allows
    store: str = field(default="", repr=False)  # URL of a PostgreSQL database; else SQLite
    journal: bool = True  # the kernel comes back from a death with all that it had
    hang_seconds: float = HANG_SECONDS  # of silence, before a role is killed and started; 0: never
    # How long a step may take when prompts are computed beside others' decodes; 0: any time.
    max_decode_gap_ms: float = DECODE_GAP_MS_DEFAULT
    # How late tokens of a generation may come, so that several wake everybody once; 0: no later.
    delivery_ms: float = DELIVERY_MS_DEFAULT
    # Tenants' shares of the device relative to each other's; 1.0 where none stands.
    tenant_weights: dict[str, float] = field(default_factory=dict)
    simulated: dict[str, Any] = field(default_factory=dict)  # cost model of the simulated executor
    # MCP servers, by name, whose tools programs may call: see `config.egress`.
    tools: dict[str, Any] = field(default_factory=dict)
    http: list[Any] = field(default_factory=list)  # and which URLs they may ask for
    # What tenants and runs may use, of everybody and of some: see `limits`.
    limits: dict[str, Any] = field(default_factory=dict)
    tenants: dict[str, Any] = field(default_factory=dict)
    secrets_plain_loopback: bool = False  # secrets may go to this machine without TLS

    def checked(self) -> "ServeOptions":
        """Return these options, or raise OptionsError."""
        choices = {
            "device": ("auto", "cpu", "cuda"),
            "dtype": ("auto", "fp32", "bf16"),
            "quantize": ("none", "int8"),
            "executor": ("torch", "simulated"),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise OptionsError(f"{name} must be one of {', '.join(allowed)}")
        bounds = {
            "port": (0, 65_535),
            "workers": (1, WORKERS_MAX),
            "tensor_parallel": (1, DEVICES_MAX),
            "prefix_cache_share": (0, 1),
            "delivery_ms": (0, DELIVERY_MS_MAX),
            "program_unused_days_max": (0, PROGRAM_DAYS_MAX),
            "runs_live_max": (1, RUNS_LIVE_MAX),
            "tenant_runs_live_max": (1, RUNS_LIVE_MAX),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise OptionsError(f"{name} must be from {low} to {high}")
        least = {
            "pool_bytes": 1,
            "host_pool_tokens": 0,
            "disk_pool_tokens": 0,
            "tenant_host_tokens_max": 0,
            "tenant_disk_tokens_max": 0,
            "audit_seconds": 0,
            "threads": 1,
            "drain_seconds": 0,
            "hang_seconds": 0,
            "tenant_durable_bytes_max": 0,
            "max_decode_gap_ms": 0,
            "queue_seconds_max": 0,
            "memory_free_bytes_min": 0,
            "slow_grace_seconds": 0,
            "slow_bytes_a_second": 1,
            "slow_reader_seconds": 1,
            "run_kept_seconds_max": 0,
            "tenant_runs_kept_max": 0,
            "tenant_kept_bytes_max": 0,
            "disk_reserve_bytes": 0,
            "disk_bytes_max": 0,
        }
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not value >= low:  # as no NaN is
                raise OptionsError(f"{name} must be at least {low}")
        if self.tensor_parallel > 1 and self.disk_pool_tokens:
            raise OptionsError("disk_pool_tokens: no disk tier with tensor_parallel above 1")
        for tenant, weight in self.tenant_weights.items():
            number = weight if type(weight) in (int, float) else 0
            if not TENANT_WEIGHT_MIN <= number < TENANT_WEIGHT_MAX:
                raise OptionsError(f"tenant_weights: that of {tenant} must be a positive number")
        try:
            parse_tools(self.tools)
            parse_http(self.http)
            parse_limits(self.limits)
            parse_tenants(self.tenants)
            check_store(self.store)
            check_transport(self.host, self.tls_cert, self.tls_key, behind_proxy=self.behind_proxy)
        except (ValueError, TransportError) as error:
            raise OptionsError(str(error)) from error
        return self


def check_store(url: str) -> None:
    """Check where tenants, keys, programs and runs are kept; ValueError: nowhere that is known."""
    if url and not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("store must be the URL of a PostgreSQL database: postgresql://...")


def read_options(path: Path | None, given: dict[str, Any]) -> ServeOptions:
    """Return the options of a configuration file, those in `given` that are not None on top.

    Raises:
        OptionsError: the file cannot be read, or an option is unknown or wrong.
    """
    values = _read_file(path) if path is not None else {}
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        return replace(ServeOptions(), **values).checked()
    except TypeError as error:
        raise OptionsError(str(error)) from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionsError(f"{path}: {error}") from error
    types = {f.name: type(f.default) for f in fields(ServeOptions)}
    types |= {
        "data_dir": str,
        "tls_cert": str,
        "tls_key": str,
        "simulated": dict,
        "tenant_weights": dict,
        "tools": dict,
        "http": list,
        "limits": dict,
        "tenants": dict,
        "pool_bytes": int,
        "host_pool_tokens": int,
        "tenant_host_tokens_max": int,
        "tenant_disk_tokens_max": int,
        "disk_reserve_bytes": int,
        "disk_bytes_max": int,
        "threads": int,
    }
    for name, value in values.items():
        wanted = types.get(name)
        if wanted is None:
            raise OptionsError(f"{path}: no option is called {name!r}")
        numeric = wanted is float and type(value) is int
        if type(value) is not wanted and not numeric:
            raise OptionsError(f"{path}: {name} must be a {wanted.__name__}")
    for name in {"data_dir", "tls_cert", "tls_key"} & values.keys():
        values[name] = path.parent / Path(values[name]).expanduser()
    for server in values.get("tools", {}).values():
        if isinstance(server, dict) and server.get("command"):
            directory = Path(str(server.get("directory", "."))).expanduser()
            server["directory"] = str((path.parent / directory).absolute())
    return values


# --- Where a server is ---------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ServerPlace:
    """A server's address, the file with the default tenant's key, and its supervisor's process."""

    url: str
    key_file: Path
    pid: int


def write_place(path: Path, place: ServerPlace) -> None:
    """Tell where a server is; the file is replaced as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"url": place.url, "key_file": str(place.key_file), "pid": place.pid})
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.touch(mode=0o600)  # what it tells is its owner's alone
    temporary.write_text(text + "\n", encoding="utf-8")
    temporary.replace(path)


def read_place(path: Path) -> ServerPlace | None:
    """Return what such a file says; None if there is none, or none that can be understood."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return ServerPlace(str(values["url"]), Path(values["key_file"]), int(values["pid"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_place(path: Path, pid: int, former: ServerPlace | None = None) -> None:
    """Remove the file if it is about the server of this process.

    `former` is what stood there before: it stands there again if that server has not ended.
    """
    place = read_place(path)
    if place is None or place.pid != pid:
        return
    path.unlink(missing_ok=True)
    if former is not None and read_place(former.key_file.with_name("server.json")) == former:
        write_place(path, former)
