"""The same model in transformers: its greedy tokens, and its continuous batching."""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from symphony_kernel.executor.base import Batch, Row
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.pred_options import DEFAULT

from benchmarks.checkpoints import SHAPES, make_config
from benchmarks.gpu.model import NAMES, Model, Pool, pages_for
from benchmarks.gpu.reference import reference_logits
from benchmarks.gpu.report import Finding
from benchmarks.gpu.served import Load

_PAGE_TOKENS, _BATCH_TOKENS = 32, 512  # of transformers on a CPU
_STOP_SECONDS_MAX = 5
_TIE = 0.05  # of the logits' spread: less is decided by rounding in bf16


def make_peer(model: Model) -> Any:
    """Return the model in transformers, with the same weights, on the same device."""
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = "bf16" if model.tensors.dtype == torch.bfloat16 else "fp32"
    fields = make_config(SHAPES[NAMES[model.name]], dtype)
    config = AutoConfig.for_model(**fields)
    with torch.device(model.tensors.device):
        peer = AutoModelForCausalLM.from_config(config, dtype=model.tensors.dtype)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            parameter.copy_(model.tensors.take(name, *parameter.shape))
    return peer.eval()


def greedy(executor: TorchExecutor, prompt: np.ndarray[Any, Any], new: int) -> list[int]:
    """Return the executor's greedy tokens behind a prompt."""

    async def main() -> list[int]:
        table = Pool(executor.frame_count).table(len(prompt) + new)
        tokens, start, found = prompt, 0, []
        for _ in range(new):
            end = start + len(tokens)
            row = Row(
                tokens, np.arange(start, end, dtype=np.int32), start, table[: pages_for(end)],
                np.array([len(tokens) - 1], np.int32), DEFAULT,
            )  # fmt: skip
            [result] = await executor.run(Batch([row]))
            if not isinstance(result, bytes):
                raise result
            tokens, start = np.frombuffer(result[:4], np.uint32), end
            found.append(int(tokens[0]))
        return found

    return asyncio.run(main())


def compare_greedy(model: Model, executor: TorchExecutor, peer: Any, load: Load) -> Finding:
    """Compare greedy tokens, up to where rounding decides between two tokens."""
    equal = ties = wrong = 0
    given, new = load.prompts(0), load.new
    for prompt in given:
        ids = torch.from_numpy(prompt.astype(np.int64)).to(model.tensors.device)[None]
        with torch.inference_mode():
            out = peer.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new,
                do_sample=False, pad_token_id=0,
            )  # fmt: skip
        theirs = out[0, len(prompt) :].tolist()
        mine = greedy(executor, prompt, new)
        parted = next((i for i in range(new) if mine[i] != theirs[i]), None)
        if parted is None:
            equal += 1
        elif _is_tie(model, prompt, mine[:parted], mine[parted], theirs[parted]):
            ties += 1
        else:
            wrong += 1
    figures = {"prompts": len(given), "equal": equal, "part at a tie": ties, "differ": wrong}
    return Finding("parity", model.name, "greedy, transformers", dict(figures), not wrong)


def _is_tie(
    model: Model, prompt: np.ndarray[Any, Any], before: list[int], one: int, other: int
) -> bool:
    tokens = np.concatenate([prompt.astype(np.int32), np.array(before, np.int32)])
    positions = np.arange(len(tokens), dtype=np.int32)
    with torch.inference_mode():
        logits = reference_logits(model, tokens, positions)[-1]
    return bool((logits[one] - logits[other]).abs() < _TIE * logits.std())


def batched(peer: Any, loads: list[Load], repeats: int) -> list[float]:
    """Return the best seconds of its continuous batching for each load."""
    return [min(_batched(peer, load, repeats)) for load in loads]


def _batched(peer: Any, load: Load, repeats: int) -> Iterator[float]:
    from transformers import GenerationConfig

    config = GenerationConfig(
        max_new_tokens=load.new, min_new_tokens=load.new, do_sample=False, eos_token_id=-1,
        pad_token_id=0,
    )  # fmt: skip
    room = _small_room(load) if peer.device.type == "cpu" else None
    with peer.continuous_batching_context_manager(
        generation_config=config, continuous_batching_config=room, timeout=_STOP_SECONDS_MAX
    ) as manager:
        for turn in range(repeats + 1):  # the first one finds nothing warm
            inputs = [prompt.tolist() for prompt in load.prompts(turn)]
            began = time.perf_counter()
            manager.add_requests(inputs=inputs, max_new_tokens=load.new)
            counts = [_finished(manager) for _ in inputs]
            seconds = time.perf_counter() - began
            if set(counts) != {load.new}:
                raise RuntimeError(f"transformers made {sorted(set(counts))} tokens")
            yield seconds


def _finished(manager: Any) -> int:
    """Wait for the next request that is done; return its new tokens."""
    while manager.is_running():
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            return len(result.generated_tokens)
    raise RuntimeError("transformers' continuous batching has ended")


def _small_room(load: Load) -> Any:
    """Left to itself it fills nine tenths of the memory with pages, which are a CPU's to touch."""
    from transformers import ContinuousBatchingConfig

    blocks = 2 * load.streams * -(-(load.prompt + load.new) // _PAGE_TOKENS)
    return ContinuousBatchingConfig(
        page_size=_PAGE_TOKENS, num_blocks=blocks, max_batch_tokens=_BATCH_TOKENS
    )
