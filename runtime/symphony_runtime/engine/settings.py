"""The sandbox a guest is compiled for and runs in: wasmtime's settings, as data.

The compiler and the workers must agree on each of them, or an artefact does not load. This file
imports nothing of wasmtime, so that whoever only needs the identity of an artefact stays light.
"""

import hashlib
import platform
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from symphony_kernel.protocol.limits import (
    FIBER_STACK_BYTES,
    GUEST_STACK_BYTES,
    RUN_MEMORY_BYTES_MAX,
)

_FORMAT = 2  # of what is behind an artefact's machine code (`artefact`)

# Proposals that the ABI lists.
PROPOSALS_ON = (
    "wasm_bulk_memory",
    "wasm_multi_value",
    "wasm_reference_types",
    "wasm_simd",
)
# Every other proposal that wasmtime knows is off: what is off cannot be attacked, and a program
# that needs one is told so at upload. `gc_support` also takes `externref` away, which is useless
# here and lives in the collector, where the pinned release has known faults.
PROPOSALS_OFF = (
    "wasm_threads",
    "shared_memory",
    "wasm_tail_call",
    "wasm_function_references",
    "wasm_gc",
    "gc_support",
    "wasm_relaxed_simd",
    "wasm_multi_memory",
    "wasm_memory64",
    "wasm_wide_arithmetic",
    "wasm_branch_hinting",
    "wasm_exceptions",
    "wasm_custom_page_sizes",
    "wasm_compact_imports",
    "wasm_stack_switching",
    "wasm_component_model",
    "concurrency_support",
)

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
    # A memory never moves: its reservation holds the largest a run may have. Bounds are checked by
    # compiled code, so that 12,000 instances fit into the address space.
    "memory_reservation": RUN_MEMORY_BYTES_MAX,
    "memory_reservation_for_growth": 0,
    "memory_guard_size": 64 << 10,
    "memory_may_move": False,
}


@lru_cache(maxsize=1)
def cache_identity() -> str:
    """Return what an artefact depends on beside the program: engine, settings, processor."""
    settings = ",".join(f"{name}={value}" for name, value in sorted(ENGINE_SETTINGS.items()))
    digest = hashlib.sha256(f"{_FORMAT};{settings};{_processor()}".encode()).hexdigest()[:16]
    return f"wasmtime-{version('wasmtime')}-{platform.machine()}-{digest}"


def _processor() -> str:
    """The processor's features; compiled code uses those of the machine that compiled it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:  # another system: the processor's name has to do
        return platform.processor()
    lines = text.splitlines()
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
