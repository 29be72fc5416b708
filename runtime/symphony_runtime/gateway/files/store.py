"""The files of all tenants: uploads, reads, deletions and expiry.

    upload   open_upload -> write ... -> finish; an upload that fails or dies is deleted
    sweep    once a minute: expired files, and uploads of gateways that are gone

An upload is bounded while it comes in: by the file's bytes, the tenant's files and their bytes, and
the disk. One part is in memory.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from functools import partial

from symphony_kernel.protocol.limits import RETRY_SECONDS_MAX

from symphony_runtime.config.limits import Limits
from symphony_runtime.gateway.errors import Problem, not_found, too_large
from symphony_runtime.gateway.files.records import (
    PART_BYTES,
    File,
    FileGoneError,
    FileQuota,
    FilesFullError,
    append_bytes,
    counts_of,
    delete_step,
    find_file,
    finish_file,
    hidden_files,
    hide_file,
    hide_files_of,
    hide_old_files,
    hide_upload,
    insert_file,
    list_files,
    part_before,
    read_bytes,
)
from symphony_runtime.gateway.storage.deletion_steps import delete_in_steps
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
_SWEEP_SECONDS = 60.0


class Files:
    """The files; `run` until it is cancelled."""

    def __init__(
        self,
        store: Store,
        limits: Limits,
        boot: int,
        now_ms: Callable[[], int],
        reached: Callable[[str, str], None] = lambda _tenant, _limit: None,
    ) -> None:
        """`boot` is the number of this gateway's start; `reached` counts a limit's refusal."""
        self._store = store
        self._limits = limits
        self.boot = boot
        self.now_ms = now_ms
        self.reached = reached

    def quota_of(self, tenant: str) -> FileQuota:
        limits = self._limits.of(tenant)
        return FileQuota(limits.at_most("files"), limits.at_most("files_kept_bytes"))

    # -- Uploads -------------------------------------------------------------------------------
    async def open_upload(self, tenant: str) -> "Upload":
        """Begin a file; Problem 429, 507."""
        self._store.disk.check(tenant)
        quota, now = self.quota_of(tenant), self.now_ms()
        # Before the row: a refused upload costs a read.
        kept = await self._store.read(partial(counts_of, tenant=tenant))
        try:
            quota.check(kept[0] + 1, kept[1])
        except FilesFullError as error:
            raise self.full(tenant, error) from None
        file = File(f"file-{secrets.token_hex(12)}", tenant, "", "", 0, now, None)
        insert = partial(insert_file, file=file, status="uploading", boot=self.boot)
        await self._store.write(insert, tenant)
        most = self._limits.of(tenant).at_most("file_bytes")
        return Upload(self, self._store, file, quota, most)

    def full(self, tenant: str, error: FilesFullError) -> Problem:
        """Return the answer for a tenant that is over its quota."""
        self.reached(tenant, error.limit)
        what = "files" if error.limit == "files" else "bytes of files"
        return Problem(
            429, "too-many-files", f"the tenant may keep {error.most} {what}: delete some",
            retry_after=RETRY_SECONDS_MAX, field=error.limit, limit=error.most,
        )  # fmt: skip

    def file_too_large(self, tenant: str, most: int) -> Problem:
        self.reached(tenant, "file_bytes")
        return too_large("a file", most)

    # -- Reading -------------------------------------------------------------------------------
    async def find(self, tenant: str, file_id: str) -> File | None:
        if not file_id.isascii():  # the database refuses lone surrogates
            return None
        return await self._store.read(partial(find_file, tenant=tenant, file_id=file_id))

    async def get(self, tenant: str, file_id: str) -> File:
        """Return a file; Problem 404."""
        file = await self.find(tenant, file_id)
        if file is None:
            raise not_found("file", file_id)
        return file

    async def page(
        self, tenant: str, purpose: str | None, after: File | None, limit: int, *, ascending: bool
    ) -> list[File]:
        return await self._store.read(
            lambda c: list_files(c, tenant, purpose, after, limit, ascending=ascending)
        )

    async def content(self, file_id: str, at: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield a file's bytes from `at` on, in pieces; it ends early if the file is deleted."""
        part = await self._store.read(lambda c: part_before(c, file_id, at)) if at else 0
        while piece := await self._store.read(partial(read_bytes, file_id=file_id, at=part)):
            yield piece[max(0, at - part) :]
            part += len(piece)

    # -- Deleting ------------------------------------------------------------------------------
    async def delete(self, tenant: str, file_id: str) -> None:
        """Delete a file; Problem 404; 409, a live batch reads it."""
        file = await self.get(tenant, file_id)
        hide = partial(hide_file, tenant=tenant, file_id=file_id)
        if not await self._store.write(hide, tenant):
            raise Problem(409, "file-in-use", "a batch that has not ended reads the file")
        await delete_in_steps(self._store, partial(delete_step, file=file))

    async def forget_tenant(self, tenant: str) -> None:
        """Delete all files of a tenant that makes no requests."""
        await self._store.write(partial(hide_files_of, tenant=tenant))
        while files := await self._store.read(partial(hidden_files, tenant=tenant)):
            for file in files:
                await delete_in_steps(self._store, partial(delete_step, file=file))

    async def hidden(self, tenant: str) -> list[File]:
        """Return some hidden files of a tenant, which are to be deleted."""
        return await self._store.read(partial(hidden_files, tenant=tenant))

    async def run(self) -> None:
        while True:
            try:
                await self.sweep()
            except self._store.errors:
                _log.exception("old files could not be deleted")
            await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self) -> None:
        """Delete expired files, and uploads of gateways that are gone."""
        while await self._store.write(partial(hide_old_files, now_ms=self.now_ms())):
            pass
        while files := await self._store.read(hidden_files):
            for file in files:
                await delete_in_steps(self._store, partial(delete_step, file=file))


