"""Source programs, with a toy language: uploads, runs, children, permissions, restarts."""

from pathlib import Path

from symphony import AsyncClient
from symphony.client.views import Program
from symphony_kernel.protocol.limits import PROGRAM_SOURCE_BYTES_MAX

from tests.support.gateway.system import Scenario, SystemRig, refused, with_system
from tests.support.gateway.toy_language import TOY
from tests.support.run_by import run_by
from tests.support.waiting import wait_until

TYPE = TOY.content_types[0]
HTTP = b'# symphony: {"permissions": ["http"]}\n'


def with_toy(tmp_path: Path, scenario: Scenario) -> None:
    with_system(tmp_path, scenario, languages=(TOY,))


async def upload(client: AsyncClient, source: bytes, name: str | None = None) -> Program:
    return await client.programs.upload(source, name, TYPE)


async def log_of(client: AsyncClient, name: str) -> str:
    """Run a program, and return its log."""
    events = client.runs.events(await client.start(name))
    return "".join([event.data["text"] async for event in events if event.kind == "log"])


@run_by(with_toy, "tmp_path")
async def test_source_is_uploaded_listed_and_run(system: SystemRig, client: AsyncClient) -> None:
    made = await upload(client, b"p\xc3\xa9", "toy")
    assert (made["language"], made["size"], made["entries"]) == ("toy", 3, ["lip_main"])
    assert made == await client.programs.get("toy")
    assert [each["language"] async for each in client.programs.list()] == ["toy"]
    assert "lip.http" not in made["imports"]
    for _ in range(2):
        run = await client.run("toy")
        assert (run["status"], run["output"]) == ("exited", "pé")
    again = await upload(client, b"p\xc3\xa9")
    assert again["id"] == made["id"]


@run_by(with_toy, "tmp_path")
async def test_two_sources_share_the_machine_code_of_their_language(
    system: SystemRig, client: AsyncClient
) -> None:
    for source in (b"p1", b"p2"):
        run = await client.run(str((await upload(client, source))["id"]))
        assert run["output"] == source.decode()
    assert len(system.worker._programs) == 1
    assert not list(system.data_dir.glob("programs/*/*.cwasm"))


@run_by(with_toy, "tmp_path")
async def test_workers_have_the_language_module_before_the_first_run(
    system: SystemRig, client: AsyncClient
) -> None:
    await upload(client, b"p", "toy")
    await wait_until(lambda: len(system.worker._programs) == 1)
    loaded = dict(system.worker._programs)
    system.worker._gateway.close()  # type: ignore[union-attr]
    await wait_until(lambda: not system.gateway.services.runs.workers.workers)
    assert not system.worker._programs
    await system.link_worker()
    await wait_until(lambda: system.worker._programs.keys() == loaded.keys())
    assert (await client.run("toy"))["output"] == "p"


@run_by(with_toy, "tmp_path")
async def test_spawned_child_runs_its_parents_source(
    system: SystemRig, client: AsyncClient
) -> None:
    await upload(client, b"s!", "toy")
    run = await client.run("toy")
    assert run["status"] == "exited"
    assert "s!" in run["output"]


@run_by(with_toy, "tmp_path")
async def test_bad_source_is_refused_with_its_place(system: SystemRig, client: AsyncClient) -> None:
    error = await refused(upload(client, b"!"))
    assert error.status == 400
    assert error.problem["problems"] == ["line 1, column 1: no '!'"]
    error = await refused(upload(client, b"p\xff"))
    assert error.problem["problems"] == ["the source is not UTF-8: byte 1 is no text"]
    error = await refused(upload(client, b"p" * (PROGRAM_SOURCE_BYTES_MAX + 1)))
    assert error.status == 413
    assert not [each async for each in client.programs.list()]


@run_by(with_toy, "tmp_path")
async def test_calls_outside_need_a_permission(system: SystemRig, client: AsyncClient) -> None:
    await upload(client, b"h", "without")
    assert (await client.run("without"))["exit_code"] == 13  # EACCES
    assert "the program does not declare http" in await log_of(client, "without")
    made = await upload(client, HTTP + b"h", "with")
    assert "lip.http" in made["imports"]
    assert "the program does not declare http" not in await log_of(client, "with")
    error = await refused(upload(client, b'# symphony: {"permissions": ["disk"]}\np'))
    assert error.problem["problems"] == ["the manifest: `permissions` must be a list of http, tool"]


@run_by(with_toy, "tmp_path")
async def test_failed_program_ends_as_trapped_with_its_reason(
    system: SystemRig, client: AsyncClient
) -> None:
    await upload(client, b"f", "toy")
    run = await client.run("toy")
    assert (run["status"], run["reason"]) == ("trapped", "failed: f")
    await upload(client, b"l", "toy")
    run = await client.run("toy", limits={"cpu_ms": 50})
    assert run["status"] == "killed"


@run_by(with_toy, "tmp_path")
async def test_uploaded_module_is_no_language_module(_: SystemRig, client: AsyncClient) -> None:
    error = await refused(client.programs.upload(TOY.module()))
    assert error.status == 400
    assert error.problem["problems"] == [
        f"import language.{name} is refused: there is no such call"
        for name in ("source_read", "fail")
    ]


@run_by(with_toy, "tmp_path")
async def test_wasm_type_is_no_source(system: SystemRig, client: AsyncClient) -> None:
    error = await refused(client.programs.upload(b"p"))
    assert error.problem["problems"] == [
        "this is not a WebAssembly module (it does not begin with \\0asm, version 1)"
    ]
    for stored in (b"\0source toy\np", b"\0source \xff\n", b"\0source "):
        error = await refused(client.programs.upload(stored))
        assert error.status == 400
        assert "\\0asm" in str(error.problem["problems"])
