"""The program that serves the routes: it ships with the server and belongs to no tenant.

It is kept like any other program, in a tenant's place whose name no tenant can have, so that its
artefact is checked in the same way. Its runs are their callers'.
"""

import asyncio
from importlib import resources

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.programs.store import OWNER, Program, Programs

NAME = "openai"
_FILE = "openai.wasm"


def wasm() -> bytes:
    """Return the program's bytes."""
    return resources.files(__package__).joinpath(_FILE).read_bytes()


class ShippedProgram:
    """Makes the program ready once, at the first request or before it."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._program: Program | None = None
        self._making: asyncio.Task[Program] | None = None

    async def program(self) -> Program:
        """Return the program; it is compiled where this server has not done so yet."""
        if self._program is None:
            making = self._making = self._making or asyncio.create_task(self._make())
            try:
                self._program = await asyncio.shield(making)
            finally:
                # Others may wait for it too, and one of them may have begun it anew.
                if making.done() and self._making is making:
                    self._making = None
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
