"""What the gateway, the compiler and the CLI know of a language. `SHIPPED` has those of a server.

docs/reference/language-modules.md says what a language module exports and imports.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Final

WASM: Final = "wasm"  # the language of a program that is uploaded as a module
WASM_TYPE: Final = "application/wasm"
ENTRY: Final = "lip_main"  # of each source program
CHECK: Final = "check"  # export of a language module: () -> i32, 0: the source can be run
OUTSIDE: Final = {"http": ("http",), "tool": ("tool", "tools")}  # calls of a permission


@dataclass(frozen=True, slots=True)
class Language:
    """A language, with its module.

    `comment` begins each line of a comment ("#"), or is empty: then a comment is /* ... */.
    """

    name: str
    content_types: tuple[str, ...]
    suffixes: tuple[str, ...]
    comment: str
    module: Callable[[], bytes]


def shipped_module(name: str) -> bytes:
    """Return the bytes of a language module of this package."""
    return resources.files(__package__).joinpath(f"{name}.wasm").read_bytes()


JAVASCRIPT: Final = Language(
    name="javascript",
    content_types=("text/javascript", "application/javascript"),
    suffixes=(".js", ".mjs"),
    comment="",
    module=partial(shipped_module, "javascript"),
)
PYTHON: Final = Language(
    name="python",
    content_types=("text/x-python", "application/x-python"),
    suffixes=(".py",),
    comment="#",
    module=partial(shipped_module, "python"),
)
SHIPPED: Final = (JAVASCRIPT, PYTHON)


def of_content_type(languages: Iterable[Language], content_type: str) -> Language | None:
    """Return the language of a body, None: it is a WebAssembly module."""
    return next((each for each in languages if content_type in each.content_types), None)


def of_suffix(languages: Iterable[Language], suffix: str) -> Language | None:
    """Return the language of a file's suffix, such as ".js"."""
    return next((each for each in languages if suffix in each.suffixes), None)
