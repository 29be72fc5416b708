"""The Rust SDK: declarations against the table, its own tests, and its guests on a real worker."""

import asyncio
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from symphony_runtime.cli.projects import RustToolchain, build, find_rust_toolchain
from wasmtime import Engine, Func, FuncType, Instance, Memory, Module, Store

from tests.support.executor.byte_model import byte_assets
from tests.support.json_values import close
from tests.support.requirements import lacking
from tests.support.worker.rig import RunResult, WorkerRig

ROOT = Path(__file__).resolve().parents[2]
SDK = ROOT / "guest_sdk" / "rust"
PROBE = Path(__file__).parent / "rust_probe"
TABLE = tomllib.loads((ROOT / "runtime/symphony_runtime/abi/table.toml").read_text())
WASM_TYPES = {
    "usize": "i32",
    "u32": "i32",
    "i32": "i32",
    "i64": "i64",
    "*const u8": "i32",
    "*mut u8": "i32",
    "*const u32": "i32",
    "*mut u32": "i32",
    "*const i32": "i32",
    "": "",
}
DECLARATION = re.compile(r"pub (?:unsafe )?fn (\w+)\(([^)]*)\)(?: -> (\w+))?", re.DOTALL)


def declared(path: str) -> dict[str, tuple[list[tuple[str, str]], str]]:
    """Return the functions of a file: name -> ([(parameter, Rust type)], Rust result)."""
    found = {}
    for name, parameters, result in DECLARATION.findall((SDK / "src" / path).read_text()):
        pairs = [p.split(":") for p in parameters.split(",") if p.strip()]
        found[name] = ([(key.strip(), kind.strip()) for key, kind in pairs], result)
    return found


# --- The crate -----------------------------------------------------------------------------------


def test_declarations_match_the_abi_table() -> None:
    calls = {
        name: ([f"{key}: {WASM_TYPES[kind]}" for key, kind in parameters], WASM_TYPES[result])
        for name, (parameters, result) in declared("raw.rs").items()
    }
    assert calls == {call["name"]: (call["params"], call["result"]) for call in TABLE["call"]}
    assert len(calls) == 50


def test_in_memory_host_has_the_same_calls() -> None:
    def types(path: str) -> dict[str, tuple[list[str], str]]:
        return {n: ([kind for _, kind in p], r) for n, (p, r) in declared(path).items()}

    assert types("testing/calls.rs") | types("testing/constraints.rs") == types("raw.rs")


def constants(path: str, pattern: str) -> dict[str, int]:
    found = re.findall(pattern, (SDK / "src" / path).read_text())
    return {name: int(value) for name, value in found}


def test_numbers_match_the_abi_table() -> None:
    assert constants("error.rs", r"(E\w+) = (\d+), \"") == TABLE["errno"]
    rights = constants("kv.rs", r"const (\w+): Rights = Rights\((\d+)\)")
    assert rights.pop("ALL") == sum(TABLE["rights"].values())
    assert {name[0]: value for name, value in rights.items()} == TABLE["rights"]
    flags = constants("kv.rs", r"const (\w+): Save = Save\((\d+)\)")
    assert flags.pop("NEW") == 0
    assert flags == TABLE["save_flags"]
    hints = constants("kv.rs", r"Advice::(\w+)(?:\(\w+\))? => \((\d)")
    names = {name.replace("_", "").lower(): value for name, value in TABLE["advice"].items()}
    assert {name.lower(): value for name, value in hints.items()} == names


def test_crate_depends_on_nothing() -> None:
    for lock in [SDK / "Cargo.lock", *sorted((ROOT / "examples").rglob("Cargo.lock"))]:
        text = lock.read_text()
        assert "source" not in text, f"{lock} names a registry"
        assert tomllib.loads(text)["version"] == 3, f"cargo of Rust 1.63 cannot read {lock}"
    """Its macro is a folder of its own, which projects copy with it, and depends on nothing."""
    (needed,) = tomllib.loads((SDK / "Cargo.toml").read_text())["dependencies"].values()
    macros = SDK / needed["path"]
    assert macros.is_relative_to(SDK)
    assert not tomllib.loads((macros / "Cargo.toml").read_text())["dependencies"]


# --- Cargo ---------------------------------------------------------------------------------------


