"""The version and the licence, which several package managers want to be told."""

import json
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_TEMPLATES = "runtime/symphony_runtime/cli/templates/"  # a new program has a version of its own


def _tracked(name: str) -> list[str]:
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", name, f"*/{name}"]
    listed = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True)
    return [path for path in listed.stdout.split() if not path.startswith(_TEMPLATES)]


def _licence(path: str) -> str:
    return "0BSD" if path.startswith("examples/") else "Apache-2.0"


@pytest.mark.parametrize("path", _tracked("Cargo.toml"))
def test_crate_has_the_projects_version_and_licence(path: str) -> None:
    package: dict[str, Any] = tomllib.loads((ROOT / path).read_text())["package"]
    assert (package["version"], package["license"]) == (_PROJECT["version"], _licence(path))


def test_assemblyscript_sdk_has_the_projects_version_and_licence() -> None:
    package = json.loads((ROOT / "guest_sdk/assemblyscript/package.json").read_text())
    assert (package["version"], package["license"]) == (_PROJECT["version"], "Apache-2.0")


def test_changelog_starts_with_the_projects_version() -> None:
    first = next(
        line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")
    )
    assert first.startswith(f"## {_PROJECT['version']}")


@pytest.mark.parametrize("folder", ["guest_sdk/rust", "guest_sdk/assemblyscript"])
def test_sdk_that_projects_copy_brings_its_licence(folder: str) -> None:
    assert (ROOT / folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
