"""Programs: uploaded modules and sources, their names, and the machine code made of modules.

A reference is an id, a name, or a version of a name: `name@` with a digest or its first digits.

Files are on disk (`files`), separate for each tenant: another tenant's upload of the same bytes
must not show, not even in the time of an upload. An artefact is loaded only if its SHA-256 is the
one in the database, so that the server runs only machine code that it made. A missing, stale or
altered artefact is compiled again from the bytes. A source program has none of its own: the module
of its language runs it (`languages`).
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from symphony_kernel.protocol.limits import (
    FRAME_BYTES_MAX,
    NAME_BYTES_MAX,
    PROGRAM_BYTES_MAX,
    RETRY_SECONDS_MAX,
)

from symphony_runtime.compiler.compiler import (
    TAKEN_BEFORE,
    USUAL,
    CompileBounds,
    Compiled,
    Compiler,
    Manifest,
    ProgramError,
    SourceJob,
    limit_of_problem,
)
from symphony_runtime.engine.settings import cache_identity
from symphony_runtime.gateway.admission.tenant_lock import TenantLocks
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.errors import Problem, bad_request, not_found, parse_cursor, too_large
from symphony_runtime.gateway.metrics.counters import RunMetrics
from symphony_runtime.gateway.programs.files import ProgramFiles
from symphony_runtime.gateway.programs.languages import LanguageModules
from symphony_runtime.gateway.programs.program import Program
from symphony_runtime.gateway.programs.shipped import OWNER, CodeCache, ShippedPrograms
from symphony_runtime.gateway.programs.usage import ProgramUsage
from symphony_runtime.gateway.programs.versions import (
    count_unneeded,
    delete_rows,
    drop_oldest,
    drop_unneeded,
    drop_version,
    find_version,
    list_versions,
    point_name,
)
from symphony_runtime.gateway.storage.changes import note_change
from symphony_runtime.gateway.storage.database import Connection, Row
from symphony_runtime.gateway.storage.deletion_steps import delete_in_steps, delete_some
from symphony_runtime.gateway.storage.disk_budget import ROW_BYTES
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.languages.language import SHIPPED, WASM, Language
from symphony_runtime.languages.source import unpack_source

__all__ = [
    "OWNER", "Program", "ProgramQuota", "Programs", "Version", "check_name", "count_refusals",
    "digest_of",
]  # fmt: skip

_log = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_KNOWN_MAX = 4_096  # programs in memory
_ARTEFACT_BYTES_MAX = FRAME_BYTES_MAX - (1 << 20)  # it travels in one frame
# A tenant's tables: the key of a row, and the columns of unbounded size.
_TABLES = {
    "program_names": ("name",),
    "program_versions": ("name",),
    "programs": ("id", "imports", "exports", "entries", "manifest"),
    "program_bytes": ("id", "body"),
}


@dataclass(frozen=True, slots=True)
class Version:
    """A program that a name points at, or has pointed at."""

    program: Program  # with this name
    current: bool  # the name points at it
    added_ms: int  # when it was last uploaded under the name
    used_ms: int | None
    runs: int  # that have ended, under any name
    errors: int  # those that a fault or a limit has ended

    def view(self) -> dict[str, Any]:
        return {
            **self.program.view(),
            "current": self.current,
            "added_ms": self.added_ms,
            "used_ms": self.used_ms,
            "runs": self.runs,
            "errors": self.errors,
        }


@dataclass(frozen=True, slots=True)
class ProgramQuota:
    """How many programs a tenant may keep."""

    programs: int  # and also the most names
    bytes: int  # of their modules
    versions: int  # of each name

    @classmethod
    def of(cls, at_most: Callable[[str], int]) -> "ProgramQuota":
        """Return the quota of a tenant's limits."""
        limits = ("programs", "programs_kept_bytes", "program_versions")
        return cls(*map(at_most, limits))


