"""A compiler that tests can watch."""

from symphony_runtime.compiler.compiler import (
    USUAL,
    CompileBounds,
    Compiled,
    Compiler,
    ProgramError,
)


class CountingCompiler(Compiler):
    """The real compiler, which counts its calls and lets the first ones fail."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.compiled = 0

    async def compile(
        self, wasm: bytes, bounds: CompileBounds = USUAL, tenant: str = ""
    ) -> Compiled:
        self.compiled += 1
        if self.compiled <= self.failures:
            raise ProgramError(["no room"])
        return await super().compile(wasm, bounds, tenant)
