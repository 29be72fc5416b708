"""Adapter folders that cannot be used are refused in words, before memory is taken for them."""

import json
import resource
import struct
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from symphony_kernel.executor.adapters.config import AdapterConfig, AdapterError
from symphony_kernel.executor.adapters.files import open_adapter
from symphony_kernel.executor.models.config import ModelConfig, load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.shapes import Product
from symphony_kernel.protocol.limits import ADAPTER_HEADER_BYTES_MAX

from benchmarks.checkpoints import make_adapter
from tests.support.executor.models import Checkpoint, ExecutorRig

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
QUERY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def folder(llama: Checkpoint, tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "adapter", llama.directory, rank=4)


@pytest.fixture
def model(llama: Checkpoint) -> ModelConfig:
    return load_config(llama.directory)


def refusal(folder: Path, model: ModelConfig) -> str:
    """Return why an adapter is refused, by its files' names and shapes or by its values."""
    with pytest.raises((AdapterError, CheckpointError)) as refused:
        list(open_adapter(folder, model).products())
    words = str(refused.value)
    assert "\n" not in words
    assert len(words) < 1000
    return words


def test_adapter_has_all_products_with_their_scale(folder: Path, model: ModelConfig) -> None:
    adapter = open_adapter(folder, model)
    products = dict(adapter.products())
    assert adapter.rank == 4
    assert len(products) == 7 * model.layers
    tensors = load_file(folder / WEIGHTS)
    pair = products[0, Product.QUERY]
    assert torch.equal(pair.a, tensors[QUERY])
    assert torch.equal(pair.b, 2 * tensors[QUERY.replace("lora_A", "lora_B")])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peft_type": "LOHA"}, "peft_type must be LORA"),
        ({"peft_type": None}, "peft_type must be LORA"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"target_parameters": ["x"]}, "target_parameters"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"lora_bias": True}, "lora_bias"),
        ({"a_feature_of_tomorrow": 1}, "a_feature_of_tomorrow"),
        ({"bias": "all"}, "bias must be none"),
        ({"init_lora_weights": "pissa_niter_16"}, "pissa_niter_16"),
        ({"init_lora_weights": "olora"}, "olora"),
        ({"r": 0}, "r must be a rank"),
        ({"r": 1_000_000}, "r must be a rank from 1 to 256"),
        ({"r": 4.0}, "r must be a rank"),
        ({"r": True}, "r must be a rank"),
        ({"r": 8}, "the model and the rank imply (8, 80)"),
        ({"lora_alpha": "much"}, "lora_alpha must be a number"),
        ({"lora_alpha": 1e300}, "lora_alpha must be a number"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be a number"),
        ({"use_rslora": "yes"}, "use_rslora must be true or false"),
        ({"rank_pattern": {"(a+)+$": 4}}, "rank_pattern must name modules plainly"),
        ({"rank_pattern": {"q_proj": 300}}, "rank_pattern of q_proj must be a rank"),
        ({"rank_pattern": {"q_proj": 2}}, "imply (2, 48)"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern of q_proj must be a number"),
        ({"alpha_pattern": [1]}, "alpha_pattern must map"),
        ({"target_modules": ["q_proj"]}, "is not among the target_modules"),
        ({"target_modules": None}, "target_modules must be a list"),
        ({"target_modules": [1]}, "target_modules must be a list"),
    ],
    ids=str,
)
def test_configuration_that_is_not_supported_is_refused_by_name(
    folder: Path, model: ModelConfig, change: dict[str, Any], words: str
) -> None:
    config = json.loads((folder / CONFIG).read_text()) | change
    (folder / CONFIG).write_text(json.dumps(config))
    assert words in refusal(folder, model)


def test_thousands_of_patterns_and_targets_take_no_longer_than_one() -> None:
    def seconds(names: list[str]) -> float:
        values = dict.fromkeys(names, 2)
        config = AdapterConfig(1, 1.0, False, values, {}, dict.fromkeys(names))

        def read() -> None:
            assert config.targets_module("model.layers.1.self_attn.q_proj")
            assert config.rank_of("model.layers.1.self_attn.q_proj") == 2

        return min(timeit.repeat(read, number=20, repeat=5))

    few = ["self_attn.q_proj"]
    many = [f"no{number}" for number in range(4000)] + few
    assert seconds(many) < 20 * seconds(few)


def test_first_of_several_patterns_counts() -> None:
    ranks = {"no": 1, "self_attn.q_proj": 2, "q_proj": 3}
    config = AdapterConfig(4, 1.0, False, ranks, {}, None)
    assert config.rank_of("model.layers.1.self_attn.q_proj") == 2
    assert config.rank_of("q_proj") == 3
    assert config.rank_of("a_q_proj") == 4


