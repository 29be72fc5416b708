"""The live nodes of a cluster, and the work that waits at each: in seconds of its device.

A placer says what it placed (`add_work`) and what is done (`remove_work`). Nodes may be told apart
by speed: `Speeds` are what a node measured of itself.

A node's device is shared by weight, so what a tenant waits for there is not all that waits. With
`own` seconds of the tenant, `total` of all, and its weight's share of the weights that have work
there, a run of `seconds` more is done after about

    min((own + seconds) / share, total + seconds)

The first is what its share gives it while all others have work, the second is when all is done.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from symphony_runtime.cluster.rendezvous import UInt64, hash64, weight, weights

Float64 = npt.NDArray[np.float64]
_SLOTS_MIN = 16


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a node's device takes for a token, in seconds; `move_token_s` 0: KV does not move."""

    prefill_token_s: float
    decode_token_s: float  # what one more row adds to a step
    move_token_s: float = 0.0  # of K and V over the network
    move_s: float = 0.0  # before a move's first byte

    def __post_init__(self) -> None:
        if self.prefill_token_s <= 0 or self.decode_token_s < 0 or self.move_token_s < 0:
            raise ValueError(f"speeds must be positive: {self}")


_NO_SPEEDS = Speeds(1.0, 1.0)


def _faster(a: Speeds, b: Speeds) -> Speeds:
    """Return speeds of which each is the better one of both; a move at all is better than none."""
    return Speeds(
        min(a.prefill_token_s, b.prefill_token_s),
        min(a.decode_token_s, b.decode_token_s),
        min(filter(None, (a.move_token_s, b.move_token_s)), default=0.0),
        min(a.move_s, b.move_s),
    )


