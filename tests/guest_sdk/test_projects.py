"""`symphony new` and `symphony build`, their templates, and what the documentation shows."""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from symphony_runtime.abi import table
from symphony_runtime.cli import projects
from symphony_runtime.cli.development.compilers import Compilers
from symphony_runtime.cli.projects import LANGUAGES, ProjectError, build, find_rust_toolchain, new
from symphony_runtime.compiler.manifest import read_manifest
from wasmtime import Engine, FuncType, Module

from tests.support.assemblyscript import ROOT, SDK
from tests.support.examples import EXAMPLES, PROGRAMS, built
from tests.support.executor.byte_model import byte_assets
from tests.support.requirements import lacking
from tests.support.worker.rig import RunResult, WorkerRig

TEMPLATES = ROOT / "runtime" / "symphony_runtime" / "cli" / "templates"
SIZE_MAX = 125_000  # a fifth of it the functions' names, for traps
ASSEMBLYSCRIPT_SIZE_MAX = 60_000
CRATES = Path("/usr/share/cargo/registry")  # where Debian puts sources of crates
CALLS = {call.name for call in table().calls}
SNIPPET = re.compile(r"```ts\n(.*?)```", re.DOTALL)


def checked_module(wasm: Path) -> None:
    """The module imports what the host has, and exports what the host looks for."""
    module = Module(Engine(), wasm.read_bytes())
    imports = {(i.module, i.name) for i in module.imports}
    assert imports <= {("env", "abort")} | {("lip", name) for name in CALLS}
    exports = {e.name: e.type for e in module.exports}
    assert {"memory", "_initialize", "lip_main"} <= set(exports)
    entry = exports["lip_main"]
    assert isinstance(entry, FuncType)
    assert [str(kind) for kind in entry.results] == ["i32"]
    assert entry.params == []


@pytest.mark.parametrize(
    "program", [each for each in PROGRAMS if (EXAMPLES / each / "asconfig.json").exists()]
)
def test_example_module_has_the_hosts_imports_and_exports(program: str) -> None:
    checked_module(built(EXAMPLES / program))


def run(program: bytes, data: bytes) -> RunResult:
    async def main() -> RunResult:
        async with WorkerRig(assets=byte_assets()) as rig:
            return await rig.run(program, data)

    return asyncio.run(main())


# --- new -----------------------------------------------------------------------------------------


def test_new_rust_project_outside_the_repository_builds_and_runs(tmp_path: Path) -> None:
    project = new("hello-lip", "rust", tmp_path)
    assert project == tmp_path / "hello-lip"
    assert not list(project.rglob("target"))
    written = [path for path in project.rglob("*") if path.is_file()]
    assert str(ROOT) not in "".join(path.read_text() for path in written)
    wasm = build(project)
    assert wasm == project / "build" / "hello-lip.wasm"
    assert wasm.stat().st_size < SIZE_MAX
    result = run(wasm.read_bytes(), b"def main(")
    assert (result.status, result.exit_code) == ("exited", 0)
    assert result.output


TRAPS = """
use symphony::{Input, KvFile};

#[symphony::main]
async fn run(input: Input) -> Result<String, Box<dyn std::error::Error>> {
    let way = input.text("prompt")?;
    match way {
        "walk" => Ok(walk(1, &[0; 100]).to_string()),
        "index" => Ok(third(&[1, 2]).to_string()),
        _ => Ok(format!("{}", KvFile::open(way)?.len()?)),
    }
}

#[inline(never)]
fn walk(depth: u64, before: &[u64]) -> u64 {
    let own = [depth ^ before[before.len() - 1]; 100];
    walk(depth + 1, &own) + own[(depth % 100) as usize]
}

#[inline(never)]
fn third(numbers: &[u64]) -> u64 {
    numbers[numbers.len()]
}
"""


