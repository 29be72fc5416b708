"""Advice: what a program says of a file of its own (`kv_advise`). A wish, never a pin."""

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
    """What holds of a file now; `until`: it was promised to be kept so long, in clock seconds."""

    priority: int = KV_PRIORITY_DEFAULT
    unwanted: bool = False
    until: float = 0.0  # 0.0: nothing was promised


NO_ADVICE: Final = Advice()
