"""`adapter_config.json` as PEFT writes it: ranks, scales, and what is not supported.

PEFT matches the keys of `rank_pattern` and `alpha_pattern` as regular expressions. Only plain names
are supported: a stranger's expression could take any time.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from symphony_kernel.executor.models.file_reader import parse_json, read_file, shown
from symphony_kernel.protocol.limits import ADAPTER_CONFIG_BYTES_MAX, ADAPTER_RANK_MAX

CONFIG: Final = "adapter_config.json"
_PLAIN = re.compile(r"\^?([A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*)\$?")
_PATTERN_KEYS_MAX: Final = 4096

# Keys that say nothing about the arithmetic, or that the tensors' names say again.
_IGNORED: Final = frozenset(
    {
        "auto_mapping", "base_model_name_or_path", "eva_config", "exclude_modules",
        "inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout",
        "loftq_config", "megatron_core", "peft_version", "qalora_group_size", "revision",
        "runtime_config", "task_type", "ensure_weight_tying",
    }
)  # fmt: skip
_READ: Final = frozenset(
    {
        "alpha_pattern", "bias", "init_lora_weights", "lora_alpha", "peft_type", "r",
        "rank_pattern", "target_modules", "use_rslora",
    }
)  # fmt: skip
# Initialisations that leave the base model's weights as they are.
_INITIALISATIONS: Final = (True, False, None, "gaussian", "orthogonal", "eva")


class AdapterError(Exception):
    """An adapter cannot be used; the message is one short line."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """What a configuration says of each module."""

    rank: int
    alpha: float
    rslora: bool  # scale by the square root of the rank
    ranks: dict[str, int]  # by the end of modules' names
    alphas: dict[str, float]
    targets: dict[str, None] | None  # the last parts of modules' names; None: an expression

    def rank_of(self, module: str) -> int:
        return self.ranks.get(_key(self.ranks, module), self.rank)

    def scale_of(self, module: str) -> float:
        """Return the factor of a module's product."""
        rank, alpha = self.rank_of(module), self.alphas.get(_key(self.alphas, module), self.alpha)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def targets_module(self, module: str) -> bool:
        return self.targets is None or not _ends(module).isdisjoint(self.targets)


def _key(names: "dict[str, int] | dict[str, float]", module: str) -> str:
    """Return the first of the names that a module's name ends with, "" if there is none."""
    found = _ends(module) & names.keys()
    if len(found) <= 1:  # nearly always: not all names, of which strangers may give thousands
        return next(iter(found), "")
    return next(each for each in names if each in found)


def _ends(module: str) -> set[str]:
    """Return the parts of a module's name that begin at its start or behind a dot."""
    parts = module.split(".")
    return {".".join(parts[begin:]) for begin in range(len(parts))}


def read_config(folder: Path) -> AdapterConfig:
    """Return a folder's configuration.

    Raises AdapterError: it asks for what is not supported; CheckpointError: it cannot be read.
    """
    path = folder / CONFIG
    values = parse_json(path, read_file(path, ADAPTER_CONFIG_BYTES_MAX))
    kind = values.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"peft_type must be LORA, not {shown(kind)}")
    _refuse_features(values)
    return AdapterConfig(
        rank=_rank(values.get("r"), "r"),
        alpha=_alpha(values.get("lora_alpha"), "lora_alpha"),
        rslora=_flag(values, "use_rslora"),
        ranks={k: _rank(v, f"rank_pattern of {k}") for k, v in _pattern(values, "rank_pattern")},
        alphas={
            k: _alpha(v, f"alpha_pattern of {k}") for k, v in _pattern(values, "alpha_pattern")
        },
        targets=_targets(values.get("target_modules")),
    )


def _refuse_features(values: dict[str, Any]) -> None:
    if values.get("bias", "none") != "none":
        raise AdapterError(f"bias must be none, not {shown(values['bias'])}")
    start = values.get("init_lora_weights")
    if not any(start is each or start == each for each in _INITIALISATIONS):
        raise AdapterError(
            f"init_lora_weights {shown(start)} is not supported: it changes the base model"
        )
    for name, value in values.items():
        if name not in _IGNORED | _READ and value not in (None, False, [], {}, ""):
            raise AdapterError(f"{shown(name)} {shown(value)} is not supported")


def _flag(values: dict[str, Any], name: str) -> bool:
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise AdapterError(f"{name} must be true or false, not {shown(value)}")
    return value


def _rank(value: Any, what: str) -> int:
    if type(value) is not int or not 1 <= value <= ADAPTER_RANK_MAX:
        raise AdapterError(
            f"{what} must be a rank from 1 to {ADAPTER_RANK_MAX}, not {shown(value)}"
        )
    return value


def _alpha(value: Any, what: str) -> float:
    if type(value) not in (int, float) or not abs(value) <= 1e6:
        raise AdapterError(f"{what} must be a number up to 1e6, not {shown(value)}")
    return float(value)


def _pattern(values: dict[str, Any], name: str) -> list[tuple[str, Any]]:
    given = values.get(name) or {}
    if not isinstance(given, dict) or len(given) > _PATTERN_KEYS_MAX:
        raise AdapterError(f"{name} must map at most {_PATTERN_KEYS_MAX} modules")
    found = []
    for key, value in given.items():
        plain = _PLAIN.fullmatch(key)
        if plain is None:
            raise AdapterError(f"{name} must name modules plainly, not {shown(key)}")
        found.append((plain[1], value))
    return found


def _targets(value: Any) -> dict[str, None] | None:
    if isinstance(value, list) and value and all(isinstance(each, str) for each in value):
        return dict.fromkeys(value)
    if isinstance(value, str) and value:
        return None  # an expression, or all-linear: the tensors' names tell
    raise AdapterError(f"target_modules must be a list of names, not {shown(value)}")