def test_new_rust_project_that_fails_says_where(tmp_path: Path) -> None:
    project = new("lost", "rust", tmp_path)
    (project / "src" / "lib.rs").write_text(TRAPS)
    wasm = build(project).read_bytes()
    deep = run(wasm, b"walk")
    assert deep.status == "trapped"
    assert deep.reason.startswith("the program's own stack overflowed: ")
    assert "(in lost::walk" in deep.reason
    index = run(wasm, b"index")
    assert b"src/lib.rs:22:5" in index.logs[0][1]
    assert index.reason == "unreachable instruction (in lost::third, called by lip_main)"
    opened = run(wasm, b"nope")
    assert (opened.status, opened.exit_code) == ("exited", 1)
    told = 'kv_open("nope"): ENOENT (no such name) at src/lib.rs:10'
    assert opened.logs == [(3, told.encode())]


TYPED = """
use serde::{Deserialize, Serialize};
use symphony_serde::Json;

#[derive(Deserialize)]
struct Given { names: Vec<String>, #[serde(default)] upper: bool }

#[derive(Serialize)]
struct Told { longest: Option<String>, count: usize }

#[symphony::main]
fn run(Json(given): Json<Given>) -> Json<Told> {
    let count = given.names.len();
    let longest = given.names.into_iter().max_by_key(String::len);
    let longest = if given.upper { longest.map(|name| name.to_uppercase()) } else { longest };
    Json(Told { longest, count })
}
"""


def test_new_rust_project_takes_and_returns_what_serde_knows(tmp_path: Path) -> None:
    if not all(list(CRATES.glob(f"{name}-1*")) for name in ("serde", "serde_json")):
        lacking("serde", "no serde without a registry: apt-get install librust-serde-json-dev")
    project = new("typed", "rust", tmp_path)
    (project / "src" / "lib.rs").write_text(TYPED)
    manifest = (project / "Cargo.toml").read_text()
    needed = """symphony-serde = { path = "vendor/symphony/serde" }
        serde = { version = "1", features = ["derive"] }"""
    (project / "Cargo.toml").write_text(
        manifest.replace("[dependencies]", f"[dependencies]\n{needed}")
    )
    (project / ".cargo").mkdir()
    (project / ".cargo" / "config.toml").write_text(
        f'[source.crates-io]\nreplace-with = "here"\n[source.here]\ndirectory = "{CRATES}"\n'
    )
    wasm = build(project).read_bytes()
    told = run(wasm, b'{"names": ["a", "bcd"], "upper": true}')
    assert [json.loads(message) for message in told.messages] == [{"longest": "BCD", "count": 2}]
    wrong = run(wasm, b'{"names": 7}')
    assert (wrong.status, wrong.exit_code) == ("exited", 1)
    assert wrong.logs[0][1].startswith(b"the input: invalid type: integer `7`, expected a sequence")


def test_new_assemblyscript_project_outside_the_repository_builds(tmp_path: Path) -> None:
    project = new("hello", "assemblyscript", tmp_path)
    assert "{{" not in "".join(p.read_text() for p in project.rglob("*") if p.is_file())
    wasm = build(project)
    assert wasm == project / "build" / "hello.wasm"
    assert wasm.stat().st_size < ASSEMBLYSCRIPT_SIZE_MAX
    checked_module(wasm)


def test_new_project_in_the_repository_uses_its_sdk() -> None:
    project = new("made_by_a_test", "rust", ROOT / "build")
    try:
        assert not (project / "vendor").exists()
        assert 'path = "../../guest_sdk/rust"' in (project / "Cargo.toml").read_text()
    finally:
        for path in sorted(project.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        project.rmdir()


def test_repository_programs_share_a_cargo_target() -> None:
    toolchain = find_rust_toolchain()
    command = [toolchain.cargo, "metadata", "--no-deps", "--format-version", "1"]
    environment = {k: v for k, v in toolchain.environment.items() if k != "CARGO_TARGET_DIR"}
    for name in ("completion", "parallel_suffixes/rust"):
        asked = subprocess.run(
            command, cwd=ROOT / "examples" / name, env=environment, capture_output=True, check=True
        )
        assert json.loads(asked.stdout)["target_directory"] == str(ROOT / "build" / "cargo")


@pytest.mark.parametrize("name", ["", "Hello", "1st", "a b", "../up", "a/b", "x" * 65, "a\n"])
def test_new_project_with_an_invalid_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="is no project name"):
        new(name, "rust", tmp_path)
    assert not list(tmp_path.iterdir())


