"""The options of `symphony serve`, and the file behind `--config`.

The file is TOML with the options' names as keys; the command line overrides it:

    model = "tiny"          # or a folder, a GGUF file or org/name; several: see `config.models`
    host = "127.0.0.1"
    port = 8700
    workers = 1
    max_decode_gap_ms = 200 # the longest step that computes prompts with others' decodes
    delivery_ms = 25        # tokens of a generation are delivered together, at most this late

    [tenant_weights]        # shares of the device; 1 by default
    research = 2

Its tables `limits` and `tenants` are described in `config.limits`, `tools` and `http` in
`config.egress`.
"""

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from symphony_kernel.protocol import limits as n

from symphony_runtime.config.egress import parse_http, parse_tools
from symphony_runtime.config.limits import parse_limits, parse_tenants
from symphony_runtime.config.models import parse_models
from symphony_runtime.config.otlp import check_otlp
from symphony_runtime.config.transport import TransportError, check_origins, check_transport
from symphony_runtime.validation import StrictModel, check_table

WORKERS_MAX = 64
FILE_ONLY: dict[str, Any] = {"file_only": True}  # in the schema of an option that is no flag
PROGRAM_DAYS_MAX = 36_500
DEVICES_MAX = 64


class OptionsError(Exception):
    """An option or the configuration file is wrong. The message is for the operator."""


def default_data_dir() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "symphony"


_Count = Annotated[int, Field(ge=0)]
_Seconds = Annotated[float, Field(ge=0)]
_Runs = Annotated[int, Field(ge=1, le=n.RUNS_LIVE_MAX)]
_Weight = Annotated[float, Field(ge=n.TENANT_WEIGHT_MIN, lt=n.TENANT_WEIGHT_MAX)]


def _flag(default: Any, words: str, **bounds: Any) -> Any:
    """Return an option that is also a flag of `symphony serve`, with its help."""
    return Field(default=default, description=words, **bounds)


def _file_option(default: Any, words: str, **bounds: Any) -> Any:
    """Return an option of the file only."""
    return _flag(default, words, json_schema_extra=FILE_ONLY, **bounds)


def _file_table(words: str) -> Any:
    return Field(default_factory=dict, description=words, json_schema_extra=FILE_ONLY)


_MODEL = (
    "tiny, a folder in Hugging Face layout, a GGUF file, or org/name at the Hugging Face Hub; "
    "NAME=MODEL names it for clients; of several the first is the default"
)


