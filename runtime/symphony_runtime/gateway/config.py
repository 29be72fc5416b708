"""The gateway's configuration: one JSON line from the supervisor."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symphony_kernel.protocol.limits import (
    DRAIN_SECONDS_MAX,
    KERNEL_WAIT_SECONDS_MAX,
    MEMORY_FREE_BYTES_MIN,
    QUEUE_SECONDS_MAX,
    RUN_KEPT_SECONDS_MAX,
    RUNS_LIVE_MAX,
    SLOW_BYTES_A_SECOND_MIN,
    SLOW_GRACE_SECONDS,
    SLOW_READER_SECONDS,
    TENANT_KEPT_BYTES_MAX,
    TENANT_RUNS_KEPT_MAX,
    TENANT_RUNS_LIVE_MAX,
)

from symphony_runtime.config.egress import HttpRule, ToolServerOptions, parse_http, parse_tools
from symphony_runtime.config.limits import Bound, parse_limits, parse_tenants
from symphony_runtime.config.transport import is_loopback as is_loopback


class ConfigError(Exception):
    """The configuration cannot be served. The message is for the operator."""


@contextmanager
def refused_for(kind: type[Exception]) -> Iterator[None]:
    """Turn errors of a kind, whose messages are for the operator, into ConfigError."""
    try:
        yield
    except kind as error:
        raise ConfigError(str(error)) from error


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One of several models: its name for clients, its kernel's role and socket, its workers."""

    name: str
    kernel: str
    socket: Path
    workers: tuple[str, ...]

    @classmethod
    def parse(cls, values: dict[str, Any]) -> "ModelConfig":
        return cls(
            values["name"], values["kernel"], Path(values["socket"]), tuple(values["workers"])
        )


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Where the gateway listens, its secrets, its data and its bounds."""

    socket: Path  # workers connect here
    secrets: dict[str, bytes] = field(repr=False)  # of each worker, by its name
    secret: bytes = field(repr=False)  # its own, for the kernel
    kernel_socket: Path  # of the first model's kernel
    data_dir: Path
    host: str
    port: int  # 0: any free port
    models: tuple[ModelConfig, ...] = ()  # of a server with several, the default first
    kv_directories: tuple[Path, ...] = ()  # of the models' KV files
    tls_cert: Path | None = None  # with `tls_key`: TLS; see `symphony_runtime.config.transport`
    tls_key: Path | None = None
    behind_proxy: bool = False
    cors_origins: list[str] = field(default_factory=list)  # of web pages; see `gateway.http.cors`
    runs_live_max: int = RUNS_LIVE_MAX
    tenant_runs_live_max: int = TENANT_RUNS_LIVE_MAX
    run_kept_seconds_max: int = RUN_KEPT_SECONDS_MAX
    tenant_runs_kept_max: int = TENANT_RUNS_KEPT_MAX
    tenant_kept_bytes_max: int = TENANT_KEPT_BYTES_MAX
    program_unused_days_max: int = 0  # an unused program is deleted then; 0: never
    drain_seconds: float = DRAIN_SECONDS_MAX
    workers_per_tenant: bool = False  # no worker's process runs two tenants' programs
    queue_seconds_max: float = QUEUE_SECONDS_MAX  # that a new run may wait; 0: any time
    memory_free_bytes_min: int = MEMORY_FREE_BYTES_MIN  # for a new run; 0: no minimum
    slow_grace_seconds: float = SLOW_GRACE_SECONDS  # for clients that send nothing of a body
    slow_bytes_a_second: int = SLOW_BYTES_A_SECOND_MIN  # that they send at least
    slow_reader_seconds: float = SLOW_READER_SECONDS  # for clients that read nothing of an answer
    beat_seconds: float = 0.0  # between heartbeats to the supervisor; 0: none
    draft_tokens: int = 0  # for one pass, of the OpenAI routes
    tool_format: str = "auto"  # of the model's calls: `gateway.openai.formats`
    processes: bool = False  # the supervisor names each worker's process; others are refused
    kernel_wait_seconds: float = KERNEL_WAIT_SECONDS_MAX  # for an absent kernel, then 503
    require_containment: bool = False  # of the compiler's processes
    disk_reserve_bytes: int = 0  # of the data directory, for deletions and ends of runs
    disk_bytes_max: int | None = None  # of everything below it; None: the whole disk
    otlp: str = ""  # URL of a collector of traces; "": as the environment says
    store: str = field(default="", repr=False)  # URL of a PostgreSQL database; else a file
    tools: tuple[ToolServerOptions, ...] = ()  # MCP servers for programs
    http: tuple[HttpRule, ...] = ()  # URLs for programs
    limits: dict[str, Bound] = field(default_factory=dict)  # of every tenant; see `config.limits`
    tenants: dict[str, dict[str, Bound]] = field(default_factory=dict)  # of single tenants
    secrets_plain_loopback: bool = False  # secrets may go to this machine without TLS

    @classmethod
    def parse(cls, values: dict[str, Any]) -> "GatewayConfig":
        """Return the configuration in the supervisor's line.

        Raises ConfigError: a key is missing, unknown, or of a wrong type.
        """
        try:
            return cls(
                socket=Path(values.pop("socket")),
                secrets={k: bytes.fromhex(v) for k, v in values.pop("secrets").items()},
                secret=bytes.fromhex(values.pop("secret")),
                kernel_socket=Path(values.pop("kernel_socket")),
                data_dir=Path(values.pop("data_dir")),
                models=tuple(ModelConfig.parse(each) for each in values.pop("models", [])),
                kv_directories=tuple(map(Path, values.pop("kv_directories", []))),
                tls_cert=_path(values.pop("tls_cert", None)),
                tls_key=_path(values.pop("tls_key", None)),
                tools=parse_tools(values.pop("tools", {})),
                http=parse_http(values.pop("http", [])),
                limits=parse_limits(values.pop("limits", {})),
                tenants=parse_tenants(values.pop("tenants", {})),
                **values,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"the gateway's configuration is wrong: {error}") from error


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)
