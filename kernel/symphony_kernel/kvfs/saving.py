"""Names on disk: what saving, removing and opening a durable name has to wait for.

    save     snapshot -> its tenant's queue -> K and V -> a thread writes -> the name, the answer
    remove   its tenant's queue -> a thread removes -> the name is gone, the answer
    load     a thread reads -> pages, K and V -> whoever waits opens

A change shows, in the tree of names and to whoever asked for it, once it is safe on disk; until
then the name is what it was. One tenant's changes are made one behind the other, so that two of one
name never overtake each other, and tenants take turns in the threads. What touches no disk and
waits for nothing that does is done at once.

All methods run on the kernel's loop; `run` does in a thread what blocks.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from symphony_kernel.kvfs.durable import (
    Content,
    Directory,
    FormatError,
    Found,
    Identity,
    Label,
    OtherModelError,
)
from symphony_kernel.kvfs.durable.directory import errno_of
from symphony_kernel.kvfs.durable.format import KV
from symphony_kernel.kvfs.files import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.names import is_public
from symphony_kernel.kvfs.naming import Name
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import KV_HEADER_BYTES_MAX, TENANT_DISK_CALLS_MAX

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
Done: TypeAlias = Callable[[SyscallError | None], None]
_ENTRY_BYTES = 8  # token and position


class RefusedError(SyscallError):
    """An upload that is not taken: `kind` is bad-file or other-model."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(Errno.EINVAL, words)
        self.kind = kind


class Run(Protocol):
    """Does work that blocks where it holds up nobody."""

    def __call__(self, work: Callable[[], _T]) -> Awaitable[_T]:
        """Return what `work` does, or raise it."""


class Device(Protocol):
    """How K and V get from files to the disk and back."""

    async def read(self, file: KVFile) -> KV | None:
        """Return K and V of a file's pages; None where not all of them are anywhere."""

    async def write(self, file: KVFile, kv: KV | None) -> None:
        """Give a file that is being loaded its K and V; None: they are to be computed again."""


@dataclass(slots=True, eq=False)
class Change:
    """What is to become of one name. All of it is data but `done`, which hears of the end."""

    tenant: str
    path: str
    done: Done
    file: KVFile | None  # to be named: a snapshot, or an empty one for an upload; None: removed
    replace: bool = True
    durable: bool = False
    public: bool = False
    upload: Path | None = None  # a file in the format, of nobody knows whom
    rebuild: bool = False  # an upload's K and V are left: they are computed again


