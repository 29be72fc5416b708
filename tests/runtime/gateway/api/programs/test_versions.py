"""Versions of a name over HTTP, in the Python client and on the OpenAI routes."""

import pytest
from symphony import AsyncClient
from symphony_runtime.config.limits import parse_limits

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig, refused, with_system
from tests.support.run_by import run_by
from tests.support.worker.guests import data, drop, main


def says(words: bytes) -> bytes:
    """Return a program that sends some words."""
    return guests.wasm(main(f"{drop('send', 8, len(words))} (i32.const 0)", data(8, words)))


ONE, TWO, THREE = says(b"one"), says(b"two"), says(b"three")


async def uploaded(client: AsyncClient, name: str, *modules: bytes) -> list[str]:
    return [(await client.programs.upload(module, name))["id"] for module in modules]


async def shown(client: AsyncClient, name: str) -> list[tuple[str, bool]]:
    return [(each["id"], each["current"]) for each in await client.programs.versions(name)]


@run_by(with_system, "tmp_path")
async def test_name_goes_back_and_forth_between_versions(
    system: SystemRig, client: AsyncClient
) -> None:
    one, two, three = await uploaded(client, "it", ONE, TWO, THREE)
    assert await shown(client, "it") == [(three, True), (two, False), (one, False)]
    assert (await client.programs.rollback("it"))["id"] == two
    assert (await client.run("it"))["output"] == "two"
    assert (await client.programs.rollback("it"))["id"] == one
    with pytest.raises(LookupError, match="it has no version before"):
        await client.programs.rollback("it")
    assert (await client.programs.rollback("it", three[7:19]))["id"] == three
    assert (await client.run("it"))["output"] == "three"
    # The name is the run's, with the version that it was.
    ended = await client.run(f"it@{one}")
    assert (ended["program_name"], ended["program"], ended["output"]) == ("it", one, "one")
    assert await shown(client, "it") == [(three, True), (two, False), (one, False)]


@run_by(with_system, "tmp_path")
async def test_versions_show_runs_and_errors_but_no_cancels(
    system: SystemRig, client: AsyncClient
) -> None:
    trap, fine, hang = await uploaded(client, "it", guests.TRAP_WASM, ONE, guests.HANG_WASM)
    for version in (trap, fine, fine):
        await client.run(f"it@{version}")
    await client.run("it", limits={"wall_ms": 50})
    run = await client.start("it")
    await client.runs.cancel(run)
    found = {each["id"]: each for each in await client.programs.versions("it")}
    counts = {each: (found[each]["runs"], found[each]["errors"]) for each in found}
    assert counts == {hang: (2, 1), fine: (2, 0), trap: (1, 1)}
    assert found[fine]["size"] == len(ONE)
    assert (found[fine]["used_ms"] or 0) >= found[fine]["added_ms"]


@run_by(with_system, "tmp_path")
async def test_clients_that_know_no_versions_see_what_they_saw(
    system: SystemRig, client: AsyncClient
) -> None:
    one, _ = await uploaded(client, "it", ONE, TWO)
    await client.programs.upload(THREE)
    listed = [program async for program in client.programs.list()]
    assert [program["name"] for program in listed] == [None, "it", None]
    assert (await client.run(one))["output"] == "one"
    await client.programs.delete("it")
    assert (await refused(client.programs.get("it"))).status == 404
    assert (await client.programs.get(one))["name"] is None


@run_by(with_system, "tmp_path")
async def test_names_are_listed_apart_from_programs_without_one(
    system: SystemRig, client: AsyncClient
) -> None:
    one, two = await uploaded(client, "b", ONE, TWO)
    await client.programs.point("a", one)
    bare = await client.programs.upload(THREE)

    async def listed(query: str) -> list[tuple[str | None, str]]:
        page = (await system.ask("GET", f"/v1/programs?{query}")).json
        return [(each["name"], each["id"]) for each in page["data"]]

    assert await listed("named=1") == [("a", one), ("b", two)]
    assert await listed("named=1&limit=1&after=a") == [("b", two)]
    assert await listed("named=0") == [(None, bare["id"])]
    assert (await system.ask("GET", "/v1/programs?named=x")).status == 400


