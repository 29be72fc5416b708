"""The LIP ABI as data: every call that a guest may import, with its signature.

`table.toml` is the one machine-readable copy of the calls of module `lip`. The few WASI calls and
AssemblyScript's `env.abort`, which toolchains import by themselves, are listed here, as are the
calls of language modules. They carry no authority.
"""

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

LIP = "lip"
WASI = "wasi_snapshot_preview1"
LANGUAGE = "language"
VALUE_TYPES = frozenset({"i32", "i64"})
KINDS = frozenset({"now", "suspends", "ticket", "exit"})


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter: its name and its Wasm type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Signature:
    """The Wasm type of a function."""

    params: tuple[str, ...]
    results: tuple[str, ...]

    def __str__(self) -> str:
        return f"({', '.join(self.params)}) -> ({', '.join(self.results)})"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of module `lip`. `since` is the first version that has it."""

    group: str
    name: str
    params: tuple[Param, ...]
    result: str
    kind: str
    since: str
    doc: str

    @property
    def signature(self) -> Signature:
        """The type that a guest must import it with."""
        return Signature(
            tuple(param.type for param in self.params), (self.result,) if self.result else ()
        )


@dataclass(frozen=True, slots=True)
class Table:
    """The contents of `table.toml`."""

    version: int
    errno: dict[str, int]
    rights: dict[str, int]
    save_flags: dict[str, int]
    advice: dict[str, int]
    calls: tuple[Call, ...]


@lru_cache(maxsize=1)
def table() -> Table:
    """Return the ABI's table; assert that the file is well-formed."""
    data = tomllib.loads(files(__name__).joinpath("table.toml").read_text(encoding="utf-8"))
    calls = tuple(_call(entry) for entry in data.pop("call"))
    assert len({call.name for call in calls}) == len(calls), "a call is listed twice"
    return Table(**data, calls=calls)


def _call(entry: dict[str, Any]) -> Call:
    call = Call(**entry | {"params": tuple(_param(text) for text in entry["params"])})
    assert call.kind in KINDS, call
    assert call.result in VALUE_TYPES or not call.result, call
    return call


def _param(text: str) -> Param:
    name, _, kind = text.partition(": ")
    assert name, text
    assert kind in VALUE_TYPES, text
    return Param(name, kind)


def _signature(params: str, results: str = "i32") -> Signature:
    return Signature(tuple(params.split()), tuple(results.split()))


WASI_CALLS: dict[str, Signature] = {
    "args_get": _signature("i32 i32"),
    "args_sizes_get": _signature("i32 i32"),
    "clock_time_get": _signature("i32 i64 i32"),
    "environ_get": _signature("i32 i32"),
    "environ_sizes_get": _signature("i32 i32"),
    "fd_close": _signature("i32"),
    "fd_fdstat_get": _signature("i32 i32"),
    "fd_prestat_dir_name": _signature("i32 i32 i32"),
    "fd_prestat_get": _signature("i32 i32"),
    "fd_seek": _signature("i32 i64 i32 i32"),
    "fd_write": _signature("i32 i32 i32 i32"),
    "proc_exit": _signature("i32", ""),
    "random_get": _signature("i32 i32"),
    "sched_yield": _signature(""),
}
ABORT = _signature("i32 i32 i32 i32", "")  # env.abort(message, file, line, column)
# Of language modules: the source that they run, and the end of a program that failed.
LANGUAGE_CALLS: dict[str, Signature] = {
    "source_read": _signature("i32 i32"),
    "fail": _signature("i32 i32", ""),
}


@lru_cache(maxsize=1)
def allowed_imports() -> dict[tuple[str, str], Signature]:
    """Return every function that a guest may import, by (module, name)."""
    allowed = {(LIP, call.name): call.signature for call in table().calls}
    allowed |= {(WASI, name): signature for name, signature in WASI_CALLS.items()}
    allowed[("env", "abort")] = ABORT
    allowed |= {(LANGUAGE, name): signature for name, signature in LANGUAGE_CALLS.items()}
    return allowed
