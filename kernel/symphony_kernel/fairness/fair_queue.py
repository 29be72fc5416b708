"""Level 1, who may run: one queue a LIP, under one a tenant, in virtual time.

Every tenant, and within it every LIP (a run with its children), has a counter of the service it
has had: weighted cost over its own weight. The next work is the first of the least served LIP of
the least served tenant. Whoever comes back with work after having had none is lifted to the least
served of those that have some: idling earns no credit (the Virtual Token Counter of arXiv
2401.00588). So of two tenants that both have work waiting, neither gets more than a constant ahead,
whatever they submit; tests/kernel/fairness/test_fairness.py states that bound.

A LIP is not idle while the pager has a work of it, parked, blocked or rebuilt. Such a work is
*away*. Its LIP is not lifted, else it would lose service whenever all its works wait for frames.

Both heaps are pruned lazily: who leaves from the middle stays as a stale entry until it comes to
the front, so that thousands may come and go. The first entry of a heap is always a valid one.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, KeysView, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, TypeVar

from symphony_kernel.fairness.step_cost import StepCost
from symphony_kernel.protocol.errno import Errno, KernelBug, SyscallError
from symphony_kernel.protocol.limits import TENANT_WEIGHT_MAX, TENANT_WEIGHT_MIN
from symphony_kernel.request import Request

_ASIDE_MAX: Final = 64  # works of one LIP that are looked at in vain, for one batch
_UNLIMITED: Final = float("inf")
_STALE_MAX: Final = 64  # entries of a heap, besides as many as are valid


@dataclass(frozen=True, slots=True)
class FairQueueStatistics:
    """What waits, and each active tenant's counter."""

    tenants: int
    lips: int
    requests: int
    tokens: int
    counters: dict[str, float]


@dataclass(slots=True, eq=False)
class _Run:
    root: int
    order: int  # breaks ties in a fixed way
    tenant: "_Tenant"
    weight: float
    counter: float = 0.0
    served: float = 0.0  # cost over weight, never lifted
    # In order. Not a deque: a program may cancel any of a hundred thousand.
    requests: OrderedDict[Request, None] = field(default_factory=OrderedDict)
    aside: int = 0  # works that are set aside
    # Works that the pager has, in order. A LIP with any is not idle and is not lifted.
    away: dict[Request, None] = field(default_factory=dict)
    active: bool = False  # in its tenant's heap, under its counter


@dataclass(slots=True, eq=False)
class _Tenant:
    name: str
    order: int
    weight: float
    counter: float = 0.0
    runs: "_Heap[_Run]" = field(default_factory=list)
    last: float = 0.0  # the counter of the LIP that was active last
    runs_active: int = 0
    prompts: int = 0  # works of more than one token
    decodes: int = 0  # the others
    active: bool = False
    present: bool = False  # it has work, here or on the device, or had some a moment ago
    run_counter_max: float = _UNLIMITED  # of its LIPs' counters, while a batch is formed


_Node = TypeVar("_Node", _Run, _Tenant)
# An entry is valid while its node is active and has that counter.
_Heap = list[tuple[float, int, _Node]]


