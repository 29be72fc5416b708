"""Resource limits are lowered and never raised."""

import json
import resource
import subprocess
import sys

import pytest


def limits_after(program: str, kinds: tuple[int, ...]) -> list[tuple[int, int]]:
    """Run a program in a process of its own and return the limits that it has then."""
    shown = f"print(json.dumps([resource.getrlimit(kind) for kind in {kinds}]))"
    done = subprocess.run(
        [sys.executable, "-c", f"import json, resource\n{program}\n{shown}"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    return [(soft, hard) for soft, hard in json.loads(done.stdout)]


def test_limit_is_set_unless_it_is_lower_already() -> None:
    program = (
        "from symphony_kernel.platform.rlimits import lower_limit\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (3, 20))\n"
        "lower_limit(resource.RLIMIT_CPU, 10, 30)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (50, 50))\n"
        "lower_limit(resource.RLIMIT_NOFILE, 60)\n"
        "lower_limit(resource.RLIMIT_CORE, 0)"
    )
    kinds = (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
    assert limits_after(program, kinds) == [(10, 20), (50, 50), (0, 0)]


@pytest.mark.parametrize(
    "limiting",
    [
        "from symphony_kernel.grammar.checker import _limit_process; _limit_process()",
        "from symphony_runtime.compiler.child import limit_process; limit_process()",
    ],
    ids=["of a grammar", "of a program"],
)
def test_compilers_keep_limits_that_are_lower_already(limiting: str) -> None:
    program = (
        f"{limiting.split(';')[0]}\n"
        # The child has all of its second; a slow import may take more than that.
        "import os\n"
        "if os.fork(): os._exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20))\n"
        f"{limiting.split(';')[1].strip()}"
    )
    kinds = (resource.RLIMIT_CPU, resource.RLIMIT_AS)
    assert limits_after(program, kinds) == [(1, 1), (900 << 20, 900 << 20)]
