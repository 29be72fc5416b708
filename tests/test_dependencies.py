"""Every distribution that our packages import is declared: none comes by way of another."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECTS = {
    folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    for folder in (".", "client")
}
OURS = {
    ".": {"symphony_kernel", "symphony_runtime", "main"},  # a project's program, in templates
    "client": {"symphony"},
}
SOURCES = {".": ("kernel", "runtime"), "client": ("client",)}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ]", each)[0].lower().replace("_", "-") for each in requirements}


@pytest.mark.parametrize("project", PROJECTS)
def test_dependencies_of_all_imports_are_declared(project: str) -> None:
    declared = names(PROJECTS[project]["dependencies"])
    for extra in PROJECTS[project].get("optional-dependencies", {}).values():
        declared |= names(extra)
    distributions = packages_distributions()
    found: dict[str, set[str]] = {}
    for package in SOURCES[project]:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                modules = []
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    modules = [node.module]
                for module in modules:
                    found.setdefault(module.split(".")[0], set()).add(path.name)
    missing = {}
    for module, where in found.items():
        if module in sys.stdlib_module_names | OURS[project]:
            continue
        givers = {each.lower().replace("_", "-") for each in distributions.get(module, [module])}
        if not givers & declared:
            missing[module] = sorted(where)
    assert missing == {}


def test_server_depends_on_the_client_of_its_version() -> None:
    versions = {project["version"] for project in PROJECTS.values()}
    assert len(versions) == 1
    assert f"symphony-client=={versions.pop()}" in PROJECTS["."]["dependencies"]
