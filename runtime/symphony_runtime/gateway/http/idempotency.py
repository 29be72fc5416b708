"""Requests with the header `Idempotency-Key` take effect once; a repeated one gets the same answer.

    claim    the tenant's key, with the digest of its request and the id of the outcome, is on disk
             before anything begins
    act      the run, or the upload, gets that id
    note     the claim is marked as done

A gateway that dies between claim and act starts anew under the same id. One that dies later finds
the outcome. A request that fails frees its key. Keys are kept for a day, as digests, and each
tenant's are counted as they come and go.

If two gateways with one database get the same key, one claims it. The other waits until the claim
is done or free, or until the claiming gateway has restarted or was dropped.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from aiohttp import web
from symphony_kernel.protocol.limits import (
    IDEMPOTENCY_ELSEWHERE_SECONDS_MAX,
    IDEMPOTENCY_KEY_BYTES_MAX,
    IDEMPOTENCY_SECONDS,
    TENANT_IDEMPOTENCY_KEYS_MAX,
)

from symphony_runtime.gateway.admission.retry_estimates import retry_after
from symphony_runtime.gateway.cluster.members import is_there
from symphony_runtime.gateway.errors import Problem, bad_request
from symphony_runtime.gateway.runs.live_run import Run, new_run_id
from symphony_runtime.gateway.runs.record import Record
from symphony_runtime.gateway.runs.service import Runs
from symphony_runtime.gateway.storage.database import Connection, StorageError
from symphony_runtime.gateway.storage.deletion_steps import STEP_ROWS, delete_in_steps
from symphony_runtime.gateway.storage.store import Store

_log = logging.getLogger(__name__)
_PURGE_SECONDS = 600.0
_CLAIM_PURGE_KEYS = 100  # old keys that a new one deletes
_LOOK_SECONDS = 0.05, 1.0  # between looks at another gateway's claim: first and longest
_KEPT_MS = 1000 * IDEMPOTENCY_SECONDS
HEADER = "Idempotency-Key"
REPLAYED = {"Idempotent-Replayed": "true"}  # headers of a repeated answer


@dataclass(frozen=True, slots=True)
class KeyedRequest:
    """A request that takes effect once."""

    tenant: str
    key: bytes  # SHA-256 of the header
    digest: bytes  # SHA-256 of the request


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim of a key. `known`: an earlier request made it.

    `elsewhere`: another gateway works on it.
    """

    digest: bytes
    outcome: str
    done: bool = False
    known: bool = True
    elsewhere: bool = False


Act = Callable[[str, bool], Awaitable[None]]
Start = Callable[[str | None], Awaitable[Run]]  # with the id that the run is to have


def read_idempotency_key(
    request: web.Request, tenant: str, body: bytes, *aside: str
) -> KeyedRequest | None:
    """Return the key and the digest of a request, None if it has no key.

    The digest covers method, path, query and body, without the parameters `aside`.

    Raises Problem: 400, the header is malformed.
    """
    values = request.headers.getall(HEADER, [])
    if not values:
        return None
    key = values[0]
    good = key.isascii() and key.isprintable() and 0 < len(key) <= IDEMPOTENCY_KEY_BYTES_MAX
    if len(values) > 1 or not good:
        detail = f"{HEADER} is one text of 1 to {IDEMPOTENCY_KEY_BYTES_MAX} printable characters"
        raise bad_request("bad-idempotency-key", detail)
    query = sorted((name, value) for name, value in request.query.items() if name not in aside)
    digest = hashlib.sha256(repr((request.method, request.path, query)).encode())
    digest.update(body)
    return KeyedRequest(tenant, hashlib.sha256(key.encode()).digest(), digest.digest())


