"""What a model's directory may say, and how it is refused: config, assets, weights.

test_damaged_models.py has more refusals: loading a model makes the same checks.
"""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from symphony_kernel.executor.models.assets import load_assets
from symphony_kernel.executor.models.config import (
    Experts,
    Fields,
    ModelConfig,
    Rope,
    load_config,
    parse_config,
)
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.loader import Weights
from symphony_kernel.executor.models.rope import frequencies
from symphony_kernel.executor.models.weights import LayerWeights, Product, take_embedding, take_head
from symphony_kernel.executor.torch_executor import TorchExecutor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from benchmarks.checkpoints import SHAPES, make_checkpoint
from tests.support.executor.models import load, make_row

BASE: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 100, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}  # fmt: skip
SIZES = (
    "num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "head_dim",
)  # fmt: skip
# Settings of other families that change the mathematics.
OTHERS = (
    "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
    "attention_multiplier", "residual_multiplier", "logits_scaling", "embedding_multiplier",
)  # fmt: skip
FLAGS = "use_bidirectional_attention", "lm_head_bias"


def _config(**settings: Any) -> ModelConfig:
    return parse_config(Fields(BASE | settings, "config.json"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "some-model", SHAPES["small"], "fp32")


def _rewrite(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    values = {k: v for k, v in (values | changes).items() if v is not None}
    path.write_text(json.dumps(values))


# --- config.json ---------------------------------------------------------------------------------


def test_config_without_a_key_has_the_default_of_transformers() -> None:
    config = _config()
    assert (config.kv_heads, config.head_dim, config.tied) == (4, 16, False)
    assert config.ropes == (Rope("default", 10_000.0),) * 4
    assert config.windows == (None,) * 4
    mistral = {"model_type": "mistral", "max_position_embeddings": 8192}
    assert _config(**mistral).windows == (4096,) * 4
    assert _config(**mistral, sliding_window=None).windows == (None,) * 4
    # A window as wide as the context hides nothing.
    assert _config(**mistral, sliding_window=8192).windows == (None,) * 4
    assert _config(model_type="qwen3").head_dim == 128


def test_biases_follow_from_the_architecture() -> None:
    qwen2 = _config(model_type="qwen2")
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = _config(model_type="qwen3", attention_bias=True)
    assert (qwen3.qkv_bias, qwen3.output_bias, qwen3.qk_norm) == (True, True, True)
    llama = _config(attention_bias=True, mlp_bias=True)
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (True, True, True)


def test_windows_of_qwen_follow_layer_types_or_the_first_layers() -> None:
    window = {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 9}
    assert _config(**window, max_window_layers=3).windows == (None, None, None, 9)
    types = ["sliding_attention", "full_attention"] * 2
    assert _config(**window, layer_types=types).windows == (9, None, 9, None)
    # Qwen's own configurations name a window that is switched off.
    assert _config(model_type="qwen2", sliding_window=9).windows == (None,) * 4


def test_dynamic_rope_is_served_within_its_original_context() -> None:
    rope = {"type": "dynamic", "factor": 2.0}
    assert _config(rope_scaling=rope).max_context == 128
    assert _config(rope_scaling=rope | {"original_max_position_embeddings": 64}).max_context == 64


def test_windows_of_mixed_layers_follow_a_pattern_or_layer_types() -> None:
    gemma = {**BASE, "num_hidden_layers": 7, "max_position_embeddings": 8192, "sliding_window": 9}
    found = parse_config(Fields({**gemma, "model_type": "gemma3_text"}, ""))
    assert found.windows == (9, 9, 9, 9, 9, None, 9)
    far, near = Rope(theta=1e6), Rope(theta=1e4)
    assert found.ropes == (near, near, near, near, near, far, near)
    assert _config(model_type="gemma2", sliding_window=9).windows == (9, None, 9, None)
    types = ["full_attention", *["sliding_attention"] * 3]
    assert _config(model_type="gpt_oss", layer_types=types).windows == (None,) * 4  # 128 of 128
    given = _config(model_type="gpt_oss", layer_types=types, sliding_window=12)
    assert given.windows == (None, 12, 12, 12)


def test_families_without_a_key_have_the_defaults_of_transformers() -> None:
    gemma2 = _config(model_type="gemma2", hidden_activation="gelu_pytorch_tanh")
    assert (gemma2.attention_cap, gemma2.logit_cap, gemma2.head_dim) == (50.0, 30.0, 256)
    assert (gemma2.tied, gemma2.embedding_scale, gemma2.score_scale) == (True, 8.0, 1 / 16)
    none = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
    assert _config(model_type="gemma2", **none).attention_cap == 0.0
    mixtral = _config(model_type="mixtral")
    assert mixtral.experts == Experts(8, 2, normalized=True)
    assert mixtral.ropes[0].theta == 1e6
    moe = _config(model_type="qwen3_moe", num_experts=16)
    assert moe.experts == Experts(16, 8, normalized=False)
    assert moe.intermediate_size == 768
    oss = _config(model_type="gpt_oss")
    assert oss.ropes[0] == Rope(
        "yarn", 150_000.0, factor=32.0, original_context=4096, truncate=False
    )
    assert (oss.gate_slope, oss.gate_limit, oss.sinks) == (1.702, 7.0, True)


def test_longrope_is_served_within_its_original_context() -> None:
    factors = {"short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    phi: dict[str, Any] = {
        "model_type": "phi3", "partial_rotary_factor": 0.75, "max_position_embeddings": 8192,
        "rope_scaling": {"type": "longrope", **factors}, "sliding_window": 8192,
    }  # fmt: skip
    found = _config(**phi)
    assert found.max_context == 4096
    assert found.windows == (None,) * 4
    assert found.ropes[0].rotated(16) == 12
    assert _config(**phi, original_max_position_embeddings=64).max_context == 64


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(({key: 10**9}, f"config.json: {key} is 1000000000; at most") for key in SIZES),
        ({"model_type": "gpt2"}, "model_type must be one of llama.*not 'gpt2'"),
        ({"model_type": None}, "model_type must be one of .*not None"),
        ({"vocab_size": None}, "vocab_size must be a positive integer"),
        ({"hidden_size": "64"}, "hidden_size must be a positive integer, not '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, not 0"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"head_dim": 15}, "odd"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"tie_word_embeddings": "yes"}, "must be true or false"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be a positive number"),
        ({"dtype": "float8_e4m3fn"}, "float8"),
        ({"sliding_window": 8}, "sliding_window 8 is not supported"),
        ({"eos_token_id": "end"}, "must hold token ids"),
        ({"model_type": "mistral", "attention_bias": True}, "attention_bias"),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 4}, "layer_types"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "must name 4 layers"),
        ({"model_type": "qwen2", "layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 4}, "sliding_window None"),
        *(({key: 0.5}, f"{key} 0.5 is not supported") for key in OTHERS),
        *(({key: True}, f"{key} True is not supported") for key in FLAGS),
        ({"model_type": "qwen2", "attention_bias": True}, "attention_bias True is not supported"),
        ({"model_type": "gemma2", "hidden_activation": "gelu"}, "hidden_activation 'gelu' is not"),
        ({"model_type": "gemma2", "attn_logit_softcapping": -1}, "attn_logit_softcapping must be"),
        ({"model_type": "gemma2", "use_bidirectional_attention": True}, "use_bidirectional"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 5.0}, "attn_logit_softcapping 5"),
        (
            {"model_type": "gemma3_text", "rope_parameters": {"full_attention": {}, "other": {}}},
            "unknown keys .'other'.",
        ),
        ({"model_type": "gemma3"}, "model_type must be one of .*gemma3_text.* not 'gemma3'"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.1}, "of head_dim 16: no pairs"),
        ({"model_type": "phi3", "partial_rotary_factor": 1.5}, "of head_dim 16: no pairs"),
        (
            {"model_type": "phi3", "rope_scaling": {"type": "longrope", "short_factor": [1.0]}},
            "long_factor must be a list of 8 numbers",
        ),
        ({"model_type": "phi3", "rope_scaling": {"type": "linear", "factor": 2}}, "default, longr"),
        ({"model_type": "mixtral", "num_local_experts": 1}, "num_experts_per_tok is 2, and there"),
        ({"model_type": "mixtral", "num_local_experts": 2000}, "at most 1024 are supported"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [1]}, "mlp_only_layers .1. is not support"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, "decoder_sparse_step 2 is not"),
        ({"model_type": "olmo2", "clip_qkv": 8.0}, "clip_qkv 8.0 is not supported"),
        ({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}, "in MXFP4"),
        ({"model_type": "gpt_oss", "layer_types": ["full_attention"]}, "must name 4 layers"),
        ({"rope_scaling": [1]}, "must be an object"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "must be one of .*not 'longrope'"),
        ({"rope_scaling": {"type": "linear"}}, "factor must be a positive number"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "spin": 1}}, "unknown keys .'spin'."),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "unknown keys"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        (
            {
                "rope_scaling": {
                    "type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 4
                }
            },
            "must exceed",
        ),
    ],
)  # fmt: skip
def test_config_with_a_wrong_value_is_refused_in_words(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(CheckpointError, match=words):
        _config(**settings)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 3.0},
        {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "truncate": False},
        {"rope_type": "yarn", "factor": 0.5, "mscale": 1.0, "mscale_all_dim": 0.5},
        {"rope_type": "yarn", "factor": 16.0, "mscale": 1.0, "mscale_all_dim": 0.5},
    ],
)  # fmt: skip
def test_rope_frequencies_equal_transformers(rope: dict[str, Any]) -> None:
    theirs = LlamaConfig(**BASE, rope_parameters={**rope, "rope_theta": 5e4})
    expected, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](theirs)
    found, mine = frequencies(_config(rope_scaling=rope, rope_theta=5e4).ropes[0], 16)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert mine == pytest.approx(scale)


