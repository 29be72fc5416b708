"""Limits of tenants and of runs, from the request to the metrics: real links, kernel and worker."""

import asyncio
from pathlib import Path
from typing import Any

from symphony import AsyncClient
from symphony_kernel.protocol.limit_table import RUN_LIMITS
from symphony_runtime.config.limits import parse_limits, parse_tenants
from symphony_runtime.gateway.metrics.counters import RunMetrics

from tests.e2e import programs as guests
from tests.support.gateway.metrics import Series, scrape, value
from tests.support.gateway.system import Answer, Scenario, SystemRig, refused
from tests.support.gateway.system import with_system as with_any_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until
from tests.support.worker.guests import data, main

DEEP = guests.wasm(
    main("(call $deeper)", "(func $deeper (result i32) (i32.add (call $deeper) (i32.const 1)))")
)
HANG = guests.wasm(main("(call $await (call $recv)) (i32.const 0)"))


def with_system(tmp_path: Path, scenario: Scenario, **limits: Any) -> None:
    with_any_system(tmp_path, scenario, limits=parse_limits(limits))


async def fresh(system: SystemRig) -> Series:
    system.gateway.services.kernel_metrics.each[0]._asked = float("-inf")
    return await scrape(system.url, system.admin_key)


async def hits(system: SystemRig, limit: str) -> float:
    return value(await fresh(system), "limit_hits_total", limit=limit)


