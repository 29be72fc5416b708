"""The machine: what is installed on it, what its device does at most, and how long there is."""

import importlib.util
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

# What `symphony serve` imports beyond what the executor does, by the names of the distributions.
SERVER_PACKAGES = {
    "wasmtime": "wasmtime", "uvloop": "uvloop", "aiohttp": "aiohttp",
    "cryptography": "cryptography", "jinja2": "jinja2", "llguidance": "llguidance", "mcp": "mcp",
    "prometheus_client": "prometheus_client", "rich": "rich",
}  # fmt: skip
TRANSFORMERS_PACKAGES = {"transformers": "transformers", "accelerate": "accelerate"}
KERNEL_PACKAGES = {"flashinfer": "flashinfer-python", "tvm_ffi": "apache-tvm-ffi"}


class UnfitError(Exception):
    """This machine cannot do what was asked; the words say what it lacks."""


def missing(packages: dict[str, str]) -> list[str]:
    """Return the distributions that are not installed here."""
    return [name for module, name in packages.items() if importlib.util.find_spec(module) is None]


def how_to_bring(packages: list[str]) -> str:
    """Return how packages get to a machine without a network."""
    return (
        f"not installed here: {' '.join(packages)}. On a machine with a network:\n"
        "    python -m benchmarks.gpu.first_contact gather --bundle .gpu\n"
        "Take .gpu along with the tree. Here, in front of this command:\n"
        "    python -m benchmarks.gpu.first_contact install --bundle .gpu --site DIR\n"
        "and PYTHONPATH=DIR:kernel:runtime:client:."
    )


def find_device(name: str) -> torch.device:
    """Return the device; UnfitError where there is no GPU and one was asked for."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UnfitError("torch finds no GPU here: --device cpu --shapes tiny runs all of it small")
    return torch.device(name)


class Budget:
    """The seconds that there are for everything."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """Return how many are left."""
        return self._until - time.monotonic()


@dataclass(frozen=True, slots=True)
class Device:
    """What a device was seen to do: bytes/s read (or read and written), bf16 operations/s."""

    name: str
    read: float
    copied: float
    products: float

    @property
    def bandwidth(self) -> float:
        """The better of the two: no step is faster than that."""
        return max(self.read, self.copied)


def best_seconds(device: torch.device, work: Callable[[], object], repeats: int) -> float:
    """Return the least time that some work takes until the device has ended it."""
    times = []
    for _ in range(repeats + 1):  # the first is none: libraries begin with it
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def synchronize(device: torch.device) -> None:
    """Wait for what the device has been given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(device: torch.device, repeats: int = 10) -> Device:
    """Measure a device's memory and its products of large bf16 matrices."""
    large = device.type == "cuda"
    count, side = ((1 << 30), 8192) if large else ((1 << 22), 256)
    read, copied = _bandwidths(device, count, repeats)
    left, right = (torch.randn(side, side, device=device).to(torch.bfloat16) for _ in range(2))
    seconds = best_seconds(device, lambda: left @ right, repeats)
    name = torch.cuda.get_device_name(device) if large else "CPU"
    return Device(name, read, copied, 2 * side**3 / seconds)


def _bandwidths(device: torch.device, count: int, repeats: int) -> tuple[float, float]:
    """Return the bytes/s of a sum and of a copy of so many float32."""
    source = torch.ones(count, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    read = source.nbytes / best_seconds(device, source.sum, repeats)
    copied = 2 * source.nbytes / best_seconds(device, lambda: target.copy_(source), repeats)
    return read, copied