class Saving:
    """The names of `kvfs` that live in `directory`; without one nothing is durable.

    `publish` says whether tenants may make files public. `failed` hears of faults of our own.
    """

    def __init__(
        self,
        kvfs: KVFS,
        directory: Directory | None,
        identity: Callable[[], Identity],
        run: Run,
        device: Device,
        failed: Callable[[BaseException], None],
        *,
        publish: bool = False,
    ) -> None:
        self._kvfs = kvfs
        self._directory = directory
        self._identity = identity
        self._run = run
        self._device = device
        self._failed = failed
        self._publish = publish
        self._queues: dict[str, deque[Change]] = {}
        self._loading: dict[KVFile, list[Done]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        kvfs.under_way = self.held

    # -- From outside ---------------------------------------------------------------------------
    def restore(self, found: list[Found]) -> None:
        """Name what lies on disk, before anybody calls. What is past a quota is named all the same.

        Its content comes when somebody opens it.
        """
        for label, size in found:
            file = self._kvfs.create_named(label.tenant)
            file.path, file.expires_ms = label.path, label.expires_ms
            name = Name(True, label.public, size, label.entries, loaded=False)
            self._kvfs.put_name(label.path, file, name)

    def save(
        self, file: KVFile, path: str, done: Done, *, replace: bool, durable: bool, public: bool
    ) -> bool:
        """Name the content of `file` as it is now; return whether it is done. Else `done` hears.

        Raises:
            SyscallError: EEXIST without `replace`, EDQUOT (files, names), EACCES (below `public/`,
                or the operator lets nobody publish), EAGAIN (too much waits), ENOSYS (nothing is
                durable here).
        """
        if public and not self._publish:
            raise SyscallError(Errno.EACCES, "the operator has not allowed to publish files")
        if durable and self._directory is None:
            raise SyscallError(Errno.ENOSYS, "this kernel has no directory for durable files")
        if not durable and not self._waits(file.tenant, path):
            self._kvfs.save(file, path, replace, public)
            return True
        if is_public(path):
            raise SyscallError(Errno.EACCES, "public/ is not a tenant's own")
        self._check_queue(file.tenant)
        snapshot = self._kvfs.snapshot(file, path)
        self._submit(Change(file.tenant, path, done, snapshot, replace, durable, public))
        return False

    def remove(self, tenant: str, path: str, done: Done) -> bool:
        """Take a name away; return whether it is done. Else `done` hears.

        Raises:
            SyscallError: ENOENT, EACCES (below `public/`), EAGAIN.
        """
        if not self._waits(tenant, path):
            self._kvfs.remove(tenant, path)
            return True
        self._check_queue(tenant)
        self._submit(Change(tenant, path, done, None))
        return False

    def put(
        self,
        tenant: str,
        path: str,
        upload: Path,
        done: Done,
        *,
        replace: bool,
        public: bool,
        expires_ms: int,
        rebuild: bool,
    ) -> None:
        """Give an uploaded file a durable name; `done` hears. It stays where it is.

        Raises:
            SyscallError: as `save`.
        """
        if public and not self._publish:
            raise SyscallError(Errno.EACCES, "the operator has not allowed to publish files")
        if is_public(path):
            raise SyscallError(Errno.EACCES, "public/ is not a tenant's own")
        self._check_queue(tenant)
        file = self._kvfs.create(tenant, self._kvfs.tenant(tenant).account)
        file.path, file.expires_ms = path, expires_ms
        self._submit(Change(tenant, path, done, file, replace, True, public, upload, rebuild))

    def load(self, file: KVFile, done: Done) -> None:
        """Bring the content of a named file; `done` hears when it is loaded, or why it is not."""
        assert file.name is not None
        assert not file.name.loaded
        waiting = self._loading.setdefault(file, [])
        waiting.append(done)
        if len(waiting) == 1:
            file.references += 1
            self._spawn(self._load(file))

    def expire(self, now_ms: float) -> None:
        """Take away the names whose time has come."""
        for moment, tenant, path in self._kvfs.expiries.due(now_ms):
            file = self._kvfs.tenant(tenant).names.get(path)
            if file is not None and file.expires_ms == moment:
                self._expire(tenant, path)

    def _expire(self, tenant: str, path: str) -> None:
        def done(error: SyscallError | None) -> None:
            if error is not None and error.errno is not Errno.ENOENT:
                _log.error("%s of %s should have gone and has not: %s", path, tenant, error)

        try:
            self.remove(tenant, path, done)
        except SyscallError as error:
            done(error)

    def held(self) -> Counter[KVFile]:
        """Return the references of what is under way, for the audit."""
        held = Counter(self._loading.keys())
        for queue in self._queues.values():
            held.update(change.file for change in queue if change.file is not None)
        return held

    async def close(self) -> None:
        """Wait for what is under way: what was asked for is done or refused."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def statistics(self) -> dict[str, int]:
        """Return what waits, and what lies on disk."""
        return {
            "durable_changes_waiting": sum(map(len, self._queues.values())),
            "durable_loads": len(self._loading),
            "durable_bytes": sum(t.durable_bytes for t in self._kvfs.tenants.values()),
        }

    # -- Changes --------------------------------------------------------------------------------
    def _waits(self, tenant: str, path: str) -> bool:
        """Whether a change of this name has to wait: for the disk, or for one that does."""
        file = self._kvfs.tenant(tenant).names.get(path)
        if file is not None and file.name is not None and file.name.durable:
            return True
        return any(change.path == path for change in self._queues.get(tenant, ()))

    def _check_queue(self, tenant: str) -> None:
        if len(self._queues.get(tenant, ())) >= TENANT_DISK_CALLS_MAX:
            raise SyscallError(Errno.EAGAIN, f"{TENANT_DISK_CALLS_MAX} changes of names wait")

    def _submit(self, change: Change) -> None:
        queue = self._queues.get(change.tenant)
        if queue is not None:
            queue.append(change)
            return
        self._queues[change.tenant] = deque((change,))
        self._spawn(self._work(change.tenant))

    async def _work(self, tenant: str) -> None:
        """Make a tenant's changes, one behind the other, until there are none."""
        queue = self._queues[tenant]
        while queue:
            change = queue[0]
            error: SyscallError | None = None
            try:
                await self._make(change)
            except SyscallError as refusal:
                error = refusal
            queue.popleft()
            if change.file is not None and error is not None:
                self._kvfs.release(change.file)
            if not queue:
                del self._queues[tenant]
            change.done(error)

    async def _make(self, change: Change) -> None:
        """Make one change, first on disk and then in the tree of names; SyscallError."""
        tenant, path, file = change.tenant, change.path, change.file
        if file is None:
            self._kvfs.named(tenant, path)
            await self._unlink(tenant, path)
            self._kvfs.remove(tenant, path)
            return
        self._kvfs.check_name(tenant, path, change.replace)
        if change.durable:
            name = await self._write(change, file)
        else:
            await self._unlink(tenant, path)
            name = Name(public=change.public)
        self._kvfs.put_name(path, file, name)

    async def _unlink(self, tenant: str, path: str) -> None:
        old = self._kvfs.tenant(tenant).names.get(path)
        directory = self._directory
        if directory is not None and old is not None and old.name is not None and old.name.durable:
            await self._blocking(lambda: directory.remove(tenant, path))

    async def _write(self, change: Change, file: KVFile) -> Name:
        """Write a file; SyscallError, and what had the name before is what it was."""
        if change.upload is not None:
            return await self._take_upload(change, change.upload, file)
        kv = await self._device.read(file)
        content = Content(file.tokens, file.positions, file.plain, b"", kv)
        size = file.length * _ENTRY_BYTES + (kv.nbytes if kv is not None else 0)
        self._check_quota(change, size)
        size = await self._blocking(lambda: self._put(change, file.expires_ms, content))
        return Name(True, change.public, size, file.length)

    async def _take_upload(self, change: Change, upload: Path, file: KVFile) -> Name:
        self._check_quota(change, upload.stat().st_size)  # noqa: ASYNC240 - written just now
        size, entries = await self._blocking(
            lambda: self._check_and_put(change, upload, file.expires_ms)
        )
        return Name(True, change.public, size, entries, loaded=False)

    def _check_quota(self, change: Change, size: int) -> None:
        tenant = self._kvfs.tenant(change.tenant)
        old = tenant.names.get(change.path)
        freed = old.name.size if old is not None and old.name is not None else 0
        most = tenant.limits.durable_bytes
        if tenant.durable_bytes - freed + size + KV_HEADER_BYTES_MAX > most:
            detail = f"{tenant.name} has {tenant.durable_bytes} of {most} bytes on disk"
            raise SyscallError(Errno.EDQUOT, detail)

    # In a thread:
    def _put(self, change: Change, expires_ms: int, content: Content) -> int:
        assert self._directory is not None
        entries = len(content.tokens)
        label = Label(change.tenant, change.path, entries, change.public, expires_ms)
        return self._directory.put(label, self._identity(), content)

    def _check_and_put(self, change: Change, upload: Path, expires_ms: int) -> tuple[int, int]:
        assert self._directory is not None
        content = self._directory.read_foreign(upload, self._identity(), rebuild=change.rebuild)
        return self._put(change, expires_ms, content), len(content.tokens)

    # -- Loading --------------------------------------------------------------------------------
    async def _load(self, file: KVFile) -> None:
        error: SyscallError | None = None
        try:
            await self._fill(file)
        except SyscallError as refusal:
            error = refusal
        waiting = self._loading.pop(file)
        for done in waiting:
            done(error)
        self._kvfs.release(file)

    async def _fill(self, file: KVFile) -> None:
        directory, name = self._directory, file.name
        assert directory is not None
        assert name is not None
        tenant, path = file.tenant, file.path
        try:
            content = await self._blocking(
                lambda: directory.get(tenant, path, self._identity()), file
            )
        except SyscallError:
            if self._kvfs.tenant(tenant).names.get(path) is not file:  # replaced or removed since
                raise SyscallError(Errno.ENOENT, path) from None
            raise
        entries = len(content.tokens)
        if content.kv is None and content.plain < entries and not content.lineage:
            detail = f"{path}: its K and V are not of this model, and nothing says how they came"
            _log.error("%s", detail)
            raise SyscallError(Errno.EIO, detail)
        self._kvfs.fill(file, content.tokens, content.positions, content.plain)
        await self._device.write(file, content.kv)
        name.loaded = True

    # -- Threads --------------------------------------------------------------------------------
    async def _blocking(self, work: Callable[[], _T], file: KVFile | None = None) -> _T:
        """Do in a thread what blocks; its errors as programs hear them.

        `file` is the one that is being read: when it is broken it answers EIO from now on.
        """
        try:
            return await self._run(work)
        except OSError as error:
            _log.error("a durable file: %s", error)
            raise SyscallError(Errno(errno_of(error)), str(error)) from error
        except FormatError as error:
            if file is not None:
                file.error = Errno.EIO
                raise SyscallError(Errno.EIO, f"{file.path}: {error}") from error
            raise RefusedError("bad-file", str(error)) from error
        except OtherModelError as error:
            raise RefusedError("other-model", str(error)) from error

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
