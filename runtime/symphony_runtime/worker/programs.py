"""The programs that a worker has, by the names of their modules."""

import logging
from collections.abc import Iterator

from symphony_runtime.engine.fiber import FiberHost, HostFault, Program

_log = logging.getLogger(__name__)


class LoadedPrograms:
    """Loaded artefacts; they are the gateway's to give and to take."""

    def __init__(self, fibers: FiberHost) -> None:
        self._fibers = fibers
        self._programs: dict[str, Program] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._programs)

    def __iter__(self) -> Iterator[str]:
        """Give their names."""
        return iter(self._programs)

    def load(self, module: str, artefact: bytes) -> None:
        """Load one; what does not load is not there, and the runs of it end as failed."""
        try:
            self._programs[module] = self._fibers.load(artefact)
        except HostFault:
            _log.exception("the artefact of %s does not load", module)

    def get(self, module: str) -> Program | None:
        """Return a program, if it is there."""
        return self._programs.get(module)

    def take_out(self, module: str) -> Program | None:
        """Return a program that is to be unloaded, and give it to nobody any more."""
        return self._programs.pop(module, None)

    def unload_all(self) -> None:
        """Unload everything; no instance may be left."""
        for program in self._programs.values():
            self._fibers.unload(program)
        self._programs.clear()
