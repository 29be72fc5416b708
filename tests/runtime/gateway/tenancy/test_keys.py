import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest
from symphony_kernel.protocol.limits import TENANT_KEYS_MAX
from symphony_runtime.gateway.api.requests import parse_key
from symphony_runtime.gateway.connections.connections import Connections
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.authentication import (
    Authentication,
    Key,
    Role,
    insert_key,
    new_key,
    read_keys,
)
from symphony_runtime.gateway.tenancy.keys import KeyRing

from tests.support.gateway.stores import with_store
from tests.support.gateway.system import refusal
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

NOW = 1_795_262_400_000


async def operators(store: Store) -> tuple[KeyRing, Authentication, Key]:
    _, admin = new_key(None, Role.ADMIN, "first", None)
    await store.write(lambda c: insert_key(c, admin))
    keys = Authentication([admin])
    return KeyRing(store, keys, Connections()), keys, admin


async def refused_of_two(calls: list[Coroutine[Any, Any, Any]]) -> int:
    """Make calls at once; return how many of them are refused."""
    ends: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
    return sum(isinstance(end, Problem) for end in ends)


@run_by(with_store, "tmp_path", "store_url")
async def test_key_is_refused_as_soon_as_it_is_revoked(store: Store) -> None:
    ring, keys, _ = await operators(store)
    text, key = await ring.create_key("acme", Role.TENANT, "for the site", None)
    assert keys.admit(f"Bearer {text}").tenant == "acme"
    assert {k.name for k in await store.read(read_keys)} == {"first", "for the site"}
    for tenant in (None, "other"):
        assert await refusal(ring.revoke_key(tenant, key.id)) == (404, "not-found")
    await ring.revoke_key("acme", key.id)
    with pytest.raises(Problem) as problem:
        keys.admit(f"Bearer {text}")
    assert problem.value.status == 401
    assert {k.name for k in await store.read(read_keys)} == {"first"}


@run_by(with_store, "tmp_path", "store_url")
async def test_rotated_key_is_accepted_for_its_grace(store: Store) -> None:
    now = NOW / 1000
    _, admin = new_key(None, Role.ADMIN, "first", None)
    keys = Authentication([admin], clock=lambda: now)
    ring = KeyRing(store, keys, Connections())
    old, key = await ring.create_key("acme", Role.READ_ONLY, "eyes", None)
    new, made = await ring.rotate_key("acme", key.id, 60_000)
    assert (made.role, made.name, made.tenant) == (Role.READ_ONLY, "eyes", "acme")
    now = (key.created_ms + 1) / 1000
    assert [keys.admit(f"Bearer {text}").tenant for text in (old, new)] == ["acme", "acme"]
    now = (made.created_ms + 60_000) / 1000
    assert keys.find_key(f"Bearer {old}") is None
    assert keys.find_key(f"Bearer {new}") is made
    newest, _ = await ring.rotate_key("acme", made.id, 0)
    assert keys.find_key(f"Bearer {new}") is None
    assert keys.find_key(f"Bearer {newest}") is not None


@run_by(with_store, "tmp_path", "store_url")
async def test_change_of_a_key_goes_on_while_its_request_is_paused(store: Store) -> None:
    ring, keys, _ = await operators(store)
    change = ring.create_key("acme", Role.TENANT, "", None)
    change.send(None)  # and the request gets no further slice
    await wait_until(lambda: bool(keys.keys_of("acme")))
    await asyncio.wait_for(ring.create_key("other", Role.TENANT, "", None), 20)
    change.close()


@run_by(with_store, "tmp_path", "store_url")
async def test_key_past_its_time_is_removed(store: Store) -> None:
    ring, keys, _ = await operators(store)
    _, key = await ring.create_key("acme", Role.TENANT, "", 1)
    running = asyncio.create_task(ring.run())
    await wait_until(lambda: not keys.keys_of("acme"))
    assert key not in await store.read(read_keys)
    running.cancel()
    await asyncio.wait([running])


@run_by(with_store, "tmp_path", "store_url")
async def test_operators_last_key_cannot_be_revoked(store: Store) -> None:
    ring, keys, admin = await operators(store)
    await ring.create_key(None, Role.READ_ONLY, "reader", None)
    await ring.create_key(None, Role.ADMIN, "for a day", 1 << 50)
    assert await refusal(ring.revoke_key(None, admin.id)) == (409, "last-admin-key")
    _, second = await ring.create_key(None, Role.ADMIN, "second", None)
    # When both of the last two are revoked at once, one of them stays.
    assert await refused_of_two([ring.revoke_key(None, k) for k in (admin.id, second.id)]) == 1
    (left,) = [k for k in keys.keys_of(None) if k.role is Role.ADMIN and k.expires_ms is None]
    # The last one can be rotated.
    text, _ = await ring.rotate_key(None, left.id, 0)
    keys.admit(f"Bearer {text}", tenants=False, operators=True)


@run_by(with_store, "tmp_path", "store_url")
async def test_operators_last_key_in_the_database_is_kept(store: Store) -> None:
    ring, keys, admin = await operators(store)
    _, other = new_key(None, Role.ADMIN, "another gateway has revoked it", None)
    keys.put_key(other)
    assert await refusal(ring.revoke_key(None, admin.id)) == (409, "last-admin-key")
    assert await store.read(read_keys) == [admin]


@run_by(with_store, "tmp_path", "store_url")
async def test_keys_past_their_number_are_refused(store: Store) -> None:
    _, admin = new_key(None, Role.ADMIN, "", None)
    many = [new_key("acme", Role.TENANT, "", None)[1] for _ in range(TENANT_KEYS_MAX)]
    ring = KeyRing(store, Authentication([admin, *many]), Connections())
    create = partial(ring.create_key, "acme", Role.TENANT, "", None)
    assert await refusal(create()) == (409, "too-many-keys")
    await ring.create_key("other", Role.TENANT, "", None)
    # Rotation with a time of grace would add one, too. Without it a key is replaced.
    for kept in many[:2]:
        await store.write(partial(insert_key, key=kept))
    assert await refusal(ring.rotate_key("acme", many[0].id, 60_000)) == (409, "too-many-keys")
    await ring.rotate_key("acme", many[0].id, 0)
    await ring.revoke_key("acme", many[1].id)
    assert await refused_of_two([create(), create()]) == 1


def test_key_request_with_defaults_or_all_fields_is_parsed() -> None:
    assert parse_key({}, operators=True, now_ms=NOW) == (Role.ADMIN, "", None)
    assert parse_key({}, operators=False, now_ms=NOW) == (Role.TENANT, "", None)
    wanted = {"role": "read-only", "name": "eyes", "expires_ms": NOW + 1}
    assert parse_key(wanted, operators=False, now_ms=NOW) == (Role.READ_ONLY, "eyes", NOW + 1)


@pytest.mark.parametrize(
    "body",
    [
        [], {"secret": "x"}, {"role": "admin"}, {"role": None}, {"role": ["tenant"]}, {"name": 5},
        {"name": "x" * 129}, {"name": "a\nb"}, {"name": "\ud800"}, {"expires_ms": NOW},
        {"expires_ms": "x"}, {"expires_ms": True}, {"expires_ms": 1 << 60},
    ],
)  # fmt: skip
def test_bad_key_request_is_refused(body: Any) -> None:
    with pytest.raises(Problem) as problem:
        parse_key(body, operators=False, now_ms=NOW)
    assert problem.value.status == 400