class Programs:
    """The programs of all tenants."""

    def __init__(
        self,
        store: Store,
        data_dir: Path,
        compiler: Compiler,
        languages: Iterable[Language] = SHIPPED,
    ) -> None:
        self.shipped = ShippedPrograms(compiler, CodeCache(data_dir / "compiled"))
        self.languages = LanguageModules(self.shipped, languages)
        self.program_usage = ProgramUsage(store, now_ms)
        self.on_deleted: Callable[[str, str], None] = lambda _tenant, _program: None
        self._store = store
        self._files = ProgramFiles(data_dir / "programs")
        self._compiler = compiler
        self._loading: dict[str, asyncio.Task[bytes]] = {}
        self._known: dict[tuple[str, str], Program] = {}  # by id and by name
        self._changes = 0
        self._change_locks = TenantLocks()  # a tenant's files and rows change together
        self._tenant_locks = TenantLocks()  # for compilations
        self._compiling: dict[str, set[asyncio.Future[Compiled]]] = {}  # by tenant
        self._forgotten: Counter[str] = Counter()  # number of `forget_tenant` by tenant
        for tenant in self._files.tenants():
            store.disk.charge(tenant, self._files.size(tenant))

    async def upload(
        self,
        tenant: str,
        name: str | None,
        wasm: bytes,
        bounds: CompileBounds = USUAL,
        quota: ProgramQuota | None = None,
    ) -> tuple[Program, bool]:
        """Check, compile and store a program; True if its bytes are new.

        `wasm` is a module, or a source as `pack_source` returns it.

        Raises Problem: 400 with every problem of the program, 413 too large; 429, over the `quota`;
        429, 507: no disk space.
        """
        if name is not None:
            check_name(name)
        if len(wasm) > PROGRAM_BYTES_MAX:
            raise too_large("a program", PROGRAM_BYTES_MAX)
        forgotten, digest = self._forgotten[tenant], _digest(await digest_of(wasm))
        program_id = f"sha256:{digest}"
        known = await self.find(tenant, program_id)
        new = 0 if known is not None else len(wasm)
        await self._check_quota(tenant, name, new, quota)
        self._store.disk.check(tenant, new or ROW_BYTES)
        compiled = None if known is not None else await self._compile(tenant, wasm, bounds)
        async with self._change_locks.of(tenant):
            if self._forgotten[tenant] != forgotten:
                raise not_found("tenant", tenant)  # deleted meanwhile
            if compiled is not None:
                await self._make_room(tenant, name, new, quota)
                await self._write_files(tenant, digest, wasm, compiled.artefact)
                await self._share(tenant, digest, wasm)
                await self._insert(tenant, digest, wasm, compiled)
            exists = compiled is not None or await self._touch(tenant, program_id)
            if exists and compiled is None:
                restore = partial(self._files.restore, tenant, digest, wasm)
                await self._change_files(tenant, digest, restore)
            if exists and name is not None:
                exists = await self._point(tenant, name, program_id, quota, uploaded=True)
        if not exists:  # it was deleted meanwhile
            return await self.upload(tenant, name, wasm, bounds, quota)
        return await self.get(tenant, program_id), known is None

    async def get(self, tenant: str, reference: str) -> Program:
        """Return a program by a reference; Problem 404."""
        program = await self.find(tenant, reference)
        if program is None:
            raise not_found("program", reference)
        return program

    async def find(self, tenant: str, reference: str) -> Program | None:
        known = self._known.get((tenant, reference))
        if known is not None:
            return known
        if not reference.isascii():
            return None  # ids and names are ASCII; the database refuses lone surrogates
        changes = self._changes
        program = await self._read(tenant, reference)
        # A row read during a change may be stale.
        if program is not None and changes == self._changes:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[tenant, reference] = program
        return program

    async def _read(self, tenant: str, reference: str) -> Program | None:
        name, at, version = reference.partition("@")
        which, values = "?", [tenant, reference]
        if not reference.startswith("sha256:"):
            which = "(SELECT program FROM program_names WHERE tenant = ? AND name = ?)"
            values = [tenant, *values]
        sql = f"{_SELECT} WHERE p.tenant = ? AND p.id = {which}"

        def select(connection: Connection) -> Row | None:
            if at:
                return find_version(connection, tenant, name, version)
            row: Row | None = connection.execute(sql, values).fetchone()
            return row

        row = await self._store.read(select)
        if row is None or reference.startswith("sha256:"):
            return _program(row) if row else None
        return replace(_program(row), name=name)  # its runs are that name's

    async def page(
        self, tenant: str, after: str, limit: int, *, unnamed: bool = False
    ) -> tuple[list[Program], str | None]:
        """Return a page of a tenant's programs, newest first, and the next page's cursor.

        `unnamed`: only those that are no version of a name.
        """
        before = parse_cursor(after) if after else (1 << 62, "")
        which = _UNNAMED if unnamed else ""

        def select(connection: Connection) -> list[Row]:
            return connection.execute(
                f"{_SELECT} WHERE p.tenant = ? AND (p.created_ms, p.id) < (?, ?){which}"
                " ORDER BY p.created_ms DESC, p.id DESC LIMIT ?",
                (tenant, *before, limit + 1),
            ).fetchall()

        rows = await self._store.read(select)
        programs = [_program(row) for row in rows[:limit]]
        last = programs[-1] if len(rows) > limit else None
        return programs, f"{last.created_ms}.{last.id}" if last else None

    async def named(
        self, tenant: str, after: str, limit: int
    ) -> tuple[list[tuple[str, Program]], str | None]:
        """Return a page of a tenant's names with their programs, and the next page's cursor."""
        sql = (
            "SELECT p.*, n.name AS name FROM program_names n"
            " JOIN programs p ON p.tenant = n.tenant AND p.id = n.program"
            " WHERE n.tenant = ? AND n.name > ? ORDER BY n.name LIMIT ?"
        )
        values = (tenant, after, limit + 1)
        rows = await self._store.read(lambda c: c.execute(sql, values).fetchall())
        found = [(str(row["name"]), _program(row)) for row in rows[:limit]]
        return found, found[-1][0] if len(rows) > limit else None

    async def delete(self, tenant: str, reference: str) -> Program:
        """Delete a program and its names, not its live runs; return it. Problem 404."""
        program = await self.get(tenant, reference)
        async with self._change_locks.of(tenant):
            await self._store.write(lambda c: _delete_program(c, program))
            await self._forget_deleted(tenant, program.id)
        return program

    # -- Versions ------------------------------------------------------------------------------
    async def versions(self, tenant: str, name: str) -> list[Version]:
        """Return the versions of a name, the newest first; Problem 404."""
        with contextlib.suppress(*self._store.errors):  # the counts are older then
            await self.program_usage.flush()
        rows = await self._store.read(lambda c: list_versions(c, tenant, name))
        if not rows:
            raise not_found("program", name)
        return [_version(row) for row in rows]

    async def point(
        self, tenant: str, name: str, reference: str, quota: ProgramQuota | None = None
    ) -> Program:
        """Point a name, maybe a new one, at a program; return it. Problem 400, 404, 429."""
        check_name(name)
        program = await self.get(tenant, reference)
        await self._check_quota(tenant, name, 0, quota)
        async with self._change_locks.of(tenant):
            if not await self._point(tenant, name, program.id, quota, uploaded=False):
                self._forget_known()  # another gateway has deleted it
                raise not_found("program", reference)
        return await self.get(tenant, name)

    async def delete_version(self, tenant: str, name: str, version: str) -> None:
        """Drop a version of a name, and the program if no other name has it.

        Raises Problem: 404; 409, the name points at it.
        """
        program = await self.get(tenant, f"{name}@{version}")
        async with self._change_locks.of(tenant):
            drop = partial(drop_version, tenant=tenant, name=name, program=program.id)
            gone = await self._store.write(drop)
            if gone is None:
                detail = f"{name} points at this version: point it at another one first"
                raise Problem(409, "version-in-use", detail)
            await self._forget_dropped(tenant, program.id, gone=gone)

    async def delete_name(self, tenant: str, name: str) -> None:
        """Delete a name with its versions, and the programs that no other name has; Problem 404."""
        versions = await self.versions(tenant, name)
        sql = "DELETE FROM program_names WHERE tenant = ? AND name = ?"
        async with self._change_locks.of(tenant):
            await self._store.write(lambda c: _changing(c, sql, (tenant, name)))
            for version in versions:
                drop = partial(drop_version, tenant=tenant, name=name, program=version.program.id)
                gone = await self._store.write(drop) or False
                await self._forget_dropped(tenant, version.program.id, gone=gone)

    async def _point(
        self, tenant: str, name: str, program: str, quota: ProgramQuota | None, *, uploaded: bool
    ) -> bool:
        """Point a name at a program, and drop the versions past the limit; False: it is gone."""
        now = self.program_usage.now_ms()
        point = partial(
            point_name, tenant=tenant, name=name, program=program, now_ms=now, uploaded=uploaded
        )
        pointed = await self._store.write(point, tenant)
        self._forget_known()
        if not pointed:
            return False
        if quota is not None:
            oldest = partial(drop_oldest, tenant=tenant, name=name, most=quota.versions)
            while dropped := await self._store.write(oldest):
                program, gone = dropped
                await self._forget_dropped(tenant, program, gone=gone)
        return True

    async def _make_room(
        self, tenant: str, name: str | None, new: int, quota: ProgramQuota | None
    ) -> None:
        """Drop older versions until a new program fits into the quota; Problem 429."""
        await self._check_quota(tenant, name, new, quota)
        while quota is not None:
            programs, size, names = await self._store.read(lambda c: _kept(c, tenant, name))
            full = _over(quota, None, new, programs, size, names)
            if full is None:
                return
            dropped = await self._store.write(partial(drop_unneeded, tenant=tenant))
            if dropped is None:
                raise full
            await self._forget_dropped(tenant, dropped, gone=True)

    async def _forget_dropped(self, tenant: str, program: str, *, gone: bool) -> None:
        self._forget_known()
        if gone:
            await self._forget_deleted(tenant, program)

    # -- Deletion ------------------------------------------------------------------------------
    async def delete_unused(self, tenant: str, program_id: str, before_ms: int) -> Program | None:
        """Delete a program; None: it was used after `before_ms`, or is gone."""
        program = await self.find(tenant, program_id)
        if program is None:
            return None
        await self.program_usage.flush()
        async with self._change_locks.of(tenant):
            if not await self._store.write(lambda c: _delete_program(c, program, before_ms)):
                return None
            await self._forget_deleted(tenant, program.id)
        return program

    async def _forget_deleted(self, tenant: str, program: str) -> None:
        self._forget_known()
        self.program_usage.forget(tenant, program)
        if tenant != OWNER:  # earlier servers had rows of what ships with them: that stays loaded
            self.on_deleted(tenant, program)
        await self._remove_files(tenant, _digest(program))

    def cancel_compilations(self, tenant: str) -> None:
        """Cancel a tenant's compilations: their uploads fail with 404."""
        for compiling in self._compiling.get(tenant, ()):
            compiling.cancel()

    async def forget_tenant(self, tenant: str, *, rows: bool = True) -> None:
        """Delete a tenant's programs, names and files; no upload may follow.

        Without `rows` only this gateway's memory and files: a new tenant has the name already.
        OSError: files are left.
        """
        self.cancel_compilations(tenant)
        async with self._change_locks.of(tenant):
            self._forgotten[tenant] += 1
            if rows:
                for table, (key, *large) in _TABLES.items():
                    step = partial(delete_some, tenant=tenant, table=table, key=key, large=large)
                    await delete_in_steps(self._store, step)
                await self._store.write(note_change)
            self._forget_known()
            size = await asyncio.to_thread(self._files.size, tenant)
            await asyncio.to_thread(self._files.remove_tenant, tenant)
            self._store.disk.charge(tenant, -size)

    async def remove_strays(self) -> int:
        """Remove files of programs that another gateway deleted; return how many programs."""
        removed = 0
        for tenant in await asyncio.to_thread(self._files.tenants):
            async with self._change_locks.of(tenant):  # no file precedes its row
                kept = await self._store.read(partial(_digests, tenant=tenant))
                for digest in await asyncio.to_thread(self._files.digests, tenant) - kept:
                    await self._remove_files(tenant, digest)
                    removed += 1
        return removed

    async def artefact(self, program: Program) -> bytes:
        """Return the machine code of a program, compiled again if none matches; or its source.

        Raises Problem: 404, its bytes are gone (it was deleted); 400, this compiler refuses what an
        earlier one accepted; 500, the bytes are damaged.
        """
        if program.tenant == OWNER:
            return await self.shipped.artefact(program)
        task = self._loading.get(program.module)
        if task is None:
            task = asyncio.create_task(self._load(program))
            self._loading[program.module] = task
            task.add_done_callback(lambda _: self._loading.pop(program.module, None))
        return await asyncio.shield(task)

    def _forget_known(self) -> None:
        self._changes += 1
        self._known.clear()

    # -- Artefacts -----------------------------------------------------------------------------
    async def _load(self, program: Program) -> bytes:
        if program.language != WASM:
            source = unpack_source(await self._wasm(program))
            assert source is not None, program
            return source.text
        sql, key = (
            "SELECT * FROM programs WHERE tenant = ? AND id = ?",
            (program.tenant, program.id),
        )
        row = await self._store.read(lambda c: c.execute(sql, key).fetchone())
        artefact = None
        if row is not None and row["compiler"] == cache_identity():
            wanted, digest = bytes(row["artefact_hash"]), _digest(program.id)
            read = partial(self._files.artefact, program.tenant, digest, wanted)
            artefact = await asyncio.to_thread(read)
        return await self._compile_again(program) if artefact is None else artefact

    async def _compile_again(self, program: Program) -> bytes:
        digest = _digest(program.id)
        wasm = await self._wasm(program)
        compiled = await self._compile(program.tenant, wasm, TAKEN_BEFORE)
        async with self._change_locks.of(program.tenant):
            if await self.find(program.tenant, program.id) is None:
                raise not_found("program", program.id)
            await self._write_files(program.tenant, digest, wasm, compiled.artefact)
            await self._insert(program.tenant, digest, wasm, compiled, program.created_ms)
        return compiled.artefact

    async def _write_files(self, tenant: str, digest: str, wasm: bytes, artefact: bytes) -> None:
        """Write a program's files and charge its tenant; Problem 429, 507; OSError."""
        self._store.disk.check(tenant, len(wasm) + len(artefact))
        write = partial(self._files.write, tenant, digest, wasm, artefact)
        await self._change_files(tenant, digest, write)

    async def _remove_files(self, tenant: str, digest: str) -> None:
        await self._change_files(tenant, digest, partial(self._files.remove, tenant, digest))

    async def _change_files(self, tenant: str, digest: str, change: Callable[[], None]) -> None:
        """Change a program's files and charge the difference to its tenant. OSError."""
        before = await asyncio.to_thread(self._files.size, tenant, digest)
        try:
            await asyncio.to_thread(change)
        finally:
            after = await asyncio.to_thread(self._files.size, tenant, digest)
            self._store.disk.charge(tenant, after - before)

    async def _compile(self, tenant: str, wasm: bytes, bounds: CompileBounds) -> Compiled:
        """Compile while holding the tenant's lock.

        Raises Problem: 400; 404, all of the tenant's programs were forgotten meanwhile.
        """

        source = unpack_source(wasm)
        module: bytes | None = None
        if source is not None:
            language = self.languages.language(source.language)
            module = await self.languages.module(language.name).artefact()

        async def compile_locked() -> Compiled:
            async with self._tenant_locks.of(tenant):
                if source is None or module is None:
                    return await self._compiler.compile(wasm, bounds, tenant)
                job = SourceJob(source.text, module, language.comment)
                return await self._compiler.compile(job, bounds, tenant)

        work = asyncio.ensure_future(compile_locked())
        under_way = self._compiling.setdefault(tenant, set())
        under_way.add(work)
        try:
            await asyncio.wait([work])
        finally:
            work.cancel()  # if the caller was cancelled
            under_way.discard(work)
            if not under_way and self._compiling.get(tenant) is under_way:
                del self._compiling[tenant]
        if work.cancelled():
            raise not_found("tenant", tenant)
        try:
            compiled = work.result()
        except ProgramError as error:  # in `_compile_again`: an older compiler accepted it
            raise _refusal(error.problems) from error
        if len(compiled.artefact) > _ARTEFACT_BYTES_MAX:
            limit = _ARTEFACT_BYTES_MAX >> 20
            raise _refusal([f"its machine code has more than {limit} MiB"])
        return compiled

    async def _wasm(self, program: Program) -> bytes:
        """Return a program's bytes, maybe uploaded at another gateway; Problem 404, 500."""
        key, wasm = (program.tenant, program.id), None
        try:
            wasm = await asyncio.to_thread(self._files.wasm, program.tenant, _digest(program.id))
        except FileNotFoundError:
            _log.info("%s is not on this disk", program.module)
        if wasm is not None and await digest_of(wasm) == program.id:
            return wasm
        sql = "SELECT body FROM program_bytes WHERE tenant = ? AND id = ?"
        row = await self._store.read(lambda c: c.execute(sql, key).fetchone())
        if row is not None:
            return bytes(row["body"])
        if wasm is None:
            raise not_found("program", program.id)
        _log.error("the file of %s is damaged", program.module)
        raise Problem(
            500, "damaged", "the program's file is damaged on the server: upload it again"
        )

    async def reload(self) -> None:
        """Forget what is in memory: another gateway changed something."""
        self._forget_known()

    # -- The database --------------------------------------------------------------------------
    async def _check_quota(
        self, tenant: str, name: str | None, new: int, quota: ProgramQuota | None
    ) -> None:
        """Check a tenant's quota for `new` bytes (0: no module) and a name; Problem 429.

        Older versions do not count: they make room.
        """
        if quota is None:
            return
        programs, size, names = await self._store.read(lambda c: _kept(c, tenant, name))
        if _over(quota, name, new, programs, size, names) is None:
            return
        if full := _over(quota, name, new, 0, 0, names):  # no older version makes room for that
            raise full
        older, older_size = await self._store.read(lambda c: count_unneeded(c, tenant))
        full = _over(quota, name, new, programs - older, size - older_size, names)
        if full is not None:
            raise full

    async def _share(self, tenant: str, digest: str, wasm: bytes) -> None:
        """Store a program's bytes for other gateways."""
        if self._store.shared:
            sql = "INSERT INTO program_bytes VALUES (?, ?, ?) ON CONFLICT (tenant, id) DO NOTHING"
            key = tenant, f"sha256:{digest}", wasm
            await self._store.write(lambda c: c.execute(sql, key).rowcount, tenant)

    async def _insert(
        self,
        tenant: str,
        digest: str,
        body: bytes,
        compiled: Compiled,
        created_ms: int | None = None,
    ) -> None:
        manifest, source = compiled.manifest, unpack_source(body)
        values = (
            tenant,
            f"sha256:{digest}",
            len(body if source is None else source.text),
            json.dumps(manifest.imports),
            json.dumps(manifest.exports),
            json.dumps(manifest.entries),
            cache_identity(),
            hashlib.sha256(compiled.artefact).digest(),
            self.program_usage.now_ms() if created_ms is None else created_ms,
            self.program_usage.now_ms(),
            manifest.declared,
            WASM if source is None else source.language,
        )
        # Two uploads of the same bytes at once: the second updates the row of the first.
        sql = (
            "INSERT INTO programs (tenant, id, size, imports, exports, entries, compiler,"
            " artefact_hash, created_ms, used_ms, manifest, language)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (tenant, id) DO UPDATE SET size = excluded.size,"
            " imports = excluded.imports, exports = excluded.exports, entries = excluded.entries,"
            " compiler = excluded.compiler, artefact_hash = excluded.artefact_hash,"
            " created_ms = excluded.created_ms, used_ms = excluded.used_ms,"
            " manifest = excluded.manifest"
        )
        await self._store.write(lambda c: _changing(c, sql, values), tenant)
        self._forget_known()

    async def _touch(self, tenant: str, program: str) -> bool:
        """Note an upload of known bytes; return whether the program still exists."""
        sql = "UPDATE programs SET used_ms = ? WHERE tenant = ? AND id = ?"
        values = self.program_usage.now_ms(), tenant, program
        exists = await self._store.write(lambda c: c.execute(sql, values).rowcount, tenant)
        if not exists:
            self._forget_known()  # another gateway has deleted it
        return bool(exists)


