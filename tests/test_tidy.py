"""The house rules that a machine can check: each test lists what breaks its rule."""

import ast
import re
import subprocess
from pathlib import Path

from tests.support.requirements import lacking

ROOT = Path(__file__).resolve().parents[1]
FUNCTION_LINES_MAX = 70
MODULES_MAX = 14  # of product code, side by side in one folder
ROOT_FILES_MAX = 6  # in the roots of kernel, runtime and gateway

# Written in pieces so that this file does not find itself.
LEFTOVERS = re.compile("|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error"]))
MACHINE_PATHS = re.compile("|".join(["/wo" + "rk/", r"/home/\w+/", "/ro" + "ot/"]))
LINKS = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def tracked(*patterns: str) -> list[Path]:
    # Also in a checkout that belongs to another user.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "--cached", "--others"]
    asked = [*command, "--exclude-standard", *patterns]
    try:
        names = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        lacking("git", f"git lists no files here: {error}")
    paths = [ROOT / name for name in names.splitlines()]
    return [path for path in paths if path.is_file()]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_functions_are_at_most_seventy_lines_long() -> None:
    paths = tracked("*.py")
    assert len(paths) > 40
    functions = [
        (path, node)
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lines = {f"{name(p)}:{f.name}": (f.end_lineno or 0) - f.lineno + 1 for p, f in functions}
    assert {which: n for which, n in lines.items() if n > FUNCTION_LINES_MAX} == {}


def test_text_has_no_leftovers_and_no_path_of_a_machine() -> None:
    patterns = "*.py", "*.rs", "*.ts", "*.md", "*.toml", "*.json", "*.sh", "Makefile", ".ci/run"
    # The tiny model's vocabulary is learned from sources that have leftovers of their own.
    paths = [path for path in tracked(*patterns) if path.parent.name != "weights"]
    found = {
        name(path): LEFTOVERS.findall(text) + MACHINE_PATHS.findall(text)
        for path in paths
        if (text := path.read_text())
    }
    assert {path: each for path, each in found.items() if each} == {}


def test_links_of_the_documentation_lead_to_files() -> None:
    broken = [
        f"{name(path)}: {target}"
        for path in tracked("*.md")
        for target in LINKS.findall(path.read_text())
        if "://" not in target and not (path.parent / target).exists()
    ]
    assert broken == []


def test_folders_of_product_code_hold_few_modules() -> None:
    folders: dict[Path, int] = {}
    for path in tracked("kernel/*.py", "runtime/*.py"):
        if path.name != "__init__.py":
            folders[path.parent] = folders.get(path.parent, 0) + 1
    roots = ["kernel/symphony_kernel", "runtime/symphony_runtime"]
    few = {ROOT / root for root in [*roots, "runtime/symphony_runtime/gateway"]}
    bounds = {each: ROOT_FILES_MAX if each in few else MODULES_MAX for each in folders}
    assert {name(each): n for each, n in folders.items() if n > bounds[each]} == {}
