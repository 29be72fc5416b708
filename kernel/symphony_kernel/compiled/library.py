"""The list of compiled modules, and the path of their library."""

import os
import sysconfig
from pathlib import Path

from symphony_kernel.platform.build_cache import LibraryUnavailable, name_of, place_of

PACKAGE = "symphony_kernel"
SOURCES = Path(__file__).parents[1]
GROUP = "symphony_compiled"  # mypyc's name for modules that call each other directly
_PACKAGES = (
    "fairness", "kvfs", "kvfs/lineage", "kvfs/pages", "kvfs/tiers", "processes", "protocol",
    "scheduler", "syscalls",
)  # fmt: skip
# Modules of these packages that are not on a pred's path: start, end, disk, reports.
# Their classes may not inherit from classes of compiled modules.
_INTERPRETED = (
    "kvfs/lineage/packing", "kvfs/lineage/planning", "kvfs/page_view", "kvfs/prefix_view",
    "kvfs/tiers/base", "kvfs/tiers/config", "kvfs/tiers/disk_file", "kvfs/tiers/disk_tier",
    "protocol/chat_templates", "protocol/errno", "protocol/heartbeat", "protocol/limit_table",
    "protocol/limits", "protocol/messages", "syscalls/adapters", "syscalls/durable_names",
    "syscalls/file_requests", "syscalls/views",
)  # fmt: skip
# Modules of other packages that are on each token's path.
_COMPILED = (
    "executor/base", "ipc/peers", "journal/hooks", "journal/recorder", "journal/seeds",
    "journal/snapshot", "kernel", "request",
)  # fmt: skip


def compiled_modules() -> dict[str, Path]:
    """Return the source files of all compiled modules, by module name."""
    found = {}
    for package in _PACKAGES:
        for path in sorted((SOURCES / package).glob("*.py")):
            name = path.relative_to(SOURCES).with_suffix("").as_posix()
            if path.name != "__init__.py" and name not in _INTERPRETED:
                found[f"{PACKAGE}.{name.replace('/', '.')}"] = path
    for name in _COMPILED:
        found[f"{PACKAGE}.{name.replace('/', '.')}"] = SOURCES / f"{name}.py"
    return found


def library_path() -> tuple[Path, bool]:
    """Return the path of these sources' library, and whether it exists.

    Raises LibraryUnavailable: SYMPHONY_COMPILED=0 is set, or there is no cache directory.
    """
    if os.environ.get("SYMPHONY_COMPILED") == "0":
        raise LibraryUnavailable("SYMPHONY_COMPILED=0 is set")
    return place_of(f"modules-{_key()}.so")


def _key() -> str:
    parts = [str(sysconfig.get_config_var("SOABI")).encode()]  # Python's version and the machine
    for path in sorted(SOURCES.rglob("*.py")):
        parts += [path.relative_to(SOURCES).as_posix().encode(), path.read_bytes()]
    return name_of(*parts)
