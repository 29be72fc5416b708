"""Requests that come twice: with the header `Idempotency-Key` the second gets what the first got.

    claim    a tenant's key, with the digest of its request and the id of what is to come of it,
             is on disk before anything begins
    begin    the run, or the upload, gets that id
    done     noted behind it

A gateway that died between the first two begins anew under the same id; one that died later finds
what there is. A request that fails lets go of its key. Keys are kept for a day, as digests.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web
from symphony_kernel.protocol.limits import (
    IDEMPOTENCY_KEY_BYTES_MAX,
    IDEMPOTENCY_SECONDS,
    TENANT_IDEMPOTENCY_KEYS_MAX,
)

from symphony_runtime.gateway.database import Connection
from symphony_runtime.gateway.overload.pace import retry_after
from symphony_runtime.gateway.problems import Problem, bad_request
from symphony_runtime.gateway.store import Store

_log = logging.getLogger(__name__)
_PURGE_SECONDS = 600.0
HEADER = "Idempotency-Key"
REPLAYED = {"Idempotent-Replayed": "true"}  # the headers of a second answer


@dataclass(frozen=True, slots=True)
class Once:
    """A request that is to have effects once."""

    tenant: str
    key: bytes  # SHA-256 of the header
    digest: bytes  # SHA-256 of what is asked


@dataclass(frozen=True, slots=True)
class _Claim:
    """What is known of a key: by now, or by an earlier request (`known`)."""

    digest: bytes
    outcome: str
    done: bool = False
    known: bool = True


Act = Callable[[str, bool], Awaitable[None]]


def read_once(request: web.Request, tenant: str, body: bytes, *aside: str) -> Once | None:
    """Return how a request is known, or None if it has no key.

    Two are the same when method, path, query and body are; but for what the query says of `aside`.

    Raises:
        Problem: 400, it is no key.
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
    return Once(tenant, hashlib.sha256(key.encode()).digest(), digest.digest())


class Idempotency:
    """The keys of all tenants. Belongs to the event loop."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._under_way: dict[tuple[str, bytes], tuple[bytes, asyncio.Future[str]]] = {}

    async def perform(self, once: Once, outcome: str, act: Act) -> tuple[str, bool]:
        """Do something unless it was done; return the id of what came of it, and whether it was.

        `act` gets that id, which is `outcome` or an earlier request's, and whether there may be
        something of that id. Who comes while it is under way waits for it, and shares its failure.

        Raises:
            Problem: 422, the key was another request's; 429, the tenant has too many.
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
            result.exception()  # nobody need have joined
            raise
        finally:
            del self._under_way[mark]
        result.set_result(found)
        return found, was_done

    async def run(self) -> None:
        """Forget old keys now and then, until it is cancelled."""
        while True:
            await asyncio.sleep(_PURGE_SECONDS)
            try:
                await self.purge()
            except self._store.errors:
                _log.exception("old keys of requests could not be deleted")

    async def purge(self) -> int:
        """Forget keys that are old; return how many."""
        before = self._now_ms() - 1000 * IDEMPOTENCY_SECONDS
        sql = "DELETE FROM idempotency WHERE created_ms <= ?"
        return await self._store.write(lambda c: int(c.execute(sql, (before,)).rowcount))

    async def _perform(self, once: Once, outcome: str, act: Act) -> tuple[str, bool]:
        now = self._now_ms()
        claim = await self._store.write(lambda c: _claim(c, once, outcome, now))
        if isinstance(claim, int):
            detail = f"the tenant has {TENANT_IDEMPOTENCY_KEYS_MAX} keys of a day, its limit"
            seconds = (claim + 1000 * IDEMPOTENCY_SECONDS - now) / 1000
            raise Problem(429, "too-many-keys", detail, retry_after=retry_after(seconds))
        _check(once, claim.digest)
        if claim.done:
            return claim.outcome, True
        try:
            await act(claim.outcome, claim.known)
        except BaseException:
            await self._store.write(lambda c: _forget(c, once))
            raise
        # Behind what `act` has queued: there is no note of what is not there.
        await self._store.write(lambda c: _note(c, once))
        return claim.outcome, False


def _check(once: Once, digest: bytes) -> None:
    if digest != once.digest:
        detail = f"this {HEADER} was another request's: its method, path, query or body differ"
        raise Problem(422, "idempotency-key-reused", detail)


def _for_others(error: BaseException) -> Exception:
    if isinstance(error, Exception):
        return error
    detail = "the first request of this key was cut off; try again"
    return Problem(409, "idempotency-under-way", detail, retry_after=1)


# --- The database --------------------------------------------------------------------------------
def _claim(connection: Connection, once: Once, outcome: str, now_ms: int) -> _Claim | int:
    """Return the claim of a key, made now if there is none; or when the oldest of too many was."""
    mark = (once.tenant, once.key)
    old = (once.tenant, now_ms - 1000 * IDEMPOTENCY_SECONDS)
    connection.execute("DELETE FROM idempotency WHERE tenant = ? AND created_ms <= ?", old)
    sql = "SELECT digest, outcome, done FROM idempotency WHERE tenant = ? AND key = ?"
    row = connection.execute(sql, mark).fetchone()
    if row is not None:
        return _Claim(bytes(row["digest"]), row["outcome"], bool(row["done"]))
    sql = "SELECT COUNT(*) AS keys, MIN(created_ms) AS oldest FROM idempotency WHERE tenant = ?"
    counted = connection.execute(sql, (once.tenant,)).fetchone()
    if counted["keys"] >= TENANT_IDEMPOTENCY_KEYS_MAX:
        return int(counted["oldest"])
    connection.execute(
        "INSERT INTO idempotency (tenant, key, digest, outcome, done, created_ms)"
        " VALUES (?, ?, ?, ?, 0, ?)",
        (*mark, once.digest, outcome, now_ms),
    )
    return _Claim(once.digest, outcome, known=False)


def _note(connection: Connection, once: Once) -> None:
    sql = "UPDATE idempotency SET done = 1 WHERE tenant = ? AND key = ?"
    connection.execute(sql, (once.tenant, once.key))


def _forget(connection: Connection, once: Once) -> None:
    sql = "DELETE FROM idempotency WHERE tenant = ? AND key = ?"
    connection.execute(sql, (once.tenant, once.key))