def test_new_project_in_an_unknown_language_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match="there are rust, assemblyscript, javascript, python"):
        new("hello", "cobol", tmp_path)
    for lang in LANGUAGES:
        assert (TEMPLATES / lang).is_dir()


def test_new_project_does_not_overwrite(tmp_path: Path) -> None:
    (tmp_path / "hello").mkdir()
    (tmp_path / "hello" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("")
    for name in ("hello", "file"):
        with pytest.raises(ProjectError, match="exists already"):
            new(name, "rust", tmp_path)
    assert [p.name for p in (tmp_path / "hello").iterdir()] == ["mine.txt"]


def test_new_project_without_an_installed_sdk_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(projects._SDKS, "rust", tmp_path / "nowhere")
    with pytest.raises(ProjectError, match="pip install -e"):
        new("hello", "rust", tmp_path)
    assert not (tmp_path / "hello").exists()


@pytest.mark.parametrize(
    ("language", "source"), [("rust", "src/lib.rs"), ("assemblyscript", "assembly/index.ts")]
)
def test_readme_shows_the_template(language: str, source: str) -> None:
    program = (TEMPLATES / language / source).read_text()
    if language == "rust":
        program = program.partition("\n\n")[2].partition("\n#[cfg(test)]")[0]
    readme = (ROOT / "guest_sdk" / language / "README.md").read_text()
    assert program == re.findall(r"```(?:rust|ts)\n(.*?)```", readme, re.DOTALL)[0]


# --- build ---------------------------------------------------------------------------------------


def crate(folder: Path, source: str, lib: str = 'crate-type = ["cdylib"]') -> Path:
    (folder / "src").mkdir()
    (folder / "src" / "lib.rs").write_text(source)
    (folder / "Cargo.toml").write_text(
        f'[package]\nname = "bare"\nversion = "0.1.0"\nedition = "2021"\n'
        f"[lib]\n{lib}\n[workspace]\n"
    )
    return folder


def test_build_error_shows_the_compilers_output(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match=r"(?s)cargo failed in .*mismatched types"):
        build(crate(tmp_path, "pub fn f() -> i32 { true }"))
    assert not (tmp_path / "build").exists()


def test_build_of_a_package_without_cdylib_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match=re.escape('crate-type = ["cdylib"]')):
        build(crate(tmp_path, "", lib='crate-type = ["rlib"]'))


def test_build_replaces_an_older_module(tmp_path: Path) -> None:
    entry = '#[no_mangle] pub extern "C" fn lip_main() -> i32 {{ {} }}'
    first = build(crate(tmp_path, entry.format(1))).read_bytes()
    (tmp_path / "src" / "lib.rs").write_text(entry.format(2))
    assert build(tmp_path).read_bytes() != first
    assert build(tmp_path) == tmp_path / "build" / "bare.wasm", "a build with nothing to do"


@pytest.mark.parametrize(
    ("manifest", "words"), [("[package", "Cargo.toml"), ("[lib]\n", "names no package")]
)
def test_build_with_a_broken_manifest_says_so(manifest: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "Cargo.toml").write_text(manifest)
    with pytest.raises(ProjectError, match=words):
        build(tmp_path)


def test_build_puts_the_manifest_into_the_module(tmp_path: Path) -> None:
    crate(tmp_path, "")
    (tmp_path / "manifest.json").write_text('{"description": "d"}')
    assert read_manifest(build(tmp_path).read_bytes()) == ('{"description":"d"}', [])
    (tmp_path / "manifest.json").write_text('{"input_schema": {"type": "text"}}')
    with pytest.raises(ProjectError, match=r"manifest\.json:\nthe manifest: `input_schema/type`"):
        build(tmp_path)
    example = json.loads((EXAMPLES / "best_of_n" / "manifest.json").read_text())
    module = built(EXAMPLES / "best_of_n").read_bytes()  # in AssemblyScript
    assert json.loads(read_manifest(module)[0]) == example


