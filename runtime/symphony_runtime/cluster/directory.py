"""The directory of a cluster: which node holds which KV, as far as the nodes have said.

What it says may be wrong: a node may have evicted an entry or died since. So it only ever decides
where a run goes, never what the run reads. A wrong entry costs a recompute.

- A *holding* is one key on one node, with the tokens that the node has of it. It expires
  `expiry_s` after the node last reported it.
- A *lease* is a node's: it ends `lease_s` after the node was last heard of, and all its holdings
  end with it.
- There are at most `holdings_max` holdings. Past that the oldest ones of the tenant with most are
  evicted, so a tenant that names millions of files loses its own.

All times are seconds of the injected `now`.
"""

import heapq
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

HOLDINGS_MAX = 1 << 20
EXPIRY_S = 600.0
LEASE_S = 10.0
_EVICTED_SHARE = 64  # of all holdings, one in so many is evicted at once

_NONE: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DirectoryStatistics:
    """What a directory holds, and what has gone from it so far."""

    nodes: int
    keys: int
    holdings: int
    expired: int  # holdings whose time was up
    evicted: int  # holdings that made room
    lost: int  # holdings of nodes that went


class Directory:
    """Holdings by key, node and tenant."""

    def __init__(
        self,
        now: Callable[[], float],
        holdings_max: int = HOLDINGS_MAX,
        expiry_s: float = EXPIRY_S,
        lease_s: float = LEASE_S,
    ) -> None:
        """Raise ValueError: a bound or a time that is not positive."""
        if holdings_max < 1 or expiry_s <= 0 or lease_s <= 0:
            raise ValueError(
                "holdings_max, expiry_s and lease_s must be positive, not "
                f"{holdings_max}, {expiry_s:g} and {lease_s:g}"
            )
        self._now = now
        self._holdings_max = holdings_max
        self._expiry_s = expiry_s
        self._lease_s = lease_s
        self._holders: dict[bytes, dict[str, int]] = {}  # tokens by key and node
        self._owners: dict[bytes, str] = {}  # tenant by key
        self._keys: dict[str, set[bytes]] = {}  # by node; every node with a lease is in it
        self._leases: dict[str, float] = {}  # until when
        # Of each tenant: until when a holding is valid, the first to expire first.
        self._expiries: dict[str, OrderedDict[tuple[bytes, str], float]] = {}
        self._count = self._expired = self._evicted = self._lost = 0

    # -- Nodes --------------------------------------------------------------------------------
    def renew_lease(self, node: str) -> None:
        """Record that a node lives; the first call makes it known."""
        self._keys.setdefault(node, set())
        self._leases[node] = self._now() + self._lease_s

    def drop_node(self, node: str) -> None:
        """Forget a node and all that it holds; an unknown one is no error."""
        for key in self._keys.pop(node, ()):
            self._drop(key, node)
            self._lost += 1
        self._leases.pop(node, None)

    def expire(self) -> list[str]:
        """Drop what is past its time; return the nodes whose lease has ended."""
        now = self._now()
        gone = [node for node, until in self._leases.items() if until <= now]
        for node in gone:
            self.drop_node(node)
        for tenant in list(self._expiries):
            while order := self._expiries.get(tenant):
                (key, node), until = next(iter(order.items()))
                if until > now:
                    break
                self._keys[node].discard(key)
                self._drop(key, node)
                self._expired += 1
        return gone

    # -- Holdings -----------------------------------------------------------------------------
    def hold(self, node: str, tenant: str, key: bytes, tokens: int) -> None:
        """Record that a node has so many tokens of a key, or will have once its runs start.

        Raise KeyError: the node has no lease. Raise ValueError: no tokens, or another tenant's key.
        """
        if tokens < 1:
            raise ValueError(f"a holding has at least 1 token, not {tokens}")
        if self._owners.get(key, tenant) != tenant:
            raise ValueError(f"key {key.hex()} is of tenant {self._owners[key]}, not {tenant}")
        keys = self._keys.get(node)
        if keys is None:
            raise KeyError(f"node {node} has no lease: renew_lease comes first")
        holders = self._holders.get(key)
        if holders is None:
            holders = self._holders[key] = {}
            self._owners[key] = tenant
        if node not in holders:
            keys.add(key)
            self._count += 1
        holders[node] = tokens
        order = self._expiries.get(tenant)
        if order is None:
            order = self._expiries[tenant] = OrderedDict()
        order[key, node] = self._now() + self._expiry_s
        order.move_to_end((key, node))
        if self._count > self._holdings_max:
            self._make_room()

    def release(self, node: str, key: bytes) -> None:
        """Record that a node has evicted or removed a key; an unknown one is no error."""
        keys = self._keys.get(node)
        if keys is not None and key in keys:
            keys.remove(key)
            self._drop(key, node)

    def holders(self, key: bytes) -> Mapping[str, int]:
        """Return the tokens of a key by node. It is a view: it changes with the directory."""
        return self._holders.get(key, _NONE)

    def held_prefix(self, keys: Sequence[bytes], nodes_max: int) -> dict[str, int]:
        """Return the tokens of the longest of these prefixes by node.

        `keys` are those of one prefix, shortest first. At most about `nodes_max` nodes are
        returned, those with the longest prefixes.
        """
        found: dict[str, int] = {}
        for key in reversed(keys):
            for node, tokens in self._holders.get(key, _NONE).items():
                found.setdefault(node, tokens)
            if len(found) >= nodes_max:
                break
        return found

    # -- Bounds -------------------------------------------------------------------------------
    def _make_room(self) -> None:
        """Evict the oldest holdings of the tenants with most, down to what is allowed."""
        target = self._holdings_max - self._holdings_max // _EVICTED_SHARE
        largest = [(-len(order), tenant) for tenant, order in self._expiries.items()]
        heapq.heapify(largest)
        while self._count > target:
            _, tenant = largest[0]
            key, node = next(iter(self._expiries[tenant]))
            self._keys[node].discard(key)
            self._drop(key, node)
            self._evicted += 1
            left = len(self._expiries.get(tenant, ()))
            if left:
                heapq.heapreplace(largest, (-left, tenant))
            else:
                heapq.heappop(largest)

    def _drop(self, key: bytes, node: str) -> None:
        """Remove a holding from all but its node's set."""
        holders = self._holders[key]
        del holders[node]
        self._count -= 1
        tenant = self._owners[key]
        order = self._expiries[tenant]
        del order[key, node]
        if not order:
            del self._expiries[tenant]
        if not holders:
            del self._holders[key], self._owners[key]

    # -- Audits -------------------------------------------------------------------------------
    def statistics(self) -> DirectoryStatistics:
        return DirectoryStatistics(
            len(self._leases), len(self._holders), self._count,
            self._expired, self._evicted, self._lost,
        )  # fmt: skip

    def check_integrity(self) -> None:
        """Assert that all indices say the same."""
        by_key = {(key, node) for key, nodes in self._holders.items() for node in nodes}
        by_node = {(key, node) for node, keys in self._keys.items() for key in keys}
        by_tenant = {pair for order in self._expiries.values() for pair in order}
        assert by_key == by_node == by_tenant
        assert len(by_key) == self._count <= self._holdings_max
        assert self._holders.keys() == self._owners.keys()
        assert self._keys.keys() == self._leases.keys()
        assert all(self._holders.values()), "a key without holders"
        for tenant, order in self._expiries.items():
            assert order, f"tenant {tenant} has an empty order"
            assert list(order.values()) == sorted(order.values())
            assert all(self._owners[key] == tenant for key, _ in order)
