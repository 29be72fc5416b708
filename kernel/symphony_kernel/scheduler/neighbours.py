"""Neighbours: what of a step's time others' prompts may take beside a tenant that decodes.

Service is counted in tokens, and a tenant that decodes wants few: by that count it never waits. But
it gets a token a step, and a step with another tenant's prompts lasts as long as these take. So
beside a tenant's decodes others' prompts get no more of the time than their share: with two equal
tenants as much as the decodes and the tenant's own prompts, and a step takes twice as long as
without the others'. What is its own is held to the operator's bound alone: a prompt of a tenant
that decodes is not cut because somebody else has prompts, too.

Where generations' steps are so short that a reader hears of several at once, prompts have their
share of a lot of steps in one of them, and rest in the others: these need nobody to form them
(`drafts`), which would take longer than they do. Also in one step of many, so that it is known what
decodes take alone.

Calls are of that share, too: what a tenant's files that are forked, appended to and named take of
the kernel's thread counts as prompts that take as long, in the next step that has any. And they
have their share of the thread's own time beside whoever has something to do: past it they wait
(`call_shares`, `held_calls`).

What a tenant costs workers and the gateway counts just so (`spending`), and together with its calls
it is held to a share of the processors.
"""

from collections.abc import Set
from math import inf
from typing import Final

from symphony_kernel.protocol.limits import DRAFTS_MAX, PROMPTS_PROBE_STEPS
from symphony_kernel.scheduler.batcher import Step
from symphony_kernel.scheduler.call_shares import RECENT_SECONDS, Beside, CallShares
from symphony_kernel.scheduler.costs import StepCosts
from symphony_kernel.scheduler.fair_queue import FairQueue
from symphony_kernel.scheduler.prompt_shares import PromptShares
from symphony_kernel.scheduler.work import Work

_CALLS_TOKEN_SECONDS: Final = 0.001  # of computing a token, while nothing has been measured
_LONG_SECONDS: Final = 0.05  # a step: to be launched behind it gains nothing then
_REST_SECONDS_MAX: Final = 1.0  # of decodes at once: however little it weighs, a prompt goes on
_ASIDE_SECONDS: Final = 1.0  # since a tenant without LIPs cost something: so long it is there
_LONG_AGO: Final = float("-inf")
NOTHING: Final = Beside()  # is shared out


