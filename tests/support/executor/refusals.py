"""Copies of the tiny model to change, and servers that refuse to start with a model."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from symphony_kernel import tiny_model

TINY = Path(tiny_model.__file__).parent / "weights"
SECONDS_MAX = 30.0  # other tests may use the processors
MEMORY_KIB_MAX = 1 << 20

Check = Callable[[Path], str]  # of a model; the sentence that refuses it, or ""

# A small process measures: a child's peak memory begins with that of the process that started it.
_MEASURED = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


def linked_model(folder: Path) -> Path:
    """Make a folder with links to the tiny model's files."""
    folder.mkdir()
    for path in TINY.iterdir():
        (folder / path.name).symlink_to(path)
    return folder


def fresh(path: Path) -> Path:
    """Return the path of a file after removing it: writing to a link would change the model."""
    path.unlink(missing_ok=True)
    return path


def refused_server(
    folder: Path, model: Path | str, *options: str, group: Path | None = None
) -> tuple[list[str], int]:
    """Start a server that must refuse its model in one line.

    Return the lines of its standard error, the refusal last, and the most memory that a process of
    it used, in KiB. The server enters the cgroup `group` first.
    """
    command = [
        sys.executable, "-m", "symphony_runtime.cli", "serve", "--data-dir", str(folder / "data"),
        "--port", "0", "--model", str(model), *options,
    ]  # fmt: skip
    if group is not None:
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *command]
    kept = {k: v for k, v in os.environ.items() if not k.startswith("SYMPHONY_")}
    environment = kept | {"XDG_STATE_HOME": str(folder / "state")}
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *command], env=environment, capture_output=True,
        text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("kernel does not start: ")
    return lines, int(json.loads(done.stdout))
