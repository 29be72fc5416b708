"""The programs that a worker has, and the fibers of new instances.

The gateway decides which programs are here; it names them by their modules.
"""

import logging
import time
from collections.abc import Iterator

from symphony_kernel.protocol.limits import WORKER_INSTANCES_MAX

from symphony_runtime.engine.fiber import Fiber, FiberHost, HostFault, Program
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.run import FAILED, FAILED_CODE, KILLED, KILLED_CODE, Ending

_log = logging.getLogger(__name__)


class LoadedPrograms:
    """Loaded artefacts by module."""

    def __init__(self, fibers: FiberHost) -> None:
        self._fibers = fibers
        self._programs: dict[str, Program] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs)

    def load(self, module: str, artefact: bytes) -> None:
        """Load an artefact. If it does not load, log it; runs of it end as failed."""
        try:
            self._programs[module] = self._fibers.load(artefact)
        except HostFault:
            _log.exception("the artefact of %s does not load", module)

    def remove(self, module: str) -> Program | None:
        """Return a program that the caller unloads; no new instance gets it."""
        return self._programs.pop(module, None)

    def unload_all(self) -> None:
        """Unload everything; no instance may be left."""
        for program in self._programs.values():
            self._fibers.unload(program)
        self._programs.clear()

    def create_fiber(self, instance: Instance, module: str, entry: str, live: int) -> None:
        """Set an instance's fiber, which has not run yet; `live` is the worker's instances.

        Raises:
            Ending: the instance cannot start, and holds nothing.
        """
        program = self._programs.get(module)
        if program is None:
            raise _failed("the worker does not have the program")
        if live >= WORKER_INSTANCES_MAX:
            raise _failed("the worker is full")
        entry = entry or program.default_entry
        if entry not in program.entries:
            raise _failed(f"the program has no entry {entry}")
        run, memory = instance.run, instance.run.share.memory
        if not memory.admits(program.table_bytes):
            memory.count_refusal(instance)
            raise Ending(KILLED, KILLED_CODE, memory.refusal())
        began = time.perf_counter()
        instance.fiber = Fiber(self._fibers, program, entry, run.memory_limit, run.table_elements)
        memory.add(program.table_bytes)
        run.share.used_ns += int((time.perf_counter() - began) * 1e9)


def _failed(problem: str) -> Ending:
    return Ending(FAILED, FAILED_CODE, problem)