# --- What a run asks for -------------------------------------------------------------------------
@run_by(with_system, "tmp_path", cpu_ms=5_000)
async def test_run_limit_may_be_lowered_and_not_raised(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    for limit in RUN_LIMITS:
        most = system.gateway.services.runs.limits.of("default").at_most(limit.name)
        ended = await client.run("hello", limits={limit.name: most})
        assert dict(ended["limits"])[limit.name] == most, limit.name
        problem = await refused(client.run("hello", limits={limit.name: most + 1}))
        assert (problem.status, problem.problem["maximum"]) == (400, most)
        assert limit.name in problem.problem["detail"]
    problem = await refused(client.run("hello", limits={"live_runs": 1}))
    assert (problem.status, problem.problem["unknown"]) == (400, ["live_runs"])
    assert ended["limit"] is None


@run_by(with_system, "tmp_path", cpu_ms={"default": 500, "max": 90_000})
async def test_limits_default_may_be_below_its_maximum(_: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.HELLO_WASM, "hello")
    assert (await client.run("hello"))["limits"]["cpu_ms"] == 500
    ended = await client.run("hello", limits={"cpu_ms": 90_000})
    assert ended["limits"]["cpu_ms"] == 90_000
    assert (await refused(client.run("hello", limits={"cpu_ms": 90_001}))).status == 400


@run_by(with_system, "tmp_path")
async def test_run_that_a_limit_ended_names_it(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.DECODE_WASM, "decode")
    await client.programs.upload(guests.SPIN_WASM, "spin")
    ended = await client.run("decode", "\x09", limits={"tokens": 3})
    assert (ended["status"], ended["limit"]) == ("killed", "tokens")
    assert ended["reason"] == "the run has used up its 3 tokens"
    assert (await client.runs.get(ended["id"]))["limit"] == "tokens"
    ended = await client.run("spin", limits={"cpu_ms": 20})
    assert (ended["status"], ended["limit"]) == ("killed", "cpu_ms")
    await client.programs.upload(DEEP, "deep")
    ended = await client.run("deep")
    assert (ended["status"], ended["limit"]) == ("trapped", "stack_bytes")
    for limit in ("tokens", "cpu_ms", "stack_bytes"):
        assert await hits(system, limit) == 1


@run_by(with_system, "tmp_path")
async def test_refused_calls_of_a_run_are_counted(system: SystemRig, client: AsyncClient) -> None:
    create = "(drop (call $kv_create))"
    await client.programs.upload(guests.wasm(main(f"{create * 5} (i32.const 0)")), "creates")
    await client.run("creates", limits={"handles": 3})
    assert await hits(system, "handles") == 2
    await client.programs.upload(guests.DECODE_WASM, "decode")
    await client.run("decode", "\x09", limits={"kv_tokens": 3})
    assert await hits(system, "kv_tokens") >= 1, "counted by the kernel"


@run_by(with_system, "tmp_path", tenant_channels=2)
async def test_channels_past_a_limit_are_refused(system: SystemRig, client: AsyncClient) -> None:
    receives = [f"(call $channel_recv (i32.const {100 + i}) (i32.const 1))" for i in range(3)]
    body = f"""(drop {receives[0]}) (drop {receives[1]}) (call $await {receives[2]})
        (drop (call $send (i32.const 0) (call $last_error (i32.const 0) (i32.const 64))))
        (i32.const 0)"""
    await client.programs.upload(guests.wasm(main(body, data(100, "abc"))), "three")

    ended = await client.run("three", limits={"channels": 2})
    assert ended["messages"] == ["channels: at most 2"]
    assert await hits(system, "channels") == 1
    assert (await client.run("three"))["messages"] == ["tenant_channels: at most 2"]
    assert await hits(system, "tenant_channels") == 1


@run_by(with_system, "tmp_path")
async def test_inbox_of_a_run_has_the_size_asked_for(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HANG_WASM, "hang")
    run = await client.start("hang", limits={"inbox_bytes": 10})
    await client.runs.send(run, bytes(10))
    problem = await refused(client.runs.send(run, b"x"))
    assert (problem.status, problem.problem["type"]) == (429, "urn:symphony:problem:inbox-full")
    assert await hits(system, "inbox_bytes") == 1


# --- What a tenant has ---------------------------------------------------------------------------
@run_by(
    with_any_system, "tmp_path", limits=parse_limits({"live_runs": 5, "kv_names": 7}),
    tenants=parse_tenants({"default": {"limits": {"live_runs": 2, "cpu_ms": 100}}}),
)  # fmt: skip
async def test_tenant_may_have_limits_of_its_own(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(HANG, "hang")
    runs = [await client.start("hang") for _ in range(2)]
    problem = await refused(client.start("hang"))
    assert (problem.status, problem.problem["limit"]) == (429, 2)
    assert problem.retry_after is not None
    assert await hits(system, "live_runs") == 1
    limits = (await system.ask("GET", "/v1/limits")).json["limits"]
    assert limits["cpu_ms"] == {"default": 100, "maximum": 100, "of": "run"}
    assert limits["kv_names"]["maximum"] == 7
    for each in runs:
        await client.runs.cancel(each)


@run_by(with_system, "tmp_path")
async def test_quota_change_holds_at_once(system: SystemRig, client: AsyncClient) -> None:
    await client.programs.upload(guests.SAVE_WASM, "save")
    assert (await client.run("save"))["exit_code"] == 0
    async with system.admin() as admin:
        await admin.admin.change_tenant("default", quotas={"kv_files": 1, "cpu_ms": 77})
        ended = await client.run("save")
        assert (ended["limits"]["cpu_ms"], ended["exit_code"] != 0) == (77, True)
        assert await hits(system, "kv_files") >= 1
        await admin.admin.change_tenant("default", quotas={"kv_files": None, "cpu_ms": None})
    assert (await client.run("save"))["exit_code"] == 0


@run_by(with_system, "tmp_path")
async def test_token_rate_change_holds_for_live_runs(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(HANG, "hang")
    run = await client.start("hang")
    ask = system.gateway.services.runs.kernel.ask
    assert await ask("tokens_left", tenant="default") is None
    async with system.admin() as admin:
        await admin.admin.change_tenant("default", quotas={"tokens_per_minute": 600})
        assert await ask("tokens_left", tenant="default") == [600, 0]
        await admin.admin.change_tenant("default", quotas={"tokens_per_minute": None})
        assert await ask("tokens_left", tenant="default") is None
    await client.runs.cancel(run)


@run_by(with_system, "tmp_path", program_functions=8, program_bytes=8_000)
async def test_program_past_its_limits_is_refused(system: SystemRig, client: AsyncClient) -> None:
    functions = guests.wasm(main("(i32.const 0)", "(func)" * 10))
    problem = await refused(client.programs.upload(functions))
    assert problem.status == 400
    assert "the limit is 8" in problem.problem["detail"]
    large = guests.wasm(main("(i32.const 0)", data(0, bytes(9_000))))
    assert (await refused(client.programs.upload(large))).status == 413
    assert await hits(system, "program_functions") == 1
    assert await hits(system, "program_bytes") == 1
    await client.programs.upload(guests.HELLO_WASM)


@run_by(with_system, "tmp_path")
async def test_kv_bytes_on_disk_of_a_tenant_are_bounded(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.SAVE_WASM, "save")
    await client.run("save")
    content = b"".join([chunk async for chunk in client.kv.download("notes/first")])
    system.gateway.services.runs.limits._server |= parse_limits({"kv_durable_bytes": 1})
    system.gateway.services.runs.limits._known.clear()
    problem = await refused(client.kv.upload("notes/second", content))
    assert problem.status == 429
    assert await hits(system, "kv_durable_bytes") >= 1


# --- Rates ---------------------------------------------------------------------------------------
@run_by(with_system, "tmp_path", requests_per_second=1)
async def test_request_over_the_rate_is_429_with_a_retry_time(
    system: SystemRig, _: AsyncClient
) -> None:
    answers = await asyncio.gather(*[system.ask("GET", "/v1/models") for _ in range(40)])
    assert {answer.status for answer in answers} == {200, 429}
    answer = next(answer for answer in answers if answer.status == 429)
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.headers["x-ratelimit-limit-requests"] == "1"
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert answer.json["error"]["type"] == "rate_limit_error"
    assert await hits(system, "requests_per_second") >= 1

    async def is_served() -> bool:
        answer = await system.ask("GET", "/v1/runs")
        assert "x-ratelimit-limit-requests" not in answer.headers
        assert answer.status in (200, 429)
        return answer.status == 200

    await wait_until(is_served)


@run_by(with_system, "tmp_path", tokens_per_minute=30)
async def test_spent_token_rate_is_429_for_completions(
    system: SystemRig, client: AsyncClient
) -> None:
    async def complete(**fields: Any) -> Answer:
        body = {"model": "hello", "prompt": "x", **fields}
        return await system.ask("POST", "/v1/completions", json=body)

    async def is_reached() -> bool:
        names = [dict(labels).get("limit") for _, labels in await fresh(system)]
        return "tokens_per_minute" in names

    await client.programs.upload(guests.DECODE_WASM, "decode")
    await client.programs.upload(guests.HELLO_WASM, "hello")
    answer = await complete()
    assert answer.status != 429
    assert answer.headers["x-ratelimit-limit-tokens"] == "30"
    answer = await complete(stream=True)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.headers["x-ratelimit-remaining-tokens"] == "30"
    run = await client.start("decode", "\x32")  # fifty tokens
    await wait_until(is_reached)
    answer = await complete()
    assert (answer.status, answer.headers["x-ratelimit-remaining-tokens"]) == (429, "0")
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.json["error"]["code"] == "rate_limit_exceeded"
    assert (await client.runs.cancel(run))["status"] == "killed"


# --- What a worker tells -------------------------------------------------------------------------
def test_limit_hits_that_a_worker_reports_are_checked() -> None:
    counts = RunMetrics()
    said = {"tickets": 3, "handles": -1, "children": "x", "live_runs": 5, 7: 7, "messages": 1 << 60}
    counts.count_worker_limits("acme", said)
    assert counts.statistics()["limits_reached"] == {"tickets": 3}


@run_by(with_system, "tmp_path", programs=2)
async def test_programs_past_their_number_are_refused(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HELLO_WASM, "a")
    await client.programs.upload(guests.SPIN_WASM, "b")
    for upload in (
        client.programs.upload(guests.DECODE_WASM), client.programs.upload(guests.HELLO_WASM, "c"),
    ):  # fmt: skip
        problem = await refused(upload)
        assert (problem.status, problem.problem["field"]) == (429, "programs")
        assert problem.retry_after is not None
    assert await hits(system, "programs") == 2
    await client.programs.upload(guests.HELLO_WASM, "b")  # a name in use may move
    await client.programs.delete("a")
    await client.programs.upload(guests.DECODE_WASM, "d")


@run_by(with_system, "tmp_path", programs_kept_bytes=5_000)
async def test_programs_past_their_bytes_are_refused(
    system: SystemRig, client: AsyncClient
) -> None:
    large = [guests.wasm(main("(i32.const 0)", data(n, bytes(3_000)))) for n in range(2)]
    await client.programs.upload(large[0])
    problem = await refused(client.programs.upload(large[1]))
    assert (problem.status, problem.problem["field"]) == (429, "programs_kept_bytes")
    assert await hits(system, "programs_kept_bytes") == 1
    await client.programs.upload(large[0], "again")