class FairQueue:
    """Waiting works in fair order.

    A batch is formed between `first` and `restore`: look at the first work, then either `serve` it
    (some or all of its tokens) or `set_aside` what cannot run in this batch.
    """

    def __init__(self, costs: StepCost | None = None) -> None:
        self._costs = costs or StepCost()
        self._tenants: dict[str, _Tenant] = {}
        self._present: dict[str, _Tenant] = {}
        self._others: _Heap[_Tenant] = []  # while the queue is for one tenant alone
        self._runs: dict[int, _Run] = {}
        self._heap: _Heap[_Tenant] = []
        self._tenants_active = self._runs_active = 0
        self._aside: list[tuple[_Run, Request]] = []
        self._passed: list[_Tenant] = []  # over, until `restore`
        self._limited: list[_Tenant] = []  # those with a run_counter_max
        self._tenant_counter_max = _UNLIMITED  # of tenants' counters, while a batch is formed
        self._last = 0.0  # the largest counter of a tenant that was present
        self._made = 0
        self.requests = 0
        self.decodes = 0  # works of one token
        self.tokens = 0  # of the works, not yet placed

    @property
    def tenants(self) -> int:
        """Tenants that have ever been here."""
        return len(self._tenants)

    def tenant_weight(self, tenant: str) -> float:
        """Return a tenant's share, relative to the others'."""
        node = self._tenants.get(tenant)
        return 1.0 if node is None else node.weight

    # -- Tenants -------------------------------------------------------------------------------
    @property
    def present(self) -> KeysView[str]:
        """The tenants that share the device now."""
        return self._present.keys()

    @property
    def several(self) -> bool:
        """Whether more than one tenant shares the device now."""
        return len(self._present) > 1

    def remove_tenant(self, tenant: str) -> None:
        """A tenant has had nothing to do for a while: the others share the device without it."""
        node = self._present.pop(tenant, None)
        if node is not None:
            node.present = False
            self._last = max(self._last, node.counter)

    def counter(self, tenant: str) -> float:
        """Return a present tenant's virtual time."""
        return self._present[tenant].counter

    def is_active(self, tenant: str) -> bool:
        """Whether a tenant has works here."""
        node = self._tenants.get(tenant)
        return node is not None and node.active

    def size(self, tenant: str) -> int:
        """Return how many works of a tenant are here."""
        node = self._tenants[tenant]
        return node.decodes + node.prompts

    def requests_of(self, tenant: str) -> Iterator[Request]:
        """Give a tenant's works, each LIP's in order; those set aside are not among them."""
        for counter, _, run in self._tenants[tenant].runs:
            if run.active and run.counter == counter:
                yield from run.requests

    @property
    def least_counter(self) -> float:
        """The virtual time of the tenant furthest behind of those that have works here."""
        return self._heap[0][0] if self._heap else _UNLIMITED

    def charge_tenant(self, tenant: str, seconds: float) -> None:
        """Charge a tenant for time of the device; not while a batch is formed."""
        node = self._tenant(tenant)
        self._set_counter(node, node.counter + seconds / node.weight)

    def bound_credit(self, seconds: float) -> None:
        """Let no tenant be owed more time than this; not while a batch is formed."""
        present = self._present.values()
        if not present:
            return
        least = max([each.counter for each in present])
        least -= seconds / sum([each.weight for each in present])
        for each in present:
            if each.counter < least:
                self._set_counter(each, least)

    def _set_counter(self, node: _Tenant, counter: float) -> None:
        active = node.active
        if active:
            self._remove(node)
        node.counter = counter
        if active:
            self._insert(node)

    def focus_tenant(self, tenant: str) -> bool:
        """Let the queue be this tenant's alone until `unfocus`; return whether it has works."""
        node = self._tenants[tenant]
        if not self._others:
            self._others = self._heap
        self._heap = [(node.counter, node.order, node)] if node.active else []
        return node.active

    def unfocus(self) -> None:
        """Undo `focus`."""
        if self._others:
            self._heap, self._others = self._others, []
            _prune(self._heap)

    # -- Coming and going ----------------------------------------------------------------------
    def set_tenant_weight(self, tenant: str, weight: float) -> None:
        """Give a tenant this share of the service, relative to the others' (1 by default)."""
        assert weight > 0
        self._tenant(tenant).weight = weight

    def push(self, request: Request) -> None:
        """Queue a work behind those of its LIP."""
        run = self._runs.get(request.root)
        if run is None:
            run = self._new_run(request)
        run.weight = request.weight
        run.requests[request] = None
        if request.count == 1:  # as `_entered`, for most works there are
            self.requests += 1
            self.decodes += 1
            self.tokens += 1
            run.tenant.decodes += 1
        else:
            self._entered(run.tenant, request)
        if not run.active:
            self._lift(run)
            self._activate(run)

    def put_back(self, request: Request) -> None:
        """Queue a work before those of its LIP that has been here before: it has kept its claim."""
        run = self._runs[request.root]
        run.away.pop(request, None)
        run.requests[request] = None
        run.requests.move_to_end(request, last=False)
        tenant = run.tenant
        self._entered(tenant, request)
        if not tenant.present:  # it has waited elsewhere, which is no idleness
            tenant.present = True
            self._present[tenant.name] = tenant
        if not run.active:
            self._activate(run)

    def remove(self, request: Request) -> bool:
        """Take out a work that waits or is away; return whether it waited here."""
        run = self._runs.get(request.root)
        if run is None:
            return False
        run.away.pop(request, None)
        if request not in run.requests:
            return False
        del run.requests[request]
        self._forgot(request)
        if not run.requests:
            self._deactivate(run)
        return True

    def send_away(self, request: Request) -> None:
        """Take a waiting work out until `put_back` or `remove`; its LIP keeps its claim."""
        self.remove(request)
        self._runs[request.root].away[request] = None

    def away_requests(self, root: int, instance: int | None) -> list[Request]:
        """Return the works of an instance, or of a LIP (None), that are away."""
        run = self._runs.get(root)
        requests = () if run is None else run.away
        return [request for request in requests if instance in (None, request.instance)]

    def forget_instance(self, root: int, instance: int) -> list[Request]:
        """Take out all works of one instance of the LIP `root` and return them."""
        run = self._runs.get(root)
        if run is None:
            return []
        gone = [request for request in run.requests if request.instance == instance]
        if gone:
            for request in gone:
                del run.requests[request]
                self._forgot(request)
            if not run.requests:
                self._deactivate(run)
        return gone

    def forget_run(self, root: int) -> list[Request]:
        """Take out a LIP with all its works and return these; its counter is forgotten."""
        run = self._runs.pop(root, None)
        if run is None:
            return []
        gone = list(run.requests)
        run.requests.clear()
        for request in gone:
            self._forgot(request)
        if run.active:
            self._deactivate(run)
        return gone

    # -- Forming a batch -----------------------------------------------------------------------
    def first(self) -> Request | None:
        """Return the work that has the best claim to run, if any waits that is not set aside."""
        return _first(self._heap[0][2].runs[0][2]) if self._heap else None

    def serve(self, tokens: int) -> None:
        """Charge the first work's LIP and tenant for its next `tokens` tokens.

        A work with tokens left goes behind its LIP's others, so that a LIP's long prompt does not
        hold up its own branches.
        """
        tenant = self._heap[0][2]
        run = tenant.runs[0][2]
        requests = run.requests
        request = next(iter(requests))
        self._charge(run, request, tokens)
        if request.placed < request.count:
            requests.move_to_end(request)
        else:
            del requests[request]
            if request.count == 1:  # as `_left`, for most works there are
                self.requests -= 1
                self.decodes -= 1
                tenant.decodes -= 1
            else:
                self._left(tenant, request)
        self._reorder_first(tenant, run, bool(requests))

    def set_aside(self) -> None:
        """Pass over the first work until `restore`; over its LIP, too, when that has had many."""
        tenant = self._heap[0][2]
        run = tenant.runs[0][2]
        self._aside.append((run, run.requests.popitem(last=False)[0]))
        run.aside += 1
        self._reorder_first(tenant, run, bool(run.requests) and run.aside < _ASIDE_MAX)

    def skip_tenant_of_prompts(self) -> bool:
        """Pass over the first work's tenant until `restore` if it has prompts only; return whether.

        However many they are: a look at each, in each step, is what everybody would wait for.
        """
        tenant = self._heap[0][2]
        if tenant.decodes:
            return False
        self.skip_tenant()
        return True

    def limit_tenant_runs(self, service: float) -> None:
        """Let no LIP be served further ahead of the first work's, of its tenant, than `service`.

        For a batch in which that work has no room and smaller ones have; until `restore`.
        """
        tenant = self._heap[0][2]
        if tenant.run_counter_max == _UNLIMITED:
            self._limited.append(tenant)
        tenant.run_counter_max = min(tenant.run_counter_max, tenant.runs[0][2].counter + service)

    def limit_to(self, root: int, served: float, service: float) -> None:
        """As `limit_tenant_runs`, for a LIP that need not be first: it counts as served so much."""
        tenant = self._runs[root].tenant
        seconds = service * self._costs.service_seconds
        self._tenant_counter_max = min(self._tenant_counter_max, tenant.counter + seconds)
        if tenant.run_counter_max == _UNLIMITED:
            self._limited.append(tenant)
        tenant.run_counter_max = min(tenant.run_counter_max, served + service)

    def limit_tenants(self, counter: float) -> None:
        """Let no tenant be served that is further in virtual time; until `restore`."""
        self._tenant_counter_max = min(self._tenant_counter_max, counter)

    def skip_tenant(self) -> None:
        """Pass over the first work's tenant until `restore`."""
        tenant = self._heap[0][2]
        self._remove(tenant)
        self._passed.append(tenant)

    def skip_if_ahead(self) -> bool:
        """Pass over the first work's tenant if it would get too far ahead; return whether."""
        if not self._heap:
            return False
        tenant = self._heap[0][2]
        if (
            tenant.counter <= self._tenant_counter_max
            and tenant.runs[0][2].counter <= tenant.run_counter_max
        ):
            return False
        self.skip_tenant()
        return True

    def drop_first(self) -> None:
        """Take the first work out for good, because it has failed."""
        tenant = self._heap[0][2]
        run = tenant.runs[0][2]
        self._forgot(run.requests.popitem(last=False)[0])
        self._reorder_first(tenant, run, bool(run.requests))

    def extend(self, request: Request, tokens: int) -> None:
        """Serve a work that need not be the first with `tokens` tokens more.

        For room that is left in a batch when no other LIP can use it; only after `restore`.
        """
        run = self._runs[request.root]
        tenant = run.tenant
        self._deactivate(run)
        if tenant.active:
            self._remove(tenant)
        self._charge(run, request, tokens)
        if not request.remaining:
            del run.requests[request]
            self._left(tenant, request)
        tenant.last = run.counter
        if run.requests:
            self._activate(run)
        elif tenant.runs_active:
            self._insert(tenant)

    def serve_fully(self, request: Request) -> None:
        """Serve a waiting work with all its tokens, though it need not be the first."""
        self.extend(request, request.remaining)

    def serve_new(self, request: Request) -> None:
        """Serve a work that has just come with all its tokens: it never waits."""
        run = self._runs.get(request.root)
        if run is None:
            run = self._new_run(request)
        tenant = run.tenant
        if tenant.active:
            self.push(request)
            self.serve_fully(request)
            return
        run.weight = request.weight
        self._lift(run)
        self.tokens += request.remaining
        self._charge(run, request, request.remaining)
        tenant.last = run.counter

    def charge_run(self, root: int, tenant: str, weight: float, seconds: float) -> None:
        """Charge a LIP, not its tenant, for time beside its works; not while a batch is formed.

        Raises:
            KernelBug: the cost is no cost. What is not a number would be lost in the heaps, and
                with it everybody's work: nothing that is compared with it comes first.
        """
        if not 0.0 <= seconds < _UNLIMITED:
            raise KernelBug(f"LIP {root} is charged {seconds}")
        run = self._runs.get(root)
        if run is None:
            self._made += 1
            run = self._runs[root] = _Run(root, self._made, self._tenant(tenant), weight)
        home = run.tenant
        if run.active:
            self._deactivate(run)
        else:
            self._lift(run)
        self._charge_run(run, seconds / self._costs.service_seconds)
        if run.requests:
            self._activate(run)
        else:
            home.last = run.counter

    def restore(self) -> None:
        """Put what was set aside back to where it was: in front, with its counter as it is."""
        while self._aside:
            run, request = self._aside.pop()
            run.requests[request] = None
            run.requests.move_to_end(request, last=False)
            run.aside = 0
            if not run.active:
                self._activate(run)
        while self._passed:
            tenant = self._passed.pop()
            if not tenant.active:
                self._insert(tenant)
        while self._limited:
            self._limited.pop().run_counter_max = _UNLIMITED
        self._tenant_counter_max = _UNLIMITED

    def precedes(self, root: int) -> bool:
        """Whether a LIP that has no work waiting would have as good a claim as any if it had."""
        run = self._runs.get(root)
        if run is None or run.active or not self._heap:
            return False
        first = self._heap[0][2]
        if run.tenant is not first:
            return run.tenant.counter <= first.counter
        return run.counter <= first.runs[0][0]

    def all_requests(self) -> list[Request]:
        """Return all works that wait."""
        return [request for run in self._runs.values() for request in run.requests]

    def is_queued(self, request: Request) -> bool:
        """Whether a work waits."""
        run = self._runs.get(request.root)
        return run is not None and request in run.requests

    def service_ahead(self, root: int, other: int, served: float) -> float:
        """Return how much more than LIP `other` a LIP was served, where they compare.

        `other` counts as served so much within its tenant. A LIP that is gone is ahead of all.
        """
        run = self._runs.get(root)
        if run is None:
            return _UNLIMITED
        tenant = self._runs[other].tenant
        if run.tenant is not tenant:
            return (run.tenant.counter - tenant.counter) / self._costs.service_seconds
        return run.counter - served

    def has_run(self, root: int) -> bool:
        """Whether a LIP has been here and not been forgotten."""
        return root in self._runs

    def has_requests(self, root: int) -> bool:
        """Whether a LIP has work waiting."""
        run = self._runs.get(root)
        return run is not None and bool(run.requests)

    @property
    def runs_active(self) -> int:
        """LIPs with work waiting."""
        return self._runs_active

    def counters(self, root: int) -> tuple[float, float]:
        """Return the counters of a LIP's tenant and of the LIP, which order the queue."""
        run = self._runs[root]
        return run.tenant.counter, run.counter

    def served(self, root: int) -> float:
        """Return all the service that a LIP has had, over its weight."""
        return self._runs[root].served

    def statistics(self) -> FairQueueStatistics:
        """Return what waits now."""
        return FairQueueStatistics(
            tenants=self._tenants_active,
            lips=self._runs_active,
            requests=self.requests,
            tokens=self.tokens,
            counters={t.name: t.counter for t in self._tenants.values() if t.active},
        )

    def waiting_by_tenant(self) -> dict[str, tuple[int, float]]:
        """Return of each tenant that has works here their tokens, and its weight.

        Looks at every work: for whoever admits new runs, now and then.
        """
        found: dict[str, tuple[int, float]] = {}
        for run in self._runs.values():
            if run.requests:
                tenant = run.tenant
                tokens = found.get(tenant.name, (0, 0.0))[0]
                tokens += sum([request.remaining for request in run.requests])
                found[tenant.name] = tokens, tenant.weight
        return found

    # -- Within --------------------------------------------------------------------------------
    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            self._made += 1
            tenant = self._tenants[name] = _Tenant(name, self._made, 1.0)
        return tenant

    def _new_run(self, request: Request) -> _Run:
        self._made += 1
        run = _Run(request.root, self._made, self._tenant(request.tenant), request.weight)
        self._runs[request.root] = run
        return run

    def _charge(self, run: _Run, request: Request, tokens: int) -> None:
        self._charge_run(run, self._costs.cost(request, tokens))
        self.tokens -= tokens
        request.placed += tokens

    def _charge_run(self, run: _Run, tokens: float) -> None:
        service = tokens / run.weight
        run.counter += service
        run.served += service

    def _entered(self, tenant: _Tenant, request: Request) -> None:
        self.requests += 1
        if request.count == 1:
            self.decodes += 1
            tenant.decodes += 1
        else:
            tenant.prompts += 1
        self.tokens += request.count - request.placed

    def _left(self, tenant: _Tenant, request: Request) -> None:
        self.requests -= 1
        if request.count == 1:
            self.decodes -= 1
            tenant.decodes -= 1
        else:
            tenant.prompts -= 1

    def _forgot(self, request: Request) -> None:
        self._left(self._tenants[request.tenant], request)
        self.tokens -= request.remaining

    def _lift(self, run: _Run) -> None:
        tenant = run.tenant
        if not tenant.present:
            present = self._present
            least = min(each.counter for each in present.values()) if present else self._last
            if least > tenant.counter:
                tenant.counter = least
            tenant.present = True
            present[tenant.name] = tenant
        least = tenant.runs[0][0] if tenant.runs else tenant.last
        if least > run.counter and not run.away:
            run.counter = least

    # -- Heaps: an active node's counter changes only at the front, where its entry is replaced --
    def _activate(self, run: _Run) -> None:
        tenant = run.tenant
        run.active = True
        tenant.runs_active += 1
        self._runs_active += 1
        runs = tenant.runs
        heappush(runs, (run.counter, run.order, run))
        if len(runs) > 2 * tenant.runs_active + _STALE_MAX:
            _drop_stale(runs)
        if not tenant.active:
            self._insert(tenant)

    def _deactivate(self, run: _Run) -> None:
        tenant = run.tenant
        run.active = False
        tenant.runs_active -= 1
        self._runs_active -= 1
        tenant.last = run.counter
        _prune(tenant.runs)
        if not tenant.runs and tenant.active:
            self._remove(tenant)

    def _insert(self, tenant: _Tenant) -> None:
        tenant.active = True
        self._tenants_active += 1
        heappush(self._heap, (tenant.counter, tenant.order, tenant))
        if len(self._heap) > 2 * self._tenants_active + _STALE_MAX:
            _drop_stale(self._heap)

    def _remove(self, tenant: _Tenant) -> None:
        tenant.active = False
        self._tenants_active -= 1
        _prune(self._heap)

    def _reorder_first(self, tenant: _Tenant, run: _Run, waits: bool) -> None:
        """The first LIP of the first tenant has a new counter, or no more work for now."""
        runs = tenant.runs
        if waits:
            heapreplace(runs, (run.counter, run.order, run))
        else:
            heappop(runs)
            run.active = False
            tenant.runs_active -= 1
            self._runs_active -= 1
            tenant.last = run.counter
        if runs:
            counter, _, first = runs[0]
            if not first.active or first.counter != counter:
                _prune(runs)
        if runs:
            tenants = self._heap
            if len(tenants) == 1:
                tenants[0] = (tenant.counter, tenant.order, tenant)
                return
            heapreplace(tenants, (tenant.counter, tenant.order, tenant))
            if not _is_valid(tenants[0]):
                _prune(tenants)
        else:
            self._remove(tenant)


