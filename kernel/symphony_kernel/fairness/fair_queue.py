"""Level 1, which request may run: a queue for each run, under one for each tenant.

Each tenant, and within it each run with its children, has a counter of the service it has had, its
virtual time: weighted cost over its own weight. The next request is the first of the least served
run of the least served tenant. A tenant or run that comes back after having had no requests is
lifted to the least served of those that have some: idling earns no credit (the Virtual Token
Counter of arXiv 2401.00588). So of two tenants that both have requests waiting, neither gets more
than a constant ahead, for any load; tests/kernel/fairness/test_fairness.py states that
bound.

A run is not idle while the admission has a request of it: queued, blocked or recomputing. Such a
request is *away*. Its run is not lifted. Otherwise the run would lose service whenever all its
requests wait for frames.

Both heaps are pruned lazily: an entry removed from the middle stays as a stale one until it comes
to the front, so that thousands may come and go. The first entry of a heap is always valid.
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

_ASIDE_MAX: Final = 64  # requests of one run that are set aside for one step
_UNLIMITED: Final = float("inf")
_STALE_MAX: Final = 64  # stale entries of a heap, in addition to as many as are valid


@dataclass(slots=True, eq=False)
class _Run:
    root: int
    order: int  # breaks ties in a fixed way
    tenant: "_Tenant"
    weight: float
    counter: float = 0.0
    # In order. Not a deque: a program may cancel any of a hundred thousand.
    requests: OrderedDict[Request, None] = field(default_factory=OrderedDict)
    aside: int = 0  # requests that are set aside
    # Requests that the admission has, in order. A run with any is not idle and is not lifted.
    away: dict[Request, None] = field(default_factory=dict)
    active: bool = False  # in its tenant's heap, under its counter


@dataclass(slots=True, eq=False)
class _Tenant:
    name: str
    order: int
    weight: float
    counter: float = 0.0
    runs: "_Heap[_Run]" = field(default_factory=list)
    last: float = 0.0  # the counter of the run that was active last
    runs_active: int = 0
    prompts: int = 0  # requests of more than one token
    decodes: int = 0  # the others
    active: bool = False
    present: bool = False  # it has requests, here or on the device, or had some a moment ago
    run_counter_max: float = _UNLIMITED  # of runs that may be served, while a step is formed


_Node = TypeVar("_Node", _Run, _Tenant)
# An entry is valid while its node is active and has that counter.
_Heap = list[tuple[float, int, _Node]]


class FairQueue:
    """Waiting requests in fair order.

    A step is formed between `first` and `restore`: look at the first request, then either `serve`
    it (some or all of its tokens) or `set_aside` what cannot run in this step.
    """

    def __init__(self, costs: StepCost | None = None) -> None:
        self._costs = costs or StepCost()
        self._tenants: dict[str, _Tenant] = {}
        self._present: dict[str, _Tenant] = {}
        self._others: _Heap[_Tenant] = []  # while the queue is for one tenant alone
        self._runs: dict[int, _Run] = {}
        self._heap: _Heap[_Tenant] = []
        self._tenants_active = self.runs_active = 0
        self._aside: list[tuple[_Run, Request]] = []
        self._skipped: list[_Tenant] = []  # until `restore`
        self._limited: list[_Tenant] = []  # those with a run_counter_max
        self._tenant_counter_max = _UNLIMITED  # of tenants that may be served
        self._last = 0.0  # the largest counter of a tenant that was present
        self._made = 0
        self.requests = 0
        self.decodes = 0  # requests of one token
        self.tokens = 0  # of the requests, not yet placed

    def tenant_weight(self, tenant: str) -> float:
        node = self._tenants.get(tenant)
        return 1.0 if node is None else node.weight

    # -- Tenants -------------------------------------------------------------------------------
    @property
    def present(self) -> KeysView[str]:
        return self._present.keys()

    @property
    def several(self) -> bool:
        return len(self._present) > 1

    def remove_tenant(self, tenant: str) -> None:
        """Take a tenant off the device's shares: it has had no requests for a while."""
        node = self._present.pop(tenant, None)
        if node is not None:
            node.present = False
            self._last = max(self._last, node.counter)

    def counter(self, tenant: str) -> float:
        return self._present[tenant].counter

    def is_active(self, tenant: str) -> bool:
        node = self._tenants.get(tenant)
        return node is not None and node.active

    def size(self, tenant: str) -> int:
        node = self._tenants[tenant]
        return node.decodes + node.prompts

    def requests_of(self, tenant: str) -> Iterator[Request]:
        """Yield a tenant's requests, each run's in order, without those set aside."""
        # A run that came back at the same counter has two valid entries.
        seen = set[int]()
        for counter, order, run in self._tenants[tenant].runs:
            if run.active and run.counter == counter and order not in seen:
                seen.add(order)
                yield from run.requests

    @property
    def least_counter(self) -> float:
        """The virtual time of the tenant furthest behind of those with requests here."""
        return self._heap[0][0] if self._heap else _UNLIMITED

    def charge_tenant(self, tenant: str, seconds: float) -> None:
        """Charge a tenant for device time; not while a step is formed."""
        node = self._tenant(tenant)
        self._set_counter(node, node.counter + seconds / node.weight)

    def bound_credit(self, seconds: float) -> None:
        """Let no tenant be owed more device time than this; not while a step is formed."""
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
        """Restrict the queue to a tenant until `unfocus`; return whether it has requests."""
        node = self._tenants[tenant]
        if not self._others:
            self._others = self._heap
        self._heap = [(node.counter, node.order, node)] if node.active else []
        return node.active

    def unfocus(self) -> None:
        if self._others:
            self._heap, self._others = self._others, []
            _prune(self._heap)

    # -- Requests that come and go -------------------------------------------------------------
    def set_tenant_weight(self, tenant: str, weight: float) -> None:
        assert weight > 0
        self._tenant(tenant).weight = weight

    def push(self, request: Request) -> None:
        run = self._runs.get(request.root)
        if run is None:
            run = self._new_run(request.root, request.tenant, request.weight)
        run.weight = request.weight
        run.requests[request] = None
        if request.count == 1:  # `_entered`, inlined for most requests
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
        """Queue a request that was here before, in front of its run's: it keeps its claim."""
        run = self._runs[request.root]
        run.away.pop(request, None)
        run.requests[request] = None
        run.requests.move_to_end(request, last=False)
        tenant = run.tenant
        self._entered(tenant, request)
        if not tenant.present:  # its request has waited elsewhere: the tenant was not idle
            tenant.present = True
            self._present[tenant.name] = tenant
        if not run.active:
            self._activate(run)

    def remove(self, request: Request) -> bool:
        """Remove a request that waits or is away; return whether it waited here."""
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
        """Remove a request until `put_back` or `remove`; its run keeps its claim."""
        self.remove(request)
        self._runs[request.root].away[request] = None

    def away_requests(self, root: int, instance: int | None) -> list[Request]:
        run = self._runs.get(root)
        requests = () if run is None else run.away
        return [request for request in requests if instance in (None, request.instance)]

    def drop_requests(self, root: int, instance: int | None = None) -> list[Request]:
        """Forget the requests of an instance, or a whole run; return those that waited here."""
        run = self._runs.get(root)
        if run is None:
            return []
        gone = [request for request in run.requests if instance in (None, request.instance)]
        for request in gone:
            del run.requests[request]
            self._forgot(request)
        if run.active and not run.requests:
            self._deactivate(run)
        if instance is None:
            del self._runs[root]
        return gone

    # -- Forming a step ------------------------------------------------------------------------
    def first(self) -> Request | None:
        return next(iter(self._heap[0][2].runs[0][2].requests)) if self._heap else None

    def serve(self, tokens: int) -> None:
        """Charge the first request's run and tenant for its next `tokens` tokens.

        A request with tokens left goes behind its run's others, so that a run's long prompt does
        not hold up its own branches.
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
            if request.count == 1:  # `_left`, inlined for most requests
                self.requests -= 1
                self.decodes -= 1
                tenant.decodes -= 1
            else:
                self._left(tenant, request)
        self._reorder_first(tenant, run, bool(requests))

    def set_aside(self) -> None:
        """Skip the first request until `restore`, and its run after _ASIDE_MAX of them."""
        tenant = self._heap[0][2]
        run = tenant.runs[0][2]
        self._aside.append((run, run.requests.popitem(last=False)[0]))
        run.aside += 1
        self._reorder_first(tenant, run, bool(run.requests) and run.aside < _ASIDE_MAX)

    def skip_tenant_of_prompts(self) -> bool:
        """Skip the first request's tenant if it has prompts only; return whether.

        There may be many: a look at each, in each step, would delay all tenants.
        """
        tenant = self._heap[0][2]
        if tenant.decodes:
            return False
        self.skip_tenant()
        return True

    def limit_tenant_runs(self, service: float) -> None:
        """Limit the first tenant's runs to `service` more than its first request's run.

        For a step in which that request has no room and smaller ones have; until `restore`.
        """
        tenant = self._heap[0][2]
        self._limit_runs(tenant, tenant.runs[0][2].counter + service)

    def limit_to(self, root: int, served: float, service: float) -> None:
        """As `limit_tenant_runs`, for a run that need not be first and was served so much.

        Other tenants are limited alike.
        """
        tenant = self._runs[root].tenant
        self.limit_tenants(tenant.counter + service * self._costs.service_seconds)
        self._limit_runs(tenant, served + service)

    def limit_tenants(self, counter: float) -> None:
        self._tenant_counter_max = min(self._tenant_counter_max, counter)

    def _limit_runs(self, tenant: _Tenant, counter: float) -> None:
        if tenant.run_counter_max == _UNLIMITED:
            self._limited.append(tenant)
        tenant.run_counter_max = min(tenant.run_counter_max, counter)

    def skip_tenant(self) -> None:
        tenant = self._heap[0][2]
        self._remove(tenant)
        self._skipped.append(tenant)

    def skip_if_ahead(self) -> bool:
        """Skip the first request's tenant if it is past a limit; return whether."""
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

    def extend(self, request: Request, tokens: int) -> None:
        """Serve a request that need not be the first with `tokens` tokens more.

        For room that no other run can use; only after `restore`.
        """
        run = self._runs[request.root]
        self._deactivate(run)
        self._charge(run, request, tokens)
        if not request.remaining:
            del run.requests[request]
            self._left(run.tenant, request)
        run.tenant.last = run.counter
        if run.requests:
            self._activate(run)

    def skip_tokens(self, request: Request, tokens: int) -> None:
        """Note that a request's next `tokens` tokens, but not its last, need no step."""
        self.tokens -= tokens
        request.placed += tokens

    def serve_new(self, request: Request) -> None:
        """Serve a request that has just come with all its tokens: it never waits."""
        run = self._runs.get(request.root)
        if run is None:
            run = self._new_run(request.root, request.tenant, request.weight)
        tenant = run.tenant
        if tenant.active:
            self.push(request)
            self.extend(request, request.remaining)
            return
        run.weight = request.weight
        self._lift(run)
        self.tokens += request.remaining
        self._charge(run, request, request.remaining)
        tenant.last = run.counter

    def charge_run(self, root: int, tenant: str, weight: float, seconds: float) -> None:
        """Charge a run, not its tenant, for time outside its requests.

        Not while a step is formed.

        Raises KernelBug: the seconds are negative, infinite or not a number (NaN breaks heap
        order).
        """
        if not 0.0 <= seconds < _UNLIMITED:
            raise KernelBug(f"run {root} is charged {seconds} seconds")
        run = self._runs.get(root)
        if run is None:
            run = self._new_run(root, tenant, weight)
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
        """Undo `set_aside`, skips and limits: requests are in front again."""
        while self._aside:
            run, request = self._aside.pop()
            run.requests[request] = None
            run.requests.move_to_end(request, last=False)
            run.aside = 0
            if not run.active:
                self._activate(run)
        while self._skipped:
            tenant = self._skipped.pop()
            if not tenant.active:
                self._insert(tenant)
        while self._limited:
            self._limited.pop().run_counter_max = _UNLIMITED
        self._tenant_counter_max = _UNLIMITED

    def precedes(self, root: int) -> bool:
        """Whether a run without requests would come first if it had one."""
        run = self._runs.get(root)
        if run is None or run.active or not self._heap:
            return False
        first = self._heap[0][2]
        if run.tenant is not first:
            return run.tenant.counter <= first.counter
        return run.counter <= first.runs[0][0]

    def all_requests(self) -> list[Request]:
        return [request for run in self._runs.values() for request in run.requests]

    def is_queued(self, request: Request) -> bool:
        run = self._runs.get(request.root)
        return run is not None and request in run.requests

    def service_ahead(self, root: int, other: int, served: float) -> float:
        """Return how much more service a run has had than run `other`.

        `other` counts as served so much within its tenant. A run that is gone is ahead of all.
        """
        run = self._runs.get(root)
        if run is None:
            return _UNLIMITED
        tenant = self._runs[other].tenant
        if run.tenant is not tenant:
            return (run.tenant.counter - tenant.counter) / self._costs.service_seconds
        return run.counter - served

    def has_run(self, root: int) -> bool:
        return root in self._runs

    def has_requests(self, root: int) -> bool:
        run = self._runs.get(root)
        return run is not None and bool(run.requests)

    def counters(self, root: int) -> tuple[float, float]:
        """Return the counters of a run's tenant and of the run, which order the queue."""
        run = self._runs[root]
        return run.tenant.counter, run.counter

    # -- Internal ------------------------------------------------------------------------------
    def _tenant(self, name: str) -> _Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            self._made += 1
            tenant = self._tenants[name] = _Tenant(name, self._made, 1.0)
        return tenant

    def _new_run(self, root: int, tenant: str, weight: float) -> _Run:
        self._made += 1
        run = self._runs[root] = _Run(root, self._made, self._tenant(tenant), weight)
        return run

    def _charge(self, run: _Run, request: Request, tokens: int) -> None:
        self._charge_run(run, self._costs.cost(request, tokens))
        self.tokens -= tokens
        request.placed += tokens

    def _charge_run(self, run: _Run, tokens: float) -> None:
        run.counter += tokens / run.weight

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
        self.runs_active += 1
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
        self.runs_active -= 1
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
        """Replace the first run's entry: it has a new counter, or no more requests."""
        runs = tenant.runs
        if waits:
            heapreplace(runs, (run.counter, run.order, run))
        else:
            heappop(runs)
            run.active = False
            tenant.runs_active -= 1
            self.runs_active -= 1
            tenant.last = run.counter
        if runs:
            counter, _, first = runs[0]
            if not first.active or first.counter != counter:
                _prune(runs)
        if not runs:
            self._remove(tenant)


