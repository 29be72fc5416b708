"""The files of programs, below a gateway's data directory. Every call blocks.

    programs/<tenant>/<hash>.wasm               the bytes as uploaded
    programs/<tenant>/<hash>.<compiler>.cwasm   the machine code of the compiler with that identity

A file is complete or absent, also after a crash.
"""

import contextlib
import hashlib
import shutil
from pathlib import Path

from symphony_runtime.engine.settings import cache_identity
from symphony_runtime.gateway.storage.data_directory import write_durably


class ProgramFiles:
    """The files of all tenants; a program is identified by its bytes' hash in hex."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, tenant: str, digest: str, wasm: bytes, artefact: bytes) -> None:
        """Write a program's bytes and this compiler's machine code, b"": it has none."""
        for stale in self._folder(tenant).glob(f"{digest}.*.cwasm"):
            stale.unlink(missing_ok=True)
        write_durably(self._wasm(tenant, digest), wasm)
        if artefact:
            write_durably(self._artefact(tenant, digest), artefact)

    def restore(self, tenant: str, digest: str, wasm: bytes) -> None:
        """Write a program's bytes again if they are damaged or missing."""
        path = self._wasm(tenant, digest)
        if not path.is_file() or path.read_bytes() != wasm:
            self._folder(tenant)
            write_durably(path, wasm)

    def wasm(self, tenant: str, digest: str) -> bytes:
        """Return a program's bytes; FileNotFoundError."""
        return self._wasm(tenant, digest).read_bytes()

    def artefact(self, tenant: str, digest: str, wanted: bytes) -> bytes | None:
        """Return the machine code if its SHA-256 is `wanted`, else None."""
        try:
            artefact = self._artefact(tenant, digest).read_bytes()
        except FileNotFoundError:
            return None
        return artefact if hashlib.sha256(artefact).digest() == wanted else None

    def remove(self, tenant: str, digest: str) -> None:
        for path in (self._root / tenant).glob(f"{digest}.*"):
            path.unlink(missing_ok=True)

    def remove_tenant(self, tenant: str) -> None:
        """Remove all files of a tenant; OSError."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self._root / tenant)

    def size(self, tenant: str, digest: str = "*") -> int:
        paths = (self._root / tenant).glob(f"{digest}.*wasm")
        return sum(path.stat().st_size for path in paths)

    def tenants(self) -> list[str]:
        if not self._root.is_dir():
            return []
        return sorted(path.name for path in self._root.iterdir() if path.is_dir())

    def digests(self, tenant: str) -> set[str]:
        paths = (self._root / tenant).glob("*.*wasm")
        return {path.name.partition(".")[0] for path in paths}

    def _folder(self, tenant: str) -> Path:
        """Return a tenant's folder; creates it, private to the server."""
        folder = self._root / tenant
        for private in (self._root, folder):
            private.mkdir(exist_ok=True, mode=0o700)
        return folder

    def _wasm(self, tenant: str, digest: str) -> Path:
        return self._root / tenant / f"{digest}.wasm"

    def _artefact(self, tenant: str, digest: str) -> Path:
        return self._root / tenant / f"{digest}.{cache_identity()}.cwasm"
