"""The shipped program while as many of the tenant's grammars as may wait to be compiled."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from symphony_kernel.grammar.compiler import GrammarCompiler
from symphony_kernel.protocol.limits import TENANT_COMPILES_MAX, TENANT_GRAMMARS_MAX
from symphony_runtime.config.limits import TenantLimits
from symphony_runtime.gateway.openai.program_messages import Failure, Piece, Record, Records
from symphony_runtime.gateway.openai.requests import constraints
from symphony_runtime.gateway.openai.requests.limits import Model, RequestLimits
from symphony_runtime.gateway.openai.requests.parsing import parse_completion

from tests.support.gateway.system import SystemRig
from tests.support.kernel.constrained import EOS, assets
from tests.support.waiting import wait_until
from tests.support.worker.rig import TENANT, LiveRun, WorkerRig
from tools.build_shipped_program import OPENAI

YEAR = "(19|20)[0-9]{2}"
SECONDS_MAX = 30


def job(expression: str, patience_ms: int) -> bytes:
    """Return what the gateway gives the program, but for its patience."""
    body = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 8, "guided_regex": expression}
    model = Model("m", assets().model.vocab_size, (EOS,), 2048)
    wanted: dict[str, Any] = msgpack.unpackb(
        parse_completion(body, model, RequestLimits.of(TenantLimits())).job
    )
    assert wanted["patience_ms"] >= 1000
    packed: bytes = msgpack.packb(wanted | {"patience_ms": patience_ms})
    return packed


async def records_of(live: LiveRun) -> list[Record]:
    ended = await asyncio.wait_for(live.ended, SECONDS_MAX)
    return Records().feed(ended.output)


@contextlib.asynccontextmanager
async def busy(grammars: GrammarCompiler, tenant: str) -> AsyncIterator[threading.Event]:
    """Have as many of a tenant's grammars wait as may; the event lets them be compiled."""
    free, answers = threading.Event(), list[int]()
    grammars._start_thread().submit(free.wait)  # the thread that compiles is busy with that
    for number in range(TENANT_COMPILES_MAX + 1):  # one of them is the thread's next
        grammars.compile(tenant, 1, f"a{number}", lambda errno, _: answers.append(errno))
    try:
        yield free
    finally:
        free.set()
    await wait_until(lambda: len(answers) > TENANT_COMPILES_MAX, SECONDS_MAX)
    assert set(answers) == {0}


async def test_program_waits_for_a_compiler_and_answers() -> None:
    async with (
        WorkerRig(assets=assets()) as rig,
        busy(rig.kernel.constraints.grammars, TENANT) as free,
    ):
        live = await rig.start(OPENAI.wasm.read_bytes(), job(YEAR, 20_000))
        await asyncio.sleep(0.2)
        assert not live.ended.done()
        free.set()
        pieces = [record for record in await records_of(live) if isinstance(record, Piece)]
        assert json.loads("".join(piece.text for piece in pieces)) in range(1900, 2100)


@pytest.mark.parametrize("stream", [False, True])
async def test_program_past_its_patience_answers_503_with_retry_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(constraints, "OPENAI_COMPILES_WAIT_MS_MAX", 100)
    async with (
        SystemRig(tmp_path, assets=assets()) as system,
        busy(system.kernel.constraints.grammars, "default"),
    ):
        model = system.kernel._executor.model.name
        body = {"model": model, "prompt": [1], "guided_regex": YEAR, "stream": stream}
        answer = await system.ask("POST", "/v1/completions", json=body)
        assert answer.status == 503
        assert int(answer.headers["Retry-After"]) >= 1
        assert answer.json["error"] == {
            "message": f"too many grammars of this tenant: {TENANT_COMPILES_MAX} "
            "constraints wait to be compiled; try again later",
            "type": "server_error",
            "param": "guided_regex",
            "code": "compilers_busy",
        }


async def test_too_many_grammars_in_use_are_over_quota() -> None:
    async with WorkerRig(assets=assets()) as rig:
        grammars = rig.kernel.constraints.grammars
        held = [
            grammars.grammar(TENANT, f'{{"grammars": [{{"lark_grammar": "start: \\"{n}\\""}}]}}')
            for n in range(TENANT_GRAMMARS_MAX)
        ]
        (failure,) = await records_of(await rig.start(OPENAI.wasm.read_bytes(), job(YEAR, 1000)))
        assert isinstance(failure, Failure)
        assert (failure.status, failure.code) == (429, "over_quota")
        assert f"{len(held)} constraints are in use" in failure.message