# --- Assets --------------------------------------------------------------------------------------


def test_assets_of_a_usual_checkpoint_have_its_values(model: Path) -> None:
    assets = load_assets(model)
    assert assets.model.name == "some-model"
    assert (assets.model.vocab_size, assets.model.max_context) == (512, 1024)
    assert (assets.model.eos, assets.model.bos) == ((2,), 1)
    assert assets.special == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert assets.chat_template is not None
    assert "im_start" in assets.chat_template
    assert assets.tokenizer_json == (model / "tokenizer.json").read_bytes()


def test_generation_settings_override_the_configuration(model: Path) -> None:
    _rewrite(model / "generation_config.json", eos_token_id=[2, 0], bos_token_id=None)
    assert load_assets(model).model.eos == (2, 0)
    (model / "generation_config.json").unlink()
    _rewrite(model / "config.json", eos_token_id=[7], bos_token_id=None)
    assets = load_assets(model)
    assert (assets.model.eos, assets.model.bos) == ((7,), None)


def test_special_texts_come_from_settings_or_from_ids(model: Path) -> None:
    settings = model / "tokenizer_config.json"
    _rewrite(settings, bos_token={"content": "<s>", "lstrip": False}, eos_token=None)
    assert load_assets(model).special == {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    settings.unlink()
    assert load_assets(model).special["bos_token"] == "<|im_start|>"
    _rewrite(model / "generation_config.json", bos_token_id=None)
    _rewrite(model / "config.json", bos_token_id=None)
    assert load_assets(model).special["bos_token"] == ""


def test_chat_template_is_found_in_each_of_its_places(model: Path) -> None:
    settings = model / "tokenizer_config.json"
    named = [{"name": "tool", "template": "T"}, {"name": "default", "template": "D"}]
    _rewrite(settings, chat_template=named)
    assert load_assets(model).chat_template == "D"
    _rewrite(settings, chat_template=None)
    assert load_assets(model).chat_template is None
    _rewrite(model / "chat_template.json", chat_template="J")
    assert load_assets(model).chat_template == "J"
    (model / "chat_template.jinja").write_text("jinja {{ 'ä' }}", encoding="utf-8")
    assert load_assets(model).chat_template == "jinja {{ 'ä' }}"


@pytest.mark.parametrize(
    ("given", "checkpoint", "expected"),
    [("auto", "bf16", "float32"), ("bf16", "fp32", "bfloat16"), ("fp32", "bf16", "float32")],
)
def test_auto_dtype_of_a_small_model_is_float32(
    tmp_path: Path, given: str, checkpoint: str, expected: str
) -> None:
    directory = make_checkpoint(tmp_path, SHAPES["small"], checkpoint)
    assert load_assets(directory, given).model.dtype == expected


def test_auto_dtype_of_a_large_model_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_kernel.executor.models.assets.AUTO_FLOAT32_BYTES_MAX", 1000)
    directory = make_checkpoint(tmp_path, SHAPES["small"], "bf16")
    assert load_assets(directory).model.dtype == "bfloat16"
    _rewrite(directory / "config.json", dtype="float32")
    assert load_assets(directory).model.dtype == "float32"


def test_model_in_a_hugging_face_cache_has_the_repositorys_name(tmp_path: Path) -> None:
    place = tmp_path / "models--some--model" / "snapshots" / "0123abc"
    assert load_assets(make_checkpoint(place, SHAPES["small"])).model.name == "some/model"
    assert load_assets(place, name="tiny").model.name == "tiny"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_hidden_layers", 1_000, "has no tensor model.layers.999"),
        ("hidden_size", 1 << 17, r"embed_tokens.weight in .* has shape"),
        ("vocab_size", 1 << 22, r"embed_tokens.weight in .* has shape"),
        ("intermediate_size", 1 << 20, r"down_proj.weight in .* has shape"),
        ("head_dim", 1 << 10, r"q_proj.weight in .* has shape"),
    ],
)
def test_sizes_unlike_the_tensors_are_refused_without_allocating(
    model: Path, key: str, value: int, words: str
) -> None:
    _rewrite(model / "config.json", **{key: value})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match=words):
        TorchExecutor.load(model, pool_bytes=1 << 30)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"