class ServeOptions(StrictModel):
    """The options of `symphony serve`. Those with a description are flags, too.

    Unless they are options of the file only. Those without a description are for tests.
    """

    model: str | list[str] | dict[str, str] = _flag("tiny", _MODEL)
    host: str = _flag("127.0.0.1", "the address to listen on")
    port: int = _flag(8700, "0: any free one", ge=0, le=65_535)
    tls_cert: Path | None = _flag(
        None, "PEM file with the certificate and its chain: the gateway speaks TLS"
    )
    tls_key: Path | None = _flag(None, "PEM file with its private key")
    behind_proxy: bool = _flag(False, "a proxy in front ends TLS: serve other machines without TLS")
    cors_origins: list[str] = Field(
        default_factory=list,
        description="origins of web pages that may call the server, with commas between; *: all",
    )
    workers: int = _flag(1, "worker processes", ge=1, le=WORKERS_MAX)
    workers_per_tenant: bool = _flag(
        False, "no worker runs two tenants' programs; needs as many workers as live tenants"
    )
    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="default: symphony in XDG_DATA_HOME, else in ~/.local/share",
    )
    device: Literal["auto", "cpu", "cuda"] = _flag("auto", "where the model runs")
    dtype: Literal["auto", "fp32", "bf16"] = _flag("auto", "of weights and KV pages")
    quantize: Literal["none", "int8", "int4"] = _flag(
        "none", "of the weights on the CPU; it loses a little accuracy"
    )
    tool_format: Literal["auto", "hermes", "mistral", "mistral11", "llama3", "json"] = _flag(
        "auto", "how the model writes tool calls; auto: as its chat template shows"
    )
    draft_tokens: int = _flag(
        0,
        "most tokens that the OpenAI and Anthropic routes draft a pass, for instance 13; 0: none",
        ge=0,
        le=n.OPENAI_DRAFT_TOKENS_MAX,
    )
    executor: Literal["torch", "simulated"] = "torch"
    tensor_parallel: int = _flag(
        1, "devices that share the model, a process for each", ge=1, le=DEVICES_MAX
    )
    pool_bytes: int | None = _flag(None, "memory for KV pages", ge=1)
    prefix_cache_share: float = _file_option(
        n.PREFIX_CACHE_SHARE, "the part of the pool for prefixes that programs offer", ge=0, le=1
    )
    host_pool_tokens: int | None = _flag(
        None, "KV entries in host memory; by default as in the pool, if memory allows", ge=0
    )
    disk_pool_tokens: int = _flag(0, "KV entries in a file of the data directory", ge=0)
    tenant_host_tokens_max: _Count | None = _file_option(
        None, "KV entries of one tenant in host memory; default: all"
    )
    tenant_disk_tokens_max: _Count | None = _file_option(
        None, "KV entries of one tenant in the disk tier; default: all"
    )
    audit_seconds: _Seconds = _file_option(
        n.AUDIT_SECONDS, "between two audits of an idle kernel; 0: none"
    )
    threads: int | None = _flag(None, "of the model's computations", ge=1)
    drain_seconds: float = _flag(n.DRAIN_SECONDS_MAX, "the time of live runs after SIGTERM", ge=0)
    queue_seconds_max: float = _flag(
        n.QUEUE_SECONDS_MAX,
        "a run that would wait longer is answered 503 or 429; 0: any time",
        ge=0,
    )
    memory_free_bytes_min: int = _flag(
        n.MEMORY_FREE_BYTES_MIN, "with less free memory a run is answered 503; 0: never", ge=0
    )
    slow_grace_seconds: float = _flag(
        n.SLOW_GRACE_SECONDS, "for clients that send nothing of a body", ge=0
    )
    slow_bytes_a_second: int = _flag(
        n.SLOW_BYTES_A_SECOND_MIN, "that clients send of a body at least", ge=1
    )
    slow_reader_seconds: float = _flag(
        n.SLOW_READER_SECONDS, "a client that reads nothing for so long is cut off", ge=1
    )
    runs_live_max: _Runs = _file_option(n.RUNS_LIVE_MAX, "live runs of all tenants")
    tenant_runs_live_max: _Runs = _file_option(n.TENANT_RUNS_LIVE_MAX, "live runs of one tenant")
    run_kept_seconds_max: _Count = _file_option(
        n.RUN_KEPT_SECONDS_MAX, "an ended run is deleted after so long"
    )
    tenant_runs_kept_max: _Count = _file_option(
        n.TENANT_RUNS_KEPT_MAX, "ended runs of one tenant; the oldest above it are deleted"
    )
    tenant_kept_bytes_max: _Count = _file_option(
        n.TENANT_KEPT_BYTES_MAX, "bytes of their messages and logs, likewise"
    )
    # None: see `usual_reserve`.
    disk_reserve_bytes: int | None = _flag(
        None, "disk space for deletions and ends of runs; default: a twentieth", ge=0
    )
    disk_bytes_max: int | None = _flag(
        None, "the most that the data directory may take; default: the whole disk", ge=0
    )
    program_unused_days_max: int = _file_option(
        0, "an unused program is deleted after so many days; 0: never", ge=0, le=PROGRAM_DAYS_MAX
    )
    publish: bool = _flag(False, "programs may make KV files public: other tenants read them")
    tenant_durable_bytes_max: _Count = _file_option(
        n.TENANT_DURABLE_BYTES_MAX, "bytes of one tenant's durable KV files"
    )
    require_containment: bool = _flag(
        False, "refuse workers that are not contained in every way that this system allows"
    )
    # Not in repr: it may hold a password.
    store: str = _flag(
        "", "URL of a PostgreSQL database for several gateways (or SYMPHONY_STORE)", repr=False
    )
    otlp: str = _flag(
        "", "URL of an OTLP/HTTP collector that gets traces (or OTEL_EXPORTER_OTLP_ENDPOINT)"
    )
    journal: bool = _flag(True, "keep no journal: runs end when the kernel crashes")
    hang_seconds: _Seconds = _file_option(
        n.HANG_SECONDS, "of silence, before a role is restarted; 0: never"
    )
    max_decode_gap_ms: float = _flag(
        n.DECODE_GAP_MS_DEFAULT,
        "the longest step of prompts with others' decodes; 0: any time",
        ge=0,
    )
    delivery_ms: float = _flag(
        n.DELIVERY_MS_DEFAULT,
        "tokens of a generation are delivered together, at most this late; 0: each at once",
        ge=0,
        le=n.DELIVERY_MS_MAX,
    )
    tenant_weights: dict[str, _Weight] = _file_table(
        "tenants' shares of the device relative to each other; 1.0 is the default"
    )
    simulated: dict[str, Any] = Field(default_factory=dict)  # cost model of that executor
    tools: dict[str, Any] = _file_table("MCP servers by name; see `config.egress`")
    http: list[Any] = Field(
        default_factory=list,
        description="the URLs that programs may request; see `config.egress`",
        json_schema_extra=FILE_ONLY,
    )
    limits: dict[str, Any] = _file_table("limits of every tenant; see `config.limits`")
    tenants: dict[str, Any] = _file_table("limits of single tenants; see `config.limits`")
    secrets_plain_loopback: bool = _file_option(False, "secrets may go to this machine without TLS")


