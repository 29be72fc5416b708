"""What KVFS should do, in plain Python: lists of entries, pages that are counted one by one.

It knows nothing of the kernel's tables, tiers, queues or journal: calls take effect one behind the
other, on files that never leave their place. Pages are counted as docs/reference/abi.md and
docs/how-it-works/design.md
have it: forks share all of them, a shared page is copied by who writes into it, whole pages are
shared where they line up, and who took a page from the pool pays for it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from symphony_kernel.processes.handles import ALL_RIGHTS, APPEND, GRANT, READ, SAVE, TRUNCATE
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import PAGE_TOKENS

_MASK = (1 << 64) - 1
_LOGIT_BITS = 24


class RefusedError(Exception):
    """A call that fails, with its errno."""

    def __init__(self, errno: Errno) -> None:
        super().__init__(errno)
        self.errno = errno


def _mix(x: int) -> int:
    """splitmix64's finalizer (Steele, Lea and Flood, "Fast splittable pseudorandom generators")."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


@dataclass(frozen=True)
class Entry:
    """A token at its position, and what stands for its K and its V in the simulated model."""

    token: int
    position: int
    key: int
    value: int


class Model:
    """The simulated model: what an entry is computed to, and the best token behind it."""

    def __init__(self, vocab_size: int) -> None:
        self._factors = np.array([_mix(token) | 1 for token in range(vocab_size)], np.uint64)

    def compute(
        self, before: list[Entry], tokens: list[int], positions: list[int], parents: list[int]
    ) -> tuple[list[Entry], list[int]]:
        """Return the new entries behind `before`, and the best token after each of them."""
        keys = sum(entry.key for entry in before)
        values = sum(entry.value for entry in before)
        entries: list[Entry] = []
        best: list[int] = []
        for place, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            key = _mix(token << 32 | position) | 1
            above = list(_ancestors(parents, place))
            seen = keys + sum(entries[i].key for i in above)
            value = _mix(key ^ _mix(seen & _MASK))
            entries.append(Entry(token, position, key, value))
            state = _mix((values + sum(entries[i].value for i in above) + value) & _MASK)
            bits = (np.uint64(state) * self._factors) >> np.uint64(64 - _LOGIT_BITS)
            best.append(int(bits.astype(np.float32).argmax()))
        return entries, best


def _ancestors(parents: list[int], place: int) -> Iterator[int]:
    parent = parents[place]
    while parent >= 0:
        yield parent
        parent = parents[parent]


@dataclass(eq=False)
class Payer:
    """Who pays for pages; what it holds counts in all above it, too."""

    above: "Payer | None"
    pages_max: int
    entries_max: int
    pages: int = 0
    closed: bool = False

    def chain(self) -> Iterator["Payer"]:
        payer: Payer | None = self
        while payer is not None:
            yield payer
            payer = payer.above

    def live(self) -> "Payer":
        return next(payer for payer in self.chain() if not payer.closed)

    def add(self, pages: int) -> None:
        for payer in self.chain():
            payer.pages += pages

    def allow(self, pages: int) -> None:
        if any(payer.pages + pages > payer.pages_max for payer in self.chain()):
            raise RefusedError(Errno.EDQUOT)


@dataclass(eq=False)
class Page:
    payer: Payer
    held: int = 1


@dataclass(eq=False)
class File:
    owner: Payer
    entries: list[Entry] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)
    held: int = 1
    error: Errno | None = None
    path: str = ""

    @property
    def shared(self) -> int:
        return sum(page.held > 1 for page in self.pages)


@dataclass(frozen=True)
class Handle:
    file: File
    rights: int


class Tenant:
    def __init__(self) -> None:
        self.payer = Payer(None, 1 << 60, 1 << 60)
        self.names: dict[str, File] = {}


@dataclass(eq=False)
class Instance:
    tenant: Tenant
    run: Payer
    payer: Payer
    parent: "Instance | None"
    worker: str
    handles: dict[int, Handle] = field(default_factory=dict)
    granted: dict[str, Handle] = field(default_factory=dict)
    family: list["Instance"] = field(default_factory=list)  # live ones of the run, itself included


