"""What this machine can do at most, and what that allows a model.

    python -m benchmarks.floor [--model 135m|0.5b|DIR] [--threads 2]

A step reads every weight once and the histories of its rows; it takes at least as long as reading
these bytes does, and as the operations do at the rate of bf16 products. Of that rate there are two:
what torch's own product of large matrices reaches, and what the processor's instructions reach
without touching memory (those for bf16, or those for float32 where they are faster), which is the
end of all that software can do.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from symphony_kernel.executor.native.library import Library, load_library

from benchmarks.checkpoints import SHAPES, make_checkpoint
from benchmarks.serving.floor import Rates, Sizes
from benchmarks.serving.rates import product_rate
from tests.support.executor.native_kernels import bytes_per_s, flops_per_s

_REPEATS = 12
_CONTEXT = 192  # tokens that a stream holds, of 128 prompted and 128 new ones on average
_PROMPT = 1024


def _rates(library: Library, threads: int) -> tuple[Rates, Rates]:
    """Measure, print, and return the rates with torch's products and with registers alone."""
    read = max(bytes_per_s(library, threads) for _ in range(_REPEATS))
    kinds = (("bf16", 2), ("fp32", 4)) if library.computes_bf16 else (("fp32", 4),)
    registers = {
        name: max(flops_per_s(library, width, threads) for _ in range(_REPEATS))
        for name, width in kinds
    }
    torch_bf16 = product_rate(threads)
    torch_fp32 = product_rate(threads, dtype=torch.float32)
    print(
        f"{threads:>7} {read / 1e9:>10.1f} {torch_bf16 / 1e9:>12.0f}"
        f" {registers.get('bf16', 0.0) / 1e9:>10.0f} {torch_fp32 / 1e9:>12.0f}"
        f" {registers['fp32'] / 1e9:>10.0f}"
    )
    return Rates(read, torch_bf16), Rates(read, max(registers.values()))


def _allows(sizes: Sizes, rates: Rates) -> str:
    one, sixteen = (streams / sizes.decode_seconds(streams, _CONTEXT, rates) for streams in (1, 16))
    prefill = _PROMPT / sizes.prefill_seconds(1, _PROMPT, rates)
    return f"{one:>12.0f} {sixteen:>12.0f} {prefill:>16.0f}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="135m", help="a shape's name or a folder")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    library = load_library()
    print(f"{'threads':>7} {'read GB/s':>10} {'bf16: torch':>12} {'registers':>10}", end="")
    print(f" {'fp32: torch':>12} {'registers':>10}   GFLOP/s")
    for threads in sorted({1, options.threads}):
        with_torch, with_registers = _rates(library, threads)
    with tempfile.TemporaryDirectory() as made:
        if options.model in SHAPES:
            model = make_checkpoint(Path(made), SHAPES[options.model])
        else:
            model = Path(options.model)
        sizes = Sizes.of(model)
    print(f"\n{options.model} in bf16, {options.threads} threads, tokens/s at most")
    print(f"{'':>24} {'1 stream':>12} {'16 streams':>12} {'prefill of 1,024':>16}")
    print(f"{'as torch multiplies':>24} {_allows(sizes, with_torch)}")
    print(f"{'as registers multiply':>24} {_allows(sizes, with_registers)}")


if __name__ == "__main__":
    main()