_SELECT = """SELECT p.*, (
    SELECT n.name FROM program_names n WHERE n.tenant = p.tenant AND n.program = p.id
    ORDER BY n.turn DESC LIMIT 1 -- the newest one
) AS name FROM programs p"""
_UNNAMED = (
    " AND NOT EXISTS (SELECT 1 FROM program_versions v"
    " WHERE v.tenant = p.tenant AND v.program = p.id)"
)


async def digest_of(wasm: bytes) -> str:
    return f"sha256:{await asyncio.to_thread(lambda: hashlib.sha256(wasm).hexdigest())}"


def check_name(name: str) -> None:
    """Check a program's name; Problem 400."""
    if not _NAME.match(name) or len(name) > NAME_BYTES_MAX:
        raise bad_request(
            "bad-name",
            f"a program's name has 1 to {NAME_BYTES_MAX} letters, digits, dots, underscores and "
            "hyphens, a letter or digit first",
        )


@contextlib.contextmanager
def count_refusals(metrics: RunMetrics, tenant: str) -> Iterator[None]:
    """Count the limit if a tenant's program is refused for one."""
    try:
        yield
    except Problem as problem:
        if problem.status == 413:
            metrics.count_limit(tenant, "program_bytes")
        elif problem.kind == "too-many-programs":
            metrics.count_limit(tenant, problem.fields["field"])
        for limit in {limit_of_problem(words) for words in problem.fields.get("problems", ())}:
            if limit is not None:
                metrics.count_limit(tenant, limit)
        raise