class Neighbours:
    """Who decodes, by the steps that were launched. `lot_ms`, `beside`: see `StepLimits`."""

    def __init__(
        self, queue: FairQueue, costs: StepCosts, lot_ms: float, beside: Beside = NOTHING
    ) -> None:
        self._queue = queue
        self._costs = costs
        self._lot_seconds = lot_ms / 1000
        self._decoded: dict[str, float] = {}  # tenants: when a decode of theirs was launched last
        self._stepwise = _LONG_AGO  # when a pred of one token was launched that is no generation's
        self._steps = PROMPTS_PROBE_STEPS  # with prompts, since one without
        self._rested = False  # prompts, in the step that was formed last
        self._aside = _LONG_AGO  # when it was told last what is no LIP's of a tenant
        self._debt = 0.0  # seconds of decodes for which others' prompts are to rest
        self._calls: dict[str, float] = {}  # tenants: seconds of calls that no step has counted
        self._shares = CallShares(queue.tenant_weight, self._busy)  # of the kernel's thread
        self._beside = beside
        self._all: CallShares | None = None  # of what all may take of processors, but steps
        if beside.processors < inf:
            self._all = CallShares(queue.tenant_weight, self._busy, beside.processors)

    def called(self, root: int, tenant: str, weight: float, seconds: float, now: float) -> bool:
        """A LIP's calls have taken the kernel so long; whether its tenant's next ones have to wait.

        It has `weight` in its tenant.
        """
        over = self._shares.called(tenant, seconds, now)
        if self._all is not None and self._all.called(tenant, seconds, now):
            over = over or self._is_held(self._all, tenant, now)
        self._count(root, tenant, weight, seconds, now)
        return over

    def spent(self, root: int, tenant: str, weight: float, seconds: float, now: float) -> None:
        """A LIP has cost so much of processors outside the kernel."""
        if self._all is not None:
            self._all.called(tenant, seconds, now)
        self._count(root, tenant, weight, seconds, now)

    def cost(self, tenant: str, seconds: float, now: float) -> None:
        """What is no LIP's of a tenant (compilers, requests) has cost so much of processors."""
        self._aside = now
        if self._all is not None:
            self._all.called(tenant, seconds, now)
        self._count_beside(tenant, seconds, now)

    def pause(self, tenant: str, now: float) -> float:
        """Return the seconds for which a tenant is to rest: its share will have paid by then."""
        seconds = self._shares.rest(tenant, now)
        if self._all is not None and self._is_held(self._all, tenant, now):
            seconds = max(seconds, self._all.rest(tenant, now))
        return seconds

    def _is_held(self, shares: CallShares, tenant: str, now: float) -> bool:
        """Whether one may be held at all: others had less, and processors are short."""
        return shares.ahead(tenant, now) and self._beside.short(now)

    def _count(self, root: int, tenant: str, weight: float, seconds: float, now: float) -> None:
        """Charge what is not computed as tokens that take as long, beside decodes as prompts."""
        self._count_beside(tenant, seconds, now)
        if self._queue.knows(root):
            tokens = seconds / (self._costs.token_seconds or _CALLS_TOKEN_SECONDS)
            self._queue.charge(root, tenant, weight, tokens)

    def _count_beside(self, tenant: str, seconds: float, now: float) -> None:
        if self._decodes_lately(now):
            self._calls[tenant] = min(self._calls.get(tenant, 0.0) + seconds, _REST_SECONDS_MAX)
        elif self._calls:
            self._calls.clear()  # nobody has waited for them

    def wait(self, tenant: str, now: float) -> float:
        """Return the seconds after which to ask again; 0.0: a tenant's calls may go on."""
        seconds = self._shares.wait(tenant, now)
        if self._all is not None and self._is_held(self._all, tenant, now):
            seconds = max(seconds, self._all.wait(tenant, now))
        return seconds

    def _decodes_lately(self, now: float) -> bool:
        since = now - RECENT_SECONDS
        return any(at > since for at in self._decoded.values())

    def _busy(self, now: float) -> Set[str]:
        """Return the tenants that have something on the device, or had lately."""
        since = now - RECENT_SECONDS
        return self._queue.prompting.keys() | {
            name for name, at in self._decoded.items() if at > since
        }

    def launched(self, step: Step, now: float) -> None:
        """A step has been launched."""
        self._steps = 0 if step.tokens == step.decodes else self._steps + 1
        if self._several(now):
            self._note(step, now)
        if step.decodes and self._calls:
            self._pay_for_calls(self._costs.decodes_seconds(step.decodes))
        if step.decodes and (self._debt or step.owed) and self._lot_seconds:
            more = step.owed * self._costs.token_seconds
            left = self._debt + more - self._costs.decodes_seconds(step.decodes)
            self._debt = min(max(left, 0.0), _REST_SECONDS_MAX)

    def ended(self, step: Step, now: float) -> None:
        """A step has ended: prompts may have taken longer than is remembered who decodes."""
        if step.tokens != step.decodes and self._several(now):
            self._note(step, now)

    def _several(self, now: float) -> bool:
        """Whether several tenants want something; one may have no LIP, but compilers."""
        return self._queue.tenants > 1 or now - self._aside < _ASIDE_SECONDS

    def _note(self, step: Step, now: float) -> None:
        for part in step.parts:
            work = part.work
            if work.count == 1:
                self._decoded[work.tenant] = now
                if work.course is None:
                    self._stepwise = now
            elif work.course is not None and not work.remaining:  # behind its prompt it decodes
                self._decoded[work.tenant] = now

    def _pay_for_calls(self, base: float) -> None:
        """Take from each tenant's calls its share beside decodes that take `base` seconds."""
        weight = self._queue.tenant_weight
        heaviest = max(map(weight, self._decoded), default=1.0)
        calls, self._calls = self._calls, {}
        for name, seconds in calls.items():
            left = seconds - base * weight(name) / heaviest
            if left > 0.0:
                self._calls[name] = left

    def are_long(self, steps: list[Step]) -> bool:
        """Whether somebody who comes now waits for so long that nothing should go behind these."""
        prompts = sum(step.tokens - step.decodes for step in steps)
        return self._queue.tenants > 1 and prompts * self._costs.token_seconds > _LONG_SECONDS

    def rest(self, ahead: int, decodes: int) -> bool:
        """Whether all prompts that wait rest in the step behind `ahead` more of so many decodes."""
        left = self._debt - ahead * self._costs.decodes_seconds(decodes)
        if left <= 0.0 or self._queue.decodes:
            return False
        return self._queue.prompting.keys().isdisjoint(self._decoded)

    def rests(self, work: Work) -> bool:
        """Whether a work that has just come is a prompt that would rest in the next step."""
        return work.count > 1 and self._debt > 0.0 and work.tenant not in self._decoded

    def forgive(self) -> bool:
        """Let prompts rest no longer, since no decode can run; return whether they did."""
        rested, self._rested = self._rested, False
        self._debt, self._steps = 0.0, 0
        self._calls.clear()
        return rested

    def hinder(self, now: float) -> bool:
        """Whether prompts wait beside another tenant that decodes."""
        since = now - RECENT_SECONDS
        if self._decoded:
            self._decoded = {name: at for name, at in self._decoded.items() if at > since}
        prompting, decoded = self._queue.prompting, self._decoded
        if not (decoded and prompting):
            return False
        return len(prompting) > 1 or not prompting.keys() >= decoded.keys()  # not by himself

    def shares(self, now: float, decodes: int) -> PromptShares | None:
        """Return what each tenant's prompts may have of a step with so many decodes; None: any."""
        if not self.hinder(now):
            self._debt = 0.0
            return None
        prompting, decoded = self._queue.prompting, self._decoded
        base = self._costs.decodes_seconds(decodes)
        probes = decodes > 0 and self._steps >= PROMPTS_PROBE_STEPS
        if not (self._costs.token_seconds and (base or probes)):
            return None
        weight = self._queue.tenant_weight
        weights = {name: weight(name) for name in decoded}
        everybody = sum(weights.values())
        everybody += sum((each for name, each in prompting.items() if name not in weights), 0.0)
        self._rested = probes or (self._debt > 0.0 and decodes > 0)
        shares = PromptShares(
            self._lot(now, decodes) * self._costs.tokens_in(base),
            {name: everybody / each for name, each in weights.items()},
            self._rested,
            probes,
        )
        if self._calls and decodes:
            self._rested = True
            for name, seconds in self._calls.items():
                shares.took(name, int(self._costs.tokens_in(seconds)))
            if self._lot_seconds:
                self._calls = {}  # what this step has no room for is owed
        return shares

    def _lot(self, now: float, decodes: int) -> int:
        """Return of how many steps prompts have their share in one.

        Of one where any needs forming, and where none decodes now: whoever goes on shall not wait.
        """
        base = self._costs.decodes_seconds(decodes)
        if not (decodes and base) or self._stepwise > now - RECENT_SECONDS:
            return 1
        return min(max(int(self._lot_seconds / base), 1), DRAFTS_MAX)
