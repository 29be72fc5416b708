"""The programs that a worker has, and the fibers of new instances.

The gateway decides which programs are here; it names them by their modules.
"""

import logging
import time

from symphony_kernel.protocol.limits import WORKER_INSTANCES_MAX

from symphony_runtime.engine.fiber import Fiber, FiberHost, HostFault, Program
from symphony_runtime.worker.instance import Instance
from symphony_runtime.worker.run import FAILED, KILLED, Ending

_log = logging.getLogger(__name__)


class LoadedPrograms(dict[str, Program]):
    """Loaded artefacts by module. The worker unloads a program that it pops."""

    def __init__(self, fibers: FiberHost) -> None:
        super().__init__()
        self._fibers = fibers
        self._sources: dict[str, tuple[str, bytes]] = {}  # language module and source, by module

    def load(self, module: str, artefact: bytes) -> None:
        """Load an artefact. If it does not load, log it; runs of it end as failed."""
        try:
            self[module] = self._fibers.load(artefact)
        except HostFault:
            _log.exception("the artefact of %s does not load", module)

    def add_source(self, module: str, language: str, source: bytes) -> None:
        """Add a source program, which the module of its language runs."""
        self._sources[module] = language, source

    def forget_source(self, module: str) -> bool:
        """Forget a source program; False: it is none."""
        return self._sources.pop(module, None) is not None

    def unload_all(self) -> None:
        """Unload everything; no instance may be left."""
        for program in self.values():
            self._fibers.unload(program)
        self.clear()

    def create_fiber(self, instance: Instance, module: str, entry: str, live: int) -> None:
        """Set an instance's fiber, which has not run yet; `live` is the worker's instances.

        Raises Ending: the instance cannot start, and holds nothing.
        """
        language, source = self._sources.get(module, (module, b""))
        program = self.get(language)
        if program is None:
            raise Ending(FAILED, "the worker does not have the program")
        if live >= WORKER_INSTANCES_MAX:
            raise Ending(FAILED, "the worker is full")
        entry = entry or program.default_entry
        if entry not in program.entries:
            raise Ending(FAILED, f"the program has no entry {entry}")
        instance.source = source
        run, memory = instance.run, instance.run.share.memory
        if not memory.admits(program.table_bytes):
            memory.count_refusal(instance)
            raise Ending(KILLED, memory.refusal())
        began = time.perf_counter()
        instance.fiber = Fiber(self._fibers, program, entry, run.memory_limit, run.table_elements)
        memory.add(program.table_bytes)
        run.share.used_ns += int((time.perf_counter() - began) * 1e9)
