"""Small random checkpoints and a rig that drives an executor the way the kernel does."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from symphony_kernel.executor.base import Batch, Int32, Int64, Results, Row, UInt32
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_kernel.protocol.pred_options import Get, PredOptions
from tokenizers import Tokenizer, models
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.support.waiting import spin

VOCAB = 101
POOL_PAGES = 64
Float32 = npt.NDArray[np.float32]

PAIR = np.dtype([("token", "<u4"), ("value", "<f4")])  # of most results

ALL_LOGITS = PredOptions(at="all", get=Get.LOGITS)

_KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
    "gemma2": (Gemma2Config, Gemma2ForCausalLM),
    "gemma3_text": (Gemma3TextConfig, Gemma3ForCausalLM),
    "phi3": (Phi3Config, Phi3ForCausalLM),
    "olmo2": (Olmo2Config, Olmo2ForCausalLM),
    "gpt_oss": (GptOssConfig, GptOssForCausalLM),
}

# Small models of families that differ from Llama, by a name: the architecture, and settings.
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": (
        "gemma2",
        {
            "sliding_window": 20, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 4.0,
        },
    ),
    "gemma3": (
        "gemma3_text",
        {
            "sliding_window": 9, "num_hidden_layers": 3, "layer_types": _MIXED,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "phi3": ("phi3", {"sliding_window": 20}),
    "phi4": (
        "phi3",
        {
            "hidden_size": 64, "num_key_value_heads": 4, "original_max_position_embeddings": 128,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 3.0], "long_factor": [4.0] * 6,
            },
        },
    ),
    "olmo2": ("olmo2", {}),
    "mixtral": ("mixtral", {"num_local_experts": 5}),
    "qwen3 moe": (
        "qwen3_moe",
        {"num_experts": 9, "moe_intermediate_size": 32, "num_experts_per_tok": 3},
    ),
    "qwen3 moe, weights that sum to one": (
        "qwen3_moe",
        {
            "num_experts": 9, "moe_intermediate_size": 32, "num_experts_per_tok": 3,
            "norm_topk_prob": True, "attention_bias": True, "use_sliding_window": True,
            "sliding_window": 20,
        },
    ),
    "gpt-oss": (
        "gpt_oss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 20},
    ),
}  # fmt: skip
# Their usual special tokens are outside of the small vocabulary.
NO_SPECIAL: dict[str, Any] = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
FAMILIES = {name: (kind, NO_SPECIAL | given) for name, (kind, given) in _FAMILIES.items()}


def smooth_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Let each token choose all experts, so that rounding changes weights, and not a choice."""
    experts = settings.get("num_experts", settings.get("num_local_experts"))
    return settings if experts is None else settings | {"num_experts_per_tok": experts}


@dataclass
class Checkpoint:
    """A checkpoint in a directory, and the same model in transformers."""

    directory: Path
    peer: PreTrainedModel

    def logits(self, tokens: npt.ArrayLike, **given: Any) -> Float32:
        """Return transformers' [n, vocab] logits of a sequence."""
        ids = torch.tensor(np.asarray(tokens, np.int64), device=self.peer.device)[None]
        with torch.inference_mode():
            out: Float32 = self.peer(ids, **given).logits[0].float().cpu().numpy()
        return out

    def generate(self, prompt: npt.ArrayLike, count: int) -> list[int]:
        """Return transformers' greedy tokens behind a prompt."""
        peer: Any = self.peer
        ids = torch.tensor(np.asarray(prompt, np.int64), device=peer.device)[None]
        with torch.inference_mode():
            whole = peer.generate(
                ids, max_new_tokens=count, do_sample=False, attention_mask=torch.ones_like(ids)
            )
        found: list[int] = whole[0, ids.shape[1] :].tolist()
        return found


