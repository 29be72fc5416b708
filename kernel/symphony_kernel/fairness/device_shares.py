"""Shares of the device's time: how long a step may be, and who pays for it.

    plan     a step has T <= W / w_i * T_i, for each tenant i in it
    charge   T is divided among the step's tenants by weight, and none pays more than its T_i

docs/how-it-works/fairness.md explains both rules. w are tenants' weights, W their sum over the
tenants that are present, T a step's time, and T_i the time that tenant i's rows of it would take
alone. So while tenant i has requests, the steps with its rows would alone have taken at least
w_i / W of the time, less a constant (tests/kernel/fairness/test_device_shares.py). This is
start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM '96) for a server that serves several flows at
once.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from symphony_kernel.fairness.fair_queue import FairQueue
from symphony_kernel.fairness.step_cost import FORMED, StepCost, StepLoad, total_load
from symphony_kernel.protocol.limits import PREFILL_TOKENS_MIN, PRESENT_MS

_MARGIN: Final = 0.9  # of the time that others may have: no prediction is exact
_SLACK_STEPS: Final = 2.0  # by which one tenant may be ahead of another
_SLACK_BATCHED: Final = 1.0  # likewise, where a tenant's tokens are delivered in batches
_BATCH_STEPS: Final = 4  # of a tenant's own steps: the longest batch
# Rows that are always in steps with others' do not show what they take alone. So one of this many
# steps has a single tenant's rows: where not all rows fit, and otherwise.
_PROBE_STEPS: Final = 16
_PROBE_STEPS_MOST: Final = 256
_PROBE_STEPS_FIRST: Final = 6  # for a tenant's first three
_PROBES_FIRST: Final = 3
_SLOW_MOST: Final = 2.0  # times its predicted time: more is not blamed on the machine
_BEHIND_SECONDS: Final = 2.0  # of the device's time that a tenant can be owed
_LOOK_ROWS: Final = 8  # of a tenant, between two checks whether they are enough
_ENDLESS: Final = float("inf")
_LONG_AGO: Final = float("-inf")


@dataclass(slots=True, eq=False)
class TenantShare:
    """What one tenant may have of a step, before what is left is shared."""

    tenant: str
    seconds: float  # in addition to the base of one token
    rows: float
    tokens: float
    reserve: float  # of the seconds, for its own decodes
    furthest_behind: bool  # then its first row need not fit


@dataclass(slots=True, eq=False)
class StepBudget:
    """How one step is divided."""

    seconds: float  # that the step may take
    slope: float  # seconds of each token after the first
    shares: list[TenantShare]  # tenants with the fewest requests first
    counter_max: float  # virtual time past which tenants wait
    tokens: int  # that it may have; a tree may have more
    probe: bool  # one tenant's rows only, to learn what they take


@dataclass(slots=True, eq=False)
class _Demand:
    """What a present tenant wants of a step."""

    name: str
    weight: float
    load: StepLoad = field(default_factory=StepLoad)
    rows: int = 0
    decodes: int = 0
    alone: float = 0.0  # seconds of its rows
    others: float = 0.0  # seconds that others' rows may add
    most_rows: float = 0.0
    most_tokens: float = 0.0


class DeviceShares:
    """Plans steps and charges tenants for them.

    Tokens of a generation are delivered in batches of `delivery_seconds` at most. So such a tenant
    may be slowed for that long at once, and is served alone afterwards.
    """

    def __init__(
        self,
        queue: FairQueue,
        costs: StepCost,
        rows: int,
        tokens: int,
        delivery_seconds: float,
        busy: Callable[[], Container[str]],
    ) -> None:
        """`busy` returns the tenants whose requests compute or wait for pages."""
        self._queue, self._costs, self._busy = queue, costs, busy
        self._rows, self._tokens = rows, tokens
        self._delivery_seconds = delivery_seconds
        self._seen: dict[str, float] = {}  # when each present tenant last had requests
        self._loads: dict[str, StepLoad] = {}  # by tenant, in the last step with its rows
        self._stepwise: dict[str, float] = {}  # when a pred of one token was launched last
        self._slack = 0.0  # of virtual time, as of the last plan
        self._probed: dict[str, int] = {}  # by tenant, up to _PROBES_FIRST
        self._shared = 0  # steps of several tenants since the last step of one
        self._absent: list[str] = []  # present tenants without requests in the last step

    # -- Before a step ---------------------------------------------------------------------------
    def plan(self, now: float) -> StepBudget | None:
        """Return how the next step is divided; None: all requests may run."""
        queue = self._queue
        if not queue.several:
            return None
        self._refresh_present(now)
        if not queue.several or not self._costs.known:
            return None
        weight_sum = sum([queue.tenant_weight(name) for name in queue.present])
        waiting = {name: queue.size(name) for name in queue.present if queue.is_active(name)}
        if not waiting:
            return None
        most = absent = self._absent_bound(weight_sum, waiting, now)
        demands, batched = [], False
        for name in sorted(waiting, key=waiting.__getitem__):
            demand = self._demand(name, most, weight_sum)
            if not demand.rows:
                continue
            demand.others = self._others(name, demand.load, weight_sum, now)
            times = weight_sum / demand.weight - 1.0
            # It may be slowed for several of its steps at once.
            batched = batched or demand.others > times * demand.alone
            demands.append(demand)
            most = min(most, demand.alone + demand.others)
        if not demands:
            return None
        steps = _SLACK_BATCHED if batched else _SLACK_STEPS
        self._slack = steps * min([each.alone for each in demands]) / weight_sum
        least = min([queue.counter(each.name) for each in demands])
        # A tenant with many rows may be further ahead, by its part of a step. Otherwise several of
        # them would have long steps one after the other, while a small tenant waits for all.
        longest = min(absent, *[each.alone + each.others for each in demands])
        taken = [
            each
            for each in demands
            if queue.counter(each.name) - least
            <= max(self._slack, min(each.alone, longest) / weight_sum)
        ]
        counter_max = least + self._slack
        fit = self._make_room(taken, weight_sum, now)
        # Tenants ahead of the others do not run, but their wait is bounded, too.
        bounds = [each.others + (each.alone if each in taken else 0.0) for each in demands]
        seconds = min(absent, *bounds)
        if fit:
            formed = len(taken) > 1
            fit = self._seconds([each.load for each in taken], formed=formed) <= seconds
        probe = self._to_probe(taken, crowded=not fit) if len(taken) > 1 else -1
        if fit and probe < 0 and len(taken) == len(waiting):
            return None
        return self._divide(taken, seconds, counter_max, probe)

    @property
    def _most_tokens(self) -> int:
        """The tokens that a step may have: larger steps are tried gradually."""
        return min(self._tokens, max(2 * self._costs.tried, PREFILL_TOKENS_MIN))

    def _make_room(self, demands: list[_Demand], weight_sum: float, now: float) -> bool:
        """Divide the step's rows and tokens by weight, and reduce the demands to fit.

        Return whether all requests of these tenants fit.
        """
        fit = all(each.rows >= self._queue.size(each.name) for each in demands)
        weights = [each.weight for each in demands]
        rows = divide(self._rows, [each.rows for each in demands], weights)
        tokens = divide(self._most_tokens, [each.load.tokens for each in demands], weights)
        for index, each in enumerate(demands):
            part = min(rows[index] / each.rows, tokens[index] / each.load.tokens)
            each.most_rows, each.most_tokens = rows[index], tokens[index]
            if part < 1.0:
                fit = False
                each.load = each.load.part(part)
                each.alone = self._costs.seconds(each.load)
                each.others = self._others(each.name, each.load, weight_sum, now)
        return fit

    def present(self, now: float) -> Iterable[str]:
        """Return the tenants that share the device now."""
        if self._queue.present:
            self._refresh_present(now)
        return self._queue.present

    def _others(self, name: str, load: StepLoad, weight_sum: float, now: float) -> float:
        """Return how much longer other tenants may make a step than a tenant's rows alone."""
        alone, delay = self._costs.seconds(load), 0.0
        if not load.features[FORMED]:
            delay = self._delivery_delay(name, alone, now)
        times = weight_sum / self._queue.tenant_weight(name) - 1.0
        return times * max(_MARGIN * alone, delay)

    def _absent_bound(self, weight_sum: float, waiting: Container[str], now: float) -> float:
        """Return how long a step may be for present tenants that may come back."""
        return min(
            [
                self._costs.seconds(load) + self._others(name, load, weight_sum, now)
                for name, load in self._loads.items()
                if name in self._seen and name not in waiting
            ],
            default=_ENDLESS,
        )

    def _delivery_delay(self, name: str, alone: float, now: float) -> float:
        """Return how long a tenant may be slowed at once. Its steps take `alone` seconds."""
        if not alone or now - self._stepwise.get(name, _LONG_AGO) < PRESENT_MS / 1000:
            return 0.0
        return min(int(self._delivery_seconds / alone), _BATCH_STEPS) * alone

    def _demand(self, name: str, most: float, weight_sum: float) -> _Demand:
        """Look at a tenant's requests until it is known what it wants of a step.

        The step has `most` seconds. At most twice the tenant's share of rows is looked at: with
        many tenants this would take long.
        """
        found = _Demand(name, self._queue.tenant_weight(name))
        load, costs = found.load, self._costs
        rows = max(int(2 * self._rows * found.weight / weight_sum), _LOOK_ROWS)
        for request in self._queue.requests_of(name):
            count = min(request.count - request.placed, self._tokens - load.tokens)
            load.add(request, request.placed, count, costs.reach)
            if request.continuation is None or count > 1:
                load.features[FORMED] = 1.0
            found.rows += 1
            found.decodes += request.count == 1
            if found.rows >= min(rows, self._rows) or load.tokens >= self._tokens:
                break
            if not found.rows % _LOOK_ROWS and costs.seconds(load) >= most:
                break
        found.alone = costs.seconds(load)
        return found

    def _divide(
        self, demands: list[_Demand], most: float, counter_max: float, probe: int
    ) -> StepBudget:
        """Divide a step of `most` seconds. `probe`: the tenant that has it alone, or -1."""
        costs = self._costs
        if len(demands) > 1 and probe < 0:
            most = max(most - costs.host_seconds, 0.0)
        first, tokens = costs.base(1), costs.tokens_within(most)
        slope = (costs.base(tokens) - first) / (tokens - 1) if tokens > 1 else 0.0
        wanted = [slope * each.load.tokens + costs.rows_seconds(each.load) for each in demands]
        behind = min(demands, key=lambda each: self._queue.counter(each.name)).name
        if probe >= 0:
            self._shared = 0
            demands, wanted, counter_max = [demands[probe]], [wanted[probe]], -_ENDLESS
        weights = [each.weight for each in demands]
        seconds = divide(max(most - first, 0.0), wanted, weights)
        shares = []
        for index, each in enumerate(demands):
            reserve = min(slope * each.decodes, 0.5 * seconds[index])
            room = seconds[index], each.most_rows, each.most_tokens
            shares.append(TenantShare(each.name, *room, reserve, each.name == behind))
        return StepBudget(most, slope, shares, counter_max, self._most_tokens, probe >= 0)

    def _to_probe(self, demands: list[_Demand], crowded: bool) -> int:
        """Return which tenant has the next step alone, to measure its time; -1: none."""
        shared, probed = self._shared, self._probed
        if shared >= _PROBE_STEPS_FIRST:
            index = min(range(len(demands)), key=lambda i: probed.get(demands[i].name, 0))
            name = demands[index].name
            if probed.get(name, 0) < _PROBES_FIRST:
                probed[name] = probed.get(name, 0) + 1
                return index
        if shared < (_PROBE_STEPS if crowded else _PROBE_STEPS_MOST):
            return -1
        return min(range(len(demands)), key=lambda i: demands[i].alone + demands[i].others)

    # -- While a step computes -------------------------------------------------------------------
    def launched(self, loads: dict[str, StepLoad], stepwise: Iterable[str], now: float) -> None:
        """Record a launched step's loads by tenant.

        `stepwise`: tenants with a pred of one token in it.
        """
        for name, load in loads.items():
            self._loads[name] = load
            self._seen[name] = now
        for name in stepwise:
            self._stepwise[name] = now
        queue, busy = self._queue, self._busy()
        several = queue.present if queue.several else ()
        self._absent = [each for each in several if not (queue.is_active(each) or each in busy)]

    def ended(
        self, loads: dict[str, StepLoad], seconds: float, formed: bool, probe: bool, now: float
    ) -> None:
        """Charge the tenants of a step. `formed`: by the host, not a look-ahead step.

        Present tenants without requests keep their distance: they are owed neither more nor less.
        """
        for name in loads:
            self._seen[name] = now
        queue = self._queue
        if probe or not (queue.several and loads):  # a probe delays all alike: no tenant pays
            return
        self._shared += len(loads) > 1
        paid = self._charge(loads, seconds, formed)
        absent = [name for name in self._absent if name in queue.present]
        if not absent:
            return
        weights = sum([queue.tenant_weight(name) for name in queue.present if name not in absent])
        for name in absent:
            queue.charge_tenant(name, paid * queue.tenant_weight(name) / weights)

    def _charge(self, loads: dict[str, StepLoad], seconds: float, formed: bool) -> float:
        """Divide a step's time; return what the tenants paid together."""
        queue = self._queue
        names = list(loads)
        # A machine that is slow for a moment is slow for all.
        predicted = self._seconds(loads.values(), formed=formed)
        slow = min(max(seconds / max(predicted, 1e-9), 1.0), _SLOW_MOST)
        alone = [slow * self._costs.seconds(loads[name]) for name in names]
        paid = divide(seconds, alone, [queue.tenant_weight(name) for name in names])
        known = sum(alone)
        rest = max(seconds - known, 0.0)  # it took longer than predicted
        if formed and not any(loads[name].features[FORMED] for name in names):
            # Had no other tenant waited, it would have been a look-ahead step.
            host = min(slow * self._costs.host_seconds, rest)
            rest -= host
            self._charge_waiting(host, loads)
        total = 0.0
        for name, own, each in zip(names, alone, paid, strict=True):
            part = each + rest * (own / known if known else 1.0 / len(names))
            queue.charge_tenant(name, part)
            total += part
        return total

    def _charge_waiting(self, seconds: float, loads: Container[str]) -> None:
        """Divide what a step took longer among the tenants that wait, by weight."""
        queue = self._queue
        waiting = [name for name in queue.present if name not in loads and queue.is_active(name)]
        weights = sum([queue.tenant_weight(name) for name in waiting])
        for name in waiting:
            queue.charge_tenant(name, seconds * queue.tenant_weight(name) / weights)

    def _seconds(self, loads: Iterable[StepLoad], *, formed: bool) -> float:
        """Return the time of a step. `formed`: by the host, not a look-ahead step."""
        whole = total_load(loads)
        whole.features[FORMED] = float(formed)
        return self._costs.seconds(whole)

    def may_follow(self, loads: dict[str, StepLoad], now: float) -> bool:
        """Whether the next step may have the same tenants' rows without a plan."""
        if len(loads) == 1:
            return True
        if self._shared >= _PROBE_STEPS_MOST:
            return False
        weight_sum = sum([self._queue.tenant_weight(name) for name in loads])
        most = min(
            [
                self._costs.seconds(load) + self._others(name, load, weight_sum, now)
                for name, load in loads.items()
            ]
        )
        return self._seconds(loads.values(), formed=False) <= most

    def reached(self, loads: dict[str, StepLoad], steps: int) -> float:
        """Return the counter past which tenants wait while those of `loads` have `steps` alone."""
        queue = self._queue
        if not loads:
            return _ENDLESS
        # Annotated, since mypyc takes the product of an int and a plain `sum` for an int.
        seconds: float = sum([self._costs.seconds(load) for load in loads.values()])
        each = steps * seconds / sum([queue.tenant_weight(name) for name in loads])
        counters = [queue.counter(name) for name in loads if name in queue.present]
        return max(counters, default=_ENDLESS) + each + self._slack

    def _refresh_present(self, now: float) -> None:
        queue, seen = self._queue, self._seen
        since, busy = now - PRESENT_MS / 1000, self._busy()
        for name in list(queue.present):
            if queue.is_active(name) or name in busy:
                seen[name] = now
            elif seen.setdefault(name, now) < since:
                queue.remove_tenant(name)
        if len(seen) > len(queue.present):
            for name in [name for name in seen if name not in queue.present]:
                del seen[name]
                self._loads.pop(name, None)
                self._stepwise.pop(name, None)
        queue.bound_credit(_BEHIND_SECONDS)


def divide(total: float, wanted: list[float], weights: list[float]) -> list[float]:
    """Divide `total` by weights, none above what it wants (weighted max-min fairness)."""
    given = [0.0] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index] / weights[index])
    left, weight_sum = total, sum(weights)
    for index in order:
        given[index] = min(wanted[index], left * weights[index] / weight_sum)
        left -= given[index]
        weight_sum -= weights[index]
    return given
