"""The program of the OpenAI routes: it ships with the server and belongs to no tenant.

It is stored like any other program, under a tenant name that no tenant can have, so its artefact is
checked in the same way. Its runs belong to their callers.
"""

import asyncio
from importlib import resources

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.programs.store import OWNER, Program, Programs

NAME = "openai"
_FILE = "openai.wasm"


def wasm() -> bytes:
    return resources.files(__package__).joinpath(_FILE).read_bytes()


class ShippedProgram:
    """Compiles the program once, at the first request or before it."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._program: Program | None = None
        self._lock = asyncio.Lock()

    async def program(self) -> Program:
        """Return the program, compiled if this server has not done so yet."""
        if self._program is None:
            async with self._lock:
                self._program = self._program or await self._make()
        return self._program

    async def _make(self) -> Program:
        data = await asyncio.to_thread(wasm)
        try:
            program, _ = await self._programs.upload(OWNER, NAME, data)
        except Problem as problem:
            if problem.status >= 500:
                raise
            detail = "the server's own program for this route is damaged: install Symphony again"
            raise Problem(500, "damaged", detail) from problem
        return program
