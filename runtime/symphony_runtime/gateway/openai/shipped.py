"""The program of the OpenAI routes: it ships with the server and belongs to no tenant."""

from importlib import resources

from symphony_runtime.gateway.programs import shipped
from symphony_runtime.gateway.programs.store import Programs

NAME = "openai"


def wasm() -> bytes:
    return resources.files(__package__).joinpath("openai.wasm").read_bytes()


class ShippedProgram(shipped.ShippedProgram):
    """That program, compiled once."""

    def __init__(self, programs: Programs) -> None:
        super().__init__(programs, NAME, lambda: wasm())
