"""A kept response takes its tenant's memory and time, and not the event loop's."""

import threading
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.openai.stored import conversation, handlers

from tests.e2e import programs as guests
from tests.support.gateway.system import SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.worker.guests import data, drop, main

SAYS = guests.wasm(main(f"{drop('send', 8, 2)} (i32.const 0)", data(8, b"ok")))


async def keep(system: SystemRig, client: AsyncClient, given: Any) -> str:
    """Keep a response of a program to this input; return its path."""
    await client.programs.upload(SAYS, name="says")
    answer = await system.ask("POST", "/v1/responses", json={"model": "says", "input": given})
    assert answer.status == 200, answer
    return f"/v1/responses/{answer.json['id']}"


@run_by(with_system, "tmp_path")
async def test_kept_response_of_many_values_holds_their_memory(
    system: SystemRig, client: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await keep(system, client, [{"lists": [[]] * 12_000}])
    assert (await system.ask("GET", path)).status == 200
    monkeypatch.setattr("symphony_runtime.gateway.http.context.TENANT_BODY_BYTES_MAX", 1 << 20)
    for asked in (path, f"{path}/input_items"):
        assert (await system.ask("GET", asked)).status == 429
    assert system.gateway.services.bodies.statistics() == {"body_bytes": 0}


@run_by(with_system, "tmp_path")
async def test_kept_items_are_listed_off_the_event_loop(
    system: SystemRig, client: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await keep(system, client, [{}] * 50_000)
    threads = list[threading.Thread]()
    for module in (conversation, handlers):
        listed = module.list_input

        def noted(*given: Any, listed: Any = listed) -> Any:
            threads.append(threading.current_thread())
            return listed(*given)

        monkeypatch.setattr(module, "list_input", noted)
    page = (await system.ask("GET", f"{path}/input_items?limit=2&order=asc")).json
    assert (len(page["data"]), page["has_more"]) == (2, True)
    following = {"model": "says", "input": [{}], "previous_response_id": path.rpartition("/")[2]}
    assert (await system.ask("POST", "/v1/responses", json=following)).status == 200
    assert len(threads) == 2
    assert threading.main_thread() not in threads
