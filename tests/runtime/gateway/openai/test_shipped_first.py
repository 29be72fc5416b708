"""The shipped program's first use, by several requests at once."""

import asyncio
from pathlib import Path

import pytest
from symphony_runtime.gateway.openai.shipped import ShippedProgram
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.storage.store import Store

from tests.support.gateway.compilers import CountingCompiler
from tests.support.gateway.stores import with_sqlite
from tests.support.gateway.system import refusal
from tests.support.run_by import run_by


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
