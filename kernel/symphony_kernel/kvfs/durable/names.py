"""Names on disk: what saving, removing and opening a durable name has to wait for.

    save     snapshot -> its tenant's queue -> K and V -> a thread writes -> the name, the answer
    remove   its tenant's queue -> a thread removes -> the name is gone, the answer
    load     a thread reads -> pages, K and V -> whoever waits opens

A change shows, in the tree of names and to whoever asked for it, once it is safe on disk; until
then the name is what it was. One tenant's changes are made one behind the other, so that two of one
name never overtake each other, and tenants take turns in the threads. What touches no disk and
waits for nothing that does is done at once.

All methods run on the kernel's loop; threads do what blocks (`disk_io`). What the disk has said
comes back as plain values, through `happen` and then one of `changed`, `loaded`, `filled`: who
calls these again, in order, gets the same names and files without a disk.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np

from symphony_kernel.kvfs.durable.background import BackgroundTasks
from symphony_kernel.kvfs.durable.directory import Found
from symphony_kernel.kvfs.durable.disk_io import DiskIO, RefusedError
from symphony_kernel.kvfs.durable.format import KV, Content, Label
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.lineage.packing import LineageError, pack, unpack
from symphony_kernel.kvfs.name_tree import Name, is_public
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import TENANT_DISK_CALLS_MAX

_log = logging.getLogger(__name__)
_T = TypeVar("_T")
Done: TypeAlias = Callable[[SyscallError | None], None]
_ENTRY_BYTES = 8  # token and position
_HEADER_BYTES = 4_096  # about, with the longest name


class Device(Protocol):
    """How K and V get from files to the disk and back."""

    async def read(self, file: KVFile) -> KV | None:
        """Return K and V of a file's pages; None where not all of them are anywhere."""

    async def write(self, file: KVFile, kv: KV) -> bool:
        """Give a file that is being loaded its K and V; return whether there is room for them."""


@dataclass(slots=True, eq=False)
class Change:
    """What is to become of one name; `done` hears of the end."""

    tenant: str
    path: str
    done: Done
    file: KVFile | None  # to be named: a snapshot, or an empty one for an upload; None: removed
    replace: bool = True
    durable: bool = False
    public: bool = False
    upload: str = ""  # the path of a file in the format, of nobody knows whom
    rebuild: bool = False  # an upload's K and V are left: they are computed again


@dataclass(slots=True, eq=False)
class Load:
    """A named file whose content is on its way from disk, and who waits for it."""

    file: KVFile
    done: list[Done] = field(default_factory=list)


