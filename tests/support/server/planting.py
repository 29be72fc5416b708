"""Changes that a test plants in a real server's processes, whose own code has no switch for them.

The server gets `PYTHONPATH` with a `sitecustomize` that executes a test's source in the processes
of one module, before that module.
"""

from collections.abc import Mapping
from pathlib import Path

_HOOK = """
import sys

for _module in sys.orig_argv[2:3]:
    exec({sources!r}.get(_module, ""))
"""


def plant(folder: Path, sources: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a server whose `python -m MODULE` begin with `sources[MODULE]`."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_HOOK.format(sources=dict(sources)))
    return {"PYTHONPATH": str(folder)}
