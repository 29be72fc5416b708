"""Which gateways a database has, and which of them still have to forget a tenant."""

import pytest
from symphony_runtime.gateway.cluster.members import Members
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.runs.record import next_boot
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.tenants import Change, Tenants, read_tenants

from tests.support.gateway.stores import with_sqlite, with_store
from tests.support.gateway.system import refusal
from tests.support.run_by import run_by

NOW = 1_795_262_400_000
MINUTE_MS = 60_000


class Cluster:
    """Gateways and tenants in a store; time stands still."""

    def __init__(self, store: Store) -> None:
        self.now = NOW
        self.store = store
        self.tenants = Tenants(store, [], lambda: self.now)

    async def enter(self, name: str) -> Members:
        boot = await self.store.write(lambda c: next_boot(c, name))
        members = Members(self.store, name, boot, lambda: self.now)
        await members.record_start()
        return members

    async def refusal(self, tenant: str) -> tuple[int, str, list[str]]:
        with pytest.raises(Problem) as problem:
            await self.tenants.create(tenant, Change())
        error = problem.value
        return error.status, error.kind, error.fields.get("gateways", [])


@run_by(with_store, "tmp_path", "postgres_url")
async def test_name_is_free_once_all_gateways_have_forgotten_it(store: Store) -> None:
    cluster = Cluster(store)
    one, two = [await cluster.enter(name) for name in ("one", "two")]
    await cluster.tenants.create("acme", Change())
    assert await cluster.refusal("acme") == (409, "exists", [])
    await cluster.tenants.delete("acme")
    assert [await each.pending_tenants() for each in (one, two)] == [{"acme"}, {"acme"}]
    assert await cluster.refusal("acme") == (409, "being-forgotten", ["one", "two"])
    assert await store.read(read_tenants) == []
    await one.record_forgotten("acme")
    assert await cluster.refusal("acme") == (409, "being-forgotten", ["two"])
    # A gateway that starts again still has it to do. Another tenant's name is free.
    two = await cluster.enter("two")
    assert await two.pending_tenants() == {"acme"}
    await cluster.tenants.create("other", Change())
    await two.record_forgotten("acme")
    await cluster.tenants.create("acme", Change())
    assert [await each.pending_tenants() for each in (one, two)] == [set(), set()]


@run_by(with_store, "tmp_path", "postgres_url")
async def test_dropped_gateway_no_longer_holds_a_name(store: Store) -> None:
    cluster = Cluster(store)
    one, two = [await cluster.enter(name) for name in ("one", "two")]
    await cluster.tenants.create("acme", Change())
    await cluster.tenants.delete("acme")
    await one.record_forgotten("acme")
    for gateway, status in (("one", 409), ("two", 409), ("three", 404)):
        # The first two were alive a moment ago, the third is no gateway.
        assert (await refusal(one.drop_gateway(gateway)))[0] == status
    cluster.now += 10 * MINUTE_MS
    await one.record_alive()
    assert await one.listing() == [
        {"id": "one", "seen_ms": cluster.now, "forgetting": [], "here": True},
        {"id": "two", "seen_ms": NOW, "forgetting": ["acme"], "here": False},
    ]
    await one.drop_gateway("two")
    assert [gateway["id"] for gateway in await one.listing()] == ["one"]
    await cluster.tenants.create("acme", Change())
    # It comes back nevertheless: it counts, and knows what it has to forget.
    await two.record_alive()
    assert [gateway["id"] for gateway in await one.listing()] == ["one", "two"]
    assert await two.pending_tenants() == {"acme"}


@run_by(with_sqlite, "tmp_path")
async def test_sqlite_file_of_a_renamed_folder_has_one_gateway(store: Store) -> None:
    cluster = Cluster(store)
    await cluster.enter("before")
    await cluster.tenants.create("acme", Change())
    await cluster.tenants.delete("acme")
    now = await cluster.enter("now")
    assert [gateway["id"] for gateway in await now.listing()] == ["now"]
    assert await now.pending_tenants() == {"acme"}
    assert await cluster.refusal("acme") == (409, "being-forgotten", ["now"])
    await now.record_forgotten("acme")
    await cluster.tenants.create("acme", Change())
