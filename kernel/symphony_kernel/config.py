"""The kernel's configuration, as the supervisor sends it, and the executor made from it."""

import ctypes
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from hashlib import file_digest, sha256
from math import inf
from pathlib import Path
from types import NoneType
from typing import Any, Final

from symphony_kernel import tiny_model
from symphony_kernel.executor.base import Executor
from symphony_kernel.executor.models.assets import ModelAssets, load_assets
from symphony_kernel.executor.models.checking import check_model
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.fitting import ELEMENT_BYTES, MemoryNeeds
from symphony_kernel.executor.models.gguf.container import is_gguf
from symphony_kernel.executor.models.model_files import open_model, required
from symphony_kernel.executor.models.tensor_headers import held_bytes
from symphony_kernel.executor.native.build import emulates_bf16
from symphony_kernel.executor.simulated import (
    PAGES_DEFAULT,
    CostModel,
    SimulatedExecutor,
    simulated_model,
)
from symphony_kernel.platform.clock import Clock
from symphony_kernel.platform.memory import attainable_bytes
from symphony_kernel.protocol import limits as n

_log = logging.getLogger(__name__)

TINY = "tiny"
_COUNT, _OPTIONAL, _NUMBER = (int,), (int, NoneType), (int, float)
# The types of each number, the least and the most that is allowed.
_NUMBERS: Final[dict[str, tuple[tuple[type, ...], float, float]]] = {
    "prefix_cache_share": (_NUMBER, 0, 1),
    "max_decode_gap_ms": (_NUMBER, 0, inf),
    "delivery_ms": (_NUMBER, 0, n.DELIVERY_MS_MAX),
    "audit_seconds": (_NUMBER, 0, inf),
    "host_pool_tokens": (_OPTIONAL, 0, inf),
    "disk_pool_tokens": (_COUNT, 0, inf),
    "tenant_host_tokens_max": (_OPTIONAL, 0, inf),
    "tenant_disk_tokens_max": (_OPTIONAL, 0, inf),
    "tensor_parallel": (_COUNT, 1, inf),
}


class ConfigurationError(Exception):
    """The configuration is invalid."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One kernel's settings. `simulated` has `pages`, `hashed` and the fields of `CostModel`."""

    socket: Path
    secrets: dict[str, bytes] = field(repr=False)  # of "gateway" and of each worker, by name
    executor: str = "torch"  # or "simulated"
    model: str = TINY  # or a directory in Hugging Face layout, or a GGUF file
    name: str = ""  # of the model, for clients; "": the directory's or the file's
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "none"  # or "int8", "int4"
    tensor_parallel: int = 1  # ranks, each with its own device and pool
    pool_bytes: int | None = None
    threads: int | None = None
    prefix_cache_share: float = n.PREFIX_CACHE_SHARE  # of the pool
    host_pool_tokens: int | None = None  # size of the host tier; None: see `places_for`
    disk_pool_tokens: int = 0  # size of the disk tier, a file in `disk_directory`
    disk_directory: Path | None = None
    tenant_host_tokens_max: int | None = None  # of one tenant; None: the whole tier
    tenant_disk_tokens_max: int | None = None  # likewise
    audit_seconds: float = n.AUDIT_SECONDS  # between audits of an idle kernel; 0: never
    max_decode_gap_ms: float = n.DECODE_GAP_MS_DEFAULT  # see `StepLimits.decode_gap_ms`; 0: any gap
    delivery_ms: float = n.DELIVERY_MS_DEFAULT  # the latest delivery of a generation's tokens
    tenant_weights: dict[str, float] = field(default_factory=dict)  # default 1.0
    kv: Path | None = None  # the directory of durable KV files; None: no file is durable
    publish: bool = False  # tenants may make their files public
    disk_reserve_bytes: int = 0  # see `FreeSpace`
    disk_bytes_max: int | None = None  # of the whole data directory
    tenant_durable_bytes_max: int = n.TENANT_DURABLE_BYTES_MAX
    journal: Path | None = None  # the journal's directory; None: no journal
    ended: int | None = None  # the previous kernel's exit code; None: it is the first
    beat_seconds: float = 0.0  # between heartbeats; 0: none
    run_directory: Path | None = None  # is removed when the supervisor dies; None: nothing is
    processes: bool = False  # the supervisor reports each role's process; only that may connect
    simulated: dict[str, Any] = field(default_factory=dict)

    def identity(self, about: dict[str, Any], frames: int, pages: int) -> bytes:
        """Return the digest ([32]) of model and settings that a journal depends on."""
        names = (
            "executor", "model", "device", "dtype", "quantize", "prefix_cache_share",
            "tensor_parallel",
        )  # fmt: skip
        settings = {name: str(getattr(self, name)) for name in names}
        parts = [settings, about["model"], frames, pages, sha256(about["tokenizer"]).hexdigest()]
        return sha256(json.dumps(parts, sort_keys=True).encode()).digest()

    @property
    def directory(self) -> Path:
        """The model's directory or GGUF file."""
        if self.model == TINY:
            return tiny_model.path()
        return Path(self.model)


