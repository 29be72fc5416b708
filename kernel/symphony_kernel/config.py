"""What the supervisor tells a kernel when it starts it, and the executor that follows from it."""

import ctypes
import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from symphony_kernel import tiny_model
from symphony_kernel.executor.base import Executor
from symphony_kernel.executor.models.assets import ModelAssets, load_assets
from symphony_kernel.executor.models.checking import check_model
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.fitting import MemoryNeeds
from symphony_kernel.executor.simulated import (
    PAGES_DEFAULT,
    CostModel,
    SimulatedExecutor,
    simulated_model,
)
from symphony_kernel.platform.clock import Clock
from symphony_kernel.platform.memory import attainable_bytes
from symphony_kernel.protocol.limits import (
    AUDIT_SECONDS,
    DECODE_GAP_MS_DEFAULT,
    DELIVERY_MS_DEFAULT,
    DELIVERY_MS_MAX,
    PREFIX_CACHE_SHARE,
    TENANT_DURABLE_BYTES_MAX,
    TENANT_WEIGHT_MAX,
    TENANT_WEIGHT_MIN,
)

_log = logging.getLogger(__name__)

TINY = "tiny"


class ConfigurationError(Exception):
    """The configuration is not what `Configuration` describes."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """One kernel's settings; `simulated` has the fields of `CostModel`, `pages` and `hashed`."""

    socket: Path
    secrets: dict[str, bytes] = field(repr=False)  # of "gateway" and of each worker, by name
    executor: str = "torch"  # or "simulated"
    model: str = TINY  # or a directory in Hugging Face layout
    device: str = "auto"
    dtype: str = "auto"
    quantize: str = "none"  # or "int8"
    tensor_parallel: int = 1  # ranks, each with a device and a pool of its own
    pool_bytes: int | None = None
    threads: int | None = None
    prefix_cache_share: float = PREFIX_CACHE_SHARE  # of the pool, for what programs offer
    host_pool_tokens: int | None = None  # room in host memory; None: see `places_for`
    disk_pool_tokens: int = 0  # room in a file in `disk_directory`
    disk_directory: Path | None = None
    # Of these what any one tenant may have; None: all. And how often an idle kernel audits itself.
    tenant_host_tokens_max: int | None = None
    tenant_disk_tokens_max: int | None = None
    audit_seconds: float = AUDIT_SECONDS  # 0: never
    max_decode_gap_ms: float = DECODE_GAP_MS_DEFAULT  # see `StepLimits.decode_gap_ms`; 0: any gap
    delivery_ms: float = DELIVERY_MS_DEFAULT  # how late a generation's tokens may be told, in lots
    predictions: bool = True  # preds are computed before they come, where they are known
    tenant_weights: dict[str, float] = field(default_factory=dict)  # 1.0 where none stands
    kv: Path | None = None  # the directory of durable KV files; None: nothing is durable
    publish: bool = False  # tenants may make their files public
    disk_reserve_bytes: int = 0  # of the disk: see `FreeSpace`
    disk_bytes_max: int | None = None  # of all that lies in the data directory
    tenant_durable_bytes_max: int = TENANT_DURABLE_BYTES_MAX
    journal: Path | None = None  # the directory of the kernel's journal; None: it keeps none
    ended: int | None = None  # the exit code of the kernel before this one
    beat_seconds: float = 0.0  # between signs of life for the supervisor; 0: none
    run_directory: Path | None = None  # goes when the supervisor has died; None: it stays
    processes: bool = False  # it says which process each role is, and no other may come for it
    simulated: dict[str, Any] = field(default_factory=dict)

    def identity(self, about: dict[str, Any], frames: int, pages: int) -> bytes:
        """Return what a journal of this kernel is good for ([32]): the same model and settings."""
        settings = {
            name: str(getattr(self, name))
            for name in (
                "executor",
                "model",
                "device",
                "dtype",
                "quantize",
                "prefix_cache_share",
                "tensor_parallel",
            )
        }
        parts = [settings, about["model"], frames, pages, sha256(about["tokenizer"]).hexdigest()]
        return sha256(json.dumps(parts, sort_keys=True).encode()).digest()

    @property
    def directory(self) -> Path:
        """The model's directory."""
        if self.model == TINY:
            return Path(tiny_model.__file__).parent / "weights"
        return Path(self.model)


def parse_configuration(line: str) -> Configuration:
    """Return the configuration in a JSON line.

    Raises:
        ConfigurationError: in words.
    """
    try:
        values = json.loads(line)
        values["socket"] = Path(values["socket"])
        values["secrets"] = {k: bytes.fromhex(v) for k, v in values["secrets"].items()}
        for name in ("journal", "kv", "disk_directory", "run_directory"):
            if values.get(name) is not None:
                values[name] = Path(values[name])
        configuration = Configuration(**values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"the configuration is not usable: {error!r}") from error
    if configuration.executor not in ("torch", "simulated"):
        raise ConfigurationError(f"no executor is called {configuration.executor!r}")
    if "" in configuration.secrets or not all(configuration.secrets.values()):
        raise ConfigurationError("a name or a secret is empty")
    share = configuration.prefix_cache_share
    if type(share) not in (int, float) or not 0 <= share <= 1:
        raise ConfigurationError("prefix_cache_share is a number from 0 to 1")
    _check_shares(configuration)
    _check_places(configuration)
    _check_ranks(configuration)
    unknown = set(configuration.simulated) - {f.name for f in fields(CostModel)}
    if unknown - {"pages", "hashed"}:
        raise ConfigurationError(f"a simulated executor has no {sorted(unknown)}")
    return configuration


