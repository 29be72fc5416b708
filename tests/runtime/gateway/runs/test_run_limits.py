"""Limits of tenants and of runs, from the request to the figures: real links, kernel and worker."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from symphony_kernel.protocol.limit_table import RUN_LIMITS
from symphony_runtime.client import Client, ServerError
from symphony_runtime.config.limits import parse_limits, parse_tenants
from symphony_runtime.gateway.metrics.counters import RunMetrics

from tests.e2e import programs as guests
from tests.support.gateway.metrics import scrape, value
from tests.support.gateway.system import SystemRig
from tests.support.run_by import run_by
from tests.support.worker.guests import data, main

Scenario = Callable[[SystemRig, Client], Awaitable[None]]
DEEP = guests.wasm(
    main("(call $deeper)", "(func $deeper (result i32) (i32.add (call $deeper) (i32.const 1)))")
)
HANG = guests.wasm(main("(call $await (call $recv)) (i32.const 0)"))


def with_system(tmp_path: Path, scenario: Scenario, **limits: Any) -> None:
    async def run() -> None:
        bounds = parse_limits(limits)
        async with SystemRig(tmp_path, limits=bounds) as system, system.client() as client:
            await scenario(system, client)

    asyncio.run(run())


async def refused(work: Awaitable[Any]) -> ServerError:
    with pytest.raises(ServerError) as caught:
        await work
    return caught.value


async def hits(system: SystemRig, limit: str) -> float:
    system.gateway.services.kernel_metrics._asked = float("-inf")
    return value(await scrape(system.url, system.admin_key), "limit_hits_total", limit=limit)


async def told(system: SystemRig, limit: str) -> bool:
    """Return whether a scrape tells of a limit at all."""
    system.gateway.services.kernel_metrics._asked = float("-inf")
    series = await scrape(system.url, system.admin_key)
    return any(dict(labels).get("limit") == limit for _, labels in series)


async def raw(system: SystemRig, method: str, path: str, body: Any = None) -> tuple[int, Any, Any]:
    headers = {"Authorization": f"Bearer {system.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, system.url + path, json=body) as response,
    ):
        return response.status, response.headers, await response.json(content_type=None)


async def streamed(system: SystemRig, path: str, body: dict[str, Any]) -> Any:
    headers = {"Authorization": f"Bearer {system.key}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(system.url + path, json={**body, "stream": True}) as response,
    ):
        assert response.content_type == "text/event-stream"
        await response.read()
        return response.headers


# --- What a run asks for -------------------------------------------------------------------------
@run_by(with_system, "tmp_path", cpu_ms=5_000)
async def test_a_run_may_ask_for_less_of_each_and_hears_the_maximum_of_what_is_more(
    system: SystemRig, client: Client
) -> None:
    await client.upload(guests.HELLO_WASM, "hello")
    for limit in RUN_LIMITS:
        most = system.gateway.services.runs.limits.of("default").at_most(limit.name)
        ended = await client.run("hello", limits={limit.name: most})
        assert ended["limits"][limit.name] == most, limit.name
        problem = await refused(client.run("hello", limits={limit.name: most + 1}))
        assert (problem.status, problem.problem["maximum"]) == (400, most)
        assert limit.name in problem.problem["detail"]
    problem = await refused(client.run("hello", limits={"live_runs": 1}))
    assert (problem.status, problem.problem["unknown"]) == (400, ["live_runs"])
    assert ended["limit"] is None


@run_by(with_system, "tmp_path", cpu_ms={"default": 500, "max": 90_000})
async def test_a_default_may_be_below_the_maximum(_house: SystemRig, client: Client) -> None:
    await client.upload(guests.HELLO_WASM, "hello")
    assert (await client.run("hello"))["limits"]["cpu_ms"] == 500
    ended = await client.run("hello", limits={"cpu_ms": 90_000})
    assert ended["limits"]["cpu_ms"] == 90_000
    assert (await refused(client.run("hello", limits={"cpu_ms": 90_001}))).status == 400


@run_by(with_system, "tmp_path")
async def test_a_run_that_a_limit_has_ended_names_it_and_it_is_counted(
    system: SystemRig, client: Client
) -> None:
    await client.upload(guests.DECODE_WASM, "decode")
    await client.upload(guests.SPIN_WASM, "spin")
    ended = await client.run("decode", "\x09", limits={"tokens": 3})
    assert (ended["status"], ended["limit"]) == ("killed", "tokens")
    assert ended["reason"] == "the run has used up its 3 tokens"
    assert (await client.result(ended["id"]))["limit"] == "tokens"
    ended = await client.run("spin", limits={"cpu_ms": 20})
    assert (ended["status"], ended["limit"]) == ("killed", "cpu_ms")
    await client.upload(DEEP, "deep")
    ended = await client.run("deep")
    assert (ended["status"], ended["limit"]) == ("trapped", "stack_bytes")
    for limit in ("tokens", "cpu_ms", "stack_bytes"):
        assert await hits(system, limit) == 1


@run_by(with_system, "tmp_path")
async def test_refused_calls_are_counted_when_their_run_ends(
    system: SystemRig, client: Client
) -> None:
    create = "(drop (call $kv_create))"
    await client.upload(guests.wasm(main(f"{create * 5} (i32.const 0)")), "creates")
    await client.run("creates", limits={"handles": 3})
    assert await hits(system, "handles") == 2


@run_by(with_system, "tmp_path")
async def test_kv_entries_of_a_run_are_counted_by_the_kernel(
    system: SystemRig, client: Client
) -> None:
    await client.upload(guests.DECODE_WASM, "decode")
    await client.run("decode", "\x09", limits={"kv_tokens": 3})
    assert await hits(system, "kv_tokens") >= 1


@run_by(with_system, "tmp_path", tenant_channels=2)
async def test_channels_of_a_run_and_of_its_tenant(system: SystemRig, client: Client) -> None:
    def receives(*names: str) -> bytes:
        calls = "".join(
            f"(call $await (call $channel_recv (i32.const {100 + i}) (i32.const 1)))"
            if i + 1 == len(names)
            else f"(drop (call $channel_recv (i32.const {100 + i}) (i32.const 1)))"
            for i in range(len(names))
        )
        why = "(drop (call $send (i32.const 0) (call $last_error (i32.const 0) (i32.const 64))))"
        return guests.wasm(main(f"{calls} {why} (i32.const 0)", data(100, "".join(names))))

    await client.upload(receives("a", "b", "c"), "three")
    ended = await client.run("three", limits={"channels": 2})
    assert ended["messages"] == ["channels: at most 2"]
    assert await hits(system, "channels") == 1
    assert (await client.run("three"))["messages"] == ["tenant_channels: at most 2"]
    assert await hits(system, "tenant_channels") == 1


@run_by(with_system, "tmp_path")
async def test_an_inbox_is_as_large_as_was_asked_for(system: SystemRig, client: Client) -> None:
    await client.upload(HANG, "hang")
    waits = guests.wasm(main("(call $await (call $sleep (i64.const 86400000))) (i32.const 0)"))
    await client.upload(waits, "waits")
    run = await client.start("waits", limits={"inbox_bytes": 10})
    await client.send(run, bytes(10))
    problem = await refused(client.send(run, b"x"))
    assert (problem.status, problem.problem["type"]) == (429, "urn:symphony:problem:inbox-full")
    assert await hits(system, "inbox_bytes") == 1


# --- What a tenant has ---------------------------------------------------------------------------
async def test_a_tenant_has_limits_of_its_own(tmp_path: Path) -> None:
    tenants = parse_tenants({"default": {"limits": {"live_runs": 2, "cpu_ms": 100}}})
    everybodys = parse_limits({"live_runs": 5, "kv_names": 7})
    async with (
        SystemRig(tmp_path, limits=everybodys, tenants=tenants) as system,
        system.client() as client,
    ):
        await client.upload(HANG, "hang")
        runs = [await client.start("hang") for _ in range(2)]
        problem = await refused(client.start("hang"))
        assert (problem.status, problem.problem["limit"]) == (429, 2)
        assert problem.retry_after is not None
        assert await hits(system, "live_runs") == 1
        status, _, found = await raw(system, "GET", "/v1/limits")
        assert status == 200
        assert found["limits"]["cpu_ms"] == {"default": 100, "maximum": 100, "of": "run"}
        assert found["limits"]["kv_names"]["maximum"] == 7
        for each in runs:
            await client.cancel(each)


@run_by(with_system, "tmp_path")
async def test_what_an_administrator_sets_counts_at_once(system: SystemRig, client: Client) -> None:
    await client.upload(guests.SAVE_WASM, "save")
    assert (await client.run("save"))["exit_code"] == 0
    async with Client(system.url, system.admin_key) as admin:
        await admin.change_tenant("default", quotas={"kv_files": 1, "cpu_ms": 77})
    ended = await client.run("save")
    assert (ended["limits"]["cpu_ms"], ended["exit_code"] != 0) == (77, True)
    assert await hits(system, "kv_files") >= 1
    async with Client(system.url, system.admin_key) as admin:
        await admin.change_tenant("default", quotas={"kv_files": None, "cpu_ms": None})
    assert (await client.run("save"))["exit_code"] == 0


@run_by(with_system, "tmp_path")
async def test_what_the_kernel_counts_holds_for_runs_that_are_live(
    system: SystemRig, client: Client
) -> None:
    await client.upload(HANG, "hang")
    run = await client.start("hang")
    ask = system.gateway.services.runs.kernel.ask
    assert await ask("tokens_left", tenant="default") is None
    async with Client(system.url, system.admin_key) as admin:
        await admin.change_tenant("default", quotas={"tokens_per_minute": 600})
        assert await ask("tokens_left", tenant="default") == [600, 0]
        await admin.change_tenant("default", quotas={"tokens_per_minute": None})
        assert await ask("tokens_left", tenant="default") is None
    await client.cancel(run)


@run_by(with_system, "tmp_path", program_functions=8, program_bytes=8_000)
async def test_a_program_may_be_too_large_or_have_too_many_functions(
    system: SystemRig, client: Client
) -> None:
    functions = guests.wasm(main("(i32.const 0)", "(func)" * 10))
    problem = await refused(client.upload(functions))
    assert problem.status == 400
    assert "the limit is 8" in problem.problem["detail"]
    large = guests.wasm(main("(i32.const 0)", data(0, bytes(9_000))))
    assert (await refused(client.upload(large))).status == 413
    assert await hits(system, "program_functions") == 1
    assert await hits(system, "program_bytes") == 1
    await client.upload(guests.HELLO_WASM)


@run_by(with_system, "tmp_path")
async def test_kv_files_on_disk_have_the_tenants_bound_before_it_has_run_anything(
    system: SystemRig, client: Client
) -> None:
    await client.upload(guests.SAVE_WASM, "save")
    await client.run("save")
    content = b"".join([chunk async for chunk in client.kv_download("notes/first")])
    system.gateway.services.runs.limits._server |= parse_limits({"kv_durable_bytes": 1})
    system.gateway.services.runs.limits._known.clear()
    problem = await refused(client.kv_upload("notes/second", content))
    assert problem.status == 429
    assert await hits(system, "kv_durable_bytes") >= 1


# --- Rates ---------------------------------------------------------------------------------------
@run_by(with_system, "tmp_path", requests_per_second=1)
async def test_requests_a_second_are_429_with_a_time_to_come_again(
    system: SystemRig, _client: Client
) -> None:
    asked = [raw(system, "GET", "/v1/models") for _ in range(40)]
    answers = await asyncio.gather(*asked)
    assert {status for status, _, _ in answers} == {200, 429}
    status, headers, found = next(answer for answer in answers if answer[0] == 429)
    assert int(headers["Retry-After"]) >= 1
    assert headers["x-ratelimit-limit-requests"] == "1"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert found["error"]["type"] == "rate_limit_error"
    assert await hits(system, "requests_per_second") >= 1
    async with asyncio.timeout(20):
        while status == 429:
            status, headers, _ = await raw(system, "GET", "/v1/runs")
            assert "x-ratelimit-limit-requests" not in headers
            await asyncio.sleep(0.1)
    assert status == 200


@run_by(with_system, "tmp_path", tokens_per_minute=30)
async def test_tokens_a_minute_slow_programs_down_and_are_429_on_the_openai_routes(
    system: SystemRig, client: Client
) -> None:
    await client.upload(guests.DECODE_WASM, "decode")
    await client.upload(guests.HELLO_WASM, "hello")
    body = {"model": "hello", "prompt": "x"}
    status, headers, _ = await raw(system, "POST", "/v1/completions", body)
    assert status != 429
    assert headers["x-ratelimit-limit-tokens"] == "30"
    headers = await streamed(system, "/v1/completions", body)
    assert headers["x-ratelimit-remaining-tokens"] == "30"
    run = await client.start("decode", "\x32")  # fifty tokens
    async with asyncio.timeout(20):
        while not await told(system, "tokens_per_minute"):  # noqa: ASYNC110 - of a scrape
            await asyncio.sleep(0.02)
    status, headers, found = await raw(system, "POST", "/v1/completions", body)
    assert (status, headers["x-ratelimit-remaining-tokens"]) == (429, "0")
    assert int(headers["Retry-After"]) >= 1
    assert found["error"]["code"] == "rate_limit_exceeded"
    assert (await client.cancel(run))["status"] == "killed"


# --- What a worker tells -------------------------------------------------------------------------
def test_what_a_worker_tells_of_limits_is_believed_as_far_as_it_can_be() -> None:
    figures = RunMetrics()
    said = {"tickets": 3, "handles": -1, "children": "x", "live_runs": 5, 7: 7, "messages": 1 << 60}
    figures.count_worker_limits("acme", said)
    assert figures.statistics()["limits_reached"] == {"tickets": 3}


@run_by(with_system, "tmp_path", programs=2)
async def test_a_tenant_keeps_so_many_programs_and_names(system: SystemRig, client: Client) -> None:
    await client.upload(guests.HELLO_WASM, "a")
    await client.upload(guests.SPIN_WASM, "b")
    for upload in (
        client.upload(guests.DECODE_WASM), client.upload(guests.HELLO_WASM, "c"),
    ):  # fmt: skip
        problem = await refused(upload)
        assert (problem.status, problem.problem["field"]) == (429, "programs")
        assert problem.retry_after is not None
    assert await hits(system, "programs") == 2
    await client.upload(guests.HELLO_WASM, "b")  # a name that there is may move
    await client.delete_program("a")
    await client.upload(guests.DECODE_WASM, "d")


@run_by(with_system, "tmp_path", programs_kept_bytes=5_000)
async def test_a_tenant_keeps_so_many_bytes_of_programs(system: SystemRig, client: Client) -> None:
    large = [guests.wasm(main("(i32.const 0)", data(n, bytes(3_000)))) for n in range(2)]
    await client.upload(large[0])
    problem = await refused(client.upload(large[1]))
    assert (problem.status, problem.problem["field"]) == (429, "programs_kept_bytes")
    assert await hits(system, "programs_kept_bytes") == 1
    await client.upload(large[0], "again")
