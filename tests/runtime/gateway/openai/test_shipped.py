"""The committed Wasm is built from its source and small, and is compiled once."""

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
from symphony_runtime.gateway.openai import shipped
from symphony_runtime.gateway.openai.shipped import ShippedProgram
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.storage.store import Store

from tests.support.gateway.compilers import CountingCompiler
from tests.support.gateway.stores import with_sqlite
from tests.support.gateway.system import refusal
from tests.support.requirements import lacking
from tests.support.run_by import run_by
from tools.build_shipped_program import PROGRAM, RECORD, ROOT, SDK, build, compiler, source_hash

REBUILD = "run `make shipped-program`"
SIZE_MAX = 176 << 10  # with tools, reasoning, embeddings, scores and ranks


@pytest.fixture(scope="module")
def recorded() -> dict[str, str]:
    record: dict[str, str] = json.loads(RECORD.read_text())
    return record


def test_shipped_source_is_the_recorded_one(recorded: dict[str, str]) -> None:
    assert source_hash() == recorded["source"], f"the source has changed: {REBUILD}"


def test_shipped_wasm_is_the_recorded_one_and_small(recorded: dict[str, str]) -> None:
    data = shipped.wasm()
    assert hashlib.sha256(data).hexdigest() == recorded["wasm"], REBUILD
    assert len(data) < SIZE_MAX


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shipped_program_rebuilt_is_the_same(recorded: dict[str, str], tmp_path: Path) -> None:
    try:
        version = compiler()
    except ProjectError as error:
        lacking("rust", str(error))
    if version != recorded["compiler"]:
        lacking("rust-pinned", f"built by {recorded['compiler']}; here is {version}")
    # Elsewhere: neither earlier builds nor the place of the sources may matter.
    for folder in (PROGRAM, SDK):
        to = tmp_path / "elsewhere" / folder.relative_to(ROOT)
        shutil.copytree(folder, to, ignore=shutil.ignore_patterns("target", "build"))
    made = tmp_path / "made.wasm"
    build(tmp_path / "elsewhere", made)
    assert made.read_bytes() == shipped.wasm()


def test_shipped_program_imports_the_abi_without_egress() -> None:
    async def manifest() -> Any:
        return (await compile_program(shipped.wasm())).manifest

    imports = asyncio.run(manifest()).imports
    assert {name.partition(".")[0] for name in imports} == {"lip"}
    assert not {"lip.http", "lip.tool", "lip.spawn"} & set(imports)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_shipped_program_passes_its_own_tests() -> None:
    try:
        toolchain = find_rust_toolchain()
    except ProjectError as error:
        lacking("rust", str(error))
    done = subprocess.run(
        [toolchain.cargo, "test", "--quiet"],
        cwd=PROGRAM,
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
