"""The process of `modules.Child`: checks, compiles, loads and runs modules, one after the other.

An alarm ends it when one takes too long, and memory has a limit, as in the compiler's own child.
"""

import resource
import signal
import sys
from typing import IO

from symphony_kernel.protocol.limits import COMPILE_MEMORY_BYTES_MAX, RUN_MEMORY_BYTES_MAX
from symphony_runtime.abi import allowed_imports
from symphony_runtime.compiler.validation import check_and_compile
from symphony_runtime.engine.fiber import CALLED, ENDED, EndKind, Fiber, FiberHost, HostFault
from symphony_runtime.worker.syscalls.table import handlers

from tests.fuzz.modules import SECONDS_MAX

_POLLS = 40
_PREEMPTED = 2  # slices that one may have
_LENGTH = 4


def take(host: FiberHost, wide: list[bool], wasm: bytes) -> str:
    """Return what became of a module, in words."""
    outcome = check_and_compile(wasm, own=True)
    if outcome.problems:
        return "refused"
    try:
        program = host.load(outcome.artefact)
    except HostFault as error:
        return f"accepted, and does not load: {error}"
    found = "ran"
    if sorted(program.entries) != sorted(outcome.entries):
        found = f"entries {outcome.entries} are {sorted(program.entries)} to the worker"
    for entry in program.entries:
        found = _run(Fiber(host, program, entry, RUN_MEMORY_BYTES_MAX), wide) or found
    host.unload(program)
    return found


def _run(fiber: Fiber, wide: list[bool]) -> str:
    """Run a guest for a moment; return what was wrong, or nothing."""
    slices = 0
    try:
        for _ in range(_POLLS):
            state = fiber.poll()
            if state == ENDED:
                end = fiber.end
                assert end is not None
                return f"a fault of ours: {end.reason}" if end.kind is EndKind.FAULT else ""
            if state == CALLED:
                fiber.resume(-1, wide[fiber.call])
            else:
                slices += 1
                if slices == _PREEMPTED:
                    break
        return ""
    finally:
        fiber.close()


def main(given: IO[bytes], told: IO[bytes]) -> None:
    """Take modules until there are no more."""
    limit = 4 * COMPILE_MEMORY_BYTES_MAX  # and what instances reserve of addresses
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    host = FiberHost(allowed_imports())
    wide = [wide for _, wide in handlers()]
    while head := given.read(_LENGTH):
        wasm = given.read(int.from_bytes(head, "little"))
        signal.alarm(SECONDS_MAX)
        words = take(host, wide, wasm).encode()
        signal.alarm(0)
        told.write(len(words).to_bytes(_LENGTH, "little") + words)
        told.flush()
    host.close()


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
