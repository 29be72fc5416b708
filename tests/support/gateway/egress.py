"""Guests that call the outside, and the servers that they call."""

import sys
from pathlib import Path
from typing import Any

import msgpack
from symphony import AsyncClient, message_bytes
from wasmtime import wat2wasm

from tests.support.worker.guests import Step, result, script

_SERVER = Path(__file__).with_name("tool_server.py")
_REQUEST_AT, ROOM_AT, ROOM = 131_072, 3 << 20, 2 << 20
_WORDS_AT, _WORDS = 70_000, 4_096  # in the memory of a guest


def tool_table(folder: Path, **options: Any) -> dict[str, Any]:
    """The table of a tool server of tests; what it is asked goes to `calls` in the folder."""
    environment = {"CALLS": str(folder / "calls"), **options.pop("environment", {})}
    command = [sys.executable, "-S", str(_SERVER)]
    return {"command": command, "tenants": ["default"], "environment": environment, **options}


def calls_of(folder: Path) -> list[str]:
    """What the tool server was asked, a line each."""
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


def asking(what: str, *, kv: bool = False) -> bytes:
    """A program that makes the call to the outside that its user's first message is, and sends
    what each step returned, last what `claim` wrote. With `kv` it holds a file meanwhile.
    """
    written = f"(select {result(3)} (i32.const 0) (i32.gt_s {result(3)} (i32.const 0)))"
    steps: tuple[Step, ...] = (
        ("recv",),
        ("claim_within", result(0), _REQUEST_AT, ROOM, -1),
        (what, _REQUEST_AT, result(1)),
        ("claim_within", result(2), ROOM_AT, ROOM, -1),
        ("last_error", _WORDS_AT, _WORDS),
        ("show", _WORDS_AT, result(4)),
        ("show", ROOM_AT, written),
    )
    return _wasm(steps, "(drop (call $kv_create))" if kv else "")


def listing() -> bytes:
    return _wasm((("tools", ROOM_AT, ROOM), ("show", ROOM_AT, result(0))))


def _wasm(steps: tuple[Step, ...], first: str = "") -> bytes:
    source = script(*steps).source
    source = source.replace('(memory (export "memory") 2 )', '(memory (export "memory") 100)')
    begin = '(func (export "lip_main") (result i32) '
    return bytes(wat2wasm(source.replace(begin, begin + first)))


class Asked:
    """What became of a call: `errno` (positive) or `value`; `log` is what the run was told.

    `started` is what the call itself returned, `words` what `last_error` says behind it.
    """

    def __init__(self, messages: list[bytes], log: list[str]) -> None:
        numbers = [int.from_bytes(m, "little", signed=True) for m in messages[:4]]
        self.started, claimed = numbers[2:] if len(messages) > 2 else (numbers[0], 0)
        self.errno = -min(self.started, claimed if self.started > 0 else 0, 0)
        self.words = messages[5].decode() if len(messages) > 2 else ""
        self.value: Any = None if self.errno else msgpack.unpackb(messages[-1])
        self.log = log


async def ask(client: AsyncClient, what: str, request: Any = None, **options: Any) -> Asked:
    return await finish(client, await start(client, what, request, **options))


async def start(
    client: AsyncClient, what: str, request: Any, *, kv: bool = False, **options: Any
) -> str:
    uploaded = await client.programs.upload(listing() if what == "tools" else asking(what, kv=kv))
    run = await client.start(uploaded["id"], **options)
    if what != "tools":
        await client.runs.send(run, msgpack.packb(request))
    return run


async def finish(client: AsyncClient, run: str) -> Asked:
    log = [e.data["text"] async for e in client.runs.events(run) if e.kind == "log"]
    found = await client.runs.get(run)
    assert (found["status"], found["exit_code"]) == ("exited", 0), found
    return Asked([message_bytes(m) for m in found["messages"]], log)