def make_checkpoint(
    directory: Path, kind: str = "llama", *, seed: int = 0, shards: bool = False, **settings: Any
) -> Checkpoint:
    """Write a small random model of one of the architectures; every parameter is random."""
    config_type, model_type = _KINDS[kind]
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
        "max_position_embeddings": 512,
    }  # fmt: skip
    torch.manual_seed(seed)
    peer = model_type(config_type(**(sizes | settings))).eval()
    middle = 0.0 if kind.startswith("gemma") else 1.0  # of norms: Gemma adds 1
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            parameter.normal_(middle if "norm" in name else 0.0, 0.15)
    peer.save_pretrained(directory, **({"max_shard_size": "30KB"} if shards else {}))
    Tokenizer(models.BPE(vocab={"a": 0}, merges=[])).save(str(directory / "tokenizer.json"))
    return Checkpoint(directory, peer)


def load(checkpoint: Checkpoint | Path, dtype: str = "fp32", **given: Any) -> "ExecutorRig":
    """Load a checkpoint into a rig with a small pool and one thread."""
    directory = checkpoint if isinstance(checkpoint, Path) else checkpoint.directory
    executor = TorchExecutor.load(
        directory, dtype=dtype, device="cpu", threads=1, pool_bytes=1 << 22, **given
    )
    return ExecutorRig(executor)


@dataclass
class ExecutorRig:
    """An executor with pages handed out in random order, all poisoned before their first use."""

    executor: TorchExecutor
    free: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = min(POOL_PAGES, self.executor.frame_count)
        self.free = [int(page) for page in np.random.default_rng(7).permutation(count)]
        self.on_device(self.executor.pages.poison, np.arange(count, dtype=np.int32))

    def on_device(self, work: Callable[..., Any], *given: Any) -> Any:
        """Return the result of a call on the device's thread, after the steps given so far."""
        return asyncio.run(self.executor.after_steps(partial(work, *given)))

    def table(self, entries: int) -> Int32:
        """Return a block table of fresh pages for so many entries."""
        count = -(-entries // PAGE_TOKENS)
        pages, self.free = self.free[:count], self.free[count:]
        assert len(pages) == count, "the test wants more pages than the rig has"
        return np.array(pages, np.int32)

    def run(self, rows: Sequence[Row], copies: Sequence[Int64] = ()) -> list[bytes | SyscallError]:
        return asyncio.run(self.executor.run(Batch(list(rows), list(copies))))

    def logits(self, rows: Sequence[Row], copies: Sequence[Int64] = ()) -> list[Float32]:
        """Run one step whose rows ask for logits, and return each row's [w, vocab]."""
        vocab = self.executor.model.vocab_size
        return [as_logits(result, vocab) for result in self.run(rows, copies)]

    def generate(self, prompt: UInt32, count: int) -> list[int]:
        """Return the greedy tokens behind a prompt, each computed in a step of its own."""
        table = self.table(len(prompt) + count)
        tokens, start, found = prompt, 0, []
        for _ in range(count):
            found += tokens_of(self.run([make_row(tokens, table, start, PredOptions())]))
            start += len(tokens)
            tokens = np.array(found[-1:], np.uint32)
        return found

    def give_back(self, *tables: Int32) -> None:
        """Let the pages of these tables be handed out again."""
        self.free += [int(page) for table in tables for page in table]

    def close(self) -> None:
        asyncio.run(self.executor.close())


def as_logits(result: bytes | SyscallError, vocab: int = VOCAB) -> Float32:
    """Return a row's [w, vocab] logits."""
    assert isinstance(result, bytes), result
    return np.frombuffer(result, np.float32).reshape(-1, vocab)


def check_answer(
    found: bytes | SyscallError,
    expected: bytes | SyscallError,
    get: Get,
    *,
    rtol: float = 0.0,
    atol: float,
) -> None:
    """Check that errors, logits and tokens are equal, and log-probabilities nearly."""
    if isinstance(expected, SyscallError):
        assert isinstance(found, SyscallError)
        assert (found.errno, str(found)) == (expected.errno, str(expected))
        return
    assert isinstance(found, bytes)
    assert len(found) == len(expected)
    if get is Get.LOGITS:
        assert found == expected
        return
    if get is Get.OF:
        mine, theirs = np.frombuffer(found, "<f4"), np.frombuffer(expected, "<f4")
    else:
        ours, wanted = np.frombuffer(found, PAIR), np.frombuffer(expected, PAIR)
        assert ours["token"].tolist() == wanted["token"].tolist()
        mine, theirs = ours["value"], wanted["value"]
    np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=atol)