class Idempotency:
    """The keys of all tenants. Belongs to the event loop."""

    def __init__(self, store: Store, now_ms: Callable[[], int], boot: int) -> None:
        """`boot` is the number of this gateway's start."""
        self._store = store
        self._now_ms = now_ms
        self._boot = boot
        self._under_way: dict[tuple[str, bytes], tuple[bytes, asyncio.Future[str]]] = {}
        self._noting: set[asyncio.Task[None]] = set()  # notes that could not be stored at once

    async def perform(self, once: KeyedRequest, outcome: str, act: Act) -> tuple[str, bool]:
        """Act unless an earlier request did; return the id of the outcome, and whether it did.

        `act` gets that id, and whether the outcome may exist already. A repeated request waits
        for the first one, and shares its failure.

        Raises Problem: 422, the key is of another request; 429, the tenant has too many keys.
        """
        mark = once.tenant, once.key
        joined = self._under_way.get(mark)
        if joined is not None:
            digest, result = joined
            _check(once, digest)
            return await asyncio.shield(result), True
        result = asyncio.get_running_loop().create_future()
        self._under_way[mark] = once.digest, result
        try:
            found, was_done = await self._perform(once, outcome, act)
        except BaseException as error:
            result.set_exception(_for_others(error))
            result.exception()  # there may be no other request that takes it
            raise
        finally:
            del self._under_way[mark]
        result.set_result(found)
        return found, was_done

    async def run(self) -> None:
        """Delete old keys every 10 minutes, until cancelled."""
        while True:
            await asyncio.sleep(_PURGE_SECONDS)
            try:
                await self.purge()
            except self._store.errors:
                _log.exception("old keys of requests could not be deleted")

    async def purge(self) -> int:
        """Delete old keys in steps; return how many."""
        before = self._now_ms() - _KEPT_MS
        return await delete_in_steps(self._store, lambda c: _purge(c, before))

    async def forget_tenant(self, tenant: str) -> None:
        """Delete all keys of a tenant that makes no requests."""
        await delete_in_steps(
            self._store, lambda c: _forget_old(c, tenant, self._now_ms(), STEP_ROWS)
        )

    async def _perform(self, once: KeyedRequest, outcome: str, act: Act) -> tuple[str, bool]:
        claim = await self._claim(once, outcome)
        if claim.done:
            return claim.outcome, True
        try:
            if not claim.known:  # a repeated answer is given even on a full disk
                self._store.disk.check(once.tenant)
            await act(claim.outcome, claim.known)
        except BaseException:
            # If that cannot be stored the claim stays ours: the next request of the key continues.
            with contextlib.suppress(StorageError):
                await self._store.write(lambda c: _forget(c, once, self._boot), once.tenant)
            raise
        # After everything that `act` has stored, so that no note is of a missing outcome.
        note = partial(_note, once=once)
        try:
            await self._store.write(note, once.tenant)
        except StorageError:  # the outcome and the claim with its id are stored
            task = asyncio.create_task(self._store.write_until_stored(note, once.tenant))
            self._noting.add(task)
            task.add_done_callback(self._noting.discard)
        return claim.outcome, False

    def _claim_now(
        self, once: KeyedRequest, outcome: str, now_ms: int, connection: Connection
    ) -> _Claim | int | None:
        """Claim a key, in the store's thread; the oldest key's time if there are too many."""
        _forget_old(connection, once.tenant, now_ms - _KEPT_MS, _CLAIM_PURGE_KEYS)
        if _insert(connection, once, outcome, now_ms, self._boot):
            if _count(connection, once.tenant, 1) <= TENANT_IDEMPOTENCY_KEYS_MAX:
                return _Claim(once.digest, outcome, known=False)
            _forget(connection, once, self._boot)
            return _oldest(connection, once.tenant)
        return _known(connection, once, outcome, now_ms, self._boot)

    async def _claim(self, once: KeyedRequest, outcome: str) -> _Claim:
        """Return the claim of a key, once no other gateway works on it.

        Raises Problem: 409, another gateway works on it for too long; 422, 429 as `perform`.
        """
        loop = asyncio.get_running_loop()
        until, (pause, pause_max) = loop.time() + IDEMPOTENCY_ELSEWHERE_SECONDS_MAX, _LOOK_SECONDS
        while True:
            now = self._now_ms()
            claim_now = partial(self._claim_now, once, outcome, now)
            claim = await self._store.write(claim_now, once.tenant)
            if isinstance(claim, int):
                detail = (
                    f"the tenant has used {TENANT_IDEMPOTENCY_KEYS_MAX} keys in a day, its limit"
                )
                seconds = (claim + _KEPT_MS - now) / 1000
                raise Problem(429, "too-many-keys", detail, retry_after=retry_after(seconds))
            if claim is not None:
                _check(once, claim.digest)
                if not claim.elsewhere:
                    return claim
            if loop.time() >= until:
                raise _under_way("another gateway handles the first request of this key; try again")
            await asyncio.sleep(pause)
            pause = min(2 * pause, pause_max)


def _check(once: KeyedRequest, digest: bytes) -> None:
    if digest != once.digest:
        detail = f"this {HEADER} was used for another request: method, path, query or body differ"
        raise Problem(422, "idempotency-key-reused", detail)


