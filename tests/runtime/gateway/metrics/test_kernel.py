"""Figures of kernels that come and go: asked for seldom, and never falling."""

import asyncio
from typing import Any, cast

from symphony_runtime.gateway.links.links import KernelAwayError, KernelLink
from symphony_runtime.gateway.metrics.kernel import AGE_SECONDS_MAX, KernelMetrics


class Kernel:
    """A kernel that counts up to what a test says."""

    def __init__(self) -> None:
        self.pid = 1
        self._life: int | None = None
        self.asked = 0
        self.figures: dict[str, Any] = {}
        self.count(0)

    def count(self, n: int) -> None:
        self.figures = {
            "preds": n,
            "pages": 100,
            "histograms": {"h": {"bounds": [1.0], "counts": [n, 1], "sum": float(n)}},
            "tenants": {"t": {"prompt_tokens": n, "pages": 3}},
        }

    @property
    def life(self) -> int:
        """Another with each process, unless a test says that they remember."""
        return self.pid if self._life is None else self._life

    def remember(self) -> None:
        self._life = 1

    async def ask(self, what: str, **args: Any) -> Any:
        assert (what, args) == ("metrics", {})
        self.asked += 1
        await asyncio.sleep(0)
        if not self.pid:
            raise KernelAwayError("away")
        return self.figures


async def test_many_scrapes_at_once_ask_once_a_second() -> None:
    kernel, now = Kernel(), [100.0]
    figures = KernelMetrics(cast(KernelLink, kernel), lambda: now[0])
    kernel.count(5)
    found = await asyncio.gather(*(figures.latest() for _ in range(10)))
    assert {each["preds"] for each in found} == {5}
    now[0] += AGE_SECONDS_MAX / 2
    kernel.count(6)
    assert (await figures.latest())["preds"] == 5
    assert kernel.asked == 1
    now[0] += AGE_SECONDS_MAX
    assert (await figures.latest())["preds"] == 6
    assert kernel.asked == 2


async def test_counters_never_fall_and_a_kernel_that_is_away_holds_nothing() -> None:
    kernel, now = Kernel(), [100.0]
    figures = KernelMetrics(cast(KernelLink, kernel), lambda: now[0])
    kernel.pid = 0
    assert await figures.latest() == {}
    kernel.pid = 1
    kernel.count(5)
    first = await figures.latest()
    assert (first["preds"], first["pages"]) == (5, 100)
    kernel.pid = 0
    away = await figures.latest()
    assert away["preds"] == 5
    assert "pages" not in away
    assert away["tenants"]["t"]["prompt_tokens"] == 5
    assert "pages" not in away["tenants"]["t"]
    kernel.pid = 2
    kernel.count(2)
    again = await figures.latest()
    assert (again["preds"], again["pages"], figures.restarts) == (7, 100, 1)
    assert again["histograms"]["h"] == {"bounds": [1.0], "counts": [7, 2], "sum": 7.0}
    assert again["tenants"]["t"] == {
        "prompt_tokens": 7, "cached_tokens": 0, "completion_tokens": 0, "pages": 3,
    }  # fmt: skip
    kernel.pid = 3
    kernel.count(1)
    kernel.figures["tenants"] = {}
    third = await figures.latest()
    assert (third["preds"], figures.restarts) == (8, 2)
    assert third["tenants"]["t"]["prompt_tokens"] == 7


async def test_what_a_kernel_remembers_is_not_counted_twice() -> None:
    kernel, now = Kernel(), [100.0]
    kernel.remember()
    figures = KernelMetrics(cast(KernelLink, kernel), lambda: now[0])
    kernel.count(5)
    kernel.figures["calls"] = 50
    await figures.latest()
    kernel.pid = 2
    kernel.count(1)
    kernel.figures |= {"calls": 52, "tenants": {"t": {"prompt_tokens": 6}}}
    found = await figures.latest()
    assert (found["preds"], found["calls"], figures.restarts) == (6, 52, 1)
    assert found["tenants"]["t"]["prompt_tokens"] == 6
    assert found["histograms"]["h"]["counts"] == [6, 2]


async def test_nobody_waits_for_a_kernel_that_is_away() -> None:
    kernel = Kernel()
    kernel.pid = 0
    assert await KernelMetrics(cast(KernelLink, kernel)).latest() == {}
    assert kernel.asked == 0


async def test_limits_that_were_reached_are_summed_over_kernels_that_remember_and_that_do_not() -> (
    None
):
    """They are no part of what a kernel comes back with, unlike what its tenants have used."""
    kernel, now = Kernel(), [100.0]
    figures = KernelMetrics(cast(KernelLink, kernel), lambda: now[0])
    for remembers in (False, True):
        if remembers:
            kernel.remember()
        kernel.pid += 1
        kernel.figures["tenants"]["t"] |= {"prompt_tokens": 5, "hit:kv_files": 2}
        now[0] += 2 * AGE_SECONDS_MAX
        await figures.latest()
    found = (await figures.latest())["tenants"]["t"]
    kernel.pid += 1
    kernel.figures = {**kernel.figures, "tenants": {"t": {"prompt_tokens": 5, "pages": 3}}}
    now[0] += 2 * AGE_SECONDS_MAX
    after = (await figures.latest())["tenants"]["t"]
    assert (found["hit:kv_files"], after["hit:kv_files"]) == (4, 4)