class DurableNames:
    """The names of `kvfs` that live on `disk`; without one nothing is durable.

    `publish` says whether tenants may make files public; `now` gives seconds, with `unix_offset` on
    top those since 1970. `happen` takes what has happened on disk,
    as the name of a method here and its arguments, and calls that. `failed` hears of faults of our
    own, `ending` of names that are to end.
    """

    # Fields that a kernel's next life makes anew.
    OWN: ClassVar = (
        "live", "ending", "_kvfs", "_disk", "_device", "_happen",
        "_publish", "_now", "_unix_offset", "_values", "_tasks",
    )  # fmt: skip

    def __init__(
        self,
        kvfs: KVFS,
        disk: DiskIO | None,
        device: Device,
        happen: Callable[[str, list[Any]], None],
        failed: Callable[[BaseException], None],
        *,
        publish: bool = False,
        now: Callable[[], float] = time.monotonic,
        unix_offset: float = 0.0,
    ) -> None:
        # What a kernel's next life takes over:
        self.queues: dict[str, deque[Change]] = {}
        self.loads: dict[int, Load] = {}
        self.made = 0  # loads so far
        self.lent: dict[KVFile, int] = {}  # references of who reads a file meanwhile
        # What it has of its own:
        self.live = True  # disk and device are asked; else what they said is told again
        self.ending: Callable[[], None] = lambda: None
        self._kvfs = kvfs
        self._disk = disk
        self._device = device
        self._happen = happen
        self._publish = publish
        self._now = now
        self._unix_offset = unix_offset
        self._values: dict[int, KV] = {}  # K and V of loads, on their way to the device
        self._tasks = BackgroundTasks(failed)
        kvfs.under_way = self.held

    # -- From outside ---------------------------------------------------------------------------
    def restore(self, found: list[Found]) -> None:
        """Name what lies on disk, before anybody calls. What is past a quota is named all the same.

        Its content comes when somebody opens it. What was public is so only while the operator lets
        tenants publish: the file goes on to say it, for a life in which they may again.
        """
        for label, size in found:
            file = self._kvfs.create_named(label.tenant)
            file.path, file.expires_ms = label.path, label.expires_ms
            public = label.public and self._publish
            name = Name(True, public, size, label.entries, loaded=False)
            self._kvfs.put_name(label.path, file, name)
        if found:
            self.ending()

    def resume(self) -> None:
        """Ask disk and device from now on, first for what was under way.

        Names whose K and V nothing but the disk brings back are to be loaded again; what has been
        opened from them has lost its content with the device.
        """
        self.live = True
        for file in list(self.lent):  # whoever read it was of the other process
            while file in self.lent:
                self.take_back(file)
        for queue in self.queues.values():
            self._launch(queue[0])
        for number, load in self.loads.items():
            load.file.truncate(0)  # where it had its entries, and waited for K and V
            self._tasks.spawn(self._read(number, load.file))
        for tenant in self._kvfs.tenants.values():
            for _, file in tenant.names.items():  # noqa: PERF102 - a tree, not a dict
                name = file.name
                if name is not None and name.durable and name.loaded and not file.recomputable:
                    name.entries, name.loaded = file.length, False
                    file.truncate(0)
        self.ending()

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
        if durable and self._disk is None:
            raise SyscallError(Errno.ENOSYS, "this kernel has no directory for durable files")
        if not durable and not self._waits(file.tenant, path):
            self._kvfs.save(file, path, replace, public)
            self._look(file)
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
        """Give an uploaded file a durable name; `done` hears. It is removed afterwards.

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
        self._submit(Change(tenant, path, done, file, replace, True, public, str(upload), rebuild))

    def discard(self, upload: Path) -> None:
        """Remove the file of an upload that has been taken or refused."""
        if self.live and self._disk is not None:
            self._tasks.spawn(self._disk.discard(upload))

    def load(self, file: KVFile, done: Done) -> None:
        """Bring the content of a named file; `done` hears when it is loaded, or why it is not.

        Raises:
            SyscallError: EAGAIN (too many of its tenant's files are on their way, or wait for it).
        """
        assert file.name is not None
        assert not file.name.loaded
        mine = 0
        for load in self.loads.values():
            mine += load.file.tenant == file.tenant
            if load.file is file:
                if len(load.done) >= TENANT_DISK_CALLS_MAX:
                    raise SyscallError(Errno.EAGAIN, f"{len(load.done)} wait for {file.path}")
                load.done.append(done)
                return
        if mine >= TENANT_DISK_CALLS_MAX:
            raise SyscallError(Errno.EAGAIN, f"{mine} files come from disk")
        file.references += 1
        self.made += 1
        self.loads[self.made] = Load(file, [done])
        if self.live:
            self._tasks.spawn(self._read(self.made, file))

    def lend(self, file: KVFile) -> None:
        """Hold a file for somebody who reads it, until `take_back`."""
        file.references += 1
        self.lent[file] = self.lent.get(file, 0) + 1

    def take_back(self, file: KVFile) -> None:
        """Whoever read it has done."""
        self.lent[file] -= 1
        if not self.lent[file]:
            del self.lent[file]
        self._kvfs.release(file)

    def expires_ms(self, file: KVFile) -> int:
        """Return when a promise to keep a file ends, or else what it was opened from; 0: never."""
        until = file.advice.until
        return round(1000 * (until + self._unix_offset)) if until > self._now() else file.expires_ms

    def expire(self, now_ms: float) -> None:
        """Take away the names whose time has come."""
        for moment, tenant, path in self._kvfs.expiries.due(now_ms):
            file = self._kvfs.tenant(tenant).names.get(path)
            if file is not None and file.expires_ms == moment:
                self._happen("expired", [tenant, path])

    def expired(self, tenant: str, path: str) -> None:
        """A name's time has come."""
        done = partial(self._gone, tenant, path)
        try:
            self.remove(tenant, path, done)
        except SyscallError as error:
            done(error)

    def _gone(self, tenant: str, path: str, error: SyscallError | None) -> None:
        if error is not None and error.errno is not Errno.ENOENT:
            _log.error("%s of %s should have gone and has not: %s", path, tenant, error)

    def waiting(self, tenant: str) -> int:
        """Return how many changes of a tenant's names wait: for the disk, or for one that does."""
        return len(self.queues.get(tenant, ()))

    def held(self) -> Counter[KVFile]:
        """Return the references of what is under way, for the audit."""
        held = Counter(self.lent)
        held.update(load.file for load in self.loads.values())
        for queue in self.queues.values():
            held.update(change.file for change in queue if change.file is not None)
        return held

    async def close(self, *, wait: bool = True) -> None:
        """Wait for what is under way: what was asked for is done or refused. Else drop it."""
        await self._tasks.end(cancel=not wait)

    def statistics(self) -> dict[str, int]:
        """Return what waits, and what lies on disk."""
        return {
            "durable_changes_waiting": sum(map(len, self.queues.values())),
            "durable_loads": len(self.loads),
            "durable_bytes": sum(t.durable_bytes for t in self._kvfs.tenants.values()),
        }

    # -- Changes --------------------------------------------------------------------------------
    def _waits(self, tenant: str, path: str) -> bool:
        """Whether a change of this name has to wait: for the disk, or for one that does."""
        file = self._kvfs.tenant(tenant).names.get(path)
        if file is not None and file.name is not None and file.name.durable:
            return True
        return any(change.path == path for change in self.queues.get(tenant, ()))

    def _look(self, file: KVFile | None) -> None:
        if file is not None and file.expires_ms and self.live:
            self.ending()

    def _check_queue(self, tenant: str) -> None:
        if len(self.queues.get(tenant, ())) >= TENANT_DISK_CALLS_MAX:
            raise SyscallError(Errno.EAGAIN, f"{TENANT_DISK_CALLS_MAX} changes of names wait")

    def _submit(self, change: Change) -> None:
        queue = self.queues.setdefault(change.tenant, deque())
        queue.append(change)
        if len(queue) == 1:
            self._begin(change.tenant)

    def _begin(self, tenant: str) -> None:
        """Begin a tenant's next change; those that need no disk, or are refused, end at once."""
        queue = self.queues.get(tenant)
        while queue:
            change = queue[0]
            try:
                if self._check(change):
                    self._launch(change)
                    return
                self._apply(change, Name(public=change.public))
            except SyscallError as error:
                self._end(change, error)
            else:
                self._end(change, None)

    def _check(self, change: Change) -> bool:
        """Check that it can be made, as it is now its turn; return whether the disk is needed."""
        old = self._kvfs.tenant(change.tenant).names.get(change.path)
        if change.file is None:
            self._kvfs.named(change.tenant, change.path)
        else:
            self._kvfs.check_name(change.tenant, change.path, change.replace)
        return change.durable or (old is not None and old.name is not None and old.name.durable)

    def _launch(self, change: Change) -> None:
        if self.live:
            self._tasks.spawn(self._make(change))

    def changed(
        self, tenant: str, errno: int, words: str, kind: str, size: int, entries: int
    ) -> None:
        """The disk has made a tenant's change, or has failed (errno > 0)."""
        change = self.queues[tenant][0]
        error: SyscallError | None = None
        if errno:
            error = RefusedError(kind, words) if kind else SyscallError(Errno(errno), words)
        else:
            loaded = not change.upload
            self._apply(change, Name(change.durable, change.public, size, entries, loaded))
            self._look(change.file)
        self._end(change, error)
        self._begin(tenant)

    def _apply(self, change: Change, name: Name) -> None:
        if change.file is None:
            self._kvfs.remove(change.tenant, change.path)
        else:
            self._kvfs.put_name(change.path, change.file, name)

    def _end(self, change: Change, error: SyscallError | None) -> None:
        queue = self.queues[change.tenant]
        queue.popleft()
        if not queue:
            del self.queues[change.tenant]
        if change.file is not None and error is not None:
            self._kvfs.release(change.file)
        if change.upload:
            self.discard(Path(change.upload))
        change.done(error)

    async def _make(self, change: Change) -> None:
        """Make one change on disk, and tell of it."""
        tenant, path = change.tenant, change.path
        size, entries = 0, 0
        try:
            if change.durable:
                size, entries = await self._write(change)
            else:
                assert self._disk is not None
                await self._disk.remove(tenant, path)
        except SyscallError as error:
            kind = error.kind if isinstance(error, RefusedError) else ""
            self._happen("changed", [tenant, int(error.errno), error.detail, kind, 0, 0])
        else:
            self._happen("changed", [tenant, 0, "", "", size, entries])

    async def _write(self, change: Change) -> tuple[int, int]:
        """Write a file; return its bytes and entries. SyscallError, and the old one is there."""
        file, disk = change.file, self._disk
        assert file is not None
        assert disk is not None
        tenant, path = change.tenant, change.path
        label = Label(tenant, path, file.length, change.public, file.expires_ms)
        if change.upload:
            upload = Path(change.upload)
            self._check_quota(change, await disk.size(upload))
            return await disk.put_foreign(label, upload, rebuild=change.rebuild)
        kv = await self._device.read(file)
        if kv is None and not file.recomputable:
            raise SyscallError(Errno.EAGAIN, "its K and V are nowhere that can be read now")
        content = Content(file.tokens, file.positions, file.plain, lineage_of(file), kv)
        self._check_quota(change, file.length * _ENTRY_BYTES + (kv.nbytes if kv is not None else 0))
        return await disk.put(label, content), file.length

    def _check_quota(self, change: Change, size: int) -> None:
        tenant = self._kvfs.tenant(change.tenant)
        old = tenant.names.get(change.path)
        freed = old.name.size if old is not None and old.name is not None else 0
        most = tenant.limits.durable_bytes
        if tenant.durable_bytes - freed + size + _HEADER_BYTES > most:
            detail = f"{tenant.name} has {tenant.durable_bytes} of {most} bytes on disk"
            raise tenant.refusal("kv_durable_bytes", detail)
        held = tenant.durable_bytes - freed
        if self._disk is not None and not self._disk.space.allows(held, size + _HEADER_BYTES):
            detail = f"{tenant.name} has {held} bytes on disk, and would leave less to others"
            raise tenant.refusal("disk_bytes", detail)

    # -- Loading --------------------------------------------------------------------------------
    async def _read(self, number: int, file: KVFile) -> None:
        """Read a file, and tell of what it holds."""
        try:
            assert self._disk is not None
            content = await self._disk.get(file.tenant, file.path)
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
        """The disk has said what a file holds, or has failed (errno > 0)."""
        file = self.loads[number].file
        try:
            if errno:
                raise self._why(file, errno, words)
            self._kvfs.fill(
                file,
                np.frombuffer(tokens, "<u4"),
                np.frombuffer(positions, "<i4"),
                plain,
                unpack(lineage)[0] if lineage else None,
                device=self.live,
            )
        except LineageError as damage:
            self._fail_load(number, self._why(file, Errno.EBADF, str(damage)))
        except SyscallError as error:
            self._fail_load(number, error)
        else:
            if self.live:
                self._tasks.spawn(self._fill(number, file))

    def _fail_load(self, number: int, error: SyscallError) -> None:
        self._values.pop(number, None)
        self._end_load(number, error)

    def _why(self, file: KVFile, errno: int, words: str) -> SyscallError:
        """Return what those who wait for a file hear.

        One that is broken says so from now on; the name of one that is gone goes.
        """
        if self._kvfs.tenant(file.tenant).names.get(file.path) is not file:
            return SyscallError(Errno.ENOENT, file.path)  # replaced or removed since
        _log.error("%s of %s: errno %d, %s", file.path, file.tenant, errno, words)
        if errno == Errno.EBADF:
            file.error = Errno.EIO
        if file.error is not None:
            return SyscallError(file.error, words)
        changes = self.queues.get(file.tenant, ())
        if errno == Errno.ENOENT and all(change.path != file.path for change in changes):
            # A refused removal that the disk did not let us undo; or a file removed by hand.
            self._kvfs.remove(file.tenant, file.path)
        return SyscallError(Errno(errno), words)

    async def _fill(self, number: int, file: KVFile) -> None:
        kv = self._values.pop(number, None)
        there = kv is not None and await self._device.write(file, kv)
        self._happen("filled", [number, there])

    def filled(self, number: int, there: bool) -> None:
        """K and V of a file are there, or are to be computed again."""
        file = self.loads[number].file
        if not there and not file.recomputable:
            # Those of another model, or for which nobody has room.
            file.truncate(0)
            words = f"{file.path}: nothing but its K and V says what it was"
            self._end_load(number, SyscallError(Errno.ENOMEM, words))
            return
        if file.name is not None:
            file.name.loaded = True
        self._end_load(number, None)

    def _end_load(self, number: int, error: SyscallError | None) -> None:
        load = self.loads.pop(number)
        for done in load.done:
            done(error)
        self._kvfs.release(load.file)


def lineage_of(file: KVFile) -> bytes:
    """Return what says how a file's K and V came about, packed; empty where its tokens do."""
    trail = file.lineage
    return b"" if trail is None else pack([trail])


class _NoDevice:
    async def read(self, file: KVFile) -> KV | None:  # noqa: ARG002
        return None

    async def write(self, file: KVFile, kv: KV) -> bool:  # noqa: ARG002
        return False


def without_disk(kvfs: KVFS, *, publish: bool = False) -> DurableNames:
    """Return what names files in memory only."""

    def fail(error: BaseException) -> None:
        raise error

    return DurableNames(kvfs, None, _NoDevice(), lambda *_: None, fail, publish=publish)
