"""Compile every LIP below examples/: `python tools/build_examples.py [FOLDER ...]`."""

import sys
from pathlib import Path

from symphony_runtime.cli.projects import ProjectError, build

ROOT = Path(__file__).resolve().parents[1]


def projects() -> list[Path]:
    """Return the folders below examples/ that are projects, sorted."""
    marks = ("Cargo.toml", "asconfig.json")
    found = {mark.parent for name in marks for mark in (ROOT / "examples").rglob(name)}
    made = {"node_modules", "target", "build"}
    return sorted(path for path in found if not made & set(path.relative_to(ROOT).parts))


def main(folders: list[str]) -> int:
    """Build the named folders, or all; say the size of each."""
    for folder in [Path(name).resolve() for name in folders] or projects():
        try:
            wasm = build(folder)
        except ProjectError as error:
            sys.stderr.write(f"{folder.name}: {error}\n")
            return 1
        sys.stdout.write(f"   {wasm.name:24} {wasm.stat().st_size / 1024:6.1f} KB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
