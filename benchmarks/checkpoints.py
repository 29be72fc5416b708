"""Random checkpoints in Hugging Face layout, and adapters for them, for benchmarks and tests.

    python benchmarks/checkpoints.py DIR [--shape 135m] [--dtype bf16|fp32] [--seed 0]
    python benchmarks/checkpoints.py DIR --adapter FOLDER [--rank 16] [--seed 0]

The weights are noise from a seed, so the model says nothing of sense, but its shapes, its speed and
its tokenizer (byte-level, every id has a text) are a real model's.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Wider than models usually begin with: at 0.02 a greedy run repeats one token for ever, and would
# compare nothing.
_WEIGHT_STD = 0.05
ADAPTER_TARGETS = (
    "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
)  # fmt: skip
_DTYPES = {"bf16": ("bfloat16", torch.bfloat16), "fp32": ("float32", torch.float32)}


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's or Qwen2's sizes, in elements; `context` in tokens."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    context: int = 8192
    tied: bool = True
    kind: str = "llama"  # or qwen2, which adds biases to queries, keys and values
    rope_theta: float = 100000.0
    norm_eps: float = 1e-5


SHAPES = {
    "135m": Shape(576, 30, 9, 3, 1536, 49152),  # SmolLM2-135M's
    "0.5b": Shape(  # Qwen2-0.5B's
        896, 24, 14, 2, 4864, 151936, kind="qwen2", rope_theta=1e6, norm_eps=1e-6
    ),
    # Llama 3.2 1B's and Llama 3.1 8B's, without the scaling of their rotation.
    "1b": Shape(2048, 16, 32, 8, 8192, 128256, rope_theta=5e5),
    "8b": Shape(4096, 32, 32, 8, 14336, 128256, tied=False, rope_theta=5e5),
    "20m": Shape(384, 12, 6, 2, 1024, 8192),
    "small": Shape(64, 2, 4, 2, 96, 512, 1024),
}


def make_checkpoint(
    directory: Path,
    shape: Shape = SHAPES["135m"],
    dtype: str = "bf16",
    seed: int = 0,
    weights: dict[str, torch.Tensor] | None = None,
) -> Path:
    """Write a checkpoint with random weights into `directory`, which may exist, and return it.

    `weights` are those, if they are there already.
    """
    directory.mkdir(parents=True, exist_ok=True)
    write = {
        "config.json": make_config(shape, dtype),
        "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": SPECIAL[1],
            "eos_token": SPECIAL[2],
            "chat_template": CHAT_TEMPLATE,
            "model_max_length": shape.context,
        },
    }
    for name, content in write.items():
        (directory / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    make_tokenizer(shape.vocab, seed).save(str(directory / "tokenizer.json"))
    if weights is None:
        weights = make_weights(shape, _DTYPES[dtype][1], seed)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def make_config(shape: Shape, dtype: str) -> dict[str, object]:
    """Return what stands in config.json; `dtype` is bf16 or fp32."""
    return {
        "architectures": ["Qwen2ForCausalLM" if shape.kind == "qwen2" else "LlamaForCausalLM"],
        "model_type": shape.kind,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": _DTYPES[dtype][0],
        "head_dim": shape.hidden // shape.heads,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "mlp_bias": False,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "tie_word_embeddings": shape.tied,
        "vocab_size": shape.vocab,
    }


def make_tokenizer(vocab_size: int, seed: int) -> Tokenizer:
    """Return a byte-level BPE tokenizer of exactly `vocab_size` ids, merged at random."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*SPECIAL, *alphabet]
    if vocab_size < len(pieces):
        raise ValueError(f"a byte-level tokenizer has at least {len(pieces)} ids")
    known = set(pieces)
    letters = list("etaoinshrdlucmfwypvbgkqjxz")
    growing = list(letters)
    random = np.random.default_rng(seed)
    merges: list[tuple[str, str]] = []
    while len(pieces) < vocab_size:
        left = growing[random.integers(len(growing))]
        right = letters[random.integers(len(letters))]
        if left + right not in known:
            merges.append((left, right))
            known.add(left + right)
            growing.append(left + right)
            pieces.append(left + right)
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer


def make_weights(shape: Shape, dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    """Return the model's tensors by their names in transformers."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> torch.Tensor:
        return (torch.randn(size, generator=generator) * _WEIGHT_STD).to(dtype)

    head_dim = shape.hidden // shape.heads
    inner, kv_inner = shape.heads * head_dim, shape.kv_heads * head_dim
    sizes = {
        "self_attn.q_proj": (inner, shape.hidden),
        "self_attn.k_proj": (kv_inner, shape.hidden),
        "self_attn.v_proj": (kv_inner, shape.hidden),
        "self_attn.o_proj": (shape.hidden, inner),
        "mlp.gate_proj": (shape.intermediate, shape.hidden),
        "mlp.up_proj": (shape.intermediate, shape.hidden),
        "mlp.down_proj": (shape.hidden, shape.intermediate),
    }
    weights = {"model.embed_tokens.weight": draw(shape.vocab, shape.hidden)}
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        for name, size in sizes.items():
            weights[f"{prefix}{name}.weight"] = draw(*size)
            if shape.kind == "qwen2" and name.endswith(("q_proj", "k_proj", "v_proj")):
                weights[f"{prefix}{name}.bias"] = draw(size[0])
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{norm}.weight"] = torch.ones(shape.hidden, dtype=dtype)
    weights["model.norm.weight"] = torch.ones(shape.hidden, dtype=dtype)
    if not shape.tied:
        weights["lm_head.weight"] = draw(shape.vocab, shape.hidden)
    return weights


def make_adapter(
    folder: Path,
    checkpoint: Path,
    *,
    rank: int = 16,
    seed: int = 0,
    targets: Sequence[str] = ADAPTER_TARGETS,
    dtype: torch.dtype = torch.float32,
    **settings: object,
) -> Path:
    """Write a LoRA adapter with random weights in PEFT's layout for a checkpoint; return it.

    It changes the `targets`, which are the last parts of modules' names. `settings` are further
    values of adapter_config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(file.keys()):
                module = name.removesuffix(".weight")
                if module.rpartition(".")[2] not in targets or not name.endswith(".weight"):
                    continue
                outputs, inputs = file.get_slice(name).get_shape()
                for side, size in (("A", (rank, inputs)), ("B", (outputs, rank))):
                    values = torch.randn(size, generator=generator) * _WEIGHT_STD
                    tensors[f"base_model.model.{module}.lora_{side}.weight"] = values.to(dtype)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "lora_dropout": 0.05,
        "bias": "none", "target_modules": list(targets), "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(checkpoint.name), "inference_mode": True, **settings,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return folder


def main(arguments: list[str]) -> None:
    """Write the checkpoint or the adapter that the command line describes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="135m")
    parser.add_argument("--dtype", choices=_DTYPES, default="bf16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--adapter", type=Path, help="write an adapter for DIR into this folder")
    parser.add_argument("--rank", type=int, default=16)
    given = parser.parse_args(arguments)
    if given.adapter is not None:
        print(make_adapter(given.adapter, given.directory, rank=given.rank, seed=given.seed))
        return
    made = make_checkpoint(given.directory, SHAPES[given.shape], given.dtype, given.seed)
    size = sum(path.stat().st_size for path in made.iterdir())
    print(f"{made}: {size / 1e6:.0f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