class Reference:
    """All tenants. Calls return what the kernel should answer, or raise RefusedError."""

    def __init__(self, vocab_size: int) -> None:
        self.model = Model(vocab_size)
        self.tenants: dict[str, Tenant] = {}
        self.instances: dict[int, Instance] = {}
        self.pages: set[Page] = set()

    # -- Instances -------------------------------------------------------------------------------
    def register(
        self, number: int, tenant: str, worker: str, parent: int, entries_max: int
    ) -> None:
        home = self.tenants.setdefault(tenant, Tenant())
        pages_max = -(-entries_max // PAGE_TOKENS)
        above = self.instances[parent] if parent else None
        run = above.run if above else Payer(home.payer, pages_max, entries_max)
        family = above.family if above else []
        made = Instance(home, run, Payer(run, pages_max, entries_max), above, worker, family=family)
        self.instances[number] = made
        family.append(made)

    def end(self, number: int) -> None:
        gone = self.instances.pop(number)
        for handle in (*gone.handles.values(), *gone.granted.values()):
            self.release(handle.file)
        gone.family.remove(gone)
        self._close(gone.payer)
        if not gone.family:
            self._close(gone.run)

    def end_worker(self, worker: str) -> list[int]:
        gone = [number for number, each in self.instances.items() if each.worker == worker]
        for number in gone:
            self.end(number)
        return gone

    def _close(self, payer: Payer) -> None:
        payer.closed = True
        heir = payer.live()
        for page in self.pages:
            if page.payer is payer:
                page.payer = heir
        payer.pages = 0

    # -- Pages -----------------------------------------------------------------------------------
    def _take(self, payer: Payer, n: int) -> list[Page]:
        payer.allow(n)
        payer.add(n)
        made = [Page(payer) for _ in range(n)]
        self.pages.update(made)
        return made

    def _let_go(self, pages: list[Page]) -> None:
        for page in pages:
            page.held -= 1
            if not page.held:
                page.payer.add(-1)
                self.pages.remove(page)

    def release(self, file: File) -> None:
        file.held -= 1
        if not file.held:
            self._let_go(file.pages)
            file.pages, file.entries = [], []

    def _room(self, file: File, n: int) -> None:
        """Make room for n entries: pages of its own behind those it has."""
        if len(file.entries) + n > min(payer.entries_max for payer in file.owner.live().chain()):
            raise RefusedError(Errno.EDQUOT)
        copied = bool(n) and bool(len(file.entries) % PAGE_TOKENS) and file.pages[-1].held > 1
        missing = -(-(len(file.entries) + n) // PAGE_TOKENS) - len(file.pages)
        made = self._take(file.owner.live(), missing + copied)
        if copied:
            self._let_go([file.pages.pop()])
        file.pages += made

    # -- Handles ---------------------------------------------------------------------------------
    def file(self, number: int, handle: int, rights: int = 0) -> File:
        found = self.instances[number].handles.get(handle)
        if found is None:
            raise RefusedError(Errno.EBADF)
        if rights & ~found.rights:
            raise RefusedError(Errno.EACCES)
        return found.file

    @staticmethod
    def content(file: File) -> File:
        if file.error is not None:
            raise RefusedError(file.error)
        return file

    def _new(self, number: int, handle: int, rights: int) -> File:
        caller = self.instances[number]
        file = File(caller.payer)
        caller.handles[handle] = Handle(file, rights)
        return file

    # -- Calls that make a file ------------------------------------------------------------------
    def create(self, number: int, handle: int) -> int:
        self._new(number, handle, ALL_RIGHTS)
        return 0

    def fork(self, number: int, handle: int, source: int) -> int:
        return self._derive(number, handle, source, None)

    def extract(self, number: int, handle: int, source: int, ranges: list[tuple[int, int]]) -> int:
        return self._derive(number, handle, source, ranges)

    def _derive(
        self, number: int, handle: int, source: int, ranges: list[tuple[int, int]] | None
    ) -> int:
        try:
            origin = self.file(number, source, READ)
            if any(end < start for start, end in ranges or []):
                raise RefusedError(Errno.EINVAL)
        except RefusedError as error:
            self._new(number, handle, ALL_RIGHTS).error = error.errno
            raise
        file = self._new(number, handle, self.instances[number].handles[source].rights)
        try:
            if ranges is None:
                self._share(file, self.content(origin))
            else:
                self._append(file, origin, ranges)
        except RefusedError as error:
            file.error = error.errno
            raise
        return 0

    def _share(self, file: File, source: File) -> None:
        file.entries = list(source.entries)
        file.pages = list(source.pages)
        for page in file.pages:
            page.held += 1

    def append(self, number: int, handle: int, source: int, start: int, end: int) -> int:
        file = self.file(number, handle, APPEND)
        try:
            origin = self.file(number, source, READ)
            if end < start:
                raise RefusedError(Errno.EINVAL)
            self._append(file, origin, [(start, end)])
        except RefusedError as error:
            file.error = error.errno
            raise
        return 0

    def _append(self, file: File, source: File, ranges: list[tuple[int, int]]) -> None:
        if any(end > len(self.content(source).entries) for _, end in ranges):
            raise RefusedError(Errno.EINVAL)
        self.content(file)
        chosen = [i for start, end in ranges for i in range(start, end)]
        length = len(file.entries)
        if length + len(chosen) > min(p.entries_max for p in file.owner.live().chain()):
            raise RefusedError(Errno.EDQUOT)
        added = [source.entries[i] for i in chosen]
        head = min(len(chosen), -length % PAGE_TOKENS)
        chunks = [chosen[i : i + PAGE_TOKENS] for i in range(head, len(chosen), PAGE_TOKENS)]
        shared = [
            source.pages[chunk[0] // PAGE_TOKENS] if _lines_up(chunk) else None for chunk in chunks
        ]
        copied = bool(head) and file.pages[-1].held > 1
        fresh = self._take(file.owner.live(), copied + shared.count(None))
        for page in shared:
            if page is not None:
                page.held += 1
        if copied:
            self._let_go([file.pages[-1]])
            file.pages[-1] = fresh.pop()
        file.pages += [page or fresh.pop() for page in shared]
        file.entries += added

    # -- Calls on content ------------------------------------------------------------------------
    def truncate(self, number: int, handle: int, length: int) -> int:
        file = self.content(self.file(number, handle, TRUNCATE))
        if length > len(file.entries):
            raise RefusedError(Errno.EINVAL)
        count = -(-length // PAGE_TOKENS)
        dropped, file.pages = file.pages[count:], file.pages[:count]
        self._let_go(dropped)
        del file.entries[length:]
        return 0

    def length(self, number: int, handle: int) -> int:
        return len(self.content(self.file(number, handle, READ)).entries)

    def stat(self, number: int, handle: int) -> dict[str, int | str]:
        file = self.content(self.file(number, handle, READ))
        return {
            "len": len(file.entries),
            "pages": len(file.pages),
            "shared": file.shared,
            "rights": self.instances[number].handles[handle].rights,
            "path": file.path,
            "cached": 0,  # no script matches or shares
        }

    def tokens(self, number: int, handle: int, start: int, n: int) -> list[int]:
        file = self.content(self.file(number, handle, READ))
        if start + n > len(file.entries):
            raise RefusedError(Errno.EINVAL)
        return [entry.token for entry in file.entries[start : start + n]]

    def pred(
        self,
        number: int,
        handle: int,
        tokens: list[int],
        positions: list[int] | None = None,
        parents: list[int] | None = None,
        keep: bool = True,
    ) -> list[int]:
        """Return the best token after each of the new ones."""
        file = self.content(self.file(number, handle, READ | APPEND))
        length = len(file.entries)
        above = parents or list(range(-1, len(tokens) - 1))
        depths = [len(list(_ancestors(above, place))) for place in range(len(tokens))]
        places = positions or [length + depth for depth in depths]
        state = list(file.pages)
        self._room(file, len(tokens))
        entries, best = self.model.compute(file.entries, tokens, places, above)
        if keep:
            file.entries += entries
        else:  # a shared last page stays replaced, which shows only in the count of pages
            count = -(-length // PAGE_TOKENS)
            dropped, file.pages = file.pages[count:], file.pages[:count]
            self._let_go(dropped)
            assert len(file.pages) == len(state)
        return best

    def generate(
        self, number: int, handle: int, tokens: list[int], most: int
    ) -> tuple[list[int], Errno | None]:
        """Return the tokens given, and the error that ended it."""
        file = self.content(self.file(number, handle, APPEND))
        given: list[int] = []
        new = tokens
        while len(given) < most:
            try:
                self._room(file, len(new))
            except RefusedError as error:
                return given, error.errno
            length = len(file.entries)
            places = list(range(length, length + len(new)))
            above = list(range(-1, len(new) - 1))
            entries, best = self.model.compute(file.entries, new, places, above)
            file.entries += entries
            given.append(best[-1])
            new = [best[-1]]
        return given, None

    def advise(self, number: int, handle: int) -> int:
        self.file(number, handle, READ)
        return 0

    # -- Names -----------------------------------------------------------------------------------
    def save(self, number: int, handle: int, path: str, replace: bool) -> int:
        file = self.content(self.file(number, handle, SAVE))
        tenant = self.instances[number].tenant
        old = tenant.names.get(path)
        if old is not None and not replace:
            raise RefusedError(Errno.EEXIST)
        named = File(tenant.payer, path=path)
        self._share(named, file)
        file.path = path
        tenant.names[path] = named
        if old is not None:
            self.release(old)
        return 0

    def open(self, number: int, handle: int, path: str, rights: int) -> int:
        named = self.instances[number].tenant.names.get(path)
        if named is None:
            raise RefusedError(Errno.ENOENT)
        file = self._new(number, handle, rights)
        self._share(file, named)
        file.path = path
        return rights

    def remove(self, number: int, path: str) -> int:
        named = self.instances[number].tenant.names.pop(path, None)
        if named is None:
            raise RefusedError(Errno.ENOENT)
        self.release(named)
        return 0

    def listing(self, number: int, prefix: str) -> list[tuple[str, int, int]]:
        names = self.instances[number].tenant.names
        return [
            (path, len(file.entries), len(file.pages))
            for path, file in sorted(names.items())
            if path.startswith(prefix)
        ]

    # -- Capabilities ----------------------------------------------------------------------------
    def close(self, number: int, handle: int) -> int:
        self.file(number, handle)
        self.release(self.instances[number].handles.pop(handle).file)
        return 0

    def grant(self, number: int, handle: int, to: int, rights: int, name: str) -> int:
        file = self.file(number, handle, GRANT)
        caller, receiver = self.instances[number], self.instances.get(to)
        if receiver is None or (receiver.parent is not caller and caller.parent is not receiver):
            raise RefusedError(Errno.ENOENT)
        if name in receiver.granted:
            raise RefusedError(Errno.EEXIST)
        held = self.instances[number].handles[handle].rights
        receiver.granted[name] = Handle(file, rights & held)
        file.held += 1
        return 0

    def take_grant(self, number: int, handle: int, name: str) -> int:
        caller = self.instances[number]
        grant = caller.granted.pop(name, None)
        if grant is None:
            raise RefusedError(Errno.ENOENT)
        caller.handles[handle] = grant
        return grant.rights


def _lines_up(chunk: list[int]) -> bool:
    return chunk[0] % PAGE_TOKENS == 0 and chunk == list(range(chunk[0], chunk[0] + len(chunk)))
