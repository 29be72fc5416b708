"""A program as the gateway knows it."""

import json
from dataclasses import dataclass
from typing import Any

from symphony_runtime.compiler.compiler import Manifest
from symphony_runtime.gateway.errors import bad_request
from symphony_runtime.languages.language import WASM

DECLARED = ("description", "input_schema", "output_schema")  # of a program's own manifest
_DEFAULT_ENTRIES = ("_start", "lip_main")


@dataclass(frozen=True, slots=True)
class Program:
    """One uploaded module or source of one tenant."""

    tenant: str
    id: str  # sha256:<hex>
    name: str | None  # by which it was found; else the newest name that points here
    size: int
    manifest: Manifest
    created_ms: int
    language: str = WASM

    @property
    def module(self) -> str:
        """The program's name in workers."""
        return f"{self.tenant}/{self.id}"

    def view(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "language": self.language,
            "size": self.size,
            "imports": list(self.manifest.imports),
            "exports": list(self.manifest.exports),
            "entries": list(self.manifest.entries),
            **(dict.fromkeys(DECLARED) | self.declared()),
            "created_ms": self.created_ms,
        }

    def declared(self) -> dict[str, Any]:
        """Return the program's own manifest; {} without one."""
        # Parsed for each use: as text it takes a tenth of the memory.
        manifest: dict[str, Any] = json.loads(self.manifest.declared or "{}")
        return manifest

    def may_call(self, name: str) -> bool:
        """Return whether it imports, or declares, a call of module `lip`."""
        return f"lip.{name}" in self.manifest.imports

    def entry(self, wanted: str | None) -> str:
        """Return the export to run, `wanted` or the default entry; Problem 400."""
        entries = self.manifest.entries
        if wanted is None:
            found = next((entry for entry in _DEFAULT_ENTRIES if entry in entries), None)
            detail = "the program has neither _start nor lip_main: name an entry"
        else:
            found, detail = wanted if wanted in entries else None, f"no entry {wanted!r}"
        if found is None:
            raise bad_request("no-such-entry", detail, entries=list(entries))
        return found
