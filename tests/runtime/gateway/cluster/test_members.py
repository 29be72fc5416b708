"""Which gateways a database has, and which of them have yet to forget a tenant."""

from pathlib import Path

import pytest
from symphony_runtime.gateway.cluster.members import Members
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.runs.record import next_boot
from symphony_runtime.gateway.storage.store import Store
from symphony_runtime.gateway.tenancy.tenants import Change, Tenants, read_tenants

from tests.support.gateway.postgres import Cluster
from tests.support.gateway.stores import with_store

NOW = 1_795_262_400_000
MINUTE_MS = 60_000


class Here:
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


def test_a_name_is_free_when_all_gateways_have_forgotten_it(
    tmp_path: Path, postgres: Cluster
) -> None:
    async def scenario(store: Store) -> None:
        here = Here(store)
        one, two = [await here.enter(name) for name in ("one", "two")]
        await here.tenants.create("acme", Change())
        assert await here.refusal("acme") == (409, "exists", [])
        await here.tenants.delete("acme")
        assert [await each.pending_tenants() for each in (one, two)] == [{"acme"}, {"acme"}]
        assert await here.refusal("acme") == (409, "being-forgotten", ["one", "two"])
        assert await store.read(read_tenants) == []
        await one.record_forgotten("acme")
        assert await here.refusal("acme") == (409, "being-forgotten", ["two"])
        # One that starts again has it to do still; and another tenant's name is free.
        two = await here.enter("two")
        assert await two.pending_tenants() == {"acme"}
        await here.tenants.create("other", Change())
        await two.record_forgotten("acme")
        await here.tenants.create("acme", Change())
        assert [await each.pending_tenants() for each in (one, two)] == [set(), set()]

    with_store(tmp_path, postgres.new_url(), scenario)


def test_one_that_is_gone_for_good_is_waited_for_no_more(tmp_path: Path, postgres: Cluster) -> None:
    async def scenario(store: Store) -> None:
        here = Here(store)
        one, two = [await here.enter(name) for name in ("one", "two")]
        await here.tenants.create("acme", Change())
        await here.tenants.delete("acme")
        await one.record_forgotten("acme")
        for gateway, status in (("one", 409), ("two", 409), ("three", 404)):
            with pytest.raises(Problem) as problem:
                await one.drop_gateway(gateway)  # it was there a moment ago, or is no gateway
            assert problem.value.status == status
        here.now += 10 * MINUTE_MS
        await one.record_alive()
        assert await one.listing() == [
            {"id": "one", "seen_ms": here.now, "forgetting": [], "here": True},
            {"id": "two", "seen_ms": NOW, "forgetting": ["acme"], "here": False},
        ]
        await one.drop_gateway("two")
        assert [gateway["id"] for gateway in await one.listing()] == ["one"]
        await here.tenants.create("acme", Change())
        # It comes back all the same: it counts, and knows what it has to forget.
        await two.record_alive()
        assert [gateway["id"] for gateway in await one.listing()] == ["one", "two"]
        assert await two.pending_tenants() == {"acme"}

    with_store(tmp_path, postgres.new_url(), scenario)


def test_a_file_is_one_gateways_whatever_its_folder_was_called(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        here = Here(store)
        await here.enter("before")
        await here.tenants.create("acme", Change())
        await here.tenants.delete("acme")
        now = await here.enter("now")
        assert [gateway["id"] for gateway in await now.listing()] == ["now"]
        assert await now.pending_tenants() == {"acme"}
        assert await here.refusal("acme") == (409, "being-forgotten", ["now"])
        await now.record_forgotten("acme")
        await here.tenants.create("acme", Change())

    with_store(tmp_path, "", scenario)
