"""The adapters of all tenants, and what the kernel knows of them.

    upload   the weights come in as a file of the database -> a folder on disk -> the kernel loads
             it, or refuses it -> the name's row -> the kernel knows the name
    a run    before a tenant's first one in the kernel's life, the kernel loads its adapters

    adapters/<tenant>/<digest>/    both files, for the kernel: made of the database when needed

The database is the truth. The kernel is told all names of a tenant at once, again after each
change and by each kernel that has lost its state. A deleted adapter's folder goes at once: the
kernel keeps what it has loaded while KV files need it.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import shutil
from functools import partial
from pathlib import Path

from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import RETRY_SECONDS_MAX

from symphony_runtime.config.limits import Limits
from symphony_runtime.gateway.adapters.records import (
    Adapter,
    AdaptersFullError,
    count_others,
    drop_adapter,
    drop_adapters_of,
    find_adapter,
    list_adapters,
    put_adapter,
)
from symphony_runtime.gateway.admission.tenant_lock import TenantLocks
from symphony_runtime.gateway.errors import Problem, bad_request, not_found, unavailable
from symphony_runtime.gateway.files.records import FileGoneError, delete_step
from symphony_runtime.gateway.files.store import Files, Upload
from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink
from symphony_runtime.gateway.storage.changes import note_change
from symphony_runtime.gateway.storage.database import Connection
from symphony_runtime.gateway.storage.deletion_steps import delete_in_steps
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


class Adapters:
    """The adapters of all tenants."""

    def __init__(
        self,
        store: Store,
        files: Files,
        limits: Limits,
        data_dir: Path,
        kernel: KernelLink,
    ) -> None:
        self._store, self._files, self._limits, self._kernel = store, files, limits, kernel
        self._root = data_dir.resolve() / "adapters"
        self._locks = TenantLocks()  # a tenant's rows, folders and names change together
        self._life = 0  # of the kernel that knows the names of `_known`
        self._known: set[str] = set()  # tenants
        if self._root.is_dir():
            for unfinished in self._root.glob("*/.new-*"):
                shutil.rmtree(unfinished, ignore_errors=True)
            for folder in self._root.iterdir():
                store.disk.charge(folder.name, _size(folder))

    # -- Reading -------------------------------------------------------------------------------
    async def page(self, tenant: str, after: str, limit: int) -> list[Adapter]:
        return await self._store.read(lambda c: list_adapters(c, tenant, after, limit))

    async def find(self, tenant: str, name: str) -> Adapter | None:
        if not name.isascii():  # the database refuses lone surrogates
            return None
        return await self._store.read(lambda c: find_adapter(c, tenant, name))

    async def get(self, tenant: str, name: str) -> Adapter:
        """Return an adapter; Problem 404."""
        adapter = await self.find(tenant, name)
        if adapter is None:
            raise not_found("adapter", name)
        return adapter

    @property
    def model(self) -> str:
        """The name of the kernel's model."""
        return str(self._kernel.about.get("model", {}).get("name", ""))

    # -- Changes -------------------------------------------------------------------------------
    async def check_room(self, tenant: str, name: str) -> None:
        """Check that a tenant may have an adapter of this name; Problem 429, 507."""
        self._store.disk.check(tenant)
        others = await self._store.read(lambda c: count_others(c, tenant, name))
        if others >= self._limits.of(tenant).at_most("adapters"):
            raise self._full(tenant)

    def _full(self, tenant: str) -> Problem:
        self._files.reached(tenant, "adapters")
        most = self._limits.of(tenant).at_most("adapters")
        return Problem(
            429, "too-many-adapters", f"the tenant may keep {most} adapters: delete some",
            retry_after=RETRY_SECONDS_MAX, field="adapters", limit=most,
        )  # fmt: skip

    async def put(
        self, tenant: str, name: str, config: str, upload: Upload
    ) -> tuple[Adapter, bool]:
        """Give a name to an upload; return the adapter, and whether it replaces another.

        Raises Problem: 400, the kernel refuses it; 429, over a quota; 503, the kernel is away or
        has no memory; 507. The upload is then still one.
        """
        await upload.flush()
        self._store.disk.check(tenant, upload.size)
        async with self._locks.of(tenant):
            folder, digest = await self._write(tenant, config, upload.file.id)
            try:
                rank = await self._load(tenant, digest, folder)
                adapter = Adapter(
                    tenant, name, digest, upload.file.id, config, upload.size, rank,
                    self._files.now_ms(),
                )  # fmt: skip
                most = self._limits.of(tenant).at_most("adapters")
                old = await self._store.write(partial(_put, adapter=adapter, most=most), tenant)
            except AdaptersFullError:
                raise self._full(tenant) from None
            except FileGoneError:
                raise not_found("tenant", tenant) from None
            finally:
                await self._remove_unused(tenant)
            await self._changed(tenant)
        if old is not None:
            await self._delete_files(tenant)
        return adapter, old is not None

    async def delete(self, tenant: str, name: str) -> None:
        """Delete an adapter; calls with it that are under way end as usual. Problem 404."""
        async with self._locks.of(tenant):
            if await self._store.write(partial(_drop, tenant=tenant, name=name), tenant) is None:
                raise not_found("adapter", name)
            await self._remove_unused(tenant)
            await self._changed(tenant)
        await self._delete_files(tenant)

    async def forget_tenant(self, tenant: str, *, rows: bool = True) -> None:
        """Delete all adapters of a tenant that makes no requests: Problem 503, no kernel."""
        async with self._locks.of(tenant):
            if rows:
                await self._store.write(lambda c: drop_adapters_of(c, tenant))
            self._known.discard(tenant)
            await self._remove(tenant, set())
            with contextlib.suppress(OSError):
                (self._root / tenant).rmdir()
            try:
                await self._kernel.ask("adapter_names", tenant=tenant, names={})
            except (KernelAwayError, SyscallError) as error:
                raise unavailable(str(error)) from error

    # -- The kernel ----------------------------------------------------------------------------
    async def send(self, tenant: str) -> None:
        """Let the kernel know a tenant's adapters; KernelAwayError."""
        kernel = self._kernel
        if self._life == kernel.life and tenant in self._known:
            return
        async with self._locks.of(tenant):
            if self._life != kernel.life:
                self._known.clear()
                self._life = kernel.life
            if tenant in self._known:
                return
            try:
                await self._send(tenant)
            except SyscallError as error:  # its programs get ENOENT
                _log.warning("the kernel does not take the adapters of %s: %s", tenant, error)

    async def reload(self) -> None:
        """Read the adapters again before their next use: another gateway may have changed them."""
        self._known.clear()

    async def _send(self, tenant: str) -> None:
        kernel, names = self._kernel, {}
        adapters = await self._store.read(lambda c: list_adapters(c, tenant))
        loaded = await kernel.ask("adapters", tenant=tenant)
        for adapter in adapters:
            try:
                folder, _ = await self._write(tenant, adapter.config, adapter.file, adapter.digest)
                await self._load(tenant, adapter.digest, folder)
            except Problem as problem:
                _log.warning("the adapter %s of %s: %s", adapter.name, tenant, problem.detail)
            except OSError as error:
                _log.warning("the adapter %s of %s: %s", adapter.name, tenant, error)
            else:
                names[adapter.name] = adapter.digest
        if names or loaded:
            await kernel.ask("adapter_names", tenant=tenant, names=names)
        self._known.add(tenant)

    async def _changed(self, tenant: str) -> None:
        """Let the kernel know a change, now or before the tenant's next run."""
        self._known.discard(tenant)
        try:
            await self._send(tenant)
        except (KernelAwayError, SyscallError) as error:
            _log.warning("the kernel does not know the adapters of %s yet: %s", tenant, error)

    async def _load(self, tenant: str, digest: str, folder: Path) -> int:
        """Let the kernel load a folder; return the adapter's rank. Problem."""
        try:
            found = await self._kernel.ask(
                "adapter_load", tenant=tenant, digest=digest, folder=str(folder)
            )
        except KernelAwayError as error:
            raise unavailable(str(error)) from error
        except SyscallError as error:
            if error.errno is Errno.EDQUOT:
                raise Problem(
                    429, "over-quota", error.detail, retry_after=RETRY_SECONDS_MAX
                ) from error
            raise unavailable(error.detail or str(error)) from error
        if "refused" in found:
            raise bad_request("bad-adapter", str(found["refused"]))
        return int(found["rank"])

    # -- Folders -------------------------------------------------------------------------------
    async def _write(
        self, tenant: str, config: str, file: str, digest: str = ""
    ) -> tuple[Path, str]:
        """Write both files into their folder, unless it is there; return it and the digest.

        `digest` is the adapter's, if it is known. OSError.
        """
        home = self._root / tenant
        if digest and (home / digest).is_dir():
            return home / digest, digest
        for private in (self._root, home):
            private.mkdir(exist_ok=True, mode=0o700)
        new = home / f".new-{secrets.token_hex(8)}"
        new.mkdir(mode=0o700)
        try:
            (new / CONFIG).write_text(config, encoding="utf-8")
            found = hashlib.sha256(hashlib.sha256(config.encode()).digest())
            with (new / WEIGHTS).open("wb") as weights:
                async for piece in self._files.content(file):
                    found.update(piece)
                    weights.write(piece)
                await asyncio.to_thread(_sync, weights.fileno())
            folder = home / found.hexdigest()
            if folder.is_dir():
                shutil.rmtree(new)
            else:
                new.rename(folder)
                self._store.disk.charge(tenant, _size(folder))
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        return folder, found.hexdigest()

    async def _remove_unused(self, tenant: str) -> None:
        """Remove the folders of files that no name has."""
        kept = await self._store.read(lambda c: list_adapters(c, tenant))
        await self._remove(tenant, {adapter.digest for adapter in kept})

    async def _remove(self, tenant: str, kept: set[str]) -> None:
        home = self._root / tenant
        for folder in list(home.iterdir()) if home.is_dir() else []:
            if folder.name not in kept:
                size = 0 if folder.name.startswith(".") else _size(folder)
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                self._store.disk.charge(tenant, -size)

    async def _delete_files(self, tenant: str) -> None:
        """Delete the hidden files of a tenant; what is left, the sweep of files deletes."""
        for file in await self._files.hidden(tenant):
            await delete_in_steps(self._store, partial(delete_step, file=file))


def _put(connection: Connection, adapter: Adapter, most: int) -> Adapter | None:
    old = put_adapter(connection, adapter, most)
    note_change(connection)
    return old


def _drop(connection: Connection, tenant: str, name: str) -> Adapter | None:
    old = drop_adapter(connection, tenant, name)
    note_change(connection)
    return old


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)