@run_by(with_system, "tmp_path")
async def test_alias_follows_what_it_is_pointed_at(system: SystemRig, client: AsyncClient) -> None:
    one, two = await uploaded(client, "it", ONE, TWO)
    pointed = await client.programs.point("stable", f"it@{one[7:15]}")
    assert (pointed["id"], pointed["name"]) == (one, "stable")
    await client.programs.upload(THREE, "it")
    assert (await client.run("stable"))["output"] == "one"
    await client.programs.point("stable", "it")
    assert (await client.run("stable"))["output"] == "three"
    for body, status in (
        ({"program": "none"}, 404), ({"program": f"it@{two}", "more": 1}, 400), ({}, 400),
        ({"program": 1}, 400), ({"program": "x" * 2_000}, 400),
    ):  # fmt: skip
        answer = await system.ask("PUT", "/v1/programs/stable", json=body)
        assert answer.status == status, body
    assert (await system.ask("PUT", "/v1/programs/-no", json={"program": one})).status == 400


@run_by(with_system, "tmp_path", limits=parse_limits({"programs": 2}))
async def test_alias_past_the_quota_of_names_is_refused(
    system: SystemRig, client: AsyncClient
) -> None:
    one, _ = await uploaded(client, "it", ONE, TWO)
    await client.programs.point("other", one)
    error = await refused(client.programs.point("third", one))
    assert (error.status, error.problem["field"]) == (429, "programs")
    await client.programs.point("other", "it")


@run_by(with_system, "tmp_path", limits=parse_limits({"program_versions": 2}))
async def test_version_past_the_limit_goes_but_not_its_live_runs(
    system: SystemRig, client: AsyncClient
) -> None:
    live, one = await uploaded(client, "it", guests.PARROT_WASM, ONE)
    run = await client.start(live)
    await client.run(f"it@{one}")
    (worker,) = system.gateway.services.runs.workers.workers.values()
    assert worker.modules.note_use(f"default/{one}")
    await client.programs.upload(TWO, "it")
    assert (await refused(client.programs.get(one))).status == 404
    assert not worker.modules.note_use(f"default/{one}"), "the worker has dropped it, too"
    await client.programs.upload(THREE, "it")
    assert live in dict(await shown(client, "it"))
    await client.programs.delete_version("it", live)
    await client.runs.send(run, b"still here", close=True)
    async for event in client.runs.events(run):
        last = event
    assert last.data["status"] == "exited"
    assert (await client.runs.get(run))["output"] == "still here"


@run_by(with_system, "tmp_path")
async def test_version_and_name_are_deleted(system: SystemRig, client: AsyncClient) -> None:
    one, two = await uploaded(client, "it", ONE, TWO)
    error = await refused(client.programs.delete_version("it", two))
    assert (error.status, error.problem["type"].rpartition(":")[2]) == (409, "version-in-use")
    assert (await refused(client.programs.delete_version("it", "0" * 64))).status == 404
    await client.programs.delete_version("it", one[7:])
    assert (await refused(client.run(f"it@{one}"))).status == 404
    await client.programs.delete_name("it")
    assert [program async for program in client.programs.list()] == []
    assert (await refused(client.programs.delete_name("it"))).status == 404


@run_by(with_system, "tmp_path")
async def test_another_tenants_versions_are_not_there(
    system: SystemRig, client: AsyncClient
) -> None:
    one, _ = await uploaded(client, "it", ONE, TWO)
    async with system.tenant("acme") as acme:
        for asked in (
            acme.programs.versions("it"), acme.programs.point("mine", f"it@{one}"),
            acme.programs.point("mine", one), acme.run(f"it@{one}"),
            acme.programs.delete_version("it", one), acme.programs.delete_name("it"),
        ):  # fmt: skip
            assert (await refused(asked)).status == 404
        (mine,) = await uploaded(acme, "it", ONE)
        assert await shown(acme, "it") == [(mine, True)]
        await acme.programs.delete_name("it")
    assert len(await client.programs.versions("it")) == 2


@run_by(with_system, "tmp_path")
async def test_openai_model_may_be_a_version(system: SystemRig, client: AsyncClient) -> None:
    one, _ = await uploaded(client, "it", ONE, TWO)
    for model, words in (("it", "two"), (f"it@{one[7:19]}", "one"), (f"it@{one}", "one")):
        body = {"model": model, "messages": [{"role": "user", "content": "x"}]}
        answer = (await system.ask("POST", "/v1/chat/completions", json=body)).json
        assert answer["choices"][0]["message"]["content"] == words
        assert answer["model"] == model
        assert (await system.ask("GET", f"/v1/models/{model}")).json["id"] == model
    body = {"model": "it@" + "0" * 12, "messages": [{"role": "user", "content": "x"}]}
    missing = await system.ask("POST", "/v1/chat/completions", json=body)
    assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")
