"""Compile all modules of FlashInfer that Symphony uses, in one ninja.

Left to itself, FlashInfer compiles one module after the other, when it is first called: minutes,
while everything waits, and again on each new machine. Here nvcc compiles all files at once, and the
result can be brought along (`bundle`).
"""

import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.first_contact.bundle import pack

# Heads and whether there is a sliding window: 128 of the 8 B shape, 64 of the smaller ones, and
# windows in the tests' models.
ATTENTION = ((128, False), (64, False), (64, True))


def modules() -> list[Any]:
    """Return FlashInfer's specifications of the modules (`JitSpec`), not compiled."""
    from flashinfer.jit import gen_act_and_mul_module, gen_batch_prefill_module
    from flashinfer.jit.norm import gen_norm_module
    from flashinfer.jit.page import gen_page_module
    from flashinfer.jit.rope import gen_rope_module

    half, index = torch.bfloat16, torch.int32
    specs = [gen_norm_module(), gen_page_module(), gen_rope_module()]
    specs.append(gen_act_and_mul_module("silu"))
    for head_dim, window in ATTENTION:
        specs.append(
            gen_batch_prefill_module(
                "fa2", half, half, half, index, head_dim, head_dim, 0, window, False, False
            )
        )
    return specs


def compile_all(out: Path) -> str:
    """Compile all modules and pack them to `out`; return what was done, in words."""
    from flashinfer.jit import build_jit_specs, env

    specs, began = modules(), time.monotonic()
    build_jit_specs(specs)
    seconds = time.monotonic() - began
    folder = Path(env.FLASHINFER_JIT_DIR)
    pack((folder / spec.name / f"{spec.name}.so" for spec in specs), out)
    files = sum(len(spec.sources) for spec in specs)
    size = out.stat().st_size / 2**20
    return f"{len(specs)} modules of {files} files in {seconds:.0f} s, {size:.1f} MiB packed"