def parse_configuration(line: str) -> Configuration:
    """Return the configuration in a JSON line; ConfigurationError."""
    try:
        values = json.loads(line)
        values["socket"] = Path(values["socket"])
        values["secrets"] = {k: bytes.fromhex(v) for k, v in values["secrets"].items()}
        for name in ("journal", "kv", "disk_directory", "run_directory"):
            if values.get(name) is not None:
                values[name] = Path(values[name])
        configuration = Configuration(**values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"the configuration is invalid: {error!r}") from error
    if configuration.executor not in ("torch", "simulated"):
        raise ConfigurationError(
            f"executor must be torch or simulated, not {configuration.executor!r}"
        )
    if "" in configuration.secrets or not all(configuration.secrets.values()):
        raise ConfigurationError("secrets must not have an empty name or secret")
    _check_numbers(configuration)
    _check_weights(configuration.tenant_weights)
    if configuration.tensor_parallel > 1 and configuration.executor == "simulated":
        raise ConfigurationError("tensor_parallel must be 1 with a simulated executor")
    if configuration.tensor_parallel > 1 and configuration.disk_pool_tokens:
        raise ConfigurationError("disk_pool_tokens: no disk tier with tensor_parallel above 1")
    unknown = set(configuration.simulated) - {f.name for f in fields(CostModel)}
    if unknown - {"pages", "hashed"}:
        raise ConfigurationError(f"simulated has unknown settings {sorted(unknown)}")
    return configuration


def _check_numbers(configuration: Configuration) -> None:
    for name, (types, least, most) in _NUMBERS.items():
        value = getattr(configuration, name)
        there = value is not None
        if type(value) not in types or (there and not least <= value <= most):  # also for NaN
            words = "a number" if float in types else "an integer"
            raise ConfigurationError(
                f"{name} must be {words}, at least {least} and at most {most}, not {value!r}"
            )


def _check_weights(weights: object) -> None:
    if type(weights) is not dict or not all(
        type(weight) in (int, float) and n.TENANT_WEIGHT_MIN <= weight < n.TENANT_WEIGHT_MAX
        for weight in weights.values()
    ):
        raise ConfigurationError(
            f"tenant_weights must be numbers from {n.TENANT_WEIGHT_MIN} to {n.TENANT_WEIGHT_MAX}"
        )


def _lose_device(words: str) -> None:
    """End this process: the device's thread may wait for a rank that is gone.

    The supervisor starts another kernel, which recovers from the journal.
    """
    _log.critical("the kernel ends: %s", words)
    os._exit(1)


