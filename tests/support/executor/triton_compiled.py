"""Compile every kernel as its callers launch it, for a GPU that need not be there.

    python -m tests.support.executor.triton_compiled SHAPE...

The callers run with tensors of the host. Each launch is compiled for an H100 instead, with the
types, constants and alignments of its arguments, and printed as a line of JSON: registers and
spilled bytes of a thread, and the bytes of shared memory that a block has.
"""

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from symphony_kernel.executor.cuda.sampler import choices_of
from symphony_kernel.executor.cuda.staging import StagedArrays
from symphony_kernel.executor.models.config import ModelConfig, load_config
from symphony_kernel.protocol.pred_options import Get, PredOptions, Sampling

from tests.support.executor.models import Allows, make_checkpoint, make_row
from tests.support.executor.triton_cases import Tables, chunk, step_of, tree

# Of real models: heads, heads of K and V, the width of a head, the dtype. Qwen2.5 0.5B has 14 of 2.
SHAPES = {
    "0.5B": (14, 2, 64, torch.bfloat16),
    "8B": (32, 8, 128, torch.bfloat16),
    "wide": (8, 4, 256, torch.bfloat16),
    "fp32": (32, 8, 128, torch.float32),
}
_TARGET = ("cuda", 90, 32)
_HIDDEN, _MIDDLE, _VOCAB = 4_096, 14_336, 128_256
_ALIGNED = [["tt.divisibility", 16]]
_POINTERS = {
    torch.bfloat16: "*bf16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8",
}  # fmt: skip


class Compiler:
    """Compiles what is launched, once for the same arguments."""

    def __init__(self, shape: str) -> None:
        self._shape = shape
        self._seen: set[str] = set()
        self.found: list[dict[str, Any]] = []

    def launch(self, kernel: Any, *args: Any, **given: Any) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from triton.compiler import compile as compile_kernel

        for reserved in ("grid", "warmup"):
            given.pop(reserved)
        options = {name: given.pop(name) for name in ("num_warps", "num_stages") if name in given}
        signature, constants, aligned = _specialized(kernel, args, given)
        key = f"{kernel.__name__} {signature} {constants} {options}"
        if key in self._seen:
            return
        self._seen.add(key)
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            source = ASTSource(kernel, signature, constants, aligned)
            compiled = compile_kernel(source, target=GPUTarget(*_TARGET), options=options)
        said = log.getvalue()
        registers, spilled = (
            re.search(each, said) for each in (r"Used (\d+) registers", r"(\d+) bytes spill stores")
        )
        assert registers is not None, said
        assert spilled is not None, said
        flags = [name for name, value in constants.items() if value is True]
        self.found.append(
            {
                "shape": self._shape,
                "kernel": kernel.__name__,
                "flags": flags,
                "registers": int(registers[1]),
                "spilled": int(spilled[1]),
                "shared": compiled.metadata.shared,
                # Of Triton's own logarithm: an approximation would not do for the noise.
                "approximate_log": "lg2.approx" in compiled.asm["ptx"],
            }
        )


