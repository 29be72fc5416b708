"""Advice: what a program says of its own file (`kv_advise`). A wish, never a pin."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from symphony_kernel.protocol.limits import KV_PRIORITY_DEFAULT


class Hint(IntEnum):
    """The hints of the ABI."""

    NORMAL = 0
    KEEP = 1
    WILL_NEED = 2
    DO_NOT_NEED = 3
    PRIORITY = 4


@dataclass(frozen=True, slots=True)
class Advice:
    """The advice that holds for a file; until `until` (clock seconds) it is kept."""

    priority: int = KV_PRIORITY_DEFAULT
    unwanted: bool = False
    until: float = 0.0  # 0.0: keeping it was not granted


NO_ADVICE: Final = Advice()