def digest_weights(configuration: Configuration) -> str:
    """Return a digest of the model. Reads all weights; OSError."""
    digest = sha256(f"{configuration.executor} {configuration.quantize}".encode())
    if configuration.executor == "simulated":
        return digest.hexdigest()
    try:
        files = open_model(configuration.directory)
        digest.update(sha256(required(files, "config.json")).digest())
    except CheckpointError as error:  # it changed while it was served
        raise OSError(str(error)) from error
    for path in files.weights():
        with path.open("rb") as file:
            digest.update(file_digest(file, sha256).digest())
    return digest.hexdigest()


def make_executor(
    configuration: Configuration, clock: Clock, progress: Callable[[float], None]
) -> tuple[Executor, ModelAssets]:
    """Load the model, reporting the loaded share to `progress`. Blocks; CheckpointError."""
    if configuration.executor == "simulated":
        return _simulated(configuration, clock)
    progress(0.0)  # the part before the first weight takes seconds, too
    directory = configuration.directory
    name = configuration.name or (TINY if configuration.model == TINY else None)
    on_host = configuration.device == "cpu" or (configuration.device == "auto" and _no_gpu())
    dtype = configuration.dtype
    if dtype == "auto" and on_host and emulates_bf16():
        dtype = "fp32"
        _log.info("--dtype auto is fp32: torch computes, and emulates bf16 without AVX-512")
    if configuration.model != TINY:
        check_model(directory, dtype)
    assets = load_assets(directory, dtype, name)
    if on_host:
        _check_fits(configuration, assets.model.dtype, None)
    # Imported late, because torch takes seconds: a simulated kernel does not need it.
    from symphony_kernel.executor.parallel.ranks import Parallel
    from symphony_kernel.executor.torch_executor import TorchExecutor, free_device_memory

    if not on_host:
        free = free_device_memory(configuration.device)
        _check_fits(configuration, assets.model.dtype, free)
    executor = TorchExecutor.load(
        directory,
        dtype=dtype,
        quantize=configuration.quantize,
        device=configuration.device,
        pool_bytes=configuration.pool_bytes,
        threads=configuration.threads,
        delivery_ms=configuration.delivery_ms,
        name=name,
        progress=progress,
        parallel=Parallel(configuration.tensor_parallel, configuration.socket.parent, _lose_device),
    )
    return executor, assets


def _no_gpu() -> bool:
    """Return whether there is no GPU driver, without importing torch."""
    if Path("/dev/kfd").exists():  # AMD's
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False


def _check_fits(configuration: Configuration, dtype: str, device_free: int | None) -> None:
    """Check that a model fits into the device's free bytes (None: into this machine's memory).

    CheckpointError: it does not.
    """
    if configuration.ended is not None:
        return  # it did fit, and the memory of the kernel that died may not be free yet
    path, config = configuration.directory, load_config(configuration.directory)
    needs = MemoryNeeds(
        path, config, dtype, configuration.quantize, configuration.tensor_parallel,
        configuration.pool_bytes, held_bytes(path, config, ELEMENT_BYTES[dtype]),
    )  # fmt: skip
    if device_free is None:
        needs.check_host(attainable_bytes())
    else:
        needs.check_device(device_free)


def _simulated(configuration: Configuration, clock: Clock) -> tuple[Executor, ModelAssets]:
    """Return a simulated executor, with the tokenizer of a real model if there is one."""
    directory = configuration.directory
    if is_gguf(directory) or os.path.lexists(directory / "tokenizer.json"):
        assets = load_assets(directory, "fp32")
    else:
        assets = ModelAssets(simulated_model(), b"", None, {})
    name = configuration.name or "simulated"
    assets = replace(assets, model=replace(assets.model, name=name))
    costs = dict(configuration.simulated)
    pages, hashed = costs.pop("pages", PAGES_DEFAULT), costs.pop("hashed", True)
    executor = SimulatedExecutor(clock, pages, assets.model, CostModel(**costs), hashed)
    return executor, assets