def test_build_of_a_folder_without_a_project_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProjectError, match=r"no Cargo\.toml, asconfig\.json or package\.json"):
        build(tmp_path)


def test_build_with_a_mistake_shows_it(tmp_path: Path) -> None:
    project = new("hello", "assemblyscript", tmp_path)
    (project / "assembly" / "index.ts").write_text("export function lip_main(): i32 { return x; }")
    with pytest.raises(ProjectError, match="Cannot find name 'x'"):
        build(project)


SCRIPT_TRAPS = """\
import { KvFile, inputText } from "symphony-lip";

function pick(part: string, depth: i32): i32 {
  if (depth > 0) return pick(part, depth - 1) + part.length;
  if (part == "open") {
    KvFile.open("no/such");
  }
  return [1, 2][part.length];
}

export function lip_main(): i32 {
  return pick(inputText(), 1);
}
"""


def test_build_lets_a_trap_name_the_authors_functions_and_lines(tmp_path: Path) -> None:
    project = new("traps", "assemblyscript", tmp_path)
    (project / "assembly" / "index.ts").write_text(SCRIPT_TRAPS)
    program = build(project).read_bytes()
    where = "called by pick at assembly/index.ts:4, called by lip_main at assembly/index.ts:12)"
    reason = f"abort: Index out of range (in pick near assembly/index.ts:8, {where}"
    assert run(program, b"bounds").reason == reason
    opened = run(program, b"open").reason
    assert opened.startswith('abort: KvFile.open("no/such"): ENOENT, ')
    assert opened.endswith(f"(in pick near assembly/index.ts:5, {where}")
    assert b"~lib/symphony-lip" not in program, "names of libraries only make it larger"
    assert [path.name for path in (project / "build").iterdir()] == ["traps.wasm"]


# --- Toolchains ----------------------------------------------------------------------------------


def test_rust_toolchain_that_is_found_compiles_to_wasm() -> None:
    found = find_rust_toolchain()
    assert found.environment["RUSTC"] == found.rustc
    asked = subprocess.run([found.rustc, "--version"], capture_output=True, text=True, check=True)
    assert asked.stdout.startswith("rustc ")