class TenantWeights:
    """Sets tenants' weights. Nothing is journaled: the gateway sends them again."""

    def __init__(
        self, set_weight: Callable[[str, float], None], usual: Mapping[str, float]
    ) -> None:
        self._set_weight = set_weight
        self._usual = dict(usual)
        for tenant, weight in usual.items():
            set_weight(tenant, weight)

    def set(self, tenant: str, weight: object) -> None:
        """Set a tenant's weight, or its usual one (None); EINVAL."""
        if weight is None:
            weight = self._usual.get(tenant, 1.0)
        number = weight if isinstance(weight, int | float) and type(weight) is not bool else 0
        if not TENANT_WEIGHT_MIN <= number < TENANT_WEIGHT_MAX:
            limits = f"from {TENANT_WEIGHT_MIN}, below {TENANT_WEIGHT_MAX}"
            raise SyscallError(Errno.EINVAL, f"weight must be a number {limits}")
        self._set_weight(tenant, number)


def _drop_stale(heap: _Heap[_Node]) -> None:
    heap[:] = {entry[1]: entry for entry in heap if _is_valid(entry)}.values()
    heapify(heap)


def _prune(heap: _Heap[_Node]) -> None:
    while heap and not _is_valid(heap[0]):
        heappop(heap)


def _is_valid(entry: tuple[float, int, _Node]) -> bool:
    counter, _, node = entry
    return node.active and node.counter == counter
