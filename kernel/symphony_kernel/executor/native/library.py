"""The compiled kernels, loaded, with the C types of their functions.

Calls release Python's lock while they compute.
"""

import ctypes
import logging
import os
from collections.abc import Callable
from ctypes import c_int32
from functools import cached_property
from pathlib import Path
from typing import Any

from symphony_kernel.executor.native.build import built_library
from symphony_kernel.platform.build_cache import LibraryUnavailable

_log = logging.getLogger(__name__)


class Library:
    """The functions of one compiled library."""

    def __init__(self, path: Path) -> None:
        self._handle = ctypes.CDLL(str(path))

    def function(self, name: str, *arguments: type, result: type | None = None) -> "Function":
        found = self._handle[name]
        found.argtypes = arguments
        found.restype = result
        return found

    @property
    def computes_bf16(self) -> bool:
        """Whether the library multiplies bfloat16 on this processor."""
        return bool(self.function("symphony_computes_bf16", result=c_int32)())

    @property
    def widens(self) -> bool:
        """Whether bfloat16 is multiplied as float32: measured once, the faster way.

        SYMPHONY_PRODUCTS=bf16 or SYMPHONY_PRODUCTS=fp32 overrides the measurement.
        """
        asked = os.environ.get("SYMPHONY_PRODUCTS", "")
        if asked == "fp32":
            return True
        if asked == "bf16" and self.computes_bf16:
            return False
        if asked:
            lacks = (
                "what this processor does not multiply" if asked == "bf16" else "not bf16 or fp32"
            )
            _log.warning("SYMPHONY_PRODUCTS is %r, %s: the faster way is chosen", asked, lacks)
        return self._widening_pays

    @cached_property
    def _widening_pays(self) -> bool:
        return bool(self.function("symphony_widening_pays", result=c_int32)())


Function = Callable[..., Any]


def load_library(say: Callable[[str], None] = _log.info) -> Library:
    """Return the kernels for this machine, compiled now if necessary.

    Raises LibraryUnavailable: the machine has none, for the reason in the message.
    """
    path = built_library(say)
    try:
        return Library(path)
    except OSError as error:
        raise LibraryUnavailable(f"{path} cannot be loaded: {error}") from error
