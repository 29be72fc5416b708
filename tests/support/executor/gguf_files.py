"""GGUF files made of small checkpoints, with the package `gguf`, llama.cpp's own writer."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file

Array = npt.NDArray[Any]

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """Return llama.cpp's name of a checkpoint's tensor."""
    stem, _, what = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{what}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest]}.{what}"


def permuted(rows: Array, heads: int) -> Array:
    """Return the rows of Llama's queries or keys in llama.cpp's order: pairs are neighbours."""
    size = len(rows) // heads
    order = [h * size + half * size // 2 + i for h in range(heads) for i in range(size // 2)
             for half in range(2)]  # fmt: skip
    return rows[order]


def random_blocks(kind: Kind, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return a matrix of random blocks, [rows, bytes] uint8, whose values are small and finite."""
    rng = np.random.default_rng(seed)
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (shape[0], shape[1] // values, size), np.uint8)
    if kind == Kind.Q8_0:
        blocks[blocks == 128] = 129  # no writer makes -128
    for at, scale in _SCALES[kind].items():
        halves = (scale * rng.uniform(0.5, 1, blocks.shape[:2])).astype(np.float16)
        blocks[:, :, at : at + 2] = halves.view(np.uint8).reshape(*halves.shape, 2)
    return blocks.reshape(shape[0], -1)


# Where each block has its float16 scales, and a size that leaves values near 0.1.
_SCALES: dict[Kind, dict[int, float]] = {
    Kind.Q4_0: {0: 0.02}, Kind.Q4_1: {0: 0.02, 2: -0.15}, Kind.Q5_0: {0: 0.01},
    Kind.Q5_1: {0: 0.01, 2: -0.15}, Kind.Q8_0: {0: 0.001}, Kind.Q2_K: {80: 0.01, 82: 0.01},
    Kind.Q3_K: {108: 0.002}, Kind.Q4_K: {0: 0.0004, 2: 0.003}, Kind.Q5_K: {0: 0.0002, 2: 0.003},
    Kind.Q6_K: {208: 0.00005}, Kind.IQ4_NL: {0: 0.001}, Kind.IQ4_XS: {0: 0.00005},
}  # fmt: skip
BLOCK_KINDS = tuple(_SCALES)
Choose = Callable[[str], Kind]  # the type of a checkpoint's matrix, by name


def write_gguf(
    path: Path,
    folder: Path,
    kinds: Choose = lambda name: Kind.F32,
    *,
    pre: str = "gpt-2",
    change: Callable[[gguf.GGUFWriter], object] | None = None,
    parts: int = 1,
) -> Path:
    """Write a checkpoint as a GGUF file. Matrices of quantized types become random blocks.

    The checkpoint's matrices are overwritten with the same values, dequantized by the package. So
    both are the same model.
    """
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    arch = "llama" if config["model_type"] == "mistral" else config["model_type"]
    per_part = -(-len(tensors) // parts)
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=per_part if parts > 1 else 0)
    _add_settings(writer, config)
    add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()), config, pre)
    if change is not None:
        change(writer)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for index, (name, tensor) in enumerate(tensors.items()):
        values = tensor.float().numpy()
        kind = kinds(name) if values.ndim == 2 else Kind.F32
        if kind in _SCALES:
            data = random_blocks(kind, values.shape, index)
            values = gguf.quants.dequantize(data, kind)
            tensors[name] = torch.from_numpy(values)
        else:
            data = gguf.quants.quantize(values, kind)
            tensors[name] = torch.from_numpy(gguf.quants.dequantize(data, kind))
        if arch == "llama" and name.split(".")[-2] in heads:
            data = permuted(data, heads[name.split(".")[-2]])
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()},
              folder / "model.safetensors")  # fmt: skip
    close(writer)
    return path if parts == 1 else path.with_name(f"{path.stem}-00001-of-{parts:05}.gguf")


def close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_settings(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    rope = config.get("rope_parameters") or {}
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(rope.get("rope_theta", config.get("rope_theta", 10000.0))))


def add_tokenizer(
    writer: gguf.GGUFWriter, source: dict[str, Any], config: dict[str, Any], pre: str
) -> None:
    """Add a byte-level tokenizer.json, as llama.cpp's converter does."""
    added = {token["id"]: token for token in source.get("added_tokens") or ()}
    texts = {number: text for text, number in source["model"]["vocab"].items()}
    if not source["model"]["merges"]:
        texts |= {config["vocab_size"] - 1: "aa"}
    texts |= {number: token["content"] for number, token in added.items()}
    tokens, types = [], []
    for number in range(config["vocab_size"]):
        tokens.append(texts.get(number, f"[PAD{number}]"))
        special = added.get(number)
        if number not in texts:
            types.append(gguf.TokenType.UNUSED)
        elif special is None:
            types.append(gguf.TokenType.NORMAL)
        else:
            control = special["special"]
            types.append(gguf.TokenType.CONTROL if control else gguf.TokenType.USER_DEFINED)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    # The writer leaves out empty arrays.
    writer.add_token_merges([_merge(pair) for pair in source["model"]["merges"]] or ["a a"])
    for name in ("bos", "eos"):
        token = config.get(f"{name}_token_id")
        if token is not None:
            getattr(writer, f"add_{name}_token_id")(token)


def _merge(pair: str | Iterable[str]) -> str:
    return pair if isinstance(pair, str) else " ".join(pair)
