"""Long simulations of the scheduler, run by the compiled modules in a process of their own.

The tests' own process imports the sources (`symphony_kernel.compiled`), which take twice as long.
"""

import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from symphony_kernel.compiled.library import library_path
from symphony_kernel.platform.build_cache import LibraryUnavailable

from tests.support.server.server import REPOSITORY

_CHILD = """
import gc
import json
import sys
from importlib import import_module
from pathlib import Path

from symphony_kernel.compiled.loading import use_library

library, module, name, given = sys.argv[1:]
use_library(Path(library))
import tests.conftest
from symphony_kernel.scheduler.scheduler import Scheduler

assert hasattr(Scheduler, "__mypyc_attrs__")
test = getattr(import_module(module), name).__wrapped__
gc.freeze()
test(**json.loads(given))
"""


def by_compiled_modules(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test of JSON-like parameters by compiled modules, or by the sources without them."""

    @wraps(test, updated=())  # not Hypothesis' own attributes: the child is the one that draws
    def run(**given: Any) -> None:
        try:
            library, there = library_path()
        except LibraryUnavailable:
            there = False
        if not there:
            test(**given)
            return
        command = [sys.executable, "-W", "error", "-c", _CHILD, str(library), test.__module__,
                   test.__name__, json.dumps(given)]  # fmt: skip
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    run.__dict__["__signature__"] = inspect.signature(test)
    return run
