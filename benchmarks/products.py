"""How fast the native kernels multiply: bytes of weights a second, and operations a second.

    python -m benchmarks.products [--rows 1,16,1024] [--depth 896] [--threads 2]

A matrix that no cache holds, in bf16, 8 bits and 4 bits, is multiplied with few and many rows. Few
rows are bound by reading the weights, many by the operations. The formats take turns, and the
fastest of all rounds counts. The first line is what the machine reads and multiplies at most.
"""

import argparse

import numpy as np
import torch
from symphony_kernel.executor.models.quantization import QuantizedMatrix, quantize
from symphony_kernel.executor.native.library import load_library

from tests.support.executor.native_kernels import Array, bytes_per_s, flops_per_s, timed_product

_ROUNDS, _REPEATS = 5, 3


def _matrices(outputs: int, depth: int) -> dict[str, tuple[Array | QuantizedMatrix, float]]:
    """Return each format's matrix, and its bytes."""
    weight = torch.randn(outputs, depth, generator=torch.Generator().manual_seed(0)) * 0.02
    bf16 = weight.bfloat16().view(torch.uint16).numpy()
    found: dict[str, tuple[Array | QuantizedMatrix, float]] = {"bf16": (bf16, bf16.nbytes)}
    for bits, group in ((8, 128), (8, 32), (4, 128), (4, 32)):
        matrix = quantize(weight, bits, group)
        size = matrix.values.nbytes + matrix.scales.nbytes
        found[f"{bits} bits, groups of {group}"] = matrix, size
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="1,16,1024", help="by commas")
    parser.add_argument("--depth", type=int, default=896)
    parser.add_argument("--outputs", type=int, default=1 << 17)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    library = load_library()
    read = bytes_per_s(library, given.threads) / 1e9
    flops = flops_per_s(library, 2 if library.computes_bf16 else 4, given.threads) / 1e9
    print(f"the machine reads {read:.1f} GB/s; registers multiply {flops:.0f} GFLOP/s (bf16)")
    matrices = _matrices(given.outputs, given.depth)
    for rows in map(int, given.rows.split(",")):
        # As many outputs as keep a product near the time of few rows.
        outputs = max(4096, given.outputs // max(1, rows // 16))
        inputs = np.random.default_rng(1).standard_normal((rows, given.depth)).astype(np.float32)
        bits = (inputs.view(np.uint32) >> 16).astype(np.uint16)
        seconds = dict.fromkeys(matrices, float("inf"))
        for _ in range(_ROUNDS):
            for name, (matrix, _size) in matrices.items():
                part = _part(matrix, outputs)
                taken = timed_product(library, bits, part, threads=given.threads, repeats=_REPEATS)[
                    1
                ]
                seconds[name] = min(seconds[name], taken)
        for name, (_matrix, size) in matrices.items():
            bytes_s = size * outputs / given.outputs / seconds[name] / 1e9
            flops_s = 2 * rows * outputs * given.depth / seconds[name] / 1e9
            print(f"{rows:>5} rows, {name:<22} {bytes_s:>7.1f} GB/s {flops_s:>7.0f} GFLOP/s")


def _part(matrix: Array | QuantizedMatrix, outputs: int) -> Array | QuantizedMatrix:
    if not isinstance(matrix, QuantizedMatrix):
        return matrix[:outputs]
    return QuantizedMatrix(
        matrix.bits, matrix.group, matrix.inputs, matrix.values[:outputs], matrix.scales[:outputs]
    )


if __name__ == "__main__":
    main()