def test_missing_directory_and_wrong_dtype_are_named(model: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a directory"):
        load_config(model / "nowhere")
    with pytest.raises(CheckpointError, match="dtype must be auto, fp32 or bf16, not 'int8'"):
        load_assets(model, "int8")


# --- Weights -------------------------------------------------------------------------------------


def _change(directory: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def test_matrices_of_the_same_inputs_are_taken_as_one(model: Path) -> None:
    config, there = load_config(model), load_file(model / "model.safetensors")
    with Weights(model, config, torch.float32, torch.device("cpu")) as weights:
        embedding = take_embedding(config, weights)
        for index in range(config.layers):
            layer = LayerWeights(config, weights, index)
            up_gate = layer.matrix(Product.UP, Product.GATE)
            names = [f"model.layers.{index}.{name}.weight" for name in (Product.UP, Product.GATE)]
            assert torch.equal(up_gate.weight, torch.cat([there[name] for name in names]))
            qkv = layer.matrix(Product.QUERY, Product.KEY, Product.VALUE)
            assert (qkv.bias is not None) == config.qkv_bias
            layer.matrix(Product.OUTPUT)
            layer.matrix(Product.DOWN)
            with pytest.raises(CheckpointError, match="no tensor"):
                layer.matrix(Product.DOWN)
            assert (layer.norms().query is not None) == config.qk_norm
        _, head = take_head(config, weights, embedding)
    assert (head is embedding) == config.tied


NORM = "model.norm.weight"


def test_tensor_that_the_network_does_not_take_is_refused(model: Path) -> None:
    _change(model, lambda t: t.update(odd=torch.ones(1)))
    with pytest.raises(CheckpointError, match="1 unexpected tensors: odd"):
        TorchExecutor.load(model, pool_bytes=1 << 20)


def test_tensors_that_only_old_checkpoints_need_are_ignored(model: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    head = torch.ones(512, 64)
    _change(model, lambda t: t.update({name: torch.ones(8), "lm_head.weight": head}))
    load(model).close()


def test_tensor_of_the_index_in_two_files_or_none_is_refused(model: Path) -> None:
    def refused_with(places: dict[str, str]) -> str:
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        with pytest.raises(CheckpointError) as refused:
            TorchExecutor.load(model, pool_bytes=1 << 20)
        return str(refused.value)

    words = refused_with({"a": "model.safetensors"})
    assert "names tensors that no file has: a" in words
    tensors = load_file(model / "model.safetensors")
    save_file({NORM: tensors[NORM]}, model / "second.safetensors")
    places = dict.fromkeys(tensors, "model.safetensors") | {NORM: "second.safetensors"}
    assert "is in both" in refused_with(places)


def test_error_while_loading_is_not_hidden_by_unused_tensors(model: Path) -> None:
    config, cpu = load_config(model), torch.device("cpu")
    with pytest.raises(ZeroDivisionError), Weights(model, config, torch.float32, cpu):
        raise ZeroDivisionError


# --- The benchmark's own checkpoint --------------------------------------------------------------


def test_benchmark_checkpoint_has_the_logits_of_transformers(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = "def größe(x):\n    return x + 1  # für alle"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == 512
    peer = AutoModelForCausalLM.from_pretrained(model).eval()
    with torch.inference_mode():
        expected = peer(torch.tensor([ids])).logits[0].numpy()
    rig = load(model)
    [found] = rig.logits([make_row(ids, rig.table(len(ids)))])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    rig.close()


def test_benchmark_checkpoint_follows_from_its_seed(tmp_path: Path) -> None:
    first, again, other = (
        make_checkpoint(tmp_path / name, SHAPES["small"], seed=seed)
        for name, seed in (("first", 3), ("again", 3), ("other", 4))
    )
    for name in ("tokenizer.json", "model.safetensors"):
        assert (first / name).read_bytes() == (again / name).read_bytes()
        assert (first / name).read_bytes() != (other / name).read_bytes()
