"""Adapters for tests: PEFT folders, and the same model with an adapter merged into its weights."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support.executor.models import Checkpoint


def scale_of(folder: Path, module: str) -> float:
    """Return the factor of a module's product, as PEFT computes it."""
    config = json.loads((folder / "adapter_config.json").read_text())

    def chosen(name: str, otherwise: float) -> float:
        found = [v for k, v in config.get(name, {}).items() if f".{module}".endswith(f".{k}")]
        return float(found[0] if found else otherwise)

    rank = chosen("rank_pattern", config["r"])
    alpha = chosen("alpha_pattern", config["lora_alpha"])
    return alpha / (rank**0.5 if config.get("use_rslora") else rank)


def merge(checkpoint: Checkpoint | Path, adapter: Path, into: Path) -> Path:
    """Write the checkpoint with W + scale * B A in place of each W; return it."""
    directory = checkpoint if isinstance(checkpoint, Path) else checkpoint.directory
    shutil.copytree(directory, into)
    weights = load_file(into / "model.safetensors")
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, a in tensors.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        b = tensors[name.replace(".lora_A.", ".lora_B.")]
        weight = weights[f"{module}.weight"].double()
        weight += scale_of(adapter, module) * (b.double() @ a.double())
        weights[f"{module}.weight"] = weight.to(torch.float32)
    save_file(weights, into / "model.safetensors", metadata={"format": "pt"})
    return into