class TenantWeights:
    """Sets tenants' weights. Nothing of it is kept: the gateway tells it again."""

    def __init__(
        self, set_weight: Callable[[str, float], None], usual: Mapping[str, float]
    ) -> None:
        """`usual` are the options' weights; 1 where none stands."""
        self._set_weight = set_weight
        self._usual = dict(usual)
        self._weights = dict(usual)
        for tenant, weight in usual.items():
            set_weight(tenant, weight)

    def set(self, tenant: str, weight: object) -> None:
        """Give a tenant a weight, or its usual one (None); EINVAL."""
        if weight is None:
            weight = self._usual.get(tenant, 1.0)
        number = weight if isinstance(weight, int | float) and type(weight) is not bool else 0
        if not TENANT_WEIGHT_MIN <= number < TENANT_WEIGHT_MAX:
            raise SyscallError(Errno.EINVAL, f"a weight is a number from {TENANT_WEIGHT_MIN}")
        self._weights[tenant] = number
        self._set_weight(tenant, number)

    def weight(self, tenant: str) -> float:
        """Return a tenant's weight."""
        return self._weights.get(tenant, 1.0)


def _drop_stale(heap: _Heap[_Node]) -> None:
    """Keep one entry of each active node."""
    heap[:] = {entry[1]: entry for entry in heap if _is_valid(entry)}.values()
    heapify(heap)


def _prune(heap: _Heap[_Node]) -> None:
    """Drop stale entries from the front."""
    while heap and not _is_valid(heap[0]):
        heappop(heap)


def _is_valid(entry: tuple[float, int, _Node]) -> bool:
    counter, _, node = entry
    return node.active and node.counter == counter


def _first(run: _Run) -> Request:
    return next(iter(run.requests))
