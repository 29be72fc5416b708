"""A server's models: each has a kernel, workers, sockets, a journal, and durable KV files.

    <data_dir>/kv/                    the files of the model that `kv/model` names; of any, if there
                                      is no such file: only one model at a time was served so far
    <data_dir>/models/<name>/kv/      the files of each other model
    <run_dir>/, <run_dir>/<number>/   sockets and journal of the first model, and of each other one

So a model finds its files again, with any other models next to it and in any order.
"""

import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from symphony_runtime.config.models import ModelChoice, own_name
from symphony_runtime.config.serve import ServeOptions

OWNER = "model"  # the file in `kv` with the name of the model that owns the directory
_HEADER_BYTES_MAX = 1 << 20
_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class ModelPlaces:
    """Where a model's roles meet and keep files. `name` is "" where its kernel names it."""

    name: str
    source: str  # as the kernel takes it
    kernel: str  # the role's name
    workers: range  # their numbers
    run: Path
    kv: Path

    @property
    def socket(self) -> str:
        return str(self.run / "kernel.sock")

    def gateway_config(self) -> dict[str, Any]:
        """Return the gateway's configuration of one of several models."""
        workers = self.worker_names
        return {
            "name": self.name, "kernel": self.kernel, "socket": self.socket, "workers": workers
        }  # fmt: skip

    @property
    def worker_names(self) -> list[str]:
        return [f"worker-{number}" for number in self.workers]


def model_places(options: ServeOptions, run_dir: Path) -> list[ModelPlaces]:
    """Return the places of each model, the default first.

    With several models `options.model` has the path of each by name. OSError: `kv/model`.
    """
    model, each = options.model, options.workers
    assert not isinstance(model, list)
    named = {"": model} if isinstance(model, str) else model
    kv = kv_directories(options.data_dir, [ModelChoice(*item) for item in named.items()])
    return [
        ModelPlaces(
            name,
            source,
            "kernel" if number == 0 else f"kernel-{number}",
            range(number * each, (number + 1) * each),
            run_dir if number == 0 else run_dir / str(number),
            kv[name],
        )
        for number, (name, source) in enumerate(named.items())
    ]


def kv_directories(data_dir: Path, models: list[ModelChoice]) -> dict[str, Path]:
    """Return the directory of each model's durable KV files, by the model's name.

    Where several models are served for the first time, `kv` goes to the model that its files are
    of, or else to the first; a file in it says so from then on. OSError.
    """
    kv = data_dir / "kv"
    try:
        owner = (kv / OWNER).read_text(encoding="utf-8")
    except FileNotFoundError:
        if len(models) == 1:
            return {models[0].name: kv}
        owner = _owner_of(kv, models)
        _write_owner(kv, owner)
    return {
        model.name: kv
        if owner == (model.name or own_name(model.source))
        else data_dir / "models" / quote(model.name or own_name(model.source), safe="") / "kv"
        for model in models
    }


def _owner_of(kv: Path, models: list[ModelChoice]) -> str:
    """Return the name of the model that most files are of, else of the first one."""
    counts = Counter(_model_of(path) for path in kv.glob(f"*/*{_SUFFIX}"))

    def files(model: ModelChoice) -> int:
        return sum(counts[name] for name in {model.name, own_name(model.source)})

    return max(models, key=files).name


def _model_of(path: Path) -> str | None:
    """Return the model's name in the header of a KV file; None: it cannot be read."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _HEADER_BYTES_MAX:
                return None
            return str(json.loads(file.read(length))["__metadata__"]["model"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write_owner(kv: Path, owner: str) -> None:
    """Write the owner's name, safe on disk before any kernel uses the directory; OSError."""
    kv.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = kv / f"{OWNER}.partial"
    with partial.open("w", encoding="utf-8") as file:
        file.write(owner)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(kv / OWNER)
    directory = os.open(kv, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
