"""A model without its weights: names, ids, the tokenizer, the chat template.

The executor takes its `ModelInfo` from here. The kernel sends the rest to the workers, which
tokenize in their own processes.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from symphony_kernel.executor.base import ModelInfo
from symphony_kernel.executor.models.config import Fields, ModelConfig, load_config
from symphony_kernel.executor.models.file_reader import (
    TOKENIZER_BYTES_MAX,
    CheckpointError,
    parse_json,
    shown,
    text_of,
)
from symphony_kernel.executor.models.gguf.container import is_gguf
from symphony_kernel.executor.models.model_files import (
    ModelFiles,
    open_model,
    optional_json,
    required,
)

# Up to this size of weights "auto" computes in float32: bfloat16 would save nothing worth having,
# and greedy output is then exactly the same in every batch.
AUTO_FLOAT32_BYTES_MAX = 64 << 20

_SPLIT = re.compile(r"-00001-of-\d{5}\Z")  # of a GGUF file in several parts
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class ModelAssets:
    """A model without its weights.

    `special` has `bos_token` and `eos_token` for the chat template: text, "" if the model has none.
    `embedding` says what the directory says of embeddings: see `_embedding`.
    """

    model: ModelInfo
    tokenizer_json: bytes
    chat_template: str | None
    special: dict[str, str]
    embedding: dict[str, Any] = field(default_factory=dict)


def load_assets(directory: Path, dtype: str = "auto", name: str | None = None) -> ModelAssets:
    """Read everything but the weights of a folder in Hugging Face layout, or of a GGUF file.

    `dtype` is what the executor will compute in: auto, fp32 or bf16. "auto" is the checkpoint's
    dtype (float16 becomes bfloat16), but float32 for small models. `name` overrides the
    directory's.

    Raises CheckpointError: a file is missing or broken, or the model is not supported.
    """
    config, files = load_config(directory), open_model(directory)
    tokenizer, parsed = _tokenizer(files, config)
    settings = optional_json(files, "tokenizer_config.json")
    generation = Fields(
        optional_json(files, "generation_config.json"), str(files.where("generation_config.json"))
    )
    eos = generation.ids("eos_token_id") or config.eos
    bos = generation.ids("bos_token_id")[:1] or (() if config.bos is None else (config.bos,))
    model = ModelInfo(
        name=name or model_name(directory),
        vocab_size=config.vocab_size,
        eos=_in_vocabulary(f"{directory}: eos_token_id", eos, config),
        bos=next(iter(_in_vocabulary(f"{directory}: bos_token_id", bos, config)), None),
        max_context=config.max_context,
        dtype=resolve_dtype(dtype, config, files),
        hidden_size=config.hidden_size,
        windows=config.windows,
    )
    return ModelAssets(
        model=model,
        tokenizer_json=tokenizer,
        chat_template=_chat_template(files, settings),
        special=_special(files, settings, parsed, model),
        embedding=_embedding(files),
    )


def resolve_dtype(dtype: str, config: ModelConfig, files: ModelFiles) -> str:
    if dtype in _DTYPES:
        return _DTYPES[dtype]
    if dtype != "auto":
        raise CheckpointError(f"dtype must be auto, fp32 or bf16, not {dtype!r}")
    weights = sum(path.stat().st_size for path in files.weights())
    if config.dtype == "float32" or weights <= AUTO_FLOAT32_BYTES_MAX:
        return "float32"
    return "bfloat16"


def model_name(directory: Path) -> str:
    """Return the directory's or file's name, or the repository's in a Hugging Face cache."""
    if is_gguf(directory):
        return _SPLIT.sub("", directory.stem)
    path = directory.resolve()
    if path.parent.name == "snapshots" and path.parents[1].name.startswith("models--"):
        return path.parents[1].name.removeprefix("models--").replace("--", "/")
    return path.name