def cargo(*arguments: str, cwd: Path = SDK, toolchain: RustToolchain | None = None) -> str:
    """Run cargo offline, with warnings as errors, in one target folder apart from builds."""
    toolchain = toolchain or host_toolchain()
    flags = {"RUSTFLAGS": "-D warnings", "RUSTDOCFLAGS": "-D warnings"}
    strict = {"CARGO_TARGET_DIR": str(SDK / "target" / "strict"), "CARGO_NET_OFFLINE": "true"}
    rustdoc = Path(toolchain.rustc).with_name("rustdoc")
    done = subprocess.run(
        [toolchain.cargo, *arguments],
        cwd=cwd,
        env=toolchain.environment | flags | strict | {"RUSTDOC": str(rustdoc)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@lru_cache(maxsize=1)
def host_toolchain() -> RustToolchain:
    """The newest Rust of this machine, which need not compile to Wasm."""
    found, compiler = shutil.which("cargo"), shutil.which("rustc")
    return RustToolchain(found, compiler) if found and compiler else find_rust_toolchain()


RUST_PACKAGES = [SDK, PROBE, *sorted(p.parent for p in (ROOT / "examples").rglob("Cargo.toml"))]


def package(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("path", RUST_PACKAGES, ids=package)
def test_cargo_tests_pass(path: Path) -> None:
    passed = re.findall(r"test result: ok\. (\d+) passed", cargo("test", cwd=path))
    assert passed
    if any("#[test]" in source.read_text() for source in path.rglob("src/**/*.rs")):
        assert int(passed[0]) > 0


@pytest.mark.slow
def test_crate_documentation_is_complete() -> None:
    cargo("doc", "--no-deps")


@pytest.mark.slow
def test_crate_core_needs_no_standard_library() -> None:
    target = ("--target", "wasm32-unknown-unknown", "--no-default-features")
    cargo("check", *target, toolchain=find_rust_toolchain())


@pytest.mark.parametrize("path", RUST_PACKAGES, ids=package)
def test_crate_sources_are_formatted(path: Path) -> None:
    if not shutil.which("rustfmt"):
        lacking("rustfmt", "it is not installed")
    cargo("fmt", "--check", cwd=path)


# --- Guests --------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def probe() -> bytes:
    return build(PROBE).read_bytes()


def run(entry: str, data: bytes = b"", messages: Iterable[bytes] | None = ()) -> RunResult:
    """Run an entry of the probe to its end; None leaves its input open."""

    async def main() -> RunResult:
        async with WorkerRig(assets=byte_assets()) as rig:
            return await rig.run(probe(), data, entry=entry, messages=messages)

    return asyncio.run(main())


def succeeds(result: RunResult) -> RunResult:
    assert (result.status, result.exit_code) == ("exited", 0), (result.reason, result.logs)
    return result


def test_process_has_input_messages_clocks_and_a_log() -> None:
    result = succeeds(run("lip_main", "in\u00e9".encode(), (b"one", b"")))
    assert result.messages == [b"one", b"", "in\u00e9".encode()]
    assert result.logs == [(0, b"finer"), (2, b"2 things")]


@pytest.mark.parametrize(
    "entry", ["files", "passes", "streams", "channels", "dropped", "stopped", "chats"]
)
def test_probe_finds_every_call_working(entry: str) -> None:
    succeeds(run(entry, messages=None))


def test_children_take_grants_and_give_them() -> None:
    assert succeeds(run("children")).output == b"seed:[7, 8, 9]"


async def test_tasks_decode_in_lockstep() -> None:
    async with WorkerRig(assets=byte_assets()) as rig:
        succeeds(await rig.run(probe(), b"64", entry="lockstep"))
        found = await rig.statistics()
    assert (found["preds"], found["steps"]) == (320, 5)


@pytest.mark.parametrize(
    ("entry", "end", "words"),
    [
        ("panics", ("trapped", None), r"(?s).*this broke.*"),
        ("deadlock", ("trapped", None), r"(?s).*deadlock.*"),
        ("fails", ("exited", 1), "no such thing"),
        ("exits", ("exited", 7), ""),
    ],
)
def test_entry_that_fails_ends_with_its_code_and_its_reason_in_the_log(
    entry: str, end: tuple[str, int | None], words: str
) -> None:
    result = run(entry)
    code = None if result.status == "trapped" else result.exit_code
    assert (result.status, code) == end
    assert [level for level, _ in result.logs] == ([3] if words else [])
    assert re.fullmatch(words, b"".join(line for _, line in result.logs).decode())


# --- Values: the guest's decoders against Python's ------------------------------------------------


Compiled = tuple[Engine, Module]


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    engine = Engine()
    return engine, Module(engine, probe())


def echo(compiled: Compiled, data: bytes) -> list[bytes]:
    """Run entry `values` without a server: only input and sends are there."""
    engine, module = compiled
    store = Store(engine)
    sent: list[bytes] = []
    memory: list[Memory] = []

    def input_read(at: int, room: int) -> int:
        if len(data) <= room:
            memory[0].write(store, data, at & 0xFFFFFFFF)
        return len(data)

    def send(at: int, length: int) -> int:
        sent.append(bytes(memory[0].read(store, at, at + length)))
        return 0

    def refused(*_: int) -> None:
        raise AssertionError("values makes no other call")

    answers = {"input_read": input_read, "send": send}
    imports = []
    for wanted in module.imports:
        assert isinstance(wanted.type, FuncType)
        imports.append(Func(store, wanted.type, answers.get(wanted.name or "", refused)))
    exports = Instance(store, module, imports).exports(store)
    found = exports["memory"]
    assert isinstance(found, Memory)
    memory.append(found)
    entry = exports["values"]
    assert isinstance(entry, Func)
    assert entry(store) == 0
    return sent


NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.none() | st.booleans() | NUMBERS | st.text(max_size=40)


def nested(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def branches(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        lists = st.lists(inside, max_size=20)
        return lists | st.dictionaries(st.text(max_size=8), inside, max_size=20)

    return st.recursive(leaves, branches, max_leaves=30)


@settings(max_examples=150, deadline=None)
@given(nested(PLAIN | st.binary(max_size=300)))
def test_msgpack_equals_pythons(compiled: Compiled, value: Any) -> None:
    packed = msgpack.packb(value)
    again, text = echo(compiled, b"m" + packed)
    assert msgpack.unpackb(again, strict_map_key=False) == value
    assert isinstance(json.loads(text), type(value)) or isinstance(value, bytes)


@settings(max_examples=150, deadline=None)
@given(nested(PLAIN), st.booleans())
def test_json_equals_pythons(compiled: Compiled, value: Any, escaped: bool) -> None:
    (packed,) = echo(compiled, b"j" + json.dumps(value, ensure_ascii=escaped).encode())
    assert close(msgpack.unpackb(packed), value)
    written = echo(compiled, b"m" + packed)[1]
    assert close(json.loads(written), msgpack.unpackb(packed))


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60), st.sampled_from([b"m", b"j"]))
def test_decoders_of_any_bytes_do_not_break(compiled: Compiled, data: bytes, kind: bytes) -> None:
    assert len(echo(compiled, kind + data)) in (1, 2)
