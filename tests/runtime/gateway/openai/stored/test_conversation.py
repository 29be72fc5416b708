"""Kept responses of a tenant's own program, over a simulated model."""

import json
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.openai.stored import conversation

from tests.e2e import programs as guests
from tests.support.gateway.system import Answer, SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.worker.guests import call, drop, main

# Sends its input back.
MIRROR = guests.wasm(main(f"{drop('send', 100, call('input_read', 100, 60000))} (i32.const 0)"))


async def respond(system: SystemRig, asked: Any, status: int = 200, **fields: Any) -> Any:
    body = {"model": "mirror", "input": asked, **fields}
    answer = await system.ask("POST", "/v1/responses", json=body)
    assert answer.status == status, answer.json
    return answer.json


def mirrored(response: Any) -> dict[str, Any]:
    """Return the request that the program got."""
    got: dict[str, Any] = json.loads(response["output"][0]["content"][0]["text"])
    return got


async def kept(system: SystemRig, response: Any, method: str = "GET", more: str = "") -> Answer:
    return await system.ask(method, f"/v1/responses/{response['id']}{more}")


@run_by(with_system, "tmp_path")
async def test_program_gets_the_conversation_before_as_its_input(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(MIRROR, "mirror")
    first = await respond(system, "one", metadata={"a": "b"})
    assert mirrored(first)["input"] == "one"
    second = await respond(system, "two", previous_response_id=first["id"])
    got = mirrored(second)
    assert "previous_response_id" not in got
    said = [item["content"][0]["text"] for item in got["input"]]
    assert (said[0], said[2]) == ("one", "two")
    assert json.loads(said[1]) == mirrored(first)
    assert (await kept(system, second)).json == second
    items = (await kept(system, second, more="/input_items?order=asc")).json
    assert [item["id"] for item in items["data"]] == [
        f"{first['id']}i0".replace("resp", "msg"), first["output"][0]["id"],
        f"{second['id']}i0".replace("resp", "msg"),
    ]  # fmt: skip
    assert (await kept(system, first, "DELETE")).json["deleted"] is True
    assert (await kept(system, first)).status == 404
    assert (await kept(system, second)).json == second
    error = (await respond(system, "three", 404, previous_response_id=second["id"]))["error"]
    assert (error["code"], error["param"]) == ("response_not_found", "previous_response_id")
    assert first["id"] in error["message"]


@run_by(with_system, "tmp_path")
async def test_run_without_a_kept_request_is_no_response(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(MIRROR, "mirror")
    unkept = await respond(system, "one", store=False)
    assert (await kept(system, unkept)).status == 404
    run = await client.run("mirror", "x")
    assert (await kept(system, {"id": run["id"].replace("run", "resp")})).status == 404
    await respond(system, "two", 404, previous_response_id=unkept["id"])


@run_by(with_system, "tmp_path")
async def test_response_in_the_background_is_cancelled_once(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(guests.HANG_WASM, "mirror")
    begun = await respond(system, "one", background=True)
    assert (begun["status"], begun["output"]) == ("queued", [])
    assert (await kept(system, begun)).json["status"] == "in_progress"
    assert (await kept(system, begun, "DELETE")).status == 409
    error = (await respond(system, "two", 400, previous_response_id=begun["id"]))["error"]
    assert "in_progress" in error["message"]
    cancelled = (await kept(system, begun, "POST", "/cancel")).json
    assert (cancelled["status"], cancelled["usage"]) == ("cancelled", None)
    assert (await kept(system, begun, "POST", "/cancel")).json == cancelled
    stream = await kept(system, begun, more="?stream=true")
    assert stream.status == 200


@run_by(with_system, "tmp_path")
async def test_conversation_past_its_bounds_is_refused(
    system: SystemRig, client: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.programs.upload(MIRROR, "mirror")
    last: Any = {"id": None}
    for _ in range(3):
        last = await respond(system, "x", previous_response_id=last["id"])
    with monkeypatch.context() as patched:
        patched.setattr(conversation, "OPENAI_TURNS_MAX", 2)
        error = (await respond(system, "x", 400, previous_response_id=last["id"]))["error"]
        assert "at most 2 responses" in error["message"]
    with monkeypatch.context() as patched:
        patched.setattr(conversation, "RUN_INPUT_BYTES_MAX", 300)
        error = (await respond(system, "x", 400, previous_response_id=last["id"]))["error"]
        assert error["code"] == "context_length_exceeded"
    many = [{"type": "item_reference", "id": "x"}] * 101
    assert "100 items" in (await respond(system, many, 400))["error"]["message"]
    await respond(system, "x", previous_response_id=last["id"])


@run_by(with_system, "tmp_path")
async def test_items_of_a_program_that_cannot_be_listed_are_not_kept(
    system: SystemRig, client: AsyncClient
) -> None:
    await client.programs.upload(MIRROR, "mirror")
    refused = await respond(system, [{"role": "user", "content": "x", "id": {}}], 400)
    assert refused["error"]["param"] == "input[0]"
    unkept = await respond(system, {"any": "shape"}, store=False)
    assert mirrored(unkept)["input"] == {"any": "shape"}


@pytest.mark.parametrize("wanted", [None, 1, [1], {}])
@run_by(with_system, "tmp_path")
async def test_reference_that_is_no_id_is_refused(
    system: SystemRig, client: AsyncClient, *, wanted: Any
) -> None:
    await client.programs.upload(MIRROR, "mirror")
    error = (await respond(system, [{"type": "item_reference", "id": wanted}], 400))["error"]
    assert error["param"] == "input[0]"


@pytest.mark.parametrize(
    "tools", [5, [5], [{"type": "namespace", "tools": 5}], [{"type": "namespace", "tools": [5]}]]
)
@run_by(with_system, "tmp_path")
async def test_tools_that_only_the_program_checks_are_repeated(
    system: SystemRig, client: AsyncClient, *, tools: Any
) -> None:
    await client.programs.upload(MIRROR, "mirror")
    assert (await respond(system, "x", tools=tools))["tools"] == tools


@pytest.mark.parametrize("streamed", [False, True])
@run_by(with_system, "tmp_path")
async def test_lone_surrogates_are_repeated_in_ascii(
    system: SystemRig, client: AsyncClient, *, streamed: bool
) -> None:
    await client.programs.upload(MIRROR, "mirror")
    metadata = {"a": "\ud800"}
    first = await respond(system, "\udfff", metadata=metadata)
    assert first["metadata"] == metadata
    body = {"model": "mirror", "input": "x", "metadata": metadata, "stream": streamed}
    body["previous_response_id"] = first["id"]
    answer = await system.ask("POST", "/v1/responses", json=body)
    assert answer.status == 200
    assert b'"metadata":{"a":"\\ud800"}' in answer.body
    assert (b"response.completed" in answer.body) is streamed
