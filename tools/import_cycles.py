"""Find files that import each other in a circle: `python tools/import_cycles.py [FOLDER ...]`.

An import counts wherever it stands: in a function or under TYPE_CHECKING, too. Each circle is
printed with the imports that make it, and there may be none. Without arguments the packages of the
kernel and the runtime are read; FOLDER is a package's.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (ROOT / "kernel" / "symphony_kernel", ROOT / "runtime" / "symphony_runtime")
Graph = dict[str, set[str]]  # modules, and which modules each one imports


def read_modules(packages: Iterator[Path]) -> dict[str, Path]:
    """Return all modules of these packages, by their names."""
    found = {}
    for package in packages:
        for path in sorted(package.rglob("*.py")):
            parts = [package.name, *path.relative_to(package).with_suffix("").parts]
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imported(path: Path) -> Iterator[str]:
    """Yield each name that a file imports, with the module that it comes from before it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def read_graph(modules: dict[str, Path]) -> Graph:
    """Return which of these modules each one imports."""
    graph: Graph = {}
    for name, path in modules.items():
        found = set()
        for other in imported(path):
            module = other if other in modules else other.rpartition(".")[0]
            found |= {module} & modules.keys() - {name}
        graph[name] = found
    return graph


def circles(graph: Graph) -> list[list[str]]:
    """Return the sets of modules that reach each other, sorted."""
    reached = {name: reach(graph, name) for name in graph}
    found = {
        tuple(sorted(other for other in others if name in reached[other]))
        for name, others in reached.items()
        if name in others
    }
    return sorted(map(list, found))


def reach(graph: Graph, name: str) -> set[str]:
    """Return the modules that a module imports, directly or through others."""
    reached: set[str] = set()
    left = [name]
    while left:
        new = graph[left.pop()] - reached
        reached |= new
        left += new
    return reached


def main(folders: list[str]) -> int:
    """Print the circles; 1 if there are any."""
    graph = read_graph(read_modules(map(Path, folders) if folders else iter(PACKAGES)))
    found = circles(graph)
    for circle in found:
        sys.stdout.write(f"{len(circle)} modules import each other:\n")
        for name in circle:
            for other in sorted(graph[name] & set(circle)):
                sys.stdout.write(f"    {name} -> {other}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
