"""The last hour's figures: rates, levels, gaps, and no more memory than an hour's."""

import pytest
from symphony_runtime.gateway.metrics.history import STEPS, Counts, History


class Server:
    """A server whose counters and clock a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.server: dict[str, float] = {}
        self.tenants: dict[str, dict[str, float]] = {}
        self.history = History(self.read, lambda: self.now)

    async def read(self) -> tuple[Counts, dict[str, Counts]]:
        return dict(self.server), {name: dict(counts) for name, counts in self.tenants.items()}

    async def step(self, **counts: float) -> None:
        self.now += 5
        self.server = counts
        await self.history.add_sample()


async def test_counters_become_figures_a_second_and_levels_stay() -> None:
    server = Server()
    await server.step(decode_tokens=100, waiting=3, steps=10, rows=20, step_ms=1000)
    await server.step(decode_tokens=150, waiting=1, steps=20, rows=60, step_ms=3500)
    view = server.history.server()
    assert view["decode_tokens"] == [None, 10.0]
    assert view["preds_waiting"] == [3.0, 1.0]
    assert view["step_rows"] == [None, 4.0]
    assert view["device_busy"] == [None, 0.5]
    assert view["pages_host"] == [None, None]


async def test_counter_that_falls_has_no_rate() -> None:
    server = Server()
    for value in (100, 40, 60):
        await server.step(decode_tokens=value)
    assert server.history.server()["decode_tokens"] == [None, None, 4.0]


async def test_no_more_than_an_hour_is_kept() -> None:
    server = Server()
    for number in range(STEPS + 3):
        await server.step(waiting=number)
    waiting = server.history.server()["preds_waiting"]
    assert len(waiting) == STEPS
    assert (waiting[0], waiting[-1]) == (3.0, STEPS + 2.0)


async def test_tenant_that_pauses_has_a_gap() -> None:
    server = Server()
    server.tenants = {"a": {"completion_tokens": 10, "pages": 1}}
    await server.step()
    server.tenants = {}
    await server.step()
    server.tenants = {"a": {"completion_tokens": 90, "pages": 2}}
    await server.step()
    await server.step()
    view = server.history.tenant("a")
    assert view["kv_pages"] == [1.0, None, 2.0, 2.0]
    # Not the growth over the gap as if it were one step's.
    assert view["decode_tokens"] == [None, None, None, 0.0]
    assert server.history.tenant("b")["kv_pages"] == [None] * 4


async def test_tenant_that_comes_later_began_at_zero() -> None:
    server = Server()
    await server.step()
    server.tenants = {"a": {"completion_tokens": 10}}
    await server.step()
    assert server.history.tenant("a")["decode_tokens"] == [None, 2.0]


async def test_figures_of_a_deleted_tenant_are_not_shown_to_the_next_of_its_name() -> None:
    server = Server()
    for value in (10, 20):
        server.tenants = {"a": {"completion_tokens": value, "pages": 1}}
        await server.step()
    server.history.forget("a")
    server.history.forget("b")
    assert server.history.tenant("a")["decode_tokens"] == [None, None]
    assert server.history.tenant("a")["kv_pages"] == [None, None]
    for value in (70, 80):  # the counters may go on from the first tenant's
        server.tenants = {"a": {"completion_tokens": value}}
        await server.step()
    assert server.history.tenant("a")["decode_tokens"] == [None, None, None, 2.0]


async def test_tenants_beyond_the_most_have_no_figures_until_others_are_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("symphony_runtime.gateway.metrics.history._TENANTS_MAX", 2)
    server = Server()
    server.tenants = {name: {"pages": 1} for name in "abc"}
    await server.step()
    assert set(server.history.tenants()) == {"a", "b"}
    server.tenants = {"a": {"pages": 1}, "c": {"pages": 1}}
    for _ in range(STEPS + 1):
        await server.step()
    assert set(server.history.tenants()) == {"a", "c"}


async def test_last_steps_alone_are_the_end_of_all() -> None:
    server = Server()
    server.tenants = {"acme": {"runs_live": 1}}
    for value in range(5):
        await server.step(waiting=value)
    history = server.history
    assert history.step == 4
    assert history.server(2)["preds_waiting"] == history.server()["preds_waiting"][-2:] == [3, 4]
    assert history.tenants(3)["acme"]["runs_live"] == [1, 1, 1]
    assert len(history.tenant("acme", 100)["runs_live"]) == 5
