"""The modules of the server's languages, compiled at the first use of each.

They are stored as the program of the OpenAI routes is: under a tenant name that no tenant can have.
A source program keeps its source. After an upgrade, the new server's module runs it.
"""

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.languages.language import Language

Program = Any  # the store's, which imports this module
OWNER = "~server"  # of the programs that ship with the server: not a valid tenant name


class Programs(Protocol):
    """What is asked of the store."""

    async def upload(self, tenant: str, name: str | None, wasm: bytes, /) -> tuple[Any, bool]:
        """Store a program; True if its bytes are new."""

    async def artefact(self, program: Any, /) -> bytes:
        """Return the machine code of a program."""


class LanguageModules:
    """The languages of a server by name, with their modules as programs."""

    def __init__(self, programs: "Programs", languages: Iterable[Language]) -> None:
        self._programs = programs
        self._languages = {each.name: each for each in languages}
        self._made: dict[str, Program] = {}
        self._artefacts: dict[str, bytes] = {}  # some megabytes each, which every worker gets
        self._lock = asyncio.Lock()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._languages)

    def all(self) -> tuple[Language, ...]:
        return tuple(self._languages.values())

    def language(self, name: str) -> Language:
        """Return a language; Problem 400: this server has no such one."""
        if name not in self._languages:
            there = ", ".join(self._languages) or "none"
            detail = f"this server has no language {name!r}; there are: {there}"
            raise Problem(400, "no-such-language", detail)
        return self._languages[name]

    def modules(self, languages: Iterable[str]) -> set[str]:
        """Return the names in workers of the modules of these languages, as far as compiled."""
        return {self._made[name].module for name in languages if name in self._made}

    async def program(self, name: str) -> "Program":
        """Return the module of a language, compiled if this server has not done so yet."""
        if name not in self._made:
            async with self._lock:
                if name not in self._made:
                    self._made[name] = await self._make(self.language(name))
        return self._made[name]

    async def artefact(self, name: str) -> bytes:
        """Return the machine code of a language's module."""
        program = await self.program(name)
        if name not in self._artefacts:
            self._artefacts[name] = await self._programs.artefact(program)
        return self._artefacts[name]

    async def _make(self, language: Language) -> "Program":
        data = await asyncio.to_thread(language.module)
        try:
            program, _ = await self._programs.upload(OWNER, f"language-{language.name}", data)
        except Problem as problem:
            if problem.status >= 500:
                raise
            detail = f"the server's own module of {language.name} is damaged: install it again"
            raise Problem(500, "damaged", detail) from problem
        return program