def _for_others(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    return _under_way("the first request of this key was interrupted; try again")


def _under_way(detail: str) -> Problem:
    return Problem(409, "idempotency-under-way", detail, retry_after=1)


async def start_run_once(
    keys: Idempotency, runs: Runs, once: KeyedRequest | None, start: Start
) -> tuple[Run | Record, bool]:
    """Start a run, or find the run that an earlier request of the key started (True).

    Raises Problem: as `start` and `Idempotency.perform`; 410, the run was deleted since.
    """
    if once is None:
        return await start(None), False

    async def act(run_id: str, again: bool) -> None:
        if not (again and await _find_run(runs, once.tenant, run_id)):
            await start(run_id)

    run_id, was_there = await keys.perform(once, new_run_id(), act)
    found = await _find_run(runs, once.tenant, run_id)
    if found is None:
        raise Problem(410, "gone", "the run of this key was deleted")
    return found, was_there


async def _find_run(runs: Runs, tenant: str, run_id: str) -> Run | Record | None:
    try:
        return await runs.find(tenant, run_id)
    except Problem:
        return None


# --- The database --------------------------------------------------------------------------------
def _insert(
    connection: Connection, once: KeyedRequest, outcome: str, now_ms: int, boot: int
) -> bool:
    """Claim a key unless it is claimed: one of several gateways succeeds."""
    sql = (
        "INSERT INTO idempotency (tenant, key, digest, outcome, done, created_ms, boot)"
        " VALUES (?, ?, ?, ?, 0, ?, ?) ON CONFLICT (tenant, key) DO NOTHING"
    )
    values = (once.tenant, once.key, once.digest, outcome, now_ms, boot)
    return bool(connection.execute(sql, values).rowcount)


def _known(
    connection: Connection, once: KeyedRequest, outcome: str, now_ms: int, boot: int
) -> _Claim | None:
    """Return the existing claim of a key; None if it has changed.

    It becomes ours if no gateway works on it.
    """
    mark = (once.tenant, once.key)
    sql = (
        "SELECT digest, outcome, done, created_ms, boot FROM idempotency"
        " WHERE tenant = ? AND key = ?"
    )
    row = connection.execute(sql, mark).fetchone()
    if row is None:
        return None
    if row["created_ms"] <= now_ms - _KEPT_MS:  # more were old than one step deletes
        renewed = (
            "UPDATE idempotency SET digest = ?, outcome = ?, done = 0, created_ms = ?, boot = ?"
            " WHERE tenant = ? AND key = ? AND created_ms = ?"
        )
        values = (once.digest, outcome, now_ms, boot, *mark, row["created_ms"])
        ours = connection.execute(renewed, values).rowcount
        return _Claim(once.digest, outcome, known=False) if ours else None
    claim = _Claim(bytes(row["digest"]), row["outcome"], bool(row["done"]))
    if claim.done or row["boot"] == boot or claim.digest != once.digest:
        return claim
    if is_there(connection, row["boot"]):
        return replace(claim, elsewhere=True)
    taken = "UPDATE idempotency SET boot = ? WHERE tenant = ? AND key = ? AND boot = ? AND done = 0"
    return claim if connection.execute(taken, (boot, *mark, row["boot"])).rowcount else None


def _count(connection: Connection, tenant: str, more: int) -> int:
    """Add to the count of a tenant's keys; return the count."""
    sql = (
        "INSERT INTO idempotency_counts (tenant, keys) VALUES (?, ?) ON CONFLICT (tenant) DO"
        " UPDATE SET keys = idempotency_counts.keys + excluded.keys RETURNING keys"
    )
    return int(connection.execute(sql, (tenant, more)).fetchone()["keys"])


def _oldest(connection: Connection, tenant: str) -> int:
    sql = "SELECT created_ms FROM idempotency WHERE tenant = ? ORDER BY created_ms LIMIT 1"
    row = connection.execute(sql, (tenant,)).fetchone()
    return int(row["created_ms"]) if row else 0


def _forget_old(connection: Connection, tenant: str, before_ms: int, most: int) -> int:
    """Delete up to `most` of a tenant's keys up to a moment; return how many."""
    sql = (
        "DELETE FROM idempotency WHERE tenant = ? AND key IN (SELECT key FROM idempotency"
        " WHERE tenant = ? AND created_ms <= ? ORDER BY created_ms LIMIT ?)"
    )
    gone = int(connection.execute(sql, (tenant, tenant, before_ms, most)).rowcount)
    if gone:
        _count(connection, tenant, -gone)
    return gone


def _purge(connection: Connection, before_ms: int) -> int:
    sql = "SELECT tenant FROM idempotency WHERE created_ms <= ? ORDER BY created_ms LIMIT 1"
    row = connection.execute(sql, (before_ms,)).fetchone()
    return _forget_old(connection, row["tenant"], before_ms, STEP_ROWS) if row else 0


def _note(connection: Connection, once: KeyedRequest) -> None:
    sql = "UPDATE idempotency SET done = 1 WHERE tenant = ? AND key = ?"
    connection.execute(sql, (once.tenant, once.key))


def _forget(connection: Connection, once: KeyedRequest, boot: int) -> None:
    sql = "DELETE FROM idempotency WHERE tenant = ? AND key = ? AND boot = ?"
    if connection.execute(sql, (once.tenant, once.key, boot)).rowcount:
        _count(connection, once.tenant, -1)
