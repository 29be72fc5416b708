"""Artefacts: machine code, and what the compiler knew of the module and the engine does not tell.

[machine code][elements that its tables may grow to together: u64]["symphony"]
"""

import struct
from typing import Final

from symphony_kernel.protocol.limits import TABLE_ELEMENTS_MAX, TABLES_MAX

TABLE_ELEMENT_BYTES: Final = 8  # a function's address
_END = struct.Struct("<Q8s")
_MAGIC: Final = b"symphony"


def seal(code: bytes, table_elements: int) -> bytes:
    """Return an artefact."""
    return code + _END.pack(table_elements, _MAGIC)


def unseal(artefact: bytes) -> tuple[bytes, int]:
    """Return the code, and the bytes that an instance's tables may take.

    Of bare code nothing is known: it may have the most that any module may.
    """
    if len(artefact) >= _END.size:
        elements, magic = _END.unpack_from(artefact, len(artefact) - _END.size)
        if magic == _MAGIC:
            return artefact[: -_END.size], elements * TABLE_ELEMENT_BYTES
    return artefact, TABLES_MAX * TABLE_ELEMENTS_MAX * TABLE_ELEMENT_BYTES
