"""Every distribution that our packages import is declared: none comes by way of another."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OURS = {"symphony_kernel", "symphony_runtime"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~! ]", each)[0].lower().replace("_", "-") for each in requirements}


def test_dependencies_of_all_imports_are_declared() -> None:
    declared = names(PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        declared |= names(extra)
    distributions = packages_distributions()
    found: dict[str, set[str]] = {}
    for package in ("kernel", "runtime"):
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
        if module in sys.stdlib_module_names | OURS:
            continue
        givers = {each.lower().replace("_", "-") for each in distributions.get(module, [module])}
        if not givers & declared:
            missing[module] = sorted(where)
    assert missing == {}