def _check_shares(configuration: Configuration) -> None:
    """Check how the device is shared; ConfigurationError."""
    gap = configuration.max_decode_gap_ms
    if type(gap) not in (int, float) or not gap >= 0:  # as no NaN is
        raise ConfigurationError("max_decode_gap_ms is a number, at least 0")
    late = configuration.delivery_ms
    if type(late) not in (int, float) or not 0 <= late <= DELIVERY_MS_MAX:
        raise ConfigurationError(f"delivery_ms is a number from 0 to {DELIVERY_MS_MAX:.0f}")
    weights = configuration.tenant_weights
    if type(weights) is not dict or not all(
        type(weight) in (int, float) and TENANT_WEIGHT_MIN <= weight < TENANT_WEIGHT_MAX
        for weight in weights.values()
    ):
        raise ConfigurationError("tenant_weights are positive numbers by tenant")


def _check_places(configuration: Configuration) -> None:
    """Check where pages may be; ConfigurationError."""
    names = "host_pool_tokens", "disk_pool_tokens", "tenant_host_tokens_max"
    for name in (*names, "tenant_disk_tokens_max"):
        value = getattr(configuration, name)
        if value is not None and (type(value) is not int or value < 0):
            raise ConfigurationError(f"{name} is a number of tokens, at least 0")
    seconds = configuration.audit_seconds
    if type(seconds) not in (int, float) or not seconds >= 0:  # as no NaN is
        raise ConfigurationError("audit_seconds is a number, at least 0")


def _check_ranks(configuration: Configuration) -> None:
    """Check over how many devices the model goes; ConfigurationError."""
    ranks = configuration.tensor_parallel
    if type(ranks) is not int or ranks < 1:
        raise ConfigurationError("tensor_parallel is a number of devices, at least 1")
    if ranks > 1 and configuration.executor == "simulated":
        raise ConfigurationError("a simulated executor has one device")
    if ranks > 1 and configuration.disk_pool_tokens:
        raise ConfigurationError("with tensor_parallel above 1 there is no disk tier")


def _lose_device(words: str) -> None:
    """End this process: the device's thread may be waiting for a rank that has gone.

    Whoever started us starts another one, which goes on from the journal.
    """
    _log.critical("the kernel ends: %s", words)
    os._exit(1)


def digest_weights(configuration: Configuration) -> str:
    """Return a digest of what the model computes with; reads all of its weights.

    Raises:
        OSError: they cannot be read.
    """
    digest = sha256(f"{configuration.executor} {configuration.quantize}".encode())
    if configuration.executor == "simulated":
        return digest.hexdigest()
    directory = configuration.directory
    for path in (directory / "config.json", *sorted(directory.glob("*.safetensors"))):
        with path.open("rb") as file:
            digest.update(file_digest(file, sha256).digest())
    return digest.hexdigest()


def make_executor(
    configuration: Configuration, clock: Clock, progress: Callable[[float], None]
) -> tuple[Executor, ModelAssets]:
    """Load what the configuration names; blocks, and tells `progress` the share that is done.

    Raises:
        CheckpointError: the model cannot be used.
    """
    if configuration.executor == "simulated":
        return _simulated(configuration, clock)
    progress(0.0)  # what comes before the first weight takes seconds, too
    directory = configuration.directory
    name = TINY if configuration.model == TINY else None
    if name is None:
        check_model(directory, configuration.dtype)
    assets = load_assets(directory, configuration.dtype, name)
    on_host = configuration.device == "cpu" or (configuration.device == "auto" and _no_gpu())
    if on_host:
        _check_fits(configuration, assets.model.dtype, None)
    # Torch takes seconds to import: a simulated kernel, or one without a model, does without.
    from symphony_kernel.executor.parallel.ranks import Parallel
    from symphony_kernel.executor.torch_executor import TorchExecutor, free_device_memory

    if not on_host:
        free = free_device_memory(configuration.device)
        _check_fits(configuration, assets.model.dtype, free)
    executor = TorchExecutor.load(
        directory,
        dtype=configuration.dtype,
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
    """Whether torch will surely find no GPU here: there is no driver. Without torch."""
    if Path("/dev/kfd").exists():  # AMD's
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False


def _check_fits(configuration: Configuration, dtype: str, device_free: int | None) -> None:
    """Check that a model fits into the device's free bytes (None: this machine's memory).

    Once: what a kernel that died had is not free at once, and it did fit.

    Raises:
        CheckpointError: it does not.
    """
    if configuration.ended is not None:
        return
    needs = MemoryNeeds(
        configuration.directory, load_config(configuration.directory), dtype,
        configuration.quantize, configuration.tensor_parallel, configuration.pool_bytes,
    )  # fmt: skip
    if device_free is None:
        needs.check_host(attainable_bytes())
    else:
        needs.check_device(device_free)


def _simulated(configuration: Configuration, clock: Clock) -> tuple[Executor, ModelAssets]:
    """Return a simulated device, with the words of a real model where there is one."""
    directory = configuration.directory
    if os.path.lexists(directory / "tokenizer.json"):
        assets = load_assets(directory, "fp32")
        assets = replace(assets, model=replace(assets.model, name="simulated"))
    else:
        assets = ModelAssets(simulated_model(), b"", None, {})
    costs = dict(configuration.simulated)
    pages, hashed = costs.pop("pages", PAGES_DEFAULT), costs.pop("hashed", True)
    executor = SimulatedExecutor(clock, pages, assets.model, CostModel(**costs), hashed)
    return executor, assets
