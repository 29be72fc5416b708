"""The shipped program's first use, by several at once."""

import asyncio
from pathlib import Path

import pytest
from symphony_runtime.compiler.compiler import (
    USUAL,
    CompileBounds,
    Compiled,
    Compiler,
    ProgramError,
)
from symphony_runtime.gateway.errors import Problem
from symphony_runtime.gateway.openai.shipped import ShippedProgram
from symphony_runtime.gateway.programs.store import Programs
from symphony_runtime.gateway.storage.store import Store


class FailingCompiler(Compiler):
    """The real compiler, which refuses so many times before."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.left = failures
        self.compiled = 0

    async def compile(
        self, wasm: bytes, bounds: CompileBounds = USUAL, tenant: str = ""
    ) -> Compiled:
        self.compiled += 1
        if self.left:
            self.left -= 1
            raise ProgramError(["no room"])
        return await super().compile(wasm, bounds, tenant)


async def asked(folder: Path, compiler: FailingCompiler) -> None:
    store = Store(folder / "db")
    first = ShippedProgram(Programs(store, folder, compiler))
    if compiler.left:
        with pytest.raises(Problem):
            await first.program()
    several = await asyncio.gather(*(first.program() for _ in range(5)))
    assert {program.id for program in several} == {(await first.program()).id}
    await store.close()


def test_it_is_made_once_for_all_who_come_first(tmp_path: Path) -> None:
    compiler = FailingCompiler(0)
    asyncio.run(asked(tmp_path, compiler))
    assert compiler.compiled == 1


def test_a_failure_is_no_answer_for_those_who_come_later(tmp_path: Path) -> None:
    compiler = FailingCompiler(1)
    asyncio.run(asked(tmp_path, compiler))
    assert compiler.compiled == 2
