"""Durable names: saving, removing and loading named files that are on disk.

    save     snapshot -> its tenant's queue -> K and V -> a thread writes -> the name, the answer
    remove   its tenant's queue -> a thread removes -> the name is gone, the answer
    load     a thread reads -> pages, K and V -> the waiting calls open the file

A change shows in the tree of names, and is answered, once it is safe on disk. Until then the name
is what it was. A tenant's changes are made one after the other, so that two changes of one name
never overtake each other and tenants share the threads. A change that needs no disk, and waits for
none that does, is made at once.

All methods run on the kernel's loop; threads do what blocks (`disk`). The disk's results come back
as plain values through `happen`, which calls `changed`, `loaded` or `filled`. The same calls in the
same order give the same names and files without a disk: this is how the journal replays them.
"""

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

import numpy as np

from symphony_kernel.executor.base import Int32, UInt32
from symphony_kernel.kvfs.durable.directory import Found
from symphony_kernel.kvfs.durable.disk import BackgroundTasks, Disk, RefusedError
from symphony_kernel.kvfs.durable.format import KV, Content, Label
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.lineage.packing import LineageError, pack, unpack
from symphony_kernel.kvfs.name_tree import Name, is_public
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import TENANT_DISK_CALLS_MAX

_log = logging.getLogger(__name__)
Done: TypeAlias = Callable[[SyscallError | None], None]
_ENTRY_BYTES = 8  # token and position
_HEADER_BYTES = 4_096  # about, with the longest name


class Device(Protocol):
    """The part of `syscalls.durable_names.PageDevice` that is used here."""

    async def read(self, file: KVFile) -> KV | None: ...
    async def write(self, file: KVFile, kv: KV) -> bool: ...


@dataclass(slots=True, eq=False)
class Change:
    """A change of one name that waits or is under way; `done` gets its result."""

    tenant: str
    path: str
    done: Done
    file: KVFile | None  # to be named: a snapshot, or an empty one for an upload; None: removed
    replace: bool = True
    durable: bool = False
    public: bool = False
    upload: str = ""  # the path of an uploaded file, whose content is untrusted
    recompute: bool = False  # ignore an upload's K and V, and compute them from its tokens


@dataclass(slots=True, eq=False)
class Load:
    """A named file whose content is being read, and the calls that wait for it."""

    file: KVFile
    done: list[Done] = field(default_factory=list)


def _raise(error: BaseException) -> None:
    raise error


