"""The kernel's metrics for scrapes, summed over kernel restarts.

A restarted kernel starts most counters at zero; one without a journal starts all. The last values
of its predecessors are added, so that no counter falls while the gateway lives. A restarted gateway
counts from the kernel's values, as Prometheus expects of any process.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limit_table import HIT

from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink
from symphony_runtime.gateway.links.models import Models

AGE_SECONDS_MAX = 1.0
COUNTERS = (
    "calls", "failed", "dropped", "steps", "rows", "decode_rows", "decode_steps", "prefill_tokens",
    "decode_tokens", "preds", "preds_starved",
    "preds_guessed", "preds_guessed_in_vain", "step_ms", "copies", "prefix_cache_query_tokens",
    "prefix_cache_hit_tokens", "prefix_cache_shared_tokens", "prefix_cache_evicted_pages",
    "tiers_saved_pages", "tiers_loaded_pages", "tiers_dropped_pages", "tiers_spilled_pages",
    "tiers_read_pages", "tiers_moved_bytes", "tiers_move_ms", "audits", "stalls",
)  # fmt: skip
# Counters that a kernel restores from its journal; the others start at zero.
REMEMBERED = (
    "calls", "failed", "dropped", "prefix_cache_query_tokens", "prefix_cache_hit_tokens",
    "prefix_cache_shared_tokens", "prefix_cache_evicted_pages",
)  # fmt: skip
USED = ("prompt_tokens", "cached_tokens", "completion_tokens")  # of each tenant


class KernelMetrics:
    """Reads the kernel's metrics and adds those of earlier kernels."""

    def __init__(self, kernel: KernelLink, now: Callable[[], float] = time.monotonic) -> None:
        self._kernel = kernel
        self._now = now
        self._pid = self._life = 0  # of the kernel that `_last` is from
        self._last: dict[str, Any] = {}
        self._asked = float("-inf")
        self._before: dict[str, Any] = {}  # the sum of earlier kernels
        self._asking: asyncio.Task[None] | None = None
        self.restarts = 0

    async def latest(self) -> dict[str, Any]:
        """Return the kernel's `metrics` with its counters summed over restarts.

        Without a kernel it holds only counters, `histograms` and `tenants`; {} before the first
        answer. At most AGE_SECONDS_MAX old while a kernel answers. It waits no longer than that for
        one that does not.
        """
        old = self._kernel.pid != self._pid or self._now() - self._asked >= AGE_SECONDS_MAX
        if self._asking is None and old:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGE_SECONDS_MAX):
                    await asyncio.shield(self._asking)
        return self._whole()

    async def _ask(self) -> None:
        try:
            if not self._kernel.pid:
                return  # do not wait until it is back
            found = await self._kernel.ask("metrics")
        except (KernelAwayError, SyscallError):
            return
        finally:
            self._asking = None
        pid, life = self._kernel.pid, self._kernel.life
        if self._pid not in (0, pid):
            gone = self._last if life != self._life else _not_restored(self._last)
            self._before = _counted(self._before, gone)
            self.restarts += 1
        self._pid, self._life, self._last, self._asked = pid, life, found, self._now()

    def _whole(self) -> dict[str, Any]:
        if not self._last:
            return {}
        counted = _counted(self._before, self._last)
        if self._kernel.pid != self._pid:
            return counted  # its gauges are unknown now
        tenants = {
            name: {**held, **counted["tenants"][name]}
            for name, held in self._last["tenants"].items()
        }
        # A tenant known only to earlier kernels holds nothing in this one.
        return {**self._last, **counted, "tenants": {**counted["tenants"], **tenants}}


class KernelsMetrics:
    """The metrics of all models' kernels."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self.each = [KernelMetrics(model.kernel) for model in models]

    @property
    def restarts(self) -> int:
        return sum(each.restarts for each in self.each)

    async def by_model(self) -> dict[str, dict[str, Any]]:
        """Return `KernelMetrics.latest` of each model, by its name."""
        found = await asyncio.gather(*(each.latest() for each in self.each))
        return {model.name: each for model, each in zip(self._models, found, strict=True)}

    async def latest(self) -> dict[str, Any]:
        """Return the sums over all models, as `KernelMetrics.latest` has them for one."""
        return add_up(list((await self.by_model()).values()))


def add_up(kernels: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the sums of several kernels' metrics."""
    if len(kernels) == 1:
        return kernels[0]
    there = [each for each in kernels if each]
    histograms: dict[str, Any] = {}
    for each in there:
        for name, view in each.get("histograms", {}).items():
            histograms[name] = _sum_histograms(histograms.get(name), view)
    tenants = {name for each in there for name in each.get("tenants", {})}
    return _add_numbers(there) | {
        "histograms": histograms,
        "tenants": {
            name: _add_numbers([each.get("tenants", {}).get(name, {}) for each in there])
            for name in tenants
        },
    }


def _add_numbers(parts: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, int | float):
                total[key] = total.get(key, 0) + value
    return total


def _not_restored(last: dict[str, Any]) -> dict[str, Any]:
    """Return the counters that the next kernel does not restore from the journal."""
    tenants = {name: {k: held[k] for k in _hits(held)} for name, held in last["tenants"].items()}
    return {**{key: last[key] for key in last if key not in REMEMBERED}, "tenants": tenants}


def _hits(held: dict[str, Any]) -> list[str]:
    return [key for key in held if key.startswith(HIT)]


def _counted(before: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    named = {**before.get("tenants", {}), **last.get("tenants", {})}
    return {
        **_sum(COUNTERS, before, last),
        "histograms": {
            name: _sum_histograms(before.get("histograms", {}).get(name), view)
            for name, view in last.get("histograms", {}).items()
        },
        "tenants": {
            name: _sum_used(
                before.get("tenants", {}).get(name, {}), last.get("tenants", {}).get(name, {})
            )
            for name in named
        },
    }


def _sum_used(before: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    return _sum(dict.fromkeys((*USED, *_hits(before), *_hits(last))), before, last)


def _sum(keys: Iterable[str], *parts: dict[str, Any]) -> dict[str, Any]:
    return {key: sum(part.get(key, 0) for part in parts) for key in keys}


def _sum_histograms(before: dict[str, Any] | None, view: dict[str, Any]) -> dict[str, Any]:
    if before is None or before["bounds"] != view["bounds"]:
        return view
    counts = [old + new for old, new in zip(before["counts"], view["counts"], strict=True)]
    return {"bounds": view["bounds"], "counts": counts, "sum": before["sum"] + view["sum"]}
