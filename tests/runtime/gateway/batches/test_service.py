"""Batches of a real gateway: each line gets its result once, also after deaths and refusals."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_kernel.protocol.limits import BATCH_REQUEST_FAILURES_MAX
from symphony_runtime.config.limits import Limits, parse_limits
from symphony_runtime.gateway.batches.lines import BatchRequest
from symphony_runtime.gateway.batches.records import Batch, count_batches
from symphony_runtime.gateway.batches.results import WINDOW_LINES
from symphony_runtime.gateway.batches.runner import BatchRun
from symphony_runtime.gateway.batches.service import Batches
from symphony_runtime.gateway.clock import now_ms
from symphony_runtime.gateway.files.store import Files
from symphony_runtime.gateway.storage.store import Store

from tests.e2e.programs import wasm
from tests.support.executor.byte_model import byte_assets
from tests.support.gateway.batches import (
    COMPLETIONS,
    begin,
    create,
    ended,
    jsonl,
    line_of,
    results,
    upload,
)
from tests.support.gateway.program_records import OPENING, failure
from tests.support.gateway.stores import count_rows, with_store
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.waiting import wait_until
from tests.support.worker.guests import data, drop, main

# Generations of the length asked for.
ASSETS: dict[str, Any] = {"assets": byte_assets(ends=False)}


def requests(count: int, tokens: int = 4) -> list[Any]:
    return [line_of(f"r{number}", {"max_tokens": tokens}) for number in range(count)]


async def check_complete(system: SystemRig, batch: Any, count: int) -> None:
    """Check that each of `requests(count)` has one answer, which is its own."""
    assert batch["request_counts"] == {"total": count, "completed": count, "failed": 0}
    lines = await results(system, batch["output_file_id"])
    assert sorted(line["custom_id"] for line in lines) == sorted(f"r{n}" for n in range(count))
    assert len({line["id"] for line in lines}) == count
    for line in lines:
        assert line["error"] is None
        assert line["response"]["status_code"] == 200
        assert line["response"]["body"]["choices"][0]["finish_reason"] == "length"
    assert batch["error_file_id"] is None


async def in_progress(system: SystemRig, batch_id: str, completed: int = 1) -> None:
    """Wait until some lines of a batch have their results."""

    async def has_some() -> bool:
        batch = (await system.ask("GET", f"/v1/batches/{batch_id}")).json
        assert batch["status"] in ("validating", "in_progress"), batch
        return bool(batch["request_counts"]["completed"] >= completed)

    await wait_until(has_some)


@run_by(with_system, "tmp_path", **ASSETS)
async def test_batch_answers_each_line_as_its_route_does(system: SystemRig, _: AsyncClient) -> None:
    bad = [line_of("bad", {"max_tokens": -1}), line_of("unknown", {"model": "other"})]
    lines = [*requests(20), *bad]
    batch_id = await begin(system, lines, metadata={"for": "test"})
    batch = await ended(system, batch_id)
    assert batch["status"] == "completed"
    assert batch["metadata"] == {"for": "test"}
    assert batch["request_counts"] == {"total": 22, "completed": 20, "failed": 2}
    stamps = ("created_at", "in_progress_at", "finalizing_at", "completed_at")
    times = [batch[stamp] for stamp in stamps]
    assert times == sorted(times)
    assert batch["expires_at"] == batch["created_at"] + 86_400
    output = {line["custom_id"]: line for line in await results(system, batch["output_file_id"])}
    errors = {line["custom_id"]: line for line in await results(system, batch["error_file_id"])}
    assert set(errors) == {"bad", "unknown"}
    for line in lines:
        custom_id = line["custom_id"]
        found = (output | errors)[custom_id]["response"]
        asked = await system.ask("POST", COMPLETIONS, json=line["body"])
        assert found["status_code"] == asked.status
        body = found["body"]
        for key in asked.json.keys() - {"id", "created"}:
            assert body[key] == asked.json[key], (custom_id, key)
        if asked.status == 200:
            assert found["request_id"].startswith("run_")
    listed = (await system.ask("GET", "/v1/batches")).json
    assert (listed["data"], listed["has_more"]) == ([batch], False)


@run_by(with_system, "tmp_path", step_ms=2, limits=parse_limits({"batch_requests": 3}), **ASSETS)
async def test_batches_of_a_tenant_run_few_requests_at_low_priority(
    system: SystemRig, _: AsyncClient
) -> None:
    ids = [await begin(system, requests(12, 8)) for _ in range(2)]
    runs = system.gateway.services.runs
    seen, priorities = 0, set[int]()
    waiting = asyncio.gather(*(ended(system, batch_id) for batch_id in ids))
    while not waiting.done():
        live = [run.record for run in runs.all_live()]
        seen = max(seen, len(live))
        priorities |= {record.priority for record in live}
        await asyncio.sleep(0.001)
    for batch in await waiting:
        await check_complete(system, batch, 12)
    assert seen == 3
    assert priorities == {0}
    assert await count_rows(system.gateway.services.store, "runs") == 0, "they are not kept"


@run_by(with_system, "tmp_path", **ASSETS)
async def test_batch_with_wrong_lines_fails_and_runs_nothing(
    system: SystemRig, _: AsyncClient
) -> None:
    batch = await ended(system, await begin(system, [line_of("a"), line_of("a"), {}]))
    assert (batch["status"], batch["request_counts"]["total"]) == ("failed", 0)
    assert [(e["code"], e["line"]) for e in batch["errors"]["data"]] == [
        ("duplicate_custom_id", 2), ("invalid_custom_id", 3),
    ]  # fmt: skip
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)
    assert batch["failed_at"] is not None
    assert system.gateway.services.runs.metrics.statistics()["runs_ended"] == {}


@run_by(with_system, "tmp_path", step_ms=2, **ASSETS)
async def test_cancelled_batch_keeps_its_results(system: SystemRig, _: AsyncClient) -> None:
    batch_id = await begin(system, requests(400, 16))
    await in_progress(system, batch_id, 3)
    cancelled = await system.ask("POST", f"/v1/batches/{batch_id}/cancel")
    assert cancelled.json["status"] == "cancelling"
    batch = await ended(system, batch_id)
    assert batch["status"] == "cancelled"
    assert batch["cancelling_at"] <= batch["cancelled_at"]
    lines = await results(system, batch["output_file_id"])
    assert 3 <= len(lines) == batch["request_counts"]["completed"] < 400
    assert (await system.ask("POST", f"/v1/batches/{batch_id}/cancel")).json == batch
    await wait_until(lambda: not list(system.gateway.services.runs.all_live()))
    done = await ended(system, await begin(system, requests(1)))
    late = await system.ask("POST", f"/v1/batches/{done['id']}/cancel")
    assert late.status == 409


@run_by(with_system, "tmp_path", step_ms=2, **ASSETS)
async def test_expired_batch_has_an_error_for_each_line_that_was_not_run(
    system: SystemRig, _: AsyncClient
) -> None:
    files = system.gateway.files
    now_ms = files.now_ms
    files.now_ms = lambda: now_ms() - 86_400_000 + 500  # it has half a second
    batch_id = await begin(system, requests(300, 16))
    files.now_ms = now_ms
    batch = await ended(system, batch_id)
    assert (batch["status"], batch["expired_at"] >= batch["expires_at"]) == ("expired", True)
    output = await results(system, batch["output_file_id"])
    errors = await results(system, batch["error_file_id"])
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    found = [line["custom_id"] for line in [*output, *errors]]
    assert sorted(found) == sorted(f"r{number}" for number in range(300))
    assert batch["request_counts"] == {"total": 300, "completed": len(output), "failed": 0}


async def with_restarts(tmp_path: Path, count: int, tokens: int, restarts: int) -> None:
    batch_id = ""
    for number in range(restarts + 1):
        async with SystemRig(tmp_path, step_ms=1, **ASSETS) as system:
            if not batch_id:
                batch_id = await begin(system, requests(count, tokens))
            if number < restarts:
                await in_progress(system, batch_id, count * (number + 1) // (restarts + 2))
            else:
                batch = await ended(system, batch_id)
                assert batch["status"] == "completed"
                await check_complete(system, batch, count)


async def test_batch_continues_after_restarts_of_the_gateway(tmp_path: Path) -> None:
    await with_restarts(tmp_path, 60, 8, 3)


@run_by(with_system, "tmp_path", **ASSETS, kernel_wait_seconds=0.05)
async def test_batch_waits_while_the_kernel_is_away(system: SystemRig, _: AsyncClient) -> None:
    batch_id = await begin(system, requests(40, 16))
    await in_progress(system, batch_id)
    await system.restart_kernel()
    batch = await ended(system, batch_id)
    assert batch["request_counts"]["total"] == 40
    await check_complete(system, batch, 40)


@run_by(with_system, "tmp_path", step_ms=1, limits=parse_limits({"live_runs": 2}), **ASSETS)
async def test_batch_waits_while_the_tenants_limits_refuse(
    system: SystemRig, _: AsyncClient
) -> None:
    batch = await ended(system, await begin(system, requests(20)), seconds=120)
    await check_complete(system, batch, 20)
    assert system.gateway.services.runs.admission.refused["tenant_runs"] > 0


@run_by(with_system, "tmp_path", **ASSETS)
async def test_usage_of_a_batch_is_the_sum_of_its_answers(
    system: SystemRig, _: AsyncClient
) -> None:
    lines = [*requests(5), line_of("bad", {"max_tokens": -1})]
    batch = await ended(system, await begin(system, lines))
    answers = [line["response"]["body"] for line in await results(system, batch["output_file_id"])]
    prompt = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    assert prompt > 0
    assert (batch["usage"]["input_tokens"], batch["usage"]["output_tokens"]) == (prompt, 20)
    assert batch["usage"]["total_tokens"] == prompt + 20


@run_by(with_system, "tmp_path", **ASSETS)
async def test_batch_with_a_repeated_key_is_one_batch(system: SystemRig, _: AsyncClient) -> None:
    file = (await upload(system, jsonl(requests(2)))).json["id"]
    body = {"input_file_id": file, "endpoint": COMPLETIONS, "completion_window": "24h"}

    async def ask(key: str, **fields: Any) -> Any:
        headers = {"Idempotency-Key": key}
        return await system.ask("POST", "/v1/batches", json=body | fields, headers=headers)

    first, *again = await asyncio.gather(*(ask("once") for _ in range(3)))
    assert {answer.json["id"] for answer in again} == {first.json["id"]}
    batch = await ended(system, first.json["id"])
    late = await ask("once")
    assert (late.json, late.headers["Idempotent-Replayed"]) == (batch, "true")
    assert (await ask("once", metadata={"a": "b"})).status == 422
    assert (await ask("wrong", input_file_id="file-1")).status == 400
    right = await ask("wrong")  # a refused request has freed its key
    assert (right.status, "Idempotent-Replayed" in right.headers) == (200, False)
    assert len((await system.ask("GET", "/v1/batches")).json["data"]) == 2
    await ended(system, right.json["id"])


@run_by(with_system, "tmp_path", **ASSETS)
async def test_batch_line_that_its_program_refuses_is_tried_four_times(
    system: SystemRig, client: AsyncClient
) -> None:
    sent = OPENING + failure(status=503, code="closed", message="come back later")
    refusing = wasm(main(f"{drop('send', 8, len(sent))} (i32.const 0)", data(8, sent)))
    await client.programs.upload(refusing, name="refusing")
    batch = await ended(system, await begin(system, [line_of("a", {"model": "refusing"})]))
    assert batch["request_counts"] == {"total": 1, "completed": 0, "failed": 1}
    (line,) = await results(system, batch["error_file_id"])
    assert line["response"]["status_code"] == 503
    assert line["response"]["body"]["error"]["message"] == "come back later"
    runs = (await system.ask("GET", "/v1/runs")).json["data"]
    assert len(runs) == BATCH_REQUEST_FAILURES_MAX


@run_by(with_store, "tmp_path", "store_url")
async def test_batch_without_an_answer_lets_others_run(store: Store) -> None:
    batches = Batches(store, Files(store, Limits(), 1, now_ms), Limits(), 10)  # it answers nothing
    batch = Batch("batch_1", "t", 1, 1, COMPLETIONS, "file-1", 10_000)
    run = BatchRun(batch, batches._around)
    answer = asyncio.create_task(run._answer(BatchRequest("a", b"{}")))
    await asyncio.sleep(0)
    run.stop()
    assert await answer is None


@run_by(with_system, "tmp_path", step_ms=2, **ASSETS)
async def test_batch_of_a_suspended_tenant_waits(system: SystemRig, _: AsyncClient) -> None:
    batch_id = await begin(system, requests(40, 8))
    await in_progress(system, batch_id)
    async with system.admin() as admin:
        await admin.admin.change_tenant("default", suspended=True)
        await asyncio.sleep(0.3)
        assert not list(system.gateway.services.runs.all_live())
        await admin.admin.change_tenant("default", suspended=False)
    await check_complete(system, await ended(system, batch_id), 40)


@run_by(with_system, "tmp_path", limits=parse_limits({"files": 2}), **ASSETS)
async def test_batch_waits_while_its_tenants_files_are_full(
    system: SystemRig, _: AsyncClient
) -> None:
    files = [(await upload(system, jsonl(requests(3)))).json["id"] for _ in range(2)]
    batch_id = (await create(system, files[0])).json["id"]
    await check_complete(system, await ended(system, batch_id), 3)
    # Its results are a third file: the next batch waits until there is room.
    batch_id = (await create(system, files[1])).json["id"]
    await asyncio.sleep(0.5)
    batch = (await system.ask("GET", f"/v1/batches/{batch_id}")).json
    assert (batch["status"], batch["request_counts"]["completed"]) == ("in_progress", 0)
    assert (await system.ask("DELETE", f"/v1/files/{files[0]}")).status == 200
    await check_complete(system, await ended(system, batch_id), 3)


@run_by(with_system, "tmp_path", step_ms=2, **ASSETS)
async def test_tenant_deleted_with_a_live_batch_leaves_nothing(
    system: SystemRig, _: AsyncClient
) -> None:
    key = await system.add_tenant("acme")
    file = (await upload(system, jsonl(requests(200, 16)), key=key)).json["id"]
    batch_id = (await create(system, file, key=key)).json["id"]
    await wait_until(lambda: list(system.gateway.services.runs.all_live()))
    async with system.admin() as admin:
        refused = await system.ask("DELETE", "/v1/admin/tenants/acme", key=system.admin_key)
        assert refused.status == 409
        path = "/v1/admin/tenants/acme?everything=1"
        assert (await system.ask("DELETE", path, key=system.admin_key)).status == 204
        store = system.gateway.services.store
        for table in ("batches", "files", "file_parts", "file_counts"):
            assert await count_rows(store, table) == 0, table
        await admin.admin.create_tenant("acme")
        key = (await admin.admin.create_key("acme"))["key"]
    assert (await system.ask("GET", f"/v1/batches/{batch_id}", key=key)).status == 404
    again = (await upload(system, jsonl(requests(2)), key=key)).json["id"]
    batch_id = (await create(system, again, key=key)).json["id"]
    assert (await ended(system, batch_id, key=key))["status"] == "completed"


@run_by(with_system, "tmp_path", step_ms=2, limits=parse_limits({"live_batches": 2}), **ASSETS)
async def test_live_batches_are_bounded(system: SystemRig, _: AsyncClient) -> None:
    file = (await upload(system, jsonl(requests(100, 16)))).json["id"]
    answers = [await create(system, file) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 429]
    assert "Retry-After" in answers[2].headers
    in_use = await system.ask("DELETE", f"/v1/files/{file}")
    assert in_use.status == 409
    for answer in answers[:2]:
        await system.ask("POST", f"/v1/batches/{answer.json['id']}/cancel")
        await ended(system, answer.json["id"])
    assert (await system.ask("DELETE", f"/v1/files/{file}")).status == 200
    counts = await system.gateway.services.store.read(count_batches)
    assert counts == {"cancelled": 2}


@run_by(with_system, "tmp_path", **ASSETS)
async def test_usage_of_a_batch_is_the_tenants(system: SystemRig, _: AsyncClient) -> None:
    await check_complete(system, await ended(system, await begin(system, requests(5))), 5)

    async def counted() -> bool:
        path = "/v1/admin/usage?tenant=default"
        usage = (await system.ask("GET", path, key=system.admin_key)).json["data"]
        return bool(sum(day["completion_tokens"] for day in usage) == 20)

    await wait_until(counted)


def between_two(
    tmp_path: Path, url: str, scenario: Callable[[SystemRig, SystemRig], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with (
            SystemRig(tmp_path / "first", store=url, step_ms=2, **ASSETS) as first,
            SystemRig(tmp_path / "second", store=url, step_ms=2, **ASSETS) as second,
        ):
            await scenario(first, second)

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    asyncio.run(main())


@run_by(between_two, "tmp_path", "postgres_url")
async def test_batch_of_a_silent_gateway_is_continued_by_another(
    first: SystemRig, second: SystemRig
) -> None:
    """The first gateway is only slow: it goes on, and what it does then has no effect."""
    batch_id = await begin(first, requests(80, 16))
    await in_progress(first, batch_id, 5)
    now_ms = second.gateway.files.now_ms
    second.gateway.files.now_ms = lambda: now_ms() + 61_000
    await second.gateway.batches.look()
    second.gateway.files.now_ms = now_ms
    assert batch_id in second.gateway.batches._runs
    batch = await ended(first, batch_id)
    await check_complete(first, batch, 80)
    assert batch["status"] == "completed"
    await wait_until(lambda: batch_id not in first.gateway.batches._runs)


@run_by(between_two, "tmp_path", "postgres_url")
async def test_batch_is_shown_and_cancelled_at_any_gateway(
    first: SystemRig, second: SystemRig
) -> None:
    batch_id = await begin(first, requests(400, 16))
    await in_progress(first, batch_id, 2)
    key = first.key
    answer = await second.ask("POST", f"/v1/batches/{batch_id}/cancel", key=key)
    assert (answer.status, answer.json["status"]) == (200, "cancelling")
    batch = await ended(second, batch_id, key=key)
    assert batch["status"] == "cancelled"
    lines = await results(first, batch["output_file_id"])
    assert len(lines) == batch["request_counts"]["completed"]


@pytest.mark.slow
@run_by(with_system, "tmp_path", **ASSETS)
async def test_batch_of_very_many_lines_has_each_result_once(
    system: SystemRig, _: AsyncClient
) -> None:
    count = 2 * WINDOW_LINES
    batch = await ended(system, await begin(system, requests(count, 1)), seconds=240)
    await check_complete(system, batch, count)
