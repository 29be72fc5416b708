"""What a newcomer types: new projects, the README's programs, and the examples' sizes."""

import re
import tomllib
from pathlib import Path

import pytest
from symphony_runtime.cli.projects import ProjectError, build, new
from wasmtime import Engine, FuncType, Module

from tests.support.assemblyscript import ROOT, SDK
from tests.support.examples import EXAMPLES, PROGRAMS, built

TEMPLATE = ROOT / "runtime" / "symphony_runtime" / "cli" / "templates" / "assemblyscript"
SIZE_MAX = 60_000
CALLS = {
    call["name"]
    for call in tomllib.loads((ROOT / "runtime/symphony_runtime/abi/table.toml").read_text())[
        "call"
    ]
}
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


def test_new_project_outside_the_repository_builds(tmp_path: Path) -> None:
    project = new("hello", "assemblyscript", tmp_path)
    assert "{{" not in "".join(p.read_text() for p in project.rglob("*") if p.is_file())
    wasm = build(project)
    assert wasm == project / "build" / "hello.wasm"
    assert wasm.stat().st_size < SIZE_MAX
    checked_module(wasm)


def test_build_with_a_mistake_shows_it(tmp_path: Path) -> None:
    project = new("hello", "assemblyscript", tmp_path)
    (project / "assembly" / "index.ts").write_text("export function lip_main(): i32 { return x; }")
    with pytest.raises(ProjectError, match="Cannot find name 'x'"):
        build(project)


def test_readme_shows_the_template() -> None:
    program = SNIPPET.findall((SDK / "README.md").read_text())[0]
    assert program == (TEMPLATE / "assembly" / "index.ts").read_text()


EXPORTED = re.compile(r"^export (?:abstract )?(?:class|function|enum|namespace) (\w+)", re.M)
# What the pages' bare statements take as given.
GIVEN = {"prompt": "string", "suffixes": "string[]"}


def compilable(snippets: list[str]) -> str:
    """One program of all snippets: declarations as they are, statements inside functions."""
    sources = [path for path in (SDK / "assembly").glob("*.ts") if path.stem != "raw"]
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


@pytest.mark.slow
@pytest.mark.parametrize("page", ["guest_sdk/assemblyscript/README.md", "docs/guest-sdk.md"])
def test_documentation_snippets_compile(page: str, tmp_path: Path) -> None:
    shown = SNIPPET.findall((ROOT / page).read_text())
    assert shown
    programs = [text for text in shown if "import {" in text]
    programs.append(compilable([text for text in shown if "import " not in text]))
    project = new("shown", "assemblyscript", tmp_path)
    config = project / "asconfig.json"
    quick = config.read_text().replace('"optimizeLevel": 3', '"optimizeLevel": 0')
    config.write_text(quick.replace('"shrinkLevel": 1', '"shrinkLevel": 0'))
    for text in programs:
        (project / "assembly" / "index.ts").write_text(text)
        checked_module(build(project))
