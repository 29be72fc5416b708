"""A compiler that tests can watch."""

from typing import Any

from symphony_runtime.compiler.compiler import Compiled, Compiler, ProgramError


class CountingCompiler(Compiler):
    """The real compiler, which counts its calls and lets the first ones fail."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.compiled = 0

    async def compile(self, *given: Any, **named: Any) -> Compiled:
        self.compiled += 1
        if self.compiled <= self.failures:
            raise ProgramError(["no room"])
        return await super().compile(*given, **named)