def _refusal(problems: list[str]) -> Problem:
    return bad_request("program-refused", "; ".join(problems), problems=problems)


def _over(
    quota: ProgramQuota, name: str | None, new: int, programs: int, size: int, names: int
) -> Problem | None:
    """Return the problem if a tenant with this much may not keep `new` bytes, or a name, more."""
    if (new and programs >= quota.programs) or (name is not None and names >= quota.programs):
        return _full("programs", f"{quota.programs} programs, or names of them", quota.programs)
    if new and size + new > quota.bytes:
        return _full("programs_kept_bytes", f"{quota.bytes} bytes of programs", quota.bytes)
    return None


def _full(limit: str, what: str, most: int) -> Problem:
    detail = f"the tenant may keep {what}: delete some"
    # Only a deletion frees some of the quota.
    return Problem(
        429, "too-many-programs", detail, retry_after=RETRY_SECONDS_MAX, field=limit, limit=most
    )


def _program(row: Row) -> Program:
    columns = ("imports", "exports", "entries")
    imports, exports, entries = (tuple(json.loads(row[column])) for column in columns)
    return Program(
        tenant=row["tenant"],
        id=row["id"],
        name=row["name"],
        size=row["size"],
        manifest=Manifest(imports, exports, entries, row["manifest"]),
        created_ms=row["created_ms"],
        language=row["language"],
    )


