"""The languages of a server, with the modules that run their programs.

A source program keeps its source. After an upgrade, the new server's module runs it.
"""

from collections.abc import Iterable

from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.programs.shipped import ShippedProgram, ShippedPrograms
from symphony_runtime.languages.language import Language


class LanguageModules:
    """The languages by name; each one's module is a shipped program."""

    def __init__(self, shipped: ShippedPrograms, languages: Iterable[Language]) -> None:
        self._languages = {each.name: each for each in languages}
        self._modules = {
            each.name: shipped.add(f"language-{each.name}", each.module)
            for each in self._languages.values()
        }

    def all(self) -> tuple[Language, ...]:
        return tuple(self._languages.values())

    def language(self, name: str) -> Language:
        """Return a language; Problem 400: this server has no such one."""
        if name not in self._languages:
            there = ", ".join(self._languages) or "none"
            detail = f"this server has no language {name!r}; there are: {there}"
            raise Problem(400, "no-such-language", detail)
        return self._languages[name]

    def module(self, name: str) -> ShippedProgram:
        """Return the module of a language; Problem 400: this server has no such one."""
        return self._modules[self.language(name).name]
