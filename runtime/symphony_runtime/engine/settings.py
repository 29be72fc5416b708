"""The settings of wasmtime's sandbox, as data, and the format of artefacts.

Compiler and workers must agree on every setting, or an artefact does not load. This module does not
import wasmtime, so that code that needs only `cache_identity` stays light.

An artefact is [machine code][lines of its sources][elements that its tables can grow to together:
u64][bytes of the lines: u64]["symphony"].
"""

import hashlib
import platform
import struct
from functools import lru_cache
from pathlib import Path
from typing import Final

from symphony_kernel.protocol.limits import (
    FIBER_STACK_BYTES,
    GUEST_STACK_BYTES,
    RUN_MEMORY_BYTES_MAX,
    TABLE_ELEMENTS_MAX,
    TABLES_MAX,
)

TABLE_ELEMENT_BYTES: Final = 8  # a function's address
_TRAILER = struct.Struct("<QQ8s")
_MAGIC: Final = b"symphony"
_FORMAT = 3  # version of the trailer, part of `cache_identity`

# Proposals that the ABI lists.
PROPOSALS_ON = ("wasm_bulk_memory", "wasm_multi_value", "wasm_reference_types", "wasm_simd")
# Every other proposal that wasmtime knows is off, to reduce the attack surface. The upload of a
# program that needs one fails with its name. `gc_support` also turns off `externref`, which is
# useless here and lives in the collector, where the pinned release has known faults.
PROPOSALS_OFF = (
    "wasm_threads", "shared_memory", "wasm_tail_call", "wasm_function_references", "wasm_gc",
    "gc_support", "wasm_relaxed_simd", "wasm_multi_memory", "wasm_memory64", "wasm_wide_arithmetic",
    "wasm_branch_hinting", "wasm_exceptions", "wasm_custom_page_sizes", "wasm_compact_imports",
    "wasm_stack_switching", "wasm_component_model", "concurrency_support",
)  # fmt: skip

# name of the C setter (wasmtime_config_<name>_set) -> value
ENGINE_SETTINGS: dict[str, bool | int] = {
    **dict.fromkeys(PROPOSALS_ON, True),
    **dict.fromkeys(PROPOSALS_OFF, False),
    "epoch_interruption": True,
    "consume_fuel": False,
    "parallel_compilation": False,  # the compiler's CPU limit is one core's
    "cranelift_nan_canonicalization": True,  # a guest's floats are the same on every machine
    "max_wasm_stack": GUEST_STACK_BYTES,
    "async_stack_size": FIBER_STACK_BYTES,
    # A memory never moves: its reservation is the largest memory that a run may have. Compiled
    # code checks bounds, so that 12,000 instances fit into the address space.
    "memory_reservation": RUN_MEMORY_BYTES_MAX,
    "memory_reservation_for_growth": 0,
    "memory_guard_size": 64 << 10,
    "memory_may_move": False,
}


def seal(code: bytes, table_elements: int, lines: bytes = b"") -> bytes:
    """Return an artefact; `lines` are of `source_lines`."""
    return code + lines + _TRAILER.pack(table_elements, len(lines), _MAGIC)


def unseal(artefact: bytes) -> tuple[bytes, int, bytes]:
    """Return the code, the most bytes that an instance's tables can take, and the lines.

    Without a trailer, those bytes are the most that any module may have.
    """
    end = len(artefact) - _TRAILER.size
    if end >= 0:
        elements, size, magic = _TRAILER.unpack_from(artefact, end)
        if magic == _MAGIC and size <= end:
            code, lines = artefact[: end - size], artefact[end - size : end]
            return code, elements * TABLE_ELEMENT_BYTES, lines
    return artefact, TABLES_MAX * TABLE_ELEMENTS_MAX * TABLE_ELEMENT_BYTES, b""


@lru_cache(maxsize=1)
def cache_identity() -> str:
    """Return what an artefact depends on besides the program."""
    from importlib.metadata import version  # a compiler's process has no use for it

    settings = ",".join(f"{name}={value}" for name, value in sorted(ENGINE_SETTINGS.items()))
    digest = hashlib.sha256(f"{_FORMAT};{settings};{_processor()}".encode()).hexdigest()[:16]
    return f"wasmtime-{version('wasmtime')}-{platform.machine()}-{digest}"


def _processor() -> str:
    """Return the processor's features, which compiled code uses."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # not Linux
        return platform.processor()
    lines = text.splitlines()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
