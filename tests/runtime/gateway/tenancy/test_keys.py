import asyncio
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
from tests.support.run_by import run_by

NOW = 1_795_262_400_000


async def operators(store: Store) -> tuple[KeyRing, Authentication, Key]:
    _, admin = new_key(None, Role.ADMIN, "first", None)
    await store.write(lambda c: insert_key(c, admin))
    keys = Authentication([admin])
    return KeyRing(store, keys, Connections()), keys, admin


def status_of(problem: pytest.ExceptionInfo[Problem]) -> tuple[int, str]:
    return problem.value.status, problem.value.kind


@run_by(with_store, "tmp_path", "store_url")
async def test_a_key_is_refused_as_soon_as_it_is_revoked(store: Store) -> None:
    ring, keys, _ = await operators(store)
    text, key = await ring.create_key("acme", Role.TENANT, "for the site", None)
    assert keys.admit(f"Bearer {text}").tenant == "acme"
    assert {k.name for k in await store.read(read_keys)} == {"first", "for the site"}
    for tenant in (None, "other"):
        with pytest.raises(Problem) as problem:
            await ring.revoke_key(tenant, key.id)
        assert status_of(problem) == (404, "not-found")
    await ring.revoke_key("acme", key.id)
    with pytest.raises(Problem) as problem:
        keys.admit(f"Bearer {text}")
    assert problem.value.status == 401
    assert {k.name for k in await store.read(read_keys)} == {"first"}


@run_by(with_store, "tmp_path", "store_url")
async def test_a_rotated_key_lives_for_its_grace(store: Store) -> None:
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
async def test_a_key_whose_time_is_over_goes(store: Store) -> None:
    ring, keys, _ = await operators(store)
    _, key = await ring.create_key("acme", Role.TENANT, "", 1)
    running = asyncio.create_task(ring.run())
    async with asyncio.timeout(20):
        while keys.keys_of("acme"):  # noqa: ASYNC110 - what a look in the background does
            await asyncio.sleep(0.01)
    assert key not in await store.read(read_keys)
    running.cancel()
    await asyncio.wait([running])


@run_by(with_store, "tmp_path", "store_url")
async def test_operators_cannot_lock_themselves_out(store: Store) -> None:
    ring, keys, admin = await operators(store)
    await ring.create_key(None, Role.READ_ONLY, "eyes", None)
    await ring.create_key(None, Role.ADMIN, "for a day", 1 << 50)
    with pytest.raises(Problem) as problem:
        await ring.revoke_key(None, admin.id)
    assert status_of(problem) == (409, "last-admin-key")
    _, second = await ring.create_key(None, Role.ADMIN, "second", None)
    # Two of the last two: one of them stays.
    both = [ring.revoke_key(None, key) for key in (admin.id, second.id)]
    ends: list[Any] = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(isinstance(end, Problem) for end in ends) == [False, True]
    (left,) = [k for k in keys.keys_of(None) if k.role is Role.ADMIN and k.expires_ms is None]
    # Rotating the last one is how it is changed.
    text, _ = await ring.rotate_key(None, left.id, 0)
    keys.admit(f"Bearer {text}", tenants=False, operators=True)


@run_by(with_store, "tmp_path", "store_url")
async def test_the_last_key_in_the_database_stays_whatever_is_known_of_others(store: Store) -> None:
    ring, keys, admin = await operators(store)
    _, other = new_key(None, Role.ADMIN, "another gateway has revoked it", None)
    keys.put_key(other)
    with pytest.raises(Problem) as problem:
        await ring.revoke_key(None, admin.id)
    assert status_of(problem) == (409, "last-admin-key")
    assert await store.read(read_keys) == [admin]


@run_by(with_store, "tmp_path", "store_url")
async def test_keys_have_a_number(store: Store) -> None:
    _, admin = new_key(None, Role.ADMIN, "", None)
    many = [new_key("acme", Role.TENANT, "", None)[1] for _ in range(TENANT_KEYS_MAX)]
    ring = KeyRing(store, Authentication([admin, *many]), Connections())
    with pytest.raises(Problem) as problem:
        await ring.create_key("acme", Role.TENANT, "", None)
    assert status_of(problem) == (409, "too-many-keys")
    await ring.create_key("other", Role.TENANT, "", None)
    # Nor by rotation, which is how a key is changed all the same: without a time of grace.
    for kept in many[:2]:
        await store.write(partial(insert_key, key=kept))
    with pytest.raises(Problem) as problem:
        await ring.rotate_key("acme", many[0].id, 60_000)
    assert status_of(problem) == (409, "too-many-keys")
    await ring.rotate_key("acme", many[0].id, 0)
    await ring.revoke_key("acme", many[1].id)
    both = [ring.create_key("acme", Role.TENANT, "", None) for _ in range(2)]
    ends: list[Any] = await asyncio.gather(*both, return_exceptions=True)
    assert sorted(isinstance(end, Problem) for end in ends) == [False, True]


def test_what_may_be_asked_for() -> None:
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
def test_what_may_not_be_asked_for(body: Any) -> None:
    with pytest.raises(Problem) as problem:
        parse_key(body, operators=False, now_ms=NOW)
    assert problem.value.status == 400
