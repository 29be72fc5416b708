"""Counters of kernels that come and go: asked for at most once a second, and never falling."""

import asyncio
from typing import Any, cast

from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink
from symphony_runtime.gateway.metrics.kernel import AGE_SECONDS_MAX, KernelMetrics, add_up


class Kernel:
    """A kernel whose counters a test sets."""

    def __init__(self) -> None:
        self.pid = 1
        self._life: int | None = None
        self.asked = 0
        self.counters: dict[str, Any] = {}
        self.count(0)

    def count(self, n: int) -> None:
        self.counters = {
            "preds": n,
            "pages": 100,
            "histograms": {"h": {"bounds": [1.0], "counts": [n, 1], "sum": float(n)}},
            "tenants": {"t": {"prompt_tokens": n, "pages": 3}},
        }

    @property
    def life(self) -> int:
        """Another one for each process, unless `remember` was called."""
        return self.pid if self._life is None else self._life

    def remember(self) -> None:
        self._life = 1

    async def ask(self, what: str, **args: Any) -> Any:
        assert (what, args) == ("metrics", {})
        self.asked += 1
        await asyncio.sleep(0)
        if not self.pid:
            raise KernelAwayError("away")
        return self.counters


async def test_scrapes_at_once_ask_the_kernel_once_a_second() -> None:
    kernel, now = Kernel(), [100.0]
    metrics = KernelMetrics(cast(KernelLink, kernel), lambda: now[0])
    kernel.count(5)
    found = await asyncio.gather(*(metrics.latest() for _ in range(10)))
    assert {each["preds"] for each in found} == {5}
    now[0] += AGE_SECONDS_MAX / 2
    kernel.count(6)
    assert (await metrics.latest())["preds"] == 5
    assert kernel.asked == 1
    now[0] += AGE_SECONDS_MAX
    assert (await metrics.latest())["preds"] == 6
    assert kernel.asked == 2


async def test_counters_never_fall_and_gauges_go_with_the_kernel() -> None:
    kernel, now = Kernel(), [100.0]
    metrics = KernelMetrics(cast(KernelLink, kernel), lambda: now[0])
    kernel.pid = 0
    assert await metrics.latest() == {}
    kernel.pid = 1
    kernel.count(5)
    first = await metrics.latest()
    assert (first["preds"], first["pages"]) == (5, 100)
    kernel.pid = 0
    away = await metrics.latest()
    assert away["preds"] == 5
    assert "pages" not in away
    assert away["tenants"]["t"]["prompt_tokens"] == 5
    assert "pages" not in away["tenants"]["t"]
    kernel.pid = 2
    kernel.count(2)
    again = await metrics.latest()
    assert (again["preds"], again["pages"], metrics.restarts) == (7, 100, 1)
    assert again["histograms"]["h"] == {"bounds": [1.0], "counts": [7, 2], "sum": 7.0}
    assert again["tenants"]["t"] == {
        "prompt_tokens": 7, "cached_tokens": 0, "completion_tokens": 0, "pages": 3,
    }  # fmt: skip
    kernel.pid = 3
    kernel.count(1)
    kernel.counters["tenants"] = {}
    third = await metrics.latest()
    assert (third["preds"], metrics.restarts) == (8, 2)
    assert third["tenants"]["t"]["prompt_tokens"] == 7


async def test_counters_of_a_kernel_that_remembers_count_once() -> None:
    kernel, now = Kernel(), [100.0]
    kernel.remember()
    metrics = KernelMetrics(cast(KernelLink, kernel), lambda: now[0])
    kernel.count(5)
    kernel.counters["calls"] = 50
    await metrics.latest()
    kernel.pid = 2
    kernel.count(1)
    kernel.counters |= {"calls": 52, "tenants": {"t": {"prompt_tokens": 6}}}
    found = await metrics.latest()
    assert (found["preds"], found["calls"], metrics.restarts) == (6, 52, 1)
    assert found["tenants"]["t"]["prompt_tokens"] == 6
    assert found["histograms"]["h"]["counts"] == [6, 2]


async def test_scrape_does_not_wait_for_a_kernel_that_is_away() -> None:
    kernel = Kernel()
    kernel.pid = 0
    assert await KernelMetrics(cast(KernelLink, kernel)).latest() == {}
    assert kernel.asked == 0


async def test_limit_hits_are_summed_over_kernels() -> None:
    """A kernel does not get them back from its journal, unlike its tenants' usage."""
    kernel, now = Kernel(), [100.0]
    metrics = KernelMetrics(cast(KernelLink, kernel), lambda: now[0])
    for remembers in (False, True):
        if remembers:
            kernel.remember()
        kernel.pid += 1
        kernel.counters["tenants"]["t"] |= {"prompt_tokens": 5, "hit:kv_files": 2}
        now[0] += 2 * AGE_SECONDS_MAX
        await metrics.latest()
    found = (await metrics.latest())["tenants"]["t"]
    kernel.pid += 1
    kernel.counters = {**kernel.counters, "tenants": {"t": {"prompt_tokens": 5, "pages": 3}}}
    now[0] += 2 * AGE_SECONDS_MAX
    after = (await metrics.latest())["tenants"]["t"]
    assert (found["hit:kv_files"], after["hit:kv_files"]) == (4, 4)


def test_kernels_of_several_models_are_added_up() -> None:
    view = {"bounds": [1.0], "counts": [1, 2], "sum": 5.0}
    first = {"steps": 3, "pages": 8, "histograms": {"h": view}, "tenants": {"a": {"pages": 2}}}
    second = {"steps": 4, "histograms": {"h": view}, "tenants": {"a": {"pages": 1}, "b": {"x": 1}}}
    assert add_up([first]) is first
    assert add_up([first, {}, second]) == {
        "steps": 7,
        "pages": 8,
        "histograms": {"h": {"bounds": [1.0], "counts": [2, 4], "sum": 10.0}},
        "tenants": {"a": {"pages": 3}, "b": {"x": 1}},
    }
    assert view["counts"] == [1, 2]
    assert add_up([{}, {}]) == {"histograms": {}, "tenants": {}}
