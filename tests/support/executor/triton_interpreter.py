"""Triton's interpreter, which runs kernels with NumPy, and what it lacks.

`tests/conftest.py` chooses it where there is no GPU, before Triton is imported. On a GPU the same
tests compile and run the kernels.
"""

import functools
import os
from typing import Any

import numpy as np
import torch

from tests.support.requirements import need_module

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def prepare_triton() -> None:
    """Mend the interpreter, if kernels are interpreted; skip without Triton."""
    need_module("triton", "triton")
    if not INTERPRETED:
        return
    from triton.runtime import interpreter

    patch_tensor = interpreter._patch_lang_tensor
    builder = interpreter.InterpreterBuilder
    create_dot, cast = builder.create_dot, builder.cast_impl

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        # Triton 3.6 makes an int of an array of one element, which NumPy 2.4 refuses.
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def create_dot_of_floats(self: Any, a: Any, b: Any, *others: Any) -> Any:
        # It multiplies the bits of bfloat16 as integers.
        return create_dot(self, _as_float32(interpreter, a), _as_float32(interpreter, b), *others)

    def cast_rounded(self: Any, source: Any, kind: Any) -> Any:
        # It rounds to bfloat16 towards zero, where a GPU rounds to nearest.
        if kind.scalar == interpreter.tl.bfloat16 and source.data.dtype == np.float32:
            rounded = torch.from_numpy(np.ascontiguousarray(source.data)).bfloat16()
            bits = rounded.view(torch.int16).numpy().view(np.uint16)
            return interpreter.TensorHandle(bits, kind.scalar)
        if kind.scalar == interpreter.tl.float32:
            source = _as_float32(interpreter, source)
        return cast(self, source, kind)

    interpreter._patch_lang_tensor = patch_lang_tensor
    builder.create_dot = create_dot_of_floats
    builder.cast_impl = cast_rounded


def _as_float32(interpreter: Any, handle: Any) -> Any:
    if handle.dtype.scalar != interpreter.tl.bfloat16:
        return handle
    wide = (handle.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(wide, interpreter.tl.float32)