def test_target_without_a_tensor_is_refused(folder: Path, model: ModelConfig) -> None:
    config = json.loads((folder / CONFIG).read_text())
    config["target_modules"].append("lm_head")
    (folder / CONFIG).write_text(json.dumps(config))
    assert "'lm_head', and no tensor is for it" in refusal(folder, model)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b"0" * 70_000])
def test_configuration_that_is_no_json_is_refused(
    folder: Path, model: ModelConfig, data: bytes
) -> None:
    (folder / CONFIG).write_bytes(data)
    assert CONFIG in refusal(folder, model)


def _rename(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = tensors.pop(QUERY)

    return change


def _set(name: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_rename("x"), "'x' is not supported: an adapter may change q_proj, k_proj"),
        (_rename("base_model.model.lm_head.lora_A.weight"), "is not supported"),
        (_rename(QUERY.replace("layers.0", "layers.7")), "the model has 2 layers"),
        (_rename(QUERY.replace("layers.0", "layers.-1")), "is not supported"),
        (_rename(QUERY.replace("q_proj", "nothing")), "is not supported"),
        (_rename(QUERY.replace("lora_A.weight", "lora_magnitude_vector")), "is not supported"),
        (_set(QUERY.replace(".weight", ".default.weight"), torch.ones(4, 48)), "is there twice"),
        (lambda tensors: tensors.pop(QUERY), "lora_A of layer 0, self_attn.q_proj is missing"),
        (lambda tensors: tensors.clear(), "has no tensors"),
        (_set(QUERY, torch.ones(4, 47)), "has shape (4, 47)"),
        (_set(QUERY, torch.ones(192)), "has shape (192,)"),
        (_set(QUERY, torch.ones(256, 48)), "has shape (256, 48)"),
        (_set(QUERY, torch.ones(4, 48, dtype=torch.int8)), "is I8, not one of F32"),
        (_set(QUERY, torch.ones(4, 48, dtype=torch.float64)), "is F64, not one of F32"),
        (_set(QUERY, torch.full((4, 48), float("nan"))), "not finite"),
        (_set(QUERY, torch.full((4, 48), float("inf"))), "not finite"),
        (_set(QUERY.replace("lora_A", "lora_B"), torch.full((64, 4), 3e38)), "not finite"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused(
    folder: Path, model: ModelConfig, change: Callable[[Tensors], object], words: str
) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
    assert words in refusal(folder, model)


def _claims(shape: list[int], end: int) -> bytes:
    """Return a file whose header claims one large tensor."""
    header = json.dumps({QUERY: {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}})
    return struct.pack("<Q", len(header)) + header.encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x00" * 7, struct.pack("<Q", 1 << 62), struct.pack("<Q", 9) + b"{}",
        struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 2) + b"{}" + bytes(9),
        _claims([1 << 20, 1 << 20], 1 << 42), _claims([-1, 4], 16), _claims([4, 48], 16),
        _claims([1 << 61, 4], 1 << 62),
    ],
)  # fmt: skip
def test_malformed_safetensors_are_refused_in_bounded_memory(
    folder: Path, model: ModelConfig, data: bytes
) -> None:
    (folder / WEIGHTS).write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusal(folder, model)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KB


def test_large_header_is_refused_before_it_is_parsed(folder: Path, model: ModelConfig) -> None:
    """Parsing it would take 25 times its bytes, and keep the kernel's loop waiting."""
    header = b'{"__metadata__":[' + b"{}," * (ADAPTER_HEADER_BYTES_MAX // 3) + b"{}]}"
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header)
    assert f"at most {ADAPTER_HEADER_BYTES_MAX} are supported" in refusal(folder, model)


def test_missing_files_are_refused(folder: Path, model: ModelConfig, tmp_path: Path) -> None:
    (folder / WEIGHTS).unlink()
    assert f"{WEIGHTS} is missing" in refusal(folder, model)
    assert f"{CONFIG} is missing" in refusal(tmp_path, model)


def test_refused_adapter_leaves_nothing_in_the_executor(rig: ExecutorRig, folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors[QUERY][0, 0] = float("nan")
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(AdapterError):
        rig.executor.load_adapter("a", folder)
    assert rig.executor.network.adapters == {}


def test_adapter_for_which_torch_has_no_memory_leaves_nothing_in_the_executor(
    rig: ExecutorRig, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = rig.executor.network
    monkeypatch.setattr(network, "pack_adapter", lambda _: torch.empty(1 << 50))
    with pytest.raises(MemoryError):  # torch itself raises RuntimeError
        rig.executor.load_adapter("a", folder)
    assert network.adapters == {}