class _TenantWork:
    """What waits of one tenant, by slot: seconds, and parts, so that none left means zero."""

    __slots__ = ("nodes", "parts", "seconds")

    def __init__(self, slots: int) -> None:
        self.seconds: Float64 = np.zeros(slots)
        self.parts: npt.NDArray[np.int32] = np.zeros(slots, np.int32)
        self.nodes = 0  # slots with parts

    def grow(self, slots: int) -> None:
        self.seconds = np.resize(self.seconds, slots)
        self.parts = np.resize(self.parts, slots)
        self.seconds[slots // 2 :] = self.parts[slots // 2 :] = 0


class Loads:
    """Live nodes by slot: small numbers, reused after a node has gone."""

    def __init__(self, tenant_weights: Mapping[str, float] | None = None) -> None:
        """Without a weight a tenant has 1.0; the mapping may change meanwhile."""
        self.tenant_weights: Mapping[str, float] = (
            tenant_weights if tenant_weights is not None else {}
        )
        self.slots: dict[str, int] = {}
        self.names: list[str] = []  # by slot; "" where no node is
        self.speeds: list[Speeds | None] = []
        self.fastest = _NO_SPEEDS  # the best of each, of all nodes so far
        self._free: list[int] = []
        self._hashes: UInt64 = np.zeros(_SLOTS_MIN, np.uint64)
        self._plain: list[int] = []  # the same hashes
        self._total: Float64 = np.full(_SLOTS_MIN, np.inf)  # inf: no node
        self._weights: Float64 = np.zeros(_SLOTS_MIN)  # of tenants with work there
        self._parts: Float64 = np.zeros(_SLOTS_MIN)  # of all tenants
        self._tenants: dict[str, _TenantWork] = {}  # that have work anywhere

    # -- Nodes --------------------------------------------------------------------------------
    def add_node(self, node: str, speeds: Speeds) -> None:
        """Add an idle node, or change the speeds of one that is here."""
        if not node:
            raise ValueError("a node needs a name")
        slot = self.slots.get(node)
        if slot is None:
            slot = self._take_slot()
            self.slots[node], self.names[slot] = slot, node
            self._plain[slot] = hash64(node.encode())
            self._hashes[slot] = self._plain[slot]
            self._total[slot] = 0.0
        self.speeds[slot] = speeds
        self.fastest = speeds if self.fastest is _NO_SPEEDS else _faster(self.fastest, speeds)

    def remove_node(self, node: str) -> None:
        """Remove a node with all that waits there; an unknown one is no error."""
        slot = self.slots.pop(node, None)
        if slot is None:
            return
        for tenant in list(self._tenants):
            work = self._tenants[tenant]
            if work.parts[slot]:
                work.parts[slot], work.seconds[slot] = 0, 0.0
                self._leave(tenant, work)
        self.names[slot], self.speeds[slot] = "", None
        self._total[slot], self._weights[slot], self._parts[slot] = np.inf, 0.0, 0
        self._free.append(slot)

    def _take_slot(self) -> int:
        if self._free:
            return self._free.pop()
        slot = len(self.names)
        self.names.append("")
        self.speeds.append(None)
        self._plain.append(0)
        if slot == len(self._total):
            self._hashes = np.resize(self._hashes, 2 * slot)
            self._total = np.concatenate((self._total, np.full(slot, np.inf)))
            self._weights = np.concatenate((self._weights, np.zeros(slot)))
            self._parts = np.concatenate((self._parts, np.zeros(slot)))
            for work in self._tenants.values():
                work.grow(2 * slot)
        return slot

    # -- Work ---------------------------------------------------------------------------------
    def add_work(self, node: str, tenant: str, seconds: float) -> None:
        """Record a part of a run that now waits or runs at a node."""
        slot = self.slots[node]
        work = self._tenants.get(tenant)
        if work is None:
            work = self._tenants[tenant] = _TenantWork(len(self._total))
        if not work.parts[slot]:
            work.nodes += 1
            self._weights[slot] += self.weight(tenant)
        self._parts[slot] += 1
        work.parts[slot] += 1
        work.seconds[slot] += seconds
        self._total[slot] += seconds

    def remove_work(self, node: str, tenant: str, seconds: float) -> None:
        """Take off a part that `add_work` recorded since the node was added."""
        slot, work = self.slots[node], self._tenants[tenant]
        assert work.parts[slot] > 0, f"nothing of {tenant} waits at {node}"
        work.parts[slot] -= 1
        work.seconds[slot] -= seconds
        self._parts[slot] -= 1
        self._total[slot] = max(self._total[slot] - seconds, 0.0)
        if not work.parts[slot]:
            work.seconds[slot] = 0.0
            self._weights[slot] -= self.weight(tenant)
            self._leave(tenant, work)
        if not self._parts[slot]:  # what rounding has left
            self._total[slot] = self._weights[slot] = 0.0

    def _leave(self, tenant: str, work: _TenantWork) -> None:
        work.nodes -= 1
        if not work.nodes:
            del self._tenants[tenant]

    # -- Questions ----------------------------------------------------------------------------
    def weight(self, tenant: str) -> float:
        return self.tenant_weights.get(tenant, 1.0)

    def waiting_seconds(self, node: str) -> float:
        return float(self._total[self.slots[node]])

    def finish_seconds(self, slot: int, tenant: str, seconds: float) -> float:
        """Return when a run of so many seconds of the device would be done (see above)."""
        work, mine = self._tenants.get(tenant), self.weight(tenant)
        parts = work.parts[slot] if work is not None else 0
        own = float(work.seconds[slot]) if work is not None else 0.0
        present = float(self._weights[slot]) + (0.0 if parts else mine)
        return float(min((own + seconds) * present / mine, self._total[slot] + seconds))

    def cost_seconds(self, slot: int, tenant: str, seconds: float) -> float:
        """Return `finish_seconds`, and `seconds` for each part that is there and one more."""
        finish = self.finish_seconds(slot, tenant, seconds)
        return float(finish + seconds * (1.0 + self._parts[slot]))

    def cheapest(self, tenant: str, seconds: float, key: int, tie_s: float) -> int:
        """Return the slot with the lowest `cost_seconds` of all live nodes.

        `seconds` of the device are the same at all of them. Of nodes within `tie_s` of the lowest
        it is the one with the highest weight for `key`. Raise LookupError: there is no node. Takes
        time in proportion to the number of nodes.
        """
        if not self.slots:
            raise LookupError("there is no live node")
        count = len(self.names)
        times = self._costs(tenant, seconds, count)
        slots = np.flatnonzero(times <= times.min() + tie_s)
        if len(slots) == 1:
            return int(slots[0])
        return int(slots[weights(key, self._hashes[slots]).argmax()])

    def _costs(self, tenant: str, seconds: float, count: int) -> Float64:
        """Return `cost_seconds` for all slots, up to a constant."""
        total = self._total[:count]
        displaced: Float64 = seconds * self._parts[:count]
        if len(self._tenants) <= 1 and (not self._tenants or tenant in self._tenants):
            return total + displaced  # all that waits is its own
        mine, work = self.weight(tenant), self._tenants.get(tenant)
        present: Float64 = self._weights[:count] / mine
        if work is None:
            shared = (present + 1.0) * seconds
        else:
            present += work.parts[:count] == 0
            shared = present * (work.seconds[:count] + seconds)
        finish: Float64 = np.where(np.isinf(total), np.inf, np.minimum(shared, total + seconds))
        return finish + displaced

    def rank(self, key: int, slot: int) -> int:
        """Return a node's rendezvous weight for a key: of equal nodes the highest is chosen."""
        return weight(key, self._plain[slot])

    def check_integrity(self) -> None:
        """Assert that totals are the sums of the tenants' parts."""
        for node, slot in self.slots.items():
            assert self.names[slot] == node
            assert self.speeds[slot] is not None
            works = [work for work in self._tenants.values() if work.parts[slot]]
            total = sum(float(work.seconds[slot]) for work in works)
            assert abs(total - self._total[slot]) < 1e-6 * max(total, 1.0)
        for tenant, work in self._tenants.items():
            assert work.nodes == np.count_nonzero(work.parts) > 0, tenant
            assert (work.parts >= 0).all()