def _specialized(
    kernel: Any, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], Any]]:
    """Return a launch's types, constants and alignments, as Triton's launcher finds them."""
    values = dict(zip(kernel.arg_names, args, strict=False)) | given
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    aligned: dict[tuple[int], Any] = {}
    for number, param in enumerate(kernel.params):
        value = values[param.name]
        if param.is_constexpr or (isinstance(value, int) and value == 1 and _special(param)):
            signature[param.name], constants[param.name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[param.name] = _POINTERS[value.dtype]
            if value.data_ptr() % 16 == 0:
                aligned[(number,)] = _ALIGNED
        elif isinstance(value, int):
            signature[param.name] = "i32" if value < 2**31 else "i64"
            if value % 16 == 0 and _special(param):
                aligned[(number,)] = _ALIGNED
        else:
            signature[param.name] = "fp32"
    return signature, constants, aligned


def _special(param: Any) -> bool:
    return not param.do_not_specialize


def launch_attention(config: ModelConfig, dtype: torch.dtype) -> None:
    from symphony_kernel.executor.cuda.triton_kernels.library import TritonLibrary

    tables = Tables()
    rows = [chunk(tables, 20, 1), chunk(tables, 0, 9), tree(tables, 3, [-1, 0, 0])]
    step = step_of(rows, config, dtype, (None, 20))
    for programs in (1, 528):
        attention = TritonLibrary(config, dtype, programs, torch.device("cpu")).attention()
        attention.plan(step.inputs)
        for window in (0, 1):
            attention.run(window, step.queries, step.cache, torch.empty_like(step.queries))


def launch_operators(config: ModelConfig, dtype: torch.dtype) -> None:
    from symphony_kernel.executor.cuda.triton_kernels.operators import TritonOperators

    operators = TritonOperators(1e-5)
    heads, kv_heads, head_dim = config.heads, config.kv_heads, config.head_dim
    x, weight = torch.empty(3, _HIDDEN, dtype=dtype), torch.empty(_HIDDEN, dtype=dtype)
    operators.norm(x, weight)
    operators.add_norm(x, x.clone(), weight)
    operators.gate(torch.empty(3, 2 * _MIDDLE, dtype=dtype))
    together = torch.empty(3, heads + 2 * kv_heads, head_dim, dtype=dtype)
    queries, keys, values = torch.split(together, [heads, kv_heads, kv_heads], dim=1)
    for each in (queries, keys):
        operators.norm_heads(each, weight[:head_dim])
    cache = torch.empty(5, 2, 16, kv_heads, head_dim, dtype=dtype)
    numbers = torch.zeros(3, dtype=torch.int32)
    tables = torch.empty(3, head_dim)
    operators.rotate_and_append(queries, keys, values, tables, cache, numbers, numbers)


def launch_choice(config: ModelConfig, dtype: torch.dtype) -> None:
    """Choose of all kinds of places, with bitmasks and without."""
    from symphony_kernel.executor.cuda.triton_kernels.sampler import choose_tokens

    samplings = None, Sampling(), Sampling(top_p=0.9)
    for count, masked in ((1, False), (3, False), (3, True)):
        rows = []
        for number, sampling in enumerate(samplings[:count]):
            get = Get.ARGMAX if sampling is None else Get.SAMPLE
            row = make_row([1], np.array([number], np.int32))
            row.options = PredOptions(get=get, sampling=sampling)
            row.matcher = Allows([3]) if masked else None
            rows.append(row)
        choices, arrays = choices_of(rows, range(count))
        moved = StagedArrays(arrays, pinned=False).move(torch.device("cpu"))
        masks = torch.zeros(count, _VOCAB // 32, dtype=torch.int32) if masked else None
        choose_tokens(torch.zeros(count, _VOCAB, dtype=dtype), choices, moved, masks)


LAUNCHES: tuple[Callable[[ModelConfig, torch.dtype], None], ...] = (
    launch_attention, launch_operators, launch_choice,
)  # fmt: skip


def compile_shape(shape: str) -> list[dict[str, Any]]:
    import triton

    triton.knobs.nvidia.dump_ptxas_log = True
    heads, kv_heads, head_dim, dtype = SHAPES[shape]
    compiler = Compiler(shape)
    triton.JITFunction.run = lambda kernel, *args, **given: compiler.launch(kernel, *args, **given)
    with TemporaryDirectory() as folder:
        triton.knobs.cache.dir = str(Path(folder, "cache"))
        small = load_config(make_checkpoint(Path(folder), "llama").directory)
        config = replace(small, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        for launch in LAUNCHES:
            launch(config, dtype)
    return compiler.found


def main() -> None:
    for shape in sys.argv[1:] or SHAPES:
        for found in compile_shape(shape):
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
