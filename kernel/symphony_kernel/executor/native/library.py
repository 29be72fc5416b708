"""The compiled kernels, loaded, with the C types of their functions.

Calls release Python's lock while they compute.
"""

import ctypes
import logging
from collections.abc import Callable
from ctypes import c_int32
from pathlib import Path
from typing import Any

from symphony_kernel.executor.native.build import NativeUnavailable, built_library

_log = logging.getLogger(__name__)


class Library:
    """The functions of one compiled library."""

    def __init__(self, path: Path) -> None:
        self._handle = ctypes.CDLL(str(path))

    def function(self, name: str, *arguments: type, result: type | None = None) -> "Function":
        """Return an exported function with its C types."""
        found = self._handle[name]
        found.argtypes = arguments
        found.restype = result
        return found

    @property
    def computes_bf16(self) -> bool:
        """Whether this processor multiplies bfloat16."""
        return bool(self.function("symphony_computes_bf16", result=c_int32)())


Function = Callable[..., Any]


def load_library(say: Callable[[str], None] = _log.info) -> Library:
    """Return the kernels for this machine, compiled now if need be.

    Raises:
        NativeUnavailable: there are none, for the reason in the message.
    """
    path = built_library(say)
    try:
        return Library(path)
    except OSError as error:
        raise NativeUnavailable(f"{path} cannot be loaded: {error}") from error
