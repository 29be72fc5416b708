"""The last hour's figures, in steps of five seconds: of the server, and of each tenant.

Every step the counters are read once. What is kept are differences a second and levels, as floats
in rings, so an hour takes the same memory under any load.
"""

import asyncio
import math
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping

STEP_SECONDS = 5.0
STEPS = 720  # an hour
_TENANTS_MAX = 100  # with figures of their own; further ones have none
# Figures a second: name, and what they are the difference of.
_RATES = {
    "decode_tokens": "decode_tokens",
    "prefill_tokens": "prefill_tokens",
    "cached_tokens": "cached_tokens",
    "device_busy": "step_ms",
    "steps": "steps",
    "rows": "rows",
    "runs_started": "runs_started",
    "refused": "refused",
}
_LEVELS = {
    "preds_waiting": "waiting",
    "tokens_waiting": "waiting_tokens",
    "pages_device": "tiers_device_pages",
    "pages_host": "tiers_host_pages",
    "pages_disk": "tiers_disk_pages",
    "pages_tokens": "tiers_tokens_pages",
    "runs_live": "runs_live",
}
_TENANT_RATES = {
    "prompt_tokens": "prompt_tokens",
    "decode_tokens": "completion_tokens",
    "cached_tokens": "cached_tokens",
    "runs_started": "runs_started",
}
_TENANT_LEVELS = {"kv_pages": "pages", "runs_live": "runs_live", "tokens_waiting": "waiting_tokens"}
Counts = Mapping[str, float]
# Returns the server's counters and those of each tenant.
Read = Callable[[], Awaitable[tuple[Counts, Mapping[str, Counts]]]]
_Series = dict[str, list[float | None]]


class Ring:
    """The last STEPS samples of some figures; NaN where one was not known."""

    def __init__(self, rates: Mapping[str, str], levels: Mapping[str, str]) -> None:
        self._rates, self._levels = rates, levels
        self._values = {name: array("f", [math.nan]) * STEPS for name in (*rates, *levels)}
        self._before: Counts | None = None
        self.step = -1  # the last that was added

    def begin(self, step: int) -> None:
        """Take all counters to be zero at a step."""
        self._before, self.step = {}, step

    def clear(self) -> None:
        """Forget all samples; the next one has no rates, as its counters may be another's."""
        for values in self._values.values():
            for at in range(STEPS):
                values[at] = math.nan
        self._before = None

    def add(self, step: int, counts: Counts, seconds: float) -> None:
        """Add the counters at a step; `seconds` have passed since the one before."""
        for missed in range(max(self.step + 1, step - STEPS), step + 1):
            for values in self._values.values():
                values[missed % STEPS] = math.nan
        at, before = step % STEPS, self._before
        if before is not None and self.step == step - 1:
            for name, key in self._rates.items():
                grown = counts.get(key, 0) - before.get(key, 0)
                self._values[name][at] = grown / seconds if grown >= 0 else math.nan
        for name, key in self._levels.items():
            self._values[name][at] = counts.get(key, math.nan)
        self._before, self.step = counts, step

    def view(self, step: int, steps: int) -> _Series:
        """Return the figures of the last `steps` steps up to `step`, the oldest first."""
        return {
            name: [
                _number(values[at % STEPS]) if self.step - STEPS < at <= self.step else None
                for at in range(step - steps + 1, step + 1)
            ]
            for name, values in self._values.items()
        }


class History:
    """Keeps the figures of the last hour."""

    def __init__(self, read: Read, now: Callable[[], float] = time.monotonic) -> None:
        self._read, self._now = read, now
        self._server = Ring(_RATES, _LEVELS)
        self._tenants: dict[str, Ring] = {}
        self._step = -1
        self._at = now()

    async def run(self) -> None:
        """Add a sample each STEP_SECONDS until it is cancelled."""
        while True:
            await self.add_sample()
            await asyncio.sleep(STEP_SECONDS)

    async def add_sample(self) -> None:
        server, tenants = await self._read()
        now = self._now()
        seconds, self._at = max(now - self._at, 1e-3), now
        self._step += 1
        self._server.add(self._step, server, seconds)
        for name, counts in tenants.items():
            self._ring(name).add(self._step, counts, seconds)

    def _ring(self, tenant: str) -> Ring:
        """Return a tenant's ring; a tenant beyond the most that are kept has none that stays."""
        found = self._tenants.get(tenant)
        if found is None:
            found = Ring(_TENANT_RATES, _TENANT_LEVELS)
            if self._step:  # it is new, so its counters began at zero
                found.begin(self._step - 1)
            if len(self._tenants) >= _TENANTS_MAX:
                self._forget_idle()
            if len(self._tenants) < _TENANTS_MAX:
                self._tenants[tenant] = found
        return found

    def forget(self, tenant: str) -> None:
        """Forget a deleted tenant's figures: another may get its name."""
        if tenant in self._tenants:
            self._tenants[tenant].clear()

    def _forget_idle(self) -> None:
        """Forget the tenants that had nothing for an hour."""
        for name in [n for n, ring in self._tenants.items() if ring.step <= self._step - STEPS]:
            del self._tenants[name]

    # -- Views ---------------------------------------------------------------------------------
    @property
    def step(self) -> int:
        """The number of the last step."""
        return self._step

    def server(self, steps: int = STEPS) -> _Series:
        """Return the server's figures of the last steps.

        `step_rows` and `device_busy` are derived.
        """
        view = self._server.view(self._step, min(self._step + 1, steps))
        view["step_rows"] = [
            rows / steps if rows is not None and steps else None
            for rows, steps in zip(view.pop("rows"), view.pop("steps"), strict=True)
        ]
        view["device_busy"] = [
            None if each is None else min(each / 1000, 1.0) for each in view["device_busy"]
        ]
        return view

    def tenant(self, name: str, steps: int = STEPS) -> _Series:
        ring = self._tenants.get(name) or Ring(_TENANT_RATES, _TENANT_LEVELS)
        return ring.view(self._step, min(self._step + 1, steps))

    def tenants(self, steps: int = STEPS) -> dict[str, _Series]:
        return {name: self.tenant(name, steps) for name in self._tenants}


def _number(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