def tokens_of(results: Results) -> list[int]:
    """Return the token of each result that has one."""
    return [int.from_bytes(result[:4], "little") for result in results if isinstance(result, bytes)]


def slots_of(table: Int32, entries: npt.NDArray[np.int64]) -> Int64:
    """Return the slots of some of a file's entries."""
    return table[entries // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS + entries % PAGE_TOKENS


def copy_of(source: Int32, target: Int32, entries: npt.NDArray[np.int64]) -> Int64:
    """Return a group of copies that moves entries from one table to the same place in another."""
    return np.stack((slots_of(source, entries), slots_of(target, entries)))


def mask_of(tokens: npt.ArrayLike, vocab: int = VOCAB) -> bytes:
    """Return the bits of these tokens, as `allow` has them."""
    bits = np.zeros(vocab, np.uint8)
    bits[np.asarray(tokens, np.int64)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def depths_of(parents: Sequence[int]) -> list[int]:
    """Return how far below its root each node of a tree is."""
    depths: list[int] = []
    for parent in parents:
        depths.append(0 if parent < 0 else depths[parent] + 1)
    return depths


Mix = list[tuple[int, int, bool]]  # rows: new tokens, present entries, whether they are a tree


def mixed_rows(mix: Mix, random: np.random.Generator, pages: int) -> list[Row]:
    """Return rows of random tokens and trees on random pages."""
    free = iter(random.permutation(pages))
    rows = []
    for q, start, is_tree in mix:
        table = np.array([next(free) for _ in range(-(-(start + q) // PAGE_TOKENS))], np.int32)
        parents = [int(random.integers(-1, i)) if i else -1 for i in range(q)] if is_tree else None
        rows.append(make_row(random.integers(0, 9, q), table, start, parents=parents))
    return rows


class Allows:
    """A matcher of one place that allows these tokens, or fails; `seconds` of processor time."""

    def __init__(
        self, allowed: list[int], error: BaseException | None = None, seconds: float = 0.0
    ) -> None:
        self.allowed, self.error, self.seconds = allowed, error, seconds
        self.ended = 0.0

    def fill(
        self,
        start: int,
        tokens: UInt32,
        mask: UInt32,
        began: float | None = None,
        address: int | None = None,
    ) -> SyscallError | None:
        spin(self.seconds)
        self.ended = time.thread_time()
        if isinstance(self.error, SyscallError):
            return self.error
        if self.error is not None:
            raise self.error
        mask[:] = np.frombuffer(mask_of(self.allowed, 32 * len(mask)), np.uint32)
        return None


def make_row(
    tokens: npt.ArrayLike,
    table: Int32,
    start: int = 0,
    options: PredOptions = ALL_LOGITS,
    *,
    positions: npt.ArrayLike | None = None,
    parents: npt.ArrayLike | None = None,
    seed: int = 0,
) -> Row:
    """Return a row as the kernel makes it from a pred."""
    ids = np.asarray(tokens, np.uint32)
    count = len(ids)
    at = options.at
    if options.get is Get.NONE:
        places: list[int] = []
    elif isinstance(at, tuple):
        places = list(at)
    else:
        places = [count - 1] if at == "last" else list(range(count))
    default = np.arange(start, start + count)
    return Row(
        tokens=ids,
        positions=np.asarray(default if positions is None else positions, np.int32),
        start=start,
        block_table=table[: -(-(start + count) // PAGE_TOKENS)],
        places=np.array(places, np.int32),
        options=options,
        parents=None if parents is None else np.asarray(parents, np.int32),
        seed=seed,
    )


def random_tokens(count: int, seed: int = 0) -> npt.NDArray[np.uint32]:
    return np.random.default_rng(seed).integers(0, VOCAB, count).astype(np.uint32)


def relative_error(found: Float32, expected: Float32) -> float:
    """Return the largest difference as a share of the largest expected magnitude."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())
