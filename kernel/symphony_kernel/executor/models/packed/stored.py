"""A tensor as its safetensors file has it."""

from pathlib import Path
from typing import NamedTuple

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1,
    "F8_E4M3": 1, "F8_E8M0": 1, "F8_E5M2FNUZ": 1, "F8_E4M3FNUZ": 1, "I16": 2, "U16": 2, "I32": 4,
    "U32": 4, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip


class Stored(NamedTuple):
    """One tensor's name, file, dtype and shape."""

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def held_bits(self) -> int | None:
        """The bits of a value in the native network; None: those of its dtype."""
        return None

    def refused(self) -> str | None:
        """Return why its values are not a model's; None: they may be."""
        return None if self.dtype in FLOATS else f"is {self.dtype}: quantized, not supported"
