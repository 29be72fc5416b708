"""Programs of every kind in the contained processes of a real server: none of these reads a file.

Every test that uses `server` is held to that (`_nothing_is_read_late`). These run what the others
do not: the tours of both SDKs, each way in which AssemblyScript aborts, the hostile guests.
"""

import asyncio
import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from symphony import AsyncClient, ServerError
from symphony.client.views import RunResult
from symphony_runtime.cli.projects import build
from wasmtime import wat2wasm

from tests.hostile.cases import ENDLESS, Guest
from tests.hostile.guests.bombs import BOMBS
from tests.hostile.guests.endings import ENDINGS
from tests.hostile.guests.loops import LOOPS
from tests.support.assemblyscript import compiled
from tests.support.server.late import Late, watched
from tests.support.server.server import REPOSITORY, RunningServer, wait_for_end

PROBE = REPOSITORY / "tests" / "guest_sdk" / "rust_probe"
PARTS = (
    "process", "tickets", "tasks", "model", "files", "preds", "sampling", "generation", "streams",
    "sessions", "chats", "completed", "children", "channels", "errors", "long", "exit", "none",
)  # fmt: skip
ENTRIES = (
    "files", "passes", "streams", "children", "channels", "panics", "fails", "exits", "deadlock",
)  # fmt: skip
ABORTS = {
    "bounds": "abort: Index out of range (in tests/aborts/lip_main)",
    "null": "abort: Unexpected 'null' (not assigned or failed cast) at tests/aborts.ts:",
    "open": 'abort: KvFile.open("no/such"): ENOENT, there is no file of that name: ',
    "nested": "abort: KvFile.truncate(1000): EINVAL, an argument is wrong: check what the call"
    " takes (in tests/aborts/nested, called by tests/aborts/lip_main)",
    "json": "abort: JSON: ",
    "assert": "abort: é😀 at tests/aborts.ts:",
}
TURNS_SECONDS = 0.5  # in which an endless guest does its worst
GUESTS = {**LOOPS, **BOMBS, **ENDINGS}


async def played(
    client: AsyncClient, program: str, given: str, entry: str | None = None
) -> RunResult:
    run = await client.start(program, input=given, entry=entry)
    with contextlib.suppress(ServerError):  # it may have ended already
        await client.runs.send(run, b"one", close=True)
    return await wait_for_end(client, run)


async def test_assemblyscript_abort_ends_the_run_with_its_message(
    client: AsyncClient, tmp_path: Path
) -> None:
    program = compiled("tests/aborts.ts", tmp_path / "aborts.wasm", "--debug")
    uploaded = await client.programs.upload(program, "aborts")
    for part, words in ABORTS.items():
        result = await client.run(uploaded["id"], input=part)
        assert result["status"] == "trapped", result
        assert (result["error"] or "").startswith(words)


async def test_sdk_tours_import_nothing_late(client: AsyncClient, tmp_path: Path) -> None:
    tour = compiled("tests/tour.ts", tmp_path / "tour.wasm")
    constraints = compiled("tests/constraints.ts", tmp_path / "constraints.wasm")
    ours, theirs, formats = [
        (await client.programs.upload(wasm))["id"]
        for wasm in (tour, build(PROBE).read_bytes(), constraints)
    ]
    ended = await asyncio.gather(
        *(played(client, ours, part) for part in PARTS),
        *(played(client, theirs, "seed", entry) for entry in ENTRIES),
        played(client, formats, ""),
    )
    assert {each["status"] for each in ended} == {"exited", "trapped"}
    for path in [file["path"] async for file in client.kv.list()]:  # others find none of these
        await client.kv.remove(path)


async def test_hostile_guests_import_nothing_late(server: RunningServer) -> None:
    async def meet(client: AsyncClient, guest: Guest) -> str:
        source = guest.source
        wasm = source if isinstance(source, bytes) else bytes(wat2wasm(source))
        program = (await client.programs.upload(wasm))["id"]
        run = await client.start(
            program, input=guest.data.decode("latin-1"), limits=dict(guest.limits)
        )
        if guest.status == ENDLESS:
            await asyncio.sleep(TURNS_SECONDS)
            await client.runs.cancel(run)
        return str((await wait_for_end(client, run))["status"])

    async with server.client() as client:
        ended = await asyncio.gather(*(meet(client, guest) for guest in GUESTS.values()))
    assert set(ended) == {"exited", "trapped", "killed"}  # and none failed


@pytest.mark.parametrize("late_import", ["import colorsys", "'x'.encode('mac_latin2')"])
def test_late_import_is_detected(tmp_path: Path, late_import: str) -> None:
    """As it is in a process that contains itself, with a file system or without."""
    script = f"""
from symphony_runtime.sandboxing.contain import contain
contain(7)
try:
    {late_import}
except (ImportError, LookupError):
    pass
"""
    with watched(tmp_path / "hook") as late:
        environment = {**late.environment, "PATH": "/usr/bin"}
        command = [sys.executable, "-c", script]
        subprocess.run(command, env=environment, check=True, timeout=60)
        found = late.attempts()
        assert found[0] in ("import colorsys", "import encodings.mac_latin2")
        assert len(late.contained) == 1


def test_late_import_watch_covers_workers_compilers_and_checkers(
    server: RunningServer, late: Late
) -> None:
    worker = asyncio.run(server.pids())["worker-0"]
    late.attempts()
    assert worker in late.contained
    assert len(late.contained) > 1