def check_store(url: str) -> None:
    """Check the URL of the database of tenants, keys, programs and runs.

    Raises ValueError: it is neither empty nor a PostgreSQL database's.
    """
    if url and not url.startswith(("postgresql://", "postgres://")):
        raise ValueError("store must be the URL of a PostgreSQL database: postgresql://...")


def read_options(path: Path | None, given: dict[str, Any]) -> ServeOptions:
    """Return the options of a configuration file, those in `given` that are not None on top.

    Raises OptionsError: the file cannot be read, or an option is unknown or wrong.
    """
    try:
        values = _read_file(path) if path is not None else {}
        values |= {name: value for name, value in given.items() if value is not None}
        options = check_table(ServeOptions, values, str(path) if path else "options")
        if options.tensor_parallel > 1 and options.disk_pool_tokens:
            raise ValueError("disk_pool_tokens: no disk tier with tensor_parallel above 1")
        parse_models(options.model)
        parse_tools(options.tools)
        parse_http(options.http)
        parse_limits(options.limits)
        parse_tenants(options.tenants)
        check_store(options.store)
        check_otlp(options.otlp)
        check_origins(options.cors_origins)
        check_transport(
            options.host, options.tls_cert, options.tls_key, behind_proxy=options.behind_proxy
        )
    except (ValueError, TransportError) as error:
        raise OptionsError(str(error)) from error
    return options


def _read_file(path: Path) -> dict[str, Any]:
    """Return a file's values. Its paths are relative to its folder."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionsError(f"{path}: {error}") from error
    for name in {"data_dir", "tls_cert", "tls_key"} & values.keys():
        if isinstance(values[name], str):
            values[name] = path.parent / Path(values[name]).expanduser()
    tools = values.get("tools")
    for server in tools.values() if isinstance(tools, dict) else ():
        if isinstance(server, dict) and server.get("command"):
            directory = Path(str(server.get("directory", "."))).expanduser()
            server["directory"] = str((path.parent / directory).absolute())
    return values
