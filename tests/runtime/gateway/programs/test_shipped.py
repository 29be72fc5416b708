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
from symphony_runtime.gateway.openai.shipped import ShippedProgram
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.storage.store import Store

from tests.support.gateway.compilers import CountingCompiler
from tests.support.gateway.stores import with_sqlite
from tests.support.gateway.system import refusal
from tests.support.requirements import lacking
from tests.support.run_by import run_by
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


@pytest.mark.parametrize("failures", [0, 1])
@run_by(with_sqlite, "tmp_path")
async def test_shipped_program_is_compiled_once_after_failures(
    store: Store, *, tmp_path: Path, failures: int
) -> None:
    compiler = CountingCompiler(failures)
    first = ShippedProgram(Programs(store, tmp_path, compiler))
    for _ in range(failures):
        await refusal(first.program())
    several = await asyncio.gather(*(first.program() for _ in range(5)))
    assert {program.id for program in several} == {(await first.program()).id}
    assert compiler.compiled == failures + 1
