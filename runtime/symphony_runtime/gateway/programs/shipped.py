"""Programs that ship with the server and belong to no tenant.

Each is stored like any other program, under a tenant name that no tenant can have, so its artefact
is checked in the same way. Its runs belong to their callers.
"""

import asyncio
import logging
from collections.abc import Callable

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.programs.store import OWNER, Program, Programs

_log = logging.getLogger(__name__)


class ShippedProgram:
    """Compiles a program once, at the first request or before it."""

    def __init__(self, programs: Programs, name: str, wasm: Callable[[], bytes]) -> None:
        self._programs = programs
        self._name, self._wasm = name, wasm
        self._program: Program | None = None
        self._lock = asyncio.Lock()

    async def prepare(self) -> None:
        """Compile the program before the first request needs it; a failure is logged."""
        try:
            await self.program()
        except Exception:
            _log.exception("the program %r is not ready; each request will try again", self._name)

    async def program(self) -> Program:
        """Return the program, compiled if this server has not done so yet."""
        if self._program is None:
            async with self._lock:
                self._program = self._program or await self._make()
        return self._program

    async def _make(self) -> Program:
        data = await asyncio.to_thread(self._wasm)
        try:
            program, _ = await self._programs.upload(OWNER, self._name, data)
        except Problem as problem:
            if problem.status >= 500:
                raise
            detail = "the server's own program for this route is damaged: install Symphony again"
            raise Problem(500, "damaged", detail) from problem
        return program