class Upload:
    """A file that comes in."""

    def __init__(
        self, files: Files, store: Store, file: File, quota: FileQuota, bytes_max: int
    ) -> None:
        self._files, self._store, self._quota = files, store, quota
        self.file = file
        self._bytes_max = bytes_max
        self._pending = bytearray()
        self.size = 0

    async def write(self, chunk: bytes) -> None:
        """Append bytes; a part of them is stored at once.

        Raises Problem: 413, the file is too large; 429, over the tenant's quota; 507; 404, the
        tenant was deleted.
        """
        self.size += len(chunk)
        if self.size > self._bytes_max:
            raise self._files.file_too_large(self.file.tenant, self._bytes_max)
        self._pending += chunk
        if len(self._pending) >= PART_BYTES:
            await self._store_pending()

    async def finish(self, name: str, purpose: str, seconds: int | None) -> File:
        """Store the rest and show the file, for so many seconds; Problem as `write`."""
        await self.flush()
        end = None if seconds is None else self.file.created_ms + 1000 * seconds
        file = replace(self.file, name=name, purpose=purpose, expires_ms=end, bytes=self.size)
        try:
            await self._store.write(partial(finish_file, file=file), file.tenant)
        except FileGoneError:
            raise not_found("file", file.id) from None
        return file

    async def flush(self) -> None:
        """Store all bytes so far; Problem as `write`."""
        if self._pending:
            await self._store_pending()

    async def discard(self) -> None:
        """Remove an upload, unless it has become something else."""
        if await self._store.write(partial(hide_upload, file_id=self.file.id), self.file.tenant):
            await delete_in_steps(self._store, partial(delete_step, file=self.file))

    async def remove(self) -> None:
        """Delete an upload that failed. What a failing storage leaves, a later start deletes."""
        await self._store.write(partial(hide_upload, file_id=self.file.id), self.file.tenant)
        await delete_in_steps(self._store, partial(delete_step, file=self.file))

    async def _store_pending(self) -> None:
        body, at = bytes(self._pending), self.size - len(self._pending)
        self._pending.clear()
        tenant = self.file.tenant
        self._store.disk.check(tenant, self.size)
        append = partial(
            append_bytes, file=self.file, at=at, body=body, status="uploading", quota=self._quota
        )
        try:
            await self._store.write(append, tenant)
        except FilesFullError as error:
            raise self._files.full(tenant, error) from None
        except FileGoneError:
            raise not_found("tenant", tenant) from None