def test_build_with_another_compiler_than_the_paths_says_which_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = find_rust_toolchain()
    found = [shutil.which(usual.cargo), shutil.which(usual.rustc)]
    assert all(found)
    path = tmp_path / "bin"
    path.mkdir()
    for name, words in (("cargo", "cargo"), ("rustc", "rustc 9.99.0 (a nightly)")):
        (path / name).write_text(f"#!/bin/sh\necho '{words}'\n")
        (path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{path}:{os.environ['PATH']}")
    monkeypatch.delenv("CARGO", raising=False)
    monkeypatch.delenv("RUSTC", raising=False)
    monkeypatch.setattr(projects, "_SYSTEM_RUST", tuple(found))
    (tmp_path / "bare").mkdir()
    said: list[str] = []
    with pytest.raises(ProjectError) as failed:
        build(crate(tmp_path / "bare", "pub fn f() -> i32 { true }"), said.append)
    used, first = re.escape(str(found[1])), re.escape(str(path / "rustc"))
    words = (
        rf"rustc \d+\.\d+\.\d+\S* \({used}\), as rustc 9\.99\.0 \({first}\) "
        r"lacks the target: rustup target add wasm32-unknown-unknown"
    )
    assert re.fullmatch(f"building bare with {words}", said[0])
    assert re.search(f"mismatched types(?s:.*)\nThe compiler is {words}$", str(failed.value))


def test_build_in_assemblyscript_says_with_what(tmp_path: Path) -> None:
    project = new("hello", "assemblyscript", tmp_path)
    (project / "assembly" / "index.ts").write_text("export function lip_main(): i32 { return x; }")
    said: list[str] = []
    with pytest.raises(ProjectError, match=r"\nThe compiler is asc \d+\.\d+\.\d+ on node v\d+\."):
        build(project, said.append)
    assert re.fullmatch(r"building hello with asc [\d.]+ on node v[\d.]+ \(/.*node\)", said[0])


def test_build_without_a_wasm_target_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This one knows the target and does not have its library, like a fresh rustup.
    for name in ("cargo", "rustc"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {tmp_path}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CARGO", raising=False)
    monkeypatch.delenv("RUSTC", raising=False)
    monkeypatch.setattr(projects, "_SYSTEM_RUST", ("/nowhere/cargo", "/nowhere/rustc"))
    with pytest.raises(ProjectError, match="rustup target add wasm32-unknown-unknown"):
        build(crate(tmp_path, ""))


def test_rust_compiler_of_the_environment_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib"
    library.mkdir()
    (library / "libcore-0.rlib").write_text("")
    compiler = tmp_path / "my-rustc"
    compiler.write_text(f"#!/bin/sh\necho {library}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CARGO", str(compiler))
    monkeypatch.setenv("RUSTC", str(compiler))
    assert find_rust_toolchain().rustc == str(compiler)


def test_build_without_asc_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "asconfig.json").write_text("{}")
    above = tmp_path / "node_modules" / "assemblyscript" / "bin"  # anybody's
    above.mkdir(parents=True)
    (above / "asc.js").write_text("process.exit(7);")
    monkeypatch.setitem(projects._SDKS, "assemblyscript", project)
    with pytest.raises(ProjectError, match="npm install"):
        build(project)


# --- The documentation ---------------------------------------------------------------------------

EXPORTED = re.compile(r"^export (?:abstract )?(?:class|function|enum|namespace) (\w+)", re.M)
# What the pages' bare statements take as given.
GIVEN = {"prompt": "string", "suffixes": "string[]"}


def compilable(snippets: list[str]) -> str:
    """One program of all snippets: declarations as they are, statements inside functions."""
    sources = [
        path for path in (SDK / "assembly").glob("*.ts") if path.stem not in ("raw", "failure")
    ]
    exported = {name for path in sources for name in EXPORTED.findall(path.read_text())}
    used = exported & set(re.findall(r"\w+", " ".join(snippets)))
    program = [f'import {{ {", ".join(sorted(used))} }} from "symphony-lip";']
    for number, text in enumerate(snippets):
        given = [f"{k}: {v}" for k, v in GIVEN.items() if f"const {k} " not in text]
        if text.startswith(("class ", "function ")):
            program.append(f"export {text}")
        else:
            program.append(f"export function f{number}({', '.join(given)}): void {{ {text} }}")
    return "\n".join([*program, "export function lip_main(): i32 { return 0; }"])


@pytest.fixture(scope="module")
def compiles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Compile the program of a project, not optimized, as `symphony dev` does: in one process."""
    project = new("shown", "assemblyscript", tmp_path_factory.mktemp("pages"))
    with Compilers() as compilers:

        def module_of(text: str) -> Path:
            (project / "assembly" / "index.ts").write_text(text)
            return build(project, quick=True, run=compilers.run)

        yield module_of


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "guest_sdk/assemblyscript/README.md",
        "docs/get-started/assemblyscript.md",
        "docs/reference/abi.md",
        "docs/guides/branches.md",
        "docs/guides/chat.md",
        "docs/guides/kv-files.md",
        "docs/guides/programs.md",
        "docs/guides/sampling.md",
        "docs/guides/tools.md",
    ],
)
def test_documentation_snippets_compile(page: str, compiles: Callable[[str], Path]) -> None:
    shown = SNIPPET.findall((ROOT / page).read_text())
    assert shown
    programs = [text for text in shown if "import {" in text]
    programs.append(compilable([text for text in shown if "import " not in text]))
    for text in programs:
        checked_module(compiles(text))