def _in_vocabulary(key: str, ids: tuple[int, ...], config: ModelConfig) -> tuple[int, ...]:
    outside = [i for i in ids if i >= config.vocab_size]
    if outside:
        raise CheckpointError(
            f"{key} {shown(outside)} is outside the vocabulary of {config.vocab_size}"
        )
    return ids


def _tokenizer(files: ModelFiles, config: ModelConfig) -> tuple[bytes, dict[str, Any]]:
    """Return tokenizer.json, raw and parsed.

    Added tokens may lie outside the vocabulary, as some models' do.
    """
    path = files.where("tokenizer.json")
    data = required(files, "tokenizer.json", TOKENIZER_BYTES_MAX)
    parsed = parse_json(path, data)
    model = parsed.get("model")
    if not isinstance(model, dict):
        raise CheckpointError(
            f"{path} is not a tokenizer of the tokenizers library: it has no model"
        )
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        numbers = (number for number in vocabulary.values() if isinstance(number, int))
        tokens = max(numbers, default=-1) + 1
    else:  # Unigram: pieces with their scores, in order
        tokens = len(vocabulary) if isinstance(vocabulary, list) else 0
    if tokens > config.vocab_size:
        raise CheckpointError(
            f"{path} has {shown(tokens)} tokens, and config.json a vocab_size of "
            f"{config.vocab_size}: it is another model's tokenizer"
        )
    added = parsed.get("added_tokens") or []
    if not isinstance(added, list) or not all(isinstance(each, dict) for each in added):
        raise CheckpointError(f"{path}: added_tokens must be a list of objects")
    return data, parsed


def _chat_template(files: ModelFiles, settings: dict[str, Any]) -> str | None:
    """Return the first template of the three places that transformers has used."""
    found = files.read("chat_template.jinja")
    if found is not None:
        return text_of(files.where("chat_template.jinja"), found)
    given = settings.get("chat_template")
    if given is None:
        given = optional_json(files, "chat_template.json").get("chat_template")
    if isinstance(given, list):
        templates = [t for t in given if isinstance(t, dict) and t.get("name") == "default"]
        given = templates[-1].get("template") if templates else None
    if given is not None and not isinstance(given, str):
        raise CheckpointError(f"{files.path}: the chat template must be text")
    return given


def _special(
    files: ModelFiles, settings: dict[str, Any], tokenizer: dict[str, Any], model: ModelInfo
) -> dict[str, str]:
    """Return the texts of bos and eos, from the tokenizer's settings or by their ids."""
    older = optional_json(files, "special_tokens_map.json")
    ids = {"bos_token": model.bos, "eos_token": model.eos[0] if model.eos else None}
    return {
        key: _text_of(settings.get(key, older.get(key))) or _text_by_id(tokenizer, token)
        for key, token in ids.items()
    }


def _embedding(files: ModelFiles) -> dict[str, Any]:
    """Return the `pooling` of sentence-transformers, and the `dimensions` of a Matryoshka model.

    `pooling` is "last" unless the directory says "mean"; `dimensions` are the lengths to which an
    embedding may be cut, None for any.
    """
    config = optional_json(files, "config.json")
    pooling = optional_json(files, "1_Pooling/config.json")
    cuts = config.get("matryoshka_dimensions")
    dimensions: list[int] | None = None if config.get("is_matryoshka") is True else []
    if isinstance(cuts, list) and all(type(cut) is int and cut > 0 for cut in cuts):
        dimensions = cuts
    mean = pooling.get("pooling_mode_mean_tokens") is True
    return {"pooling": "mean" if mean else "last", "dimensions": dimensions}


def _text_of(token: object) -> str:
    """Return a special token's text, which is written as text or as {"content": text}."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _text_by_id(tokenizer: dict[str, Any], token: int | None) -> str:
    if token is None:
        return ""
    added = tokenizer.get("added_tokens") or ()
    return next((_text_of(each) for each in added if each.get("id") == token), "")
