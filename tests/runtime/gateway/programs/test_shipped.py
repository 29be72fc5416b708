"""The Wasm of each shipped program is built from its source and small, and is compiled once."""

import asyncio
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from symphony_runtime.cli.projects import ProjectError, find_rust_toolchain
from symphony_runtime.compiler.compiler import compile_program
from symphony_runtime.gateway.programs import shipped as shipped_programs
from symphony_runtime.gateway.programs.shipped import CodeCache, ShippedProgram, ShippedPrograms

from tests.e2e import programs as guests
from tests.support.gateway.compilers import CountingCompiler
from tests.support.gateway.system import refusal
from tests.support.requirements import lacking
from tools.build_shipped_program import ATTACHED, OPENAI, PROGRAMS, ROOT, SDK, Shipped, compiler

REBUILD = "run `make shipped-program`"
SIZES_MAX = {
    OPENAI: 176 << 10,  # with tools, reasoning, embeddings, scores and ranks
    ATTACHED: 96 << 10,
}


@pytest.fixture(params=PROGRAMS, ids=lambda shipped: str(shipped.name))
def shipped(request: pytest.FixtureRequest) -> Shipped:
    found: Shipped = request.param
    return found


@pytest.fixture
def recorded(shipped: Shipped) -> dict[str, str]:
    record: dict[str, str] = json.loads(shipped.record.read_text())
    return record


def test_shipped_source_is_the_recorded_one(shipped: Shipped, recorded: dict[str, str]) -> None:
    assert shipped.source_hash() == recorded["source"], f"the source has changed: {REBUILD}"


def test_shipped_wasm_is_the_recorded_one_and_small(
    shipped: Shipped, recorded: dict[str, str]
) -> None:
    data = shipped.wasm.read_bytes()
    assert hashlib.sha256(data).hexdigest() == recorded["wasm"], REBUILD
    assert len(data) < SIZES_MAX[shipped]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shipped_program_rebuilt_is_the_same(
    shipped: Shipped, recorded: dict[str, str], tmp_path: Path
) -> None:
    try:
        version = compiler()
    except ProjectError as error:
        lacking("rust", str(error))
    if version != recorded["compiler"]:
        lacking("rust-pinned", f"built by {recorded['compiler']}; here is {version}")
    # Elsewhere: neither earlier builds nor the place of the sources may matter.
    for folder in (shipped.program, SDK):
        to = tmp_path / "elsewhere" / folder.relative_to(ROOT)
        shutil.copytree(folder, to, ignore=shutil.ignore_patterns("target", "build"))
    made = tmp_path / "made.wasm"
    shipped.build(tmp_path / "elsewhere", made)
    assert made.read_bytes() == shipped.wasm.read_bytes()


def test_shipped_program_imports_the_abi(shipped: Shipped) -> None:
    async def manifest() -> Any:
        return (await compile_program(shipped.wasm.read_bytes())).manifest

    imports = asyncio.run(manifest()).imports
    assert {name.partition(".")[0] for name in imports} == {"lip"}
    egress = {"lip.http", "lip.tool", "lip.spawn"} & set(imports)
    assert bool(egress) == (shipped is ATTACHED)  # an attached program may use all of it


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shipped_program_passes_its_own_tests(shipped: Shipped) -> None:
    try:
        toolchain = find_rust_toolchain()
    except ProjectError as error:
        lacking("rust", str(error))
    done = subprocess.run(
        [toolchain.cargo, "test", "--quiet"],
        cwd=shipped.program,
        env=toolchain.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


class Servers:
    """One server after the other, with a directory for compiled code."""

    def __init__(self, folder: Path) -> None:
        self.compiler = CountingCompiler()
        self._folder = folder

    def start(self) -> ShippedProgram:
        shipped = ShippedPrograms(self.compiler, CodeCache(self._folder / "fallback"))
        return shipped.add("hello", lambda: guests.HELLO_WASM)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    monkeypatch.setenv("SYMPHONY_CACHE_DIR", str(tmp_path / "cache"))
    return Servers(tmp_path)


@pytest.mark.parametrize("failures", [0, 1])
async def test_shipped_program_is_compiled_once_after_failures(
    servers: Servers, failures: int
) -> None:
    servers.compiler.failures, first = failures, servers.start()
    for _ in range(failures):
        assert (await refusal(first.program()))[0] == 500
    several = await asyncio.gather(*(first.program() for _ in range(5)))
    assert {program.id for program in several} == {(await first.program()).id}
    assert servers.compiler.compiled == failures + 1


async def test_next_server_takes_the_machine_code_of_the_first(
    servers: Servers, tmp_path: Path
) -> None:
    made = await (first := servers.start()).program(), await first.artefact()
    again = await (second := servers.start()).program(), await second.artefact()
    assert servers.compiler.compiled == 1
    assert (again[0].id, again[0].manifest, again[1]) == (made[0].id, made[0].manifest, made[1])
    (path,) = (tmp_path / "cache").glob("*.cwasm")
    for damage in (b"", path.read_bytes()[:-1], path.read_bytes()[:-1] + b"!"):
        before = servers.compiler.compiled
        path.write_bytes(damage)
        assert await servers.start().artefact() == made[1]
        assert servers.compiler.compiled == before + 1
    assert len(list((tmp_path / "cache").iterdir())) == 2


async def test_code_of_a_directory_that_others_may_write_is_not_run(
    servers: Servers, tmp_path: Path
) -> None:
    artefact = await servers.start().artefact()
    (tmp_path / "cache").chmod(0o777)
    for _ in range(2):
        assert await servers.start().artefact() == artefact
    assert servers.compiler.compiled == 2
    assert len(list((tmp_path / "fallback").glob("*.cwasm"))) == 1
    assert (tmp_path / "fallback").stat().st_mode & 0o077 == 0


async def test_code_for_another_engine_is_compiled_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await servers.start().artefact()
    monkeypatch.setattr(shipped_programs, "cache_identity", lambda: "another")
    await servers.start().artefact()
    assert servers.compiler.compiled == 2
