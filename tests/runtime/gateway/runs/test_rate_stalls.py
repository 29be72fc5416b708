"""What a run shows while its tenant's rate limit holds it up: real links, kernel and worker."""

import asyncio
from pathlib import Path
from typing import Any

from symphony import AsyncClient
from symphony_runtime.config.limits import parse_limits
from symphony_runtime.gateway.runs.rate_stalls import LIMIT

from tests.e2e import programs as guests
from tests.support.gateway.metrics import scrape, value
from tests.support.gateway.system import Scenario, SystemRig
from tests.support.gateway.system import with_system as with_any_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

SECONDS_MAX = 30  # on a busy machine


def with_system(tmp_path: Path, scenario: Scenario, **limits: Any) -> None:
    with_any_system(tmp_path, scenario, limits=parse_limits(limits))


def with_slow_steps(tmp_path: Path, scenario: Scenario) -> None:
    with_any_system(tmp_path, scenario, step_ms=100)  # 127 tokens take 12 s


async def waits_no_more(client: AsyncClient, run: str) -> bool:
    """Return whether a run shows no limit any longer; it has not ended."""
    found = await client.runs.get(run)
    assert found["status"] == "running"
    return found["waits_for"] is None


async def waits_for(client: AsyncClient, run: str) -> str | None:
    found: str | None = (await client.runs.get(run))["waits_for"]
    return found


async def notices(client: AsyncClient, run: str) -> list[str]:
    events = [event async for event in client.runs.events(run, follow=False)]
    return [e.data["text"] for e in events if e.kind == "log" and e.data.get("by") == "server"]


@run_by(with_system, "tmp_path", tokens_per_minute=30)
async def test_run_over_the_rate_says_what_it_waits_for(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.DECODE_WASM, "decode")
    run = await client.start("decode", "\x7f")  # 127 tokens
    await wait_until(lambda: waits_for(client, run), SECONDS_MAX)
    assert await waits_for(client, run) == LIMIT
    assert [each["waits_for"] for each in await client.runs.live()] == [LIMIT]
    await asyncio.sleep(2.5)  # more looks
    words = "it waits for its tenant's limit tokens_per_minute: 30 tokens a minute are computed"
    assert await notices(client, run) == [words]
    series = await scrape(system.url, system.admin_key)
    assert value(series, "runs_held_up", tenant="default") == 1
    assert (await client.runs.cancel(run))["waits_for"] is None
    assert await waits_for(client, run) is None


@run_by(with_slow_steps, "tmp_path")
async def test_run_waits_no_more_once_its_tenant_has_no_rate(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.DECODE_WASM, "decode")
    await client.programs.upload(guests.PARROT_WASM, "parrot")
    idle = await client.start("parrot")
    async with system.admin() as admin:
        await admin.admin.change_tenant("default", quotas={"tokens_per_minute": 30})
        run = await client.start("decode", "\x7f")
        await wait_until(lambda: waits_for(client, run), SECONDS_MAX)
        assert (await waits_for(client, idle), await notices(client, idle)) == (None, [])
        await admin.admin.change_tenant("default", quotas={"tokens_per_minute": None})
    await wait_until(lambda: waits_no_more(client, run), SECONDS_MAX)
    for each in (run, idle):
        await client.runs.cancel(each)


@run_by(with_system, "tmp_path")
async def test_run_without_a_rate_asks_the_kernel_nothing(
    system: SystemRig, client: AsyncClient
) -> None:
    asked: list[str] = []
    kernel = system.gateway.services.runs.kernel
    ask = kernel.ask

    async def counted(what: str, **args: Any) -> Any:
        asked.append(what)
        return await ask(what, **args)

    kernel.ask = counted  # type: ignore[method-assign]
    await client.programs.upload(guests.PARROT_WASM, "parrot")
    run = await client.start("parrot")
    await asyncio.sleep(2.5)
    assert "held_runs" not in asked
    assert await waits_for(client, run) is None
    await client.runs.cancel(run)
