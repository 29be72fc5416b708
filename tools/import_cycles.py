"""Find files that import each other in a circle: `python tools/import_cycles.py [FOLDER ...]`.

An import counts wherever it stands: in a function or under TYPE_CHECKING, too. Each circle is
printed with the imports that make it, and there may be none. Without arguments the packages of the
client, the kernel and the runtime are read; FOLDER is a package's.
"""

import sys
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = tuple(
    ROOT / folder / package
    for folder, package in (
        ("client", "symphony"),
        ("kernel", "symphony_kernel"),
        ("runtime", "symphony_runtime"),
    )
)
Graph = dict[str, set[str]]  # modules, and which modules each one imports


def read_graph(packages: list[Path]) -> Graph:
    """Return the modules of these packages, and which of them each one imports."""
    sys.path[:0] = [str(package.parent) for package in packages]
    found = grimp.build_graph(*(package.name for package in packages), cache_dir=None)
    return {name: found.find_modules_directly_imported_by(name) for name in found.modules}


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
    graph = read_graph([Path(folder) for folder in folders] or [*PACKAGES])
    found = circles(graph)
    for circle in found:
        sys.stdout.write(f"{len(circle)} modules import each other:\n")
        for name in circle:
            for other in sorted(graph[name] & set(circle)):
                sys.stdout.write(f"    {name} -> {other}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
