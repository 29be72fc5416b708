"""`/metrics`: the exposition parses, counters follow runs, and each key sees its own."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_kernel.protocol.limits import PAGE_TOKENS
from symphony_runtime.gateway.metrics.counters import OTHERS, RunMetrics, kind_of

from tests.e2e import programs as guests
from tests.support.gateway.metrics import DECODE, names, scrape, tenants, value
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.usage import used


@run_by(with_system, "tmp_path")
async def test_run_counters_follow_runs(system: SystemRig, client: AsyncClient) -> None:
    system.gateway.services.kernel_metrics.each[0]._now = lambda: float("inf")  # never old enough
    before = await scrape(system.url, system.key)
    assert value(before, "num_requests_running") == 0
    await client.programs.upload(DECODE, "decode")
    await client.programs.upload(guests.TRAP_WASM, "trap")
    await client.programs.upload(guests.SPIN_WASM, "spin")
    await client.programs.upload(guests.HANG_WASM, "hang")
    result = await client.run("decode")
    assert result["exit_code"] == 0, result
    await client.run("trap")
    await client.run("spin", limits={"cpu_ms": 20})
    await client.runs.cancel(await client.start("hang"))
    held = await client.start("hang")
    system.gateway.services.kernel_metrics.each[0]._asked = float("-inf")
    series = await scrape(system.url, system.key)
    counts = {
        "runs_live": 1, "runs_started_total": 5, "preds_total": 5, "steps_total": 5,
        "iteration_tokens_total_sum": 12, "iteration_tokens_total_count": 5,
        "time_to_first_token_seconds_count": 1, "inter_token_latency_seconds_count": 4,
        "e2e_request_latency_seconds_count": 4, "time_to_first_message_seconds_count": 1,
        "kv_cache_usage_perc": 0, "instances": 1,
    }  # fmt: skip
    assert {name: value(series, name) for name in counts} == counts
    for status, count in (("exited", 1), ("trapped", 1), ("killed", 2), ("failed", 0)):
        assert value(series, "request_success_total", finished_reason=status) == count
    for reason, count in (("cpu_ms", 1), ("cancel", 1), ("wall_ms", 0), ("other", 0)):
        assert value(series, "runs_killed_total", reason=reason) == count
    assert value(series, "prompt_tokens_total") == used(result)["prompt_tokens"] == 8
    assert value(series, "generation_tokens_total") == used(result)["completion_tokens"] == 5
    assert value(series, "e2e_request_latency_seconds_bucket", le="+Inf") == 4
    assert value(series, "device_busy_seconds_total") > 0
    assert value(series, "program_cpu_seconds_total") >= 0.02
    assert {dict(labels).get("model_name") for _, labels in series} == {"simulated"}
    await client.runs.cancel(held)


@run_by(with_system, "tmp_path")
async def test_held_pages_count_as_cache_usage(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.SAVE_WASM, "save")
    await client.run("save")
    series = await scrape(system.url, system.key)
    pages = value(series, "kv_pages")
    assert value(series, "kv_cache_usage_perc") == pytest.approx(1 / pages)
    assert value(series, "kv_pages_free") == pages - 1
    assert value(series, "kv_pages_held") == 1
    assert PAGE_TOKENS > 3


@run_by(with_system, "tmp_path")
async def test_key_sees_its_own_tenants_series_only(system: SystemRig, owner: AsyncClient) -> None:
    key = await system.add_tenant("acme")
    async with AsyncClient(system.url, key, retries=0) as acme:
        for client, times in ((owner, 3), (acme, 1)):
            await client.programs.upload(DECODE, "decode")
            for _ in range(times):
                await client.run("decode")
        admin = await scrape(system.url, system.admin_key)
        assert tenants(admin) == {"default", "acme"}
        assert value(admin, "request_success_total", tenant="default") == 3
        assert value(admin, "request_success_total", tenant="acme") == 1
        assert value(admin, "generation_tokens_total", tenant="acme") == 5
        assert value(admin, "generation_tokens_total") == 20
        assert value(admin, "role_up") == 3
        assert value(admin, "role_resident_memory_bytes", role="gateway") > 1 << 20
        assert value(admin, "http_responses_total", route="startRun", status="200") == 4
        own = await scrape(system.url, key)
        assert tenants(own) == set()
        assert value(own, "request_success_total") == 1
        assert value(own, "generation_tokens_total") == 5
        # No series from which the other tenant's usage could be computed.
        assert names(own) <= {name for name, labels in admin if "tenant" in dict(labels)}
        assert "preds_total" not in names(own)


@run_by(with_system, "tmp_path", disk_bytes_max=1 << 40)
async def test_metrics_page_names_every_family(system: SystemRig, client: AsyncClient) -> None:
    page = (Path(__file__).parents[4] / "docs/reference/metrics.md").read_text()
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    described = set(re.findall(r"`(\w+)(?:\{[\w,]+\})?`", " ".join(rows)))
    await client.programs.upload(DECODE, "decode")
    await client.run("decode")
    served = names(await scrape(system.url, system.admin_key))
    histograms = {name.removesuffix("_bucket") for name in served if name.endswith("_bucket")}
    parts = {f"{name}_{part}" for name in histograms for part in ("bucket", "count", "sum")}
    assert described == served - parts | histograms


@run_by(with_system, "tmp_path", worker=False)
async def test_readiness_names_missing_roles_and_progress(
    system: SystemRig, _: AsyncClient
) -> None:
    async def ready() -> dict[str, Any]:
        answer = await system.ask("GET", "/readyz")
        assert answer.status == 503
        found: dict[str, Any] = answer.json
        return found

    progress = system.gateway.services.progress
    assert (await ready())["missing"] == ["worker-0: not there"]
    await system.stop_kernel()
    await asyncio.sleep(0.05)
    progress.set_progress("kernel", "loading the model", 0.45)
    found = await ready()
    assert found["missing"][0] == "kernel: loading the model, 45 %"
    assert found["roles"][1]["progress"] == {"what": "loading the model", "share": 0.45}
    progress.set_progress("kernel", None, None)
    assert (await ready())["missing"][0] == "kernel: starting again; runs wait for it"
    await system.start_kernel()


@run_by(with_system, "tmp_path")
async def test_lone_tenant_sees_sums_without_labels(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(DECODE, "decode")
    await client.run("decode")
    alone, admin = await scrape(system.url, system.key), await scrape(system.url, system.admin_key)
    assert tenants(alone) == set()
    assert {"num_requests_running", "kv_cache_usage_perc", "steps_total"} <= names(alone)
    assert names(alone) < names(admin)
    assert not {name for name in names(alone) if name.startswith(("role_", "http_", "store_"))}


def test_kill_reason_becomes_one_of_a_few_labels() -> None:
    said = {
        "it was cancelled": "cancel",
        "cpu time limit: it computed for more than 5 ms": "cpu_ms",
        "wall time limit: it ran longer than 5 ms": "wall_ms",
        "the run took longer than its limit of 5 ms": "wall_ms",
        "memory limit: it and its children hold more than 5 bytes": "memory_bytes",
        "the run has used up its 5 tokens": "tokens",
        "output limit: it sent more than 5 bytes": "output",
        "it sent more than its limit of 5 messages": "output",
        "a reason of a worker that is not believed": "other",
    }
    assert {reason: kind_of(reason) for reason in said} == said


def test_tenants_past_a_number_are_counted_together() -> None:
    metrics = RunMetrics()
    for number in range(600):
        metrics.count_start(f"t{number}", 0.1)
    assert len(metrics.tenants()) == 501
    assert metrics.tenants()[OTHERS].started == 100
    assert metrics.total().started == 600
    metrics.count_start("t3", 0.1)
    assert metrics.of_tenant("t3").started == 2