def _version(row: Row) -> Version:
    counts = (row["used_ms"], row["runs"], row["errors"])
    return Version(_program(row), bool(row["current"]), row["added_ms"], *counts)


def _changing(connection: Connection, sql: str, values: tuple[Any, ...]) -> None:
    connection.execute(sql, values)
    note_change(connection)


def _delete_program(connection: Connection, program: Program, before_ms: int | None = None) -> bool:
    """Delete a program with its names, unless it was used after `before_ms`."""
    key = (program.tenant, program.id)
    if before_ms is None:
        gone = connection.execute("DELETE FROM programs WHERE tenant = ? AND id = ?", key)
    else:
        sql = "DELETE FROM programs WHERE tenant = ? AND id = ? AND used_ms <= ?"
        gone = connection.execute(sql, (*key, before_ms))
    if not gone.rowcount:
        return False
    delete_rows(connection, *key)
    note_change(connection)
    return True


def _digests(connection: Connection, tenant: str) -> set[str]:
    rows = connection.execute("SELECT id FROM programs WHERE tenant = ?", (tenant,))
    return {_digest(row["id"]) for row in rows}


def _kept(connection: Connection, tenant: str, name: str | None) -> tuple[int, int, int]:
    """Return a tenant's programs, their bytes, and its names except `name`."""
    sql = "SELECT COUNT(*), COALESCE(SUM(size), 0) FROM programs WHERE tenant = ?"
    programs, size = connection.execute(sql, (tenant,)).fetchone()
    sql = "SELECT COUNT(*) FROM program_names WHERE tenant = ? AND name != ?"
    (names,) = connection.execute(sql, (tenant, name or "")).fetchone()
    return int(programs), int(size), int(names)


def _digest(program_id: str) -> str:
    return program_id.removeprefix("sha256:")
