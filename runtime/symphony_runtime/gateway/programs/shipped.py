"""Programs that ship with the server: those of routes, and the modules of its languages.

They belong to no tenant, and are in no database: a server compiles each once, or takes its machine
code from the user's directory of compiled code. Their runs belong to their callers. Workers get
them before the first run does (`on_ready`).
"""

import asyncio
import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path
from typing import Final

import msgpack
from symphony_kernel.platform.build_cache import (
    LibraryUnavailable,
    cache_directory,
    is_whole,
    name_of,
    put,
)

from symphony_runtime.compiler.compiler import USUAL, Compiled, Compiler, Manifest, ProgramError
from symphony_runtime.engine.settings import cache_identity
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.programs.program import Program

_log = logging.getLogger(__name__)
OWNER: Final = "~server"  # in place of a tenant: no tenant can have this name
_FORMAT: Final = b"1"  # of a file of the cache


def shipped_wasm(package: str, name: str) -> bytes:
    """Return the module `name` that lies in a package of this distribution."""
    return resources.files(package).joinpath(f"{name}.wasm").read_bytes()


class CodeCache:
    """Machine code that this user's servers have compiled of programs that ship with them.

    It lies where other compiled code of the user does: in a directory that no other user may write.
    Without one it lies in `fallback`, a directory of the server's own. A file's name is a digest of
    the module and of all that its machine code depends on. Every call blocks.
    """

    def __init__(self, fallback: Path) -> None:
        self._fallback = fallback

    def get(self, wasm: bytes) -> Compiled | None:
        """Return what a module was compiled to; None: not yet, or the file is damaged."""
        path = self._path(wasm)
        if not is_whole(path):
            return None
        try:
            *manifest, artefact = msgpack.unpackb(path.read_bytes(), use_list=False)
            return Compiled(Manifest(*manifest), artefact)
        except (OSError, ValueError, TypeError):
            _log.warning("%s is not read", path, exc_info=True)
            return None

    def put(self, wasm: bytes, compiled: Compiled) -> None:
        """Keep what a module was compiled to; a failure is logged."""
        path, manifest = self._path(wasm), compiled.manifest
        parts = (
            manifest.imports, manifest.exports, manifest.entries, manifest.declared,
            compiled.artefact,
        )  # fmt: skip
        try:
            with tempfile.TemporaryDirectory(prefix="build-", dir=path.parent) as folder:
                made = Path(folder) / path.name
                made.write_bytes(msgpack.packb(parts))
                put(made, path)
        except OSError as error:
            _log.warning("machine code is not kept for the next start: %s", error)

    def _path(self, wasm: bytes) -> Path:
        try:
            directory = cache_directory()
        except LibraryUnavailable:
            directory = self._fallback
            directory.mkdir(mode=0o700, exist_ok=True)
        return directory / f"program-{name_of(wasm, cache_identity().encode(), _FORMAT)}.cwasm"


class ShippedProgram:
    """One of them, compiled at the first request for it or before that."""

    def __init__(
        self, name: str, wasm: Callable[[], bytes], compiler: Compiler, cache: CodeCache
    ) -> None:
        self.name = name
        self.on_ready: Callable[[Program, bytes], None] = lambda _program, _artefact: None
        self.made: tuple[Program, bytes] | None = None  # with its artefact
        self._wasm, self._compiler, self._cache = wasm, compiler, cache
        self._lock = asyncio.Lock()

    async def program(self) -> Program:
        """Return the program; Problem 500: its module is damaged."""
        return (await self._ready())[0]

    async def artefact(self) -> bytes:
        """Return its machine code; as `program`."""
        return (await self._ready())[1]

    async def _ready(self) -> tuple[Program, bytes]:
        if self.made is None:
            async with self._lock:
                if self.made is None:
                    self.made = await self._make()
                    self.on_ready(*self.made)
        return self.made

    async def _make(self) -> tuple[Program, bytes]:
        wasm = await asyncio.to_thread(self._wasm)
        compiled = await asyncio.to_thread(self._cache.get, wasm)
        if compiled is None:
            try:
                compiled = await self._compiler.compile(wasm, USUAL, OWNER, own=True)
            except ProgramError as error:
                detail = (
                    f"the server's own program {self.name!r} is damaged: install Symphony again"
                )
                raise Problem(500, "damaged", detail) from error
            await asyncio.to_thread(self._cache.put, wasm, compiled)
        digest = hashlib.sha256(wasm).hexdigest()
        program = Program(
            OWNER, f"sha256:{digest}", self.name, len(wasm), compiled.manifest, now_ms()
        )
        return program, compiled.artefact


class ShippedPrograms:
    """All of a server. `on_ready` gets each that is compiled, with its machine code."""

    def __init__(self, compiler: Compiler, cache: CodeCache) -> None:
        self.on_ready: Callable[[Program, bytes], None] = lambda _program, _artefact: None
        self._compiler, self._cache = compiler, cache
        self._all: list[ShippedProgram] = []

    def add(self, name: str, wasm: Callable[[], bytes]) -> ShippedProgram:
        """Add the program whose module is what `wasm` returns, which may block."""
        added = ShippedProgram(name, wasm, self._compiler, self._cache)
        added.on_ready = lambda program, artefact: self.on_ready(program, artefact)
        self._all.append(added)
        return added

    async def prepare(self) -> None:
        """Compile what no request has needed yet; a failure is logged."""
        for each in reversed(self._all):  # programs of routes are small, and were added last
            try:
                await each.program()
            except Exception:
                _log.exception("%r is not ready; each request will try again", each.name)

    def ready(self) -> Iterable[tuple[Program, bytes]]:
        """Return what is compiled, with its machine code."""
        return [each.made for each in self._all if each.made is not None]

    async def artefact(self, program: Program) -> bytes:
        """Return the machine code of one of them."""
        return next(artefact for each, artefact in self.ready() if each.id == program.id)
