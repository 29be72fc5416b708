"""Tokens per second of decoding with LoRA adapters, and without.

    python -m benchmarks.adapters                       64 runs over 8 adapters, of rank 16
    python -m benchmarks.adapters --runs 16 --adapters 16 --rank 64

The executor alone decodes the same runs with adapters and without in turns, and the figures are
medians over the rounds. The model is a random checkpoint of SmolLM2-135M's shape unless `--model`
names another. The adapters are random and change all linear layers.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from pathlib import Path

import torch
from symphony_kernel.executor.torch_executor import TorchExecutor

from benchmarks.checkpoints import SHAPES, make_adapter, make_checkpoint
from benchmarks.decode import Direct, Load, Measure


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Return the report of all rounds."""
    model = options.model or make_checkpoint(folder / "model", SHAPES["135m"])
    executor = TorchExecutor.load(model, dtype=options.dtype, device="cpu", threads=options.threads)
    names = [f"adapter {number}" for number in range(options.adapters)]
    size = 0
    for number, name in enumerate(names):
        made = make_adapter(folder / name, model, rank=options.rank, seed=number)
        size += executor.load_adapter(name, made).bytes
    benches = {"without": Direct(executor), "with": Direct(executor, names)}
    load = Load(options.prompt, options.new)
    found: dict[str, list[Measure]] = {way: [] for way in benches}
    for bench in benches.values():
        await bench.measure(options.runs, Load(options.prompt, 2))  # warms up
    for number in range(options.rounds):
        for way in sorted(benches, reverse=number % 2 == 0):
            found[way].append(await benches[way].measure(options.runs, load))
    await executor.close()
    return _report(options, size, found)


def _report(
    options: argparse.Namespace, size: int, found: dict[str, list[Measure]]
) -> dict[str, object]:
    pairs = list(zip(found["with"], found["without"], strict=True))
    return {
        "benchmark": "adapters",
        "runs": options.runs,
        "adapters": options.adapters,
        "rank": options.rank,
        "adapter_bytes": size,
        "dtype": options.dtype,
        "threads": options.threads,
        "decode_tokens_per_s": {
            way: round(statistics.median(m.decode for m in each), 1) for way, each in found.items()
        },
        "decode_ratio": round(statistics.median(a.decode / b.decode for a, b in pairs), 3),
        "whole_ratio": round(statistics.median(a.whole / b.whole for a, b in pairs), 3),
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
    parser.add_argument("--new", type=int, default=16, help="tokens that each run decodes")
    parser.add_argument("--rounds", type=int, default=6)
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
