"""Bodies of JSON: what parsing them costs, and how they may begin."""

import asyncio
import gc
import io
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.tenancy.authentication import Authentication, Key

from tests.e2e import programs as guests
from tests.support.gateway.system import Scenario, SystemRig, with_system
from tests.support.run_by import run_by
from tests.support.waiting import spin


def with_hang(tmp_path: Path, scenario: Scenario) -> None:
    async def whole(system: SystemRig, client: AsyncClient) -> None:
        await client.programs.upload(guests.HANG_WASM, "hang")
        await scenario(system, client)

    with_system(tmp_path, whole)


async def start(system: SystemRig, given: Any, encoding: str = "utf-8") -> int:
    """Start a run with an input, and end it; return the answer's status."""
    body = json.dumps({"input": given}, separators=(",", ":")).encode(encoding)
    answer = await system.ask("POST", "/v1/programs/hang/runs?detach=1", data=body)
    if answer.status == 202:
        assert (await system.ask("POST", f"/v1/runs/{answer.json['id']}/cancel")).status < 300
    return answer.status


def charged_by(system: SystemRig) -> Counter[str]:
    """Return the microseconds that tenants are charged from now on."""
    charged: Counter[str] = Counter()
    costs: Any = system.gateway.services.cpu_reporter
    costs.charge = lambda tenant, seconds: charged.update({tenant: int(1e6 * seconds)})
    return charged


@run_by(with_hang, "tmp_path")
async def test_body_of_many_values_is_refused_and_a_string_of_them_is_not(
    system: SystemRig, _: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("symphony_runtime.gateway.http.context.TENANT_BODY_BYTES_MAX", 1 << 20)
    values: Any = [[1, 2]] * 25_000
    assert await start(system, json.dumps(values, separators=(",", ":"))) == 202
    assert await start(system, values) == 429
    assert system.gateway.services.bodies.statistics() == {"body_bytes": 0}


@run_by(with_hang, "tmp_path")
async def test_request_looks_its_key_up_once(
    system: SystemRig, _: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[str | None] = []
    find = Authentication.find_key

    def counted(keys: Authentication, authorization: str | None) -> Key | None:
        found.append(authorization)
        return find(keys, authorization)

    monkeypatch.setattr(Authentication, "find_key", counted)
    body = {"input": "x" * 100_000}
    answer = await system.ask("POST", "/v1/programs/hang/runs?detach=1", json=body)
    monkeypatch.undo()
    assert answer.status == 202
    assert found == [f"Bearer {system.key}"]


@run_by(with_hang, "tmp_path")
async def test_body_with_a_byte_order_mark_is_read(system: SystemRig, _: AsyncClient) -> None:
    for text in ("x", "x" * 100_000):
        assert await start(system, text, "utf-8-sig") == 202
    assert await start(system, "x", "utf-16") == 400


@run_by(with_hang, "tmp_path")
async def test_parsing_of_a_large_body_is_charged_to_its_tenant(
    system: SystemRig, _: AsyncClient, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(_body: bytes, _most: int) -> int:
        spin(0.5)
        return 1

    monkeypatch.setattr("symphony_runtime.gateway.http.context.parse_cost", slow)
    charged = charged_by(system)
    assert await start(system, "x") == 202
    assert charged["default"] < 500_000, "a small body is parsed at once"
    assert await start(system, "x" * 1_000_000) == 202
    assert charged["default"] >= 500_000


@run_by(with_hang, "tmp_path")
async def test_large_body_waits_while_its_tenant_is_throttled(
    system: SystemRig, _: AsyncClient
) -> None:
    charged, rests = charged_by(system), [0.5]
    costs: Any = system.gateway.services.cpu_reporter
    costs.rest = lambda _tenant: rests.pop() if rests else 0.0
    began = time.monotonic()
    assert await start(system, "x" * 1_000_000) == 202
    assert time.monotonic() - began > 0.5
    assert not rests
    assert charged["default"] > 2_000, "microseconds, of a million bytes"


REFUSED = [
    ("/v1/programs/hang/runs?detach=1", b'{"input":[%s0]}' % (b"[0]," * 200_000), 413),
    ("/v1/programs/hang/runs?detach=1", b'{"input":' + b" " * 200_000, 400),
    ("/v1/completions", b'{"model":"x","prompt":[%s0]}' % (b"[0]," * 200_000), 413),
    ("/v1/messages", b'{"model":"x","messages":[%s0]}' % (b"[0]," * 200_000), 413),
]


@pytest.mark.parametrize(
    ("path", "body", "status"), REFUSED, ids=["run", "bad-json", "openai", "anthropic"]
)
@run_by(with_hang, "tmp_path")
async def test_refused_body_is_freed_without_the_collector(
    system: SystemRig, _: AsyncClient, *, path: str, body: bytes, status: int
) -> None:
    def problems() -> list[Problem]:
        # By its type: asked for its class, a module's deprecated name would warn.
        return [held for held in gc.get_objects() if issubclass(type(held), Problem)]

    gc.collect()
    others = problems()  # of other tests' modules
    gc.disable()  # a server's collector looks at old objects once in hours
    try:
        assert (await system.ask("POST", path, data=io.BytesIO(body))).status == status
        await asyncio.sleep(0.05)  # the request's task ends after its answer
        assert [held for held in problems() if held not in others] == []
    finally:
        gc.enable()