class DurableNames:
    """The durable names of `kvfs`; without a `disk` nothing is durable.

    `publish` allows tenants to make files public. `now` gives seconds, and `now() + unix_offset`
    seconds since 1970. `happen` takes the name of a method and its arguments, records them and
    calls the method. `failed` gets exceptions that are kernel bugs. `schedule_expiry` is called
    when a name gets an expiry.
    """

    # Fields that the next kernel makes anew; all others are in a snapshot.
    OWN: ClassVar = (
        "live", "kvfs", "disk", "_device", "_happen", "_publish", "_now", "_unix_offset",
        "_schedule_expiry", "_values", "_tasks",
    )  # fmt: skip

    def __init__(
        self,
        kvfs: KVFS,
        disk: Disk | None = None,
        device: Device | None = None,
        happen: Callable[[str, list[Any]], None] = lambda *_: None,
        failed: Callable[[BaseException], None] = _raise,
        *,
        publish: bool = False,
        now: Callable[[], float] = time.monotonic,
        unix_offset: float = 0.0,
        schedule_expiry: Callable[[], None] = lambda: None,
    ) -> None:
        self.queues: dict[str, deque[Change]] = {}
        self.loads: dict[int, Load] = {}
        self.made = 0  # loads so far
        self.downloaded: dict[KVFile, int] = {}  # references of downloads that read a file
        self.live = True  # False during replay: disk and device are not called
        self.kvfs = kvfs
        self.disk = disk
        self._device = device
        self._happen = happen
        self._publish = publish
        self._now = now
        self._unix_offset = unix_offset
        self._schedule_expiry = schedule_expiry
        self._values: dict[int, KV] = {}  # K and V that loads have read, until the device has them
        self._tasks = BackgroundTasks(failed)
        kvfs.durable_references = self.references

    def restore(self, found: list[Found]) -> None:
        """Name the files on disk, before any call and past any quota.

        Their content is loaded when a call opens them. A public file is public only while the
        operator allows publishing; on disk it stays marked as public.
        """
        for label, size in found:
            file = self.kvfs.create_named(label.tenant)
            file.path, file.expires_ms = label.path, label.expires_ms
            public = label.public and self._publish
            name = Name(True, public, size, label.entries, loaded=False)
            self.kvfs.put_name(label.path, file, name)
        if found:
            self._schedule_expiry()

    def resume(self) -> None:
        """Call disk and device from now on, first for what was under way.

        Names whose K and V are only on disk are loaded again. Files that were opened from them have
        lost their content with the device.
        """
        self.live = True
        for file, count in list(self.downloaded.items()):  # the old process has gone
            for _ in range(count):
                self._end_download(file)
        for queue in self.queues.values():
            self._start(queue[0])
        for number, load in self.loads.items():
            load.file.truncate(0)  # it may have its entries, and wait for K and V
            self._tasks.spawn(self._read(number, load.file))
        for tenant in self.kvfs.tenants.values():
            for _, file in tenant.names.items():  # noqa: PERF102 - a tree, not a dict
                name = file.name
                if name is not None and name.durable and name.loaded and not file.recomputable:
                    name.entries, name.loaded = file.length, False
                    file.truncate(0)
        self._schedule_expiry()

    def references(self) -> Counter[KVFile]:
        """Return the references of what is under way, for the audit."""
        held = Counter(self.downloaded)
        held.update(load.file for load in self.loads.values())
        for queue in self.queues.values():
            held.update(change.file for change in queue if change.file is not None)
        return held

    async def close(self, *, wait: bool = True) -> None:
        """Wait until every change and load is done or refused, or cancel them."""
        await self._tasks.wait_all(cancel=not wait)

    def statistics(self) -> dict[str, int]:
        return {
            "durable_changes_waiting": sum(map(len, self.queues.values())),
            "durable_loads": len(self.loads),
            "durable_bytes": sum(t.durable_bytes for t in self.kvfs.tenants.values()),
        }

    # -- Expiry ---------------------------------------------------------------------------------
    def expires_ms(self, file: KVFile) -> int:
        """Return when a file's keep advice, or else its name, expires; 0: never."""
        until = file.advice.until
        return round(1000 * (until + self._unix_offset)) if until > self._now() else file.expires_ms

    def expire(self, now_ms: float) -> None:
        for moment, (tenant, path) in self.kvfs.expiries.due(now_ms):
            file = self.kvfs.tenant(tenant).names.get(path)
            if file is not None and file.expires_ms == moment:
                self._happen("expired", [tenant, path])

    def expired(self, tenant: str, path: str) -> None:
        done = partial(self._log_expiry, tenant, path)
        try:
            self.remove(tenant, path, done)
        except SyscallError as error:
            done(error)

    def _log_expiry(self, tenant: str, path: str, error: SyscallError | None) -> None:
        if error is not None and error.errno is not Errno.ENOENT:
            _log.error("%s of %s has expired and is not removed: %s", path, tenant, error)

    # -- Writing: changes of names --------------------------------------------------------------
    def save(
        self, file: KVFile, path: str, done: Done, *, replace: bool, durable: bool, public: bool
    ) -> bool:
        """Name the present content of `file`; return whether it is done, or call `done`.

        Raises SyscallError: EEXIST without `replace`, EDQUOT (files, names), EACCES (below
        `public/`, or publishing is not allowed), EAGAIN (too many changes wait), ENOSYS (no disk).
        """
        self._check_public(path, public)
        if durable and self.disk is None:
            raise SyscallError(Errno.ENOSYS, "this kernel has no directory for durable files")
        if not durable and not self._needs_queue(file.tenant, path):
            self.kvfs.save(file, path, replace, public)
            self._watch_expiry(file)
            return True
        self._check_queue(file.tenant)
        snapshot = self.kvfs.snapshot(file, path)
        self._submit(Change(file.tenant, path, done, snapshot, replace, durable, public))
        return False

    def remove(self, tenant: str, path: str, done: Done) -> bool:
        """Remove a name; return if done, else call `done`; ENOENT, EACCES, EAGAIN."""
        if not self._needs_queue(tenant, path):
            self.kvfs.remove(tenant, path)
            return True
        self._check_queue(tenant)
        self._submit(Change(tenant, path, done, None))
        return False

    def put_upload(
        self,
        tenant: str,
        path: str,
        upload: str,
        done: Done,
        replace: bool,
        public: bool,
        expires_ms: int,
        recompute: bool,
    ) -> None:
        """Give the uploaded file at `upload` a durable name, then call `done`.

        The upload is removed when the change has ended. Raises as `save`.
        """
        self._check_public(path, public)
        self._check_queue(tenant)
        file = self.kvfs.create(tenant, self.kvfs.tenant(tenant).account)
        file.path, file.expires_ms = path, expires_ms
        self._submit(Change(tenant, path, done, file, replace, True, public, upload, recompute))

    def discard_upload(self, upload: str) -> None:
        if self.live and self.disk is not None:
            self._tasks.spawn(self._discard(self.disk, upload))

    async def _discard(self, disk: Disk, upload: str) -> None:
        with contextlib.suppress(SyscallError):  # it is logged; the next start removes the file
            await disk.call(partial(Path(upload).unlink, missing_ok=True))

    def count_changes(self, tenant: str) -> int:
        """Return how many changes of a tenant's names are waiting or under way."""
        return len(self.queues.get(tenant, ()))

    def _check_public(self, path: str, public: bool) -> None:
        if public and not self._publish:
            raise SyscallError(Errno.EACCES, "the operator has not allowed to publish files")
        if is_public(path):
            raise SyscallError(Errno.EACCES, "public/ is not a tenant's own")

    def _needs_queue(self, tenant: str, path: str) -> bool:
        """Whether a change of this name needs the disk, or waits for a change that does."""
        file = self.kvfs.tenant(tenant).names.get(path)
        if file is not None and file.name is not None and file.name.durable:
            return True
        return any(change.path == path for change in self.queues.get(tenant, ()))

    def _watch_expiry(self, file: KVFile | None) -> None:
        if file is not None and file.expires_ms and self.live:
            self._schedule_expiry()

    def _check_queue(self, tenant: str) -> None:
        if self.count_changes(tenant) >= TENANT_DISK_CALLS_MAX:
            raise SyscallError(Errno.EAGAIN, f"{TENANT_DISK_CALLS_MAX} changes of names wait")

    def _submit(self, change: Change) -> None:
        queue = self.queues.setdefault(change.tenant, deque())
        queue.append(change)
        if len(queue) == 1:
            self._start_next(change.tenant)

    def _start_next(self, tenant: str) -> None:
        """Start a tenant's next change; those without disk, or refused, end at once."""
        queue = self.queues.get(tenant)
        while queue:
            change = queue[0]
            try:
                if self._check(change):
                    self._start(change)
                    return
                self._apply(change, Name(public=change.public))
            except SyscallError as error:
                self._end(change, error)
            else:
                self._end(change, None)

    def _check(self, change: Change) -> bool:
        """Check that a change can be made; return if it needs the disk. SyscallError."""
        old = self.kvfs.tenant(change.tenant).names.get(change.path)
        if change.file is None:
            self.kvfs.named(change.tenant, change.path)
        else:
            self.kvfs.check_name(change.tenant, change.path, change.replace)
        return change.durable or (old is not None and old.name is not None and old.name.durable)

    def _start(self, change: Change) -> None:
        if self.live:
            self._tasks.spawn(self._make(change))

    async def _make(self, change: Change) -> None:
        """Make a change on disk and report it."""
        assert self.disk is not None
        size, entries = 0, 0
        try:
            if change.durable:
                size, entries = await self._write(self.disk, change)
            else:
                await self.disk.call(
                    partial(self.disk.directory.remove, change.tenant, change.path)
                )
        except SyscallError as error:
            kind = error.kind if isinstance(error, RefusedError) else ""
            self._happen("changed", [change.tenant, int(error.errno), error.detail, kind, 0, 0])
        else:
            self._happen("changed", [change.tenant, 0, "", "", size, entries])

    async def _write(self, disk: Disk, change: Change) -> tuple[int, int]:
        """Write a file; return its bytes and entries. SyscallError: the old one remains."""
        file, directory = change.file, disk.directory
        assert file is not None
        label = Label(change.tenant, change.path, file.length, change.public, file.expires_ms)
        if change.upload:
            upload = Path(change.upload)
            self._check_quota(disk, change, (await disk.call(upload.stat)).st_size)
            put = partial(directory.put_upload, label, upload, recompute=change.recompute)
            return await disk.call(put)
        content = await self._content_of(file)
        kv = content.kv
        if kv is None and not file.recomputable:
            raise SyscallError(Errno.EAGAIN, "its K and V are nowhere that can be read now")
        size = file.length * _ENTRY_BYTES + (kv.nbytes if kv is not None else 0)
        self._check_quota(disk, change, size)
        return await disk.call(partial(directory.put, label, content)), file.length

    async def _content_of(self, file: KVFile) -> Content:
        assert self._device is not None
        kv = await self._device.read(file)
        trail = file.stored_lineage
        lineage = b"" if trail is None else pack([trail])
        plain = 0 if file.adapter else file.plain
        return Content(file.tokens, file.positions, plain, lineage, kv)

    def _check_quota(self, disk: Disk, change: Change, size: int) -> None:
        tenant = self.kvfs.tenant(change.tenant)
        old = tenant.names.get(change.path)
        freed = old.name.size if old is not None and old.name is not None else 0
        disk.check_quota(tenant, tenant.durable_bytes - freed, size + _HEADER_BYTES)

    def changed(
        self, tenant: str, errno: int, words: str, kind: str, size: int, entries: int
    ) -> None:
        """Apply a tenant's first change, now on disk; end it with an error if errno > 0."""
        change = self.queues[tenant][0]
        error: SyscallError | None = None
        if errno:
            error = RefusedError(kind, words) if kind else SyscallError(Errno(errno), words)
        else:
            loaded = not change.upload
            self._apply(change, Name(change.durable, change.public, size, entries, loaded))
            self._watch_expiry(change.file)
        self._end(change, error)
        self._start_next(tenant)

    def _apply(self, change: Change, name: Name) -> None:
        if change.file is None:
            self.kvfs.remove(change.tenant, change.path)
        else:
            self.kvfs.put_name(change.path, change.file, name)

    def _end(self, change: Change, error: SyscallError | None) -> None:
        queue = self.queues[change.tenant]
        queue.popleft()
        if not queue:
            del self.queues[change.tenant]
        if change.file is not None and error is not None:
            self.kvfs.release(change.file)
        if change.upload:
            self.discard_upload(change.upload)
        change.done(error)

    # -- Reading: loads and downloads -----------------------------------------------------------
    def load(self, file: KVFile, done: Done) -> None:
        """Load the content of a named file, then call `done`; EAGAIN (too many wait)."""
        assert file.name is not None
        assert not file.name.loaded
        tenant_loads = 0
        for load in self.loads.values():
            tenant_loads += load.file.tenant == file.tenant
            if load.file is file:
                if len(load.done) >= TENANT_DISK_CALLS_MAX:
                    raise SyscallError(Errno.EAGAIN, f"{len(load.done)} wait for {file.path}")
                load.done.append(done)
                return
        if tenant_loads >= TENANT_DISK_CALLS_MAX:
            raise SyscallError(Errno.EAGAIN, f"{tenant_loads} files come from disk")
        file.references += 1
        self.made += 1
        self.loads[self.made] = Load(file, [done])
        if self.live:
            self._tasks.spawn(self._read(self.made, file))

    async def _read(self, number: int, file: KVFile) -> None:
        """Read a file and report its content."""
        assert self.disk is not None
        get = partial(self.disk.directory.get, file.tenant, file.path)
        try:
            content = await self.disk.call(get, Errno.EBADF)
        except SyscallError as error:
            self._happen("loaded", [number, int(error.errno), error.detail, b"", b"", 0, b""])
            return
        if content.kv is not None:
            self._values[number] = content.kv
        tokens = np.ascontiguousarray(content.tokens, "<u4").tobytes()
        positions = np.ascontiguousarray(content.positions, "<i4").tobytes()
        self._happen("loaded", [number, 0, "", tokens, positions, content.plain, content.lineage])

    def loaded(
        self,
        number: int,
        errno: int,
        words: str,
        tokens: bytes,
        positions: bytes,
        plain: int,
        lineage: bytes,
    ) -> None:
        """Give a file its entries from disk; end its load with an error if errno > 0."""
        file = self.loads[number].file
        error: SyscallError | None = None
        try:
            if errno:
                error = self._load_error(file, errno, words)
            else:
                file.fill(
                    np.frombuffer(tokens, "<u4"),
                    np.frombuffer(positions, "<i4"),
                    plain,
                    unpack(lineage)[0] if lineage else None,
                    frames=not self.live,
                )
        except LineageError as damage:
            error = self._load_error(file, Errno.EBADF, str(damage))
        except SyscallError as refusal:
            error = refusal
        if error is not None:
            self._values.pop(number, None)
            self._end_load(number, error)
        elif self.live:
            self._tasks.spawn(self._fill(number, file))

    def _load_error(self, file: KVFile, errno: int, words: str) -> SyscallError:
        """Return the error of a failed load for the calls that wait.

        A broken file answers EIO from now on. The name of a file that is gone is removed.
        """
        if self.kvfs.tenant(file.tenant).names.get(file.path) is not file:
            return SyscallError(Errno.ENOENT, file.path)  # replaced or removed since
        _log.error("%s of %s: errno %d, %s", file.path, file.tenant, errno, words)
        if errno == Errno.EBADF:
            file.error = Errno.EIO
        if file.error is not None:
            return SyscallError(file.error, words)
        changes = self.queues.get(file.tenant, ())
        if errno == Errno.ENOENT and all(change.path != file.path for change in changes):
            # A failed removal that the disk did not undo, or a file that was removed by hand.
            self.kvfs.remove(file.tenant, file.path)
        return SyscallError(Errno(errno), words)

    async def _fill(self, number: int, file: KVFile) -> None:
        kv = self._values.pop(number, None)
        there = False
        if kv is not None:
            assert self._device is not None
            there = await self._device.write(file, kv)
        self._happen("filled", [number, there])

    def filled(self, number: int, there: bool) -> None:
        """End a load: K and V of the file are there, or must be recomputed."""
        file = self.loads[number].file
        if not there and not file.recomputable:
            # K and V are of another model, or found no place.
            file.truncate(0)
            words = "its K and V cannot be recomputed, and are another model's or do not fit"
            self._end_load(number, SyscallError(Errno.ENOMEM, f"{file.path}: {words}"))
            return
        if file.name is not None:
            file.name.loaded = True
        self._end_load(number, None)

    def _end_load(self, number: int, error: SyscallError | None) -> None:
        load = self.loads.pop(number)
        for done in load.done:
            done(error)
        self.kvfs.release(load.file)

    @contextlib.contextmanager
    def _reading(self, file: KVFile) -> Iterator[None]:
        """Hold a reference to a file while a download reads it."""
        file.references += 1
        self.downloaded[file] = self.downloaded.get(file, 0) + 1
        try:
            yield
        finally:
            self._end_download(file)

    def _end_download(self, file: KVFile) -> None:
        self.downloaded[file] -= 1
        if not self.downloaded[file]:
            del self.downloaded[file]
        self.kvfs.release(file)

    async def open_download(self, tenant: str, path: str) -> int:
        """Return a descriptor of a copy of a named file; ENOENT, EIO, ENOSPC."""
        assert self.disk is not None
        file = self.kvfs.named(tenant, path)
        if file.error is not None:
            raise SyscallError(file.error, path)
        name, directory = file.name, self.disk.directory
        assert name is not None
        if name.durable:
            open_checked = partial(directory.open_checked, file.tenant, file.path)
            return await self.disk.call(open_checked, Errno.EIO)
        with self._reading(file):
            content = await self._content_of(file)
            label = Label(file.tenant, path, file.length, name.public, file.expires_ms)
            return await self.disk.call(partial(directory.write_unnamed, label, content))

    async def read_entries(
        self, tenant: str, path: str, start: int, count: int
    ) -> tuple[int, UInt32, Int32]:
        """Return the length of a named file, and up to `count` tokens and positions; ENOENT, EIO.

        A file that is only on disk is read there, and not loaded.
        """
        file = self.kvfs.named(tenant, path)
        name = file.name
        assert name is not None
        if name.loaded:
            count = min(count, max(file.length - start, 0))
            read = file.read_tokens(start, count), file.read_positions(start, count)
            return file.length, *read
        assert self.disk is not None
        get = partial(self.disk.directory.read_entries, file.tenant, file.path, start, count)
        return name.entries, *await self.disk.call(get, Errno.EIO)
