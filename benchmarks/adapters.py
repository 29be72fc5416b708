"""Tokens per second of decoding with LoRA adapters, and without.

    python -m benchmarks.adapters                       64 runs over 8 adapters, of rank 16
    python -m benchmarks.adapters --runs 16 --adapters 16 --rank 64

The executor alone decodes the same runs with adapters and without, step by step in turns. The ratio
is the median over pairs of steps, so that a machine that is busy at times changes it little. The
model is a random checkpoint of SmolLM2-135M's shape unless `--model` names another. The adapters
are random and change all linear layers.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path

import torch
from symphony_kernel.executor.torch_executor import TorchExecutor
from symphony_kernel.protocol.limits import PAGE_TOKENS

from benchmarks.checkpoints import SHAPES, make_adapter, make_checkpoint
from benchmarks.decode import Direct, Load

_WARM = 3  # steps that do not count


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Return the report of all steps."""
    model = options.model or make_checkpoint(folder / "model", SHAPES["135m"])
    executor = TorchExecutor.load(model, dtype=options.dtype, device="cpu", threads=options.threads)
    names = [f"adapter {number}" for number in range(options.adapters)]
    size = 0
    for number, name in enumerate(names):
        made = make_adapter(folder / name, model, rank=options.rank, seed=number)
        size += executor.load_adapter(name, made).bytes
    load = Load(options.prompt, options.steps + _WARM)
    pages = options.runs * -(-(load.prompt + load.new) // PAGE_TOKENS)
    ways = {
        "with": Direct(executor, names).steps(options.runs, load),
        "without": Direct(executor).steps(options.runs, load, pages),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(load.new):
        for way in sorted(ways, reverse=number % 2 == 0):
            seconds[way].append(await anext(ways[way]))
    await executor.close()
    pairs = list(zip(seconds["without"], seconds["with"], strict=True))[_WARM:]
    return {
        "benchmark": "adapters",
        "runs": options.runs,
        "adapters": options.adapters,
        "rank": options.rank,
        "adapter_bytes": size,
        "dtype": options.dtype,
        "threads": options.threads,
        "steps": options.steps,
        "tokens_per_s": {
            way: round(options.runs / statistics.median(each[_WARM:]), 1)
            for way, each in seconds.items()
        },
        "fastest_step_ms": {
            way: round(1000 * min(each[_WARM:]), 2) for way, each in seconds.items()
        },
        "ratio": round(statistics.median(a / b for a, b in pairs), 3),
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a folder in Hugging Face layout")
    parser.add_argument("--dtype", choices=("auto", "fp32", "bf16"), default="bf16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--runs", type=int, default=64)
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of each prompt")
    parser.add_argument("--steps", type=int, default=100, help="of each way")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    return parser.parse_args()


def main() -> None:
    options = _parse()
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(measure(options, Path(folder)))
    text = json.dumps(report, indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
